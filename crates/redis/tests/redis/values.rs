//! Values that are not counters: they are set, read in order and removed, and changes are noticed, on one server and in
//! a Cluster. A map in memory says what is expected.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_redis::address::{Address, Servers};
use tidegate_redis::values::{Followed, MissingStream, Values};
use tidegate_redis::{ConnectError, RedisOptions, RedisStore};

use crate::server::{Server, cluster};

type Expected = BTreeMap<Vec<u8>, Vec<u8>>;

/// Connected values in servers of this kind.
async fn connected(kind: Servers) -> Values {
    let values = Values::new(RedisStore::new(RedisOptions::new(kind).without_counters()), "test");
    values.store().attach();
    for _ in 0..1_000 {
        if values.end().await.is_ok() {
            return values;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no connection");
}

fn address(server: &Server) -> Address {
    Address::Tcp("127.0.0.1".to_owned(), server.port)
}

/// Changes these keys to these values in both.
async fn change(values: &Values, expected: &mut Expected, changes: &[(&[u8], Option<&[u8]>)]) {
    let there = changes.iter().filter(|(key, _)| expected.contains_key(*key)).count();
    assert_eq!(values.change(changes).await, Ok(there), "{changes:?}");
    for (key, value) in changes {
        match value {
            Some(value) => expected.insert(key.to_vec(), value.to_vec()),
            None => expected.remove(*key),
        };
    }
}

/// Everything that is there, two keys a page.
async fn pages(values: &Values, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut all, mut after) = (Vec::new(), None::<Vec<u8>>);
    loop {
        let read = |key: &[u8], value: &[u8]| Some((key.to_vec(), value.to_vec()));
        let page = values.page(prefix, after.as_deref(), 2, read).await.expect("an answer");
        let Some((last, _)) = page.last() else { return all };
        after = Some(last.clone());
        all.extend(page);
    }
}

async fn behaves(kind: Servers) {
    let values = connected(kind).await;
    let (mut expected, began) = (Expected::new(), values.end().await.expect("an answer"));
    assert_eq!(values.get(b"a").await, Ok(None));
    let hostile: &[u8] = b"\xff\xff {a}\0*[?]";
    change(
        &values,
        &mut expected,
        &[(b"a\0", Some(b"1")), (b"a\0b", Some(b"\0\xff")), (hostile, Some(b"3"))],
    )
    .await;
    change(&values, &mut expected, &[(b"a\0", None), (b"b", Some(b"4")), (b"nothing", None)]).await;
    change(&values, &mut expected, &[(b"b", Some(b"5")), (b"\xff", Some(b"6")), (b"c", Some(b"7"))]).await;
    for (key, value) in &expected {
        assert_eq!(values.get(key).await.as_ref(), Ok(&Some(value.clone())), "{key:?}");
    }
    for prefix in [&b""[..], b"a", b"a\0", b"\xff", b"\xff\xff", b"zzz"] {
        let below = expected.iter().filter(|(key, _)| key.starts_with(prefix));
        let below: Vec<_> = below.map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(pages(&values, prefix).await, below, "{prefix:?}");
    }
    let after_itself = values.page(b"b", Some(b"b"), 2, |key, _| Some(key.to_vec())).await;
    assert_eq!(after_itself, Ok(Vec::new()), "a page goes on behind the key that is its prefix");
    let changes = values.changes(&began).await.expect("an answer");
    let names =
        [b"a\0", &b"a\0b"[..], hostile, b"a\0", b"b", b"nothing", b"b", b"\xff", b"c"].map(<[u8]>::to_vec);
    assert_eq!(changes.keys, Some(names.to_vec()));
    let now = changes.position;
    assert_eq!(values.changes(&now).await.expect("an answer").keys, Some(Vec::new()));
    change(&values, &mut expected, &[(b"b", None), (hostile, Some(b"9"))]).await;
    let changes = values.changes(&now).await.expect("an answer");
    assert_eq!(changes.keys, Some(vec![b"b".to_vec(), hostile.to_vec()]));
    let now = changes.position;
    assert_eq!(values.changes(&now).await.expect("an answer").position, now);

    let exchange = async |before, after| values.exchange(hostile, before, after).await.expect("an answer");
    assert!(!exchange(None, Some(b"x")).await && !exchange(Some(b"8"), None).await);
    assert_eq!(values.changes(&now).await.expect("an answer").keys, Some(Vec::new()));
    assert!(exchange(Some(b"9"), Some(b"\0\xff")).await && !exchange(Some(b"9"), None).await);
    assert_eq!(values.get(hostile).await, Ok(Some(b"\0\xff".to_vec())));
    assert!(exchange(Some(b"\0\xff"), None).await && exchange(None, Some(b"9")).await);
    assert_eq!(values.changes(&now).await.expect("an answer").keys, Some(vec![hostile.to_vec(); 3]));
    let all: Vec<_> = expected.into_iter().collect();
    assert_eq!(pages(&values, b"").await, all);
}

#[tokio::test]
async fn values_are_set_listed_and_heard_of_on_one_server() {
    for server in [Server::start(&[]), Server::valkey()] {
        behaves(Servers::Single(address(&server))).await;
    }
}

#[tokio::test]
async fn values_are_set_listed_and_heard_of_in_a_cluster() {
    let servers = cluster("redis-server");
    behaves(Servers::Cluster(servers.iter().map(address).collect())).await;
}

/// Whoever reads all pages takes one that is not full for the last.
#[tokio::test]
async fn a_key_that_is_gone_or_not_read_ends_no_page() {
    let server = Server::start(&[]);
    let values = connected(Servers::Single(address(&server))).await;
    let all = [b"a", b"b", b"c", b"d", b"e", b"f"];
    values.change(&all.map(|key| (&key[..], Some(&b"1"[..])))).await.expect("written");
    redis::cmd("DEL").arg("test:k:b").exec(&mut server.connect()).expect("it is done");
    let read = |key: &[u8], _: &[u8]| (key != b"d").then(|| key.to_vec());
    let page = values.page(b"", None, 3, read).await.expect("an answer");
    assert_eq!(page, [b"a", b"c", b"e"]);
    let rest = values.page(b"", Some(b"e"), 3, read).await.expect("an answer");
    assert_eq!(rest, [b"f"]);
}

/// More changes than are read at once, a stream that was cut, and one that nobody has begun.
#[tokio::test]
async fn changes_are_followed_from_call_to_call() {
    let server = Server::start(&[]);
    let kind = || Servers::Single(address(&server));
    let values = connected(kind()).await;
    let delete = |key: &str| redis::cmd("DEL").arg(key).exec(&mut server.connect()).expect("it is done");
    delete("test:changes");
    let all = async |missing| {
        let mut all = Vec::new();
        values.follow(missing, |part| all.push(part)).await.map(|()| all)
    };
    for _ in 0..2 {
        assert_eq!(all(MissingStream::Await).await, Ok(vec![Followed::Begun]), "there is no stream");
    }
    assert_eq!(all(MissingStream::Create).await, Ok(vec![Followed::Begun]), "it is created");
    assert_eq!(all(MissingStream::Await).await, Ok(vec![Followed::Keys(vec![])]));
    let names: Vec<_> = (0..2_500_u32).map(|number| number.to_be_bytes().to_vec()).collect();
    for name in &names {
        values.change(&[(name, Some(b"1"))]).await.expect("written");
    }
    let parts = all(MissingStream::Create).await.expect("an answer");
    let keys = parts.iter().flat_map(|part| match part {
        Followed::Keys(keys) => keys.clone(),
        other => panic!("{other:?}"),
    });
    assert!(keys.eq(names) && parts.len() > 2, "{} parts", parts.len());
    delete("test:changes");
    assert_eq!(all(MissingStream::Create).await, Ok(vec![Followed::Missed]));
    assert_eq!(all(MissingStream::Create).await, Ok(vec![Followed::Keys(vec![])]));
}

/// A value may have been read before its entry in the stream, and both be lost then.
#[tokio::test]
async fn after_a_new_connection_any_key_may_have_changed() {
    let server = Server::start(&[]);
    let values = connected(Servers::Single(address(&server))).await;
    let followed = async || {
        let mut all = Vec::new();
        values.follow(MissingStream::Create, |part| all.push(part)).await.map(|()| all)
    };
    assert_eq!(followed().await, Ok(vec![Followed::Begun]));
    values.change(&[(b"a", Some(b"1"))]).await.expect("written");
    assert_eq!(followed().await, Ok(vec![Followed::Keys(vec![b"a".to_vec()]), Followed::Keys(vec![])]));
    let opened = || values.store().stats().connections_opened.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(opened(), 1);
    let kill = &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    redis::cmd(kill[0]).arg(&kill[1..]).exec(&mut server.connect()).expect("it is done");
    while opened() == 1 {
        let _ = values.get(b"a").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    values.change(&[(b"b", Some(b"1"))]).await.expect("written");
    assert_eq!(followed().await, Ok(vec![Followed::Reconnected]));
    assert_eq!(followed().await, Ok(vec![Followed::Keys(vec![])]), "b is none of the news any more");
}

/// What was read on it meanwhile may be older than these changes.
#[tokio::test]
async fn a_connection_that_is_opened_while_changes_are_read_is_new_to_the_next_call() {
    let server = Server::start(&[]);
    let values = connected(Servers::Single(address(&server))).await;
    let opened = &values.store().stats().connections_opened;
    let followed = async |opens: u64| {
        let mut all = Vec::new();
        let take = |part| {
            opened.fetch_add(opens, std::sync::atomic::Ordering::Relaxed);
            all.push(part);
        };
        values.follow(MissingStream::Create, take).await.map(|()| all)
    };
    assert_eq!(followed(0).await, Ok(vec![Followed::Begun]));
    assert_eq!(followed(1).await, Ok(vec![Followed::Keys(vec![])]));
    assert_eq!(followed(0).await, Ok(vec![Followed::Reconnected]));
    assert_eq!(followed(0).await, Ok(vec![Followed::Keys(vec![])]));
}

/// In a Cluster a change is several commands: for the value, for the index, and for the stream.
#[tokio::test]
async fn a_change_that_was_not_announced_is_announced_later() {
    let servers = cluster("redis-server");
    let values = connected(Servers::Cluster(servers.iter().map(address).collect())).await;
    // The server that has the key answers.
    let command = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        servers.iter().find_map(|server| command.query::<redis::Value>(&mut server.connect()).ok())
    };
    let is_listed = || {
        let answer = command(&["ZRANGE", "test:index", "0", "-1"]).expect("one has it");
        redis::from_redis_value::<Vec<String>>(answer).expect("names") == ["a"]
    };
    values.change(&[(b"a", Some(b"1"))]).await.expect("written");
    let since = values.end().await.expect("an answer");
    command(&["ZREM", "test:index", "a"]);
    assert!(!is_listed());
    values.announce_again(b"a", true).await.expect("an answer");
    assert!(is_listed());
    values.announce_again(b"a", false).await.expect("an answer");
    assert!(is_listed(), "another node has set it again");
    command(&["DEL", "test:k:a"]);
    values.announce_again(b"a", false).await.expect("an answer");
    assert!(!is_listed());
    let changes = values.changes(&since).await.expect("an answer");
    assert_eq!(changes.keys, Some(vec![b"a".to_vec(); 3]));
}

/// A stream that was cut, a server that lost everything, and one that started empty: what was missed is noticed.
#[tokio::test]
async fn missed_changes_are_noticed() {
    let server = Server::start(&[]);
    let values = connected(Servers::Single(address(&server))).await;
    let put = async |key: &[u8]| values.change(&[(key, Some(b"1"))]).await.expect("written");
    let since = async |position| values.changes(position).await.expect("an answer");
    put(b"a").await;
    let old = values.end().await.expect("an answer");
    put(b"b").await;
    put(b"c").await;
    assert_eq!(since(&old).await.keys, Some(vec![b"b".to_vec(), b"c".to_vec()]));
    let command = |words: &[&str]| {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).exec(&mut server.connect()).expect("it is done");
    };
    command(&["XTRIM", "test:changes", "MAXLEN", "1"]);
    let cut = since(&old).await;
    assert_eq!(cut.keys, None, "the stream was cut");
    assert_eq!(since(&cut.position).await.keys, Some(Vec::new()));
    command(&["FLUSHALL"]);
    let lost = since(&cut.position).await;
    assert_eq!(lost.keys, None, "everything is gone");
    put(b"d").await;
    assert_eq!(since(&lost.position).await.keys, Some(vec![b"d".to_vec()]));
    put(b"e").await;
    let newest = values.end().await.expect("an answer");
    command(&["FLUSHALL"]);
    put(b"f").await;
    assert_eq!(since(&newest).await.keys, None, "it lost everything, and has changed since");
}

/// Its clock was set back, or all of that happened within a millisecond.
#[tokio::test]
async fn another_change_with_the_id_of_the_last_one_shows_that_changes_were_lost() {
    let server = Server::start(&[]);
    let values = connected(Servers::Single(address(&server))).await;
    let announce = |key: &str| {
        for words in [&["DEL", "test:changes"][..], &["XADD", "test:changes", "7-1", "k", key]] {
            redis::cmd(words[0]).arg(&words[1..]).exec(&mut server.connect()).expect("it is done");
        }
    };
    announce("a");
    let last = values.end().await.expect("an answer");
    assert_eq!(values.changes(&last).await.expect("an answer").keys, Some(Vec::new()));
    announce("b");
    assert_eq!(values.changes(&last).await.expect("an answer").keys, None);
}

/// What is in force would otherwise be missing from the list.
#[tokio::test]
async fn in_a_cluster_a_key_that_cannot_be_listed_gets_no_value() {
    let servers = cluster("redis-server");
    let values = connected(Servers::Cluster(servers.iter().map(address).collect())).await;
    let mut index = redis::cmd("SET");
    index.arg("test:index").arg("of another program");
    let is_done = |server: &Server| index.exec(&mut server.connect()).is_ok();
    assert_eq!(servers.iter().filter(|server| is_done(server)).count(), 1);
    values.exchange(b"a", None, Some(b"1")).await.expect_err("the index is none");
    assert_eq!(values.get(b"a").await, Ok(None));
}

#[tokio::test]
async fn nobody_waits_for_a_server_that_is_not_there() {
    let kind = Servers::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
    let values = Values::new(RedisStore::new(RedisOptions::new(kind).without_counters()), "test");
    assert_eq!(values.get(b"a").await, Err(ConnectError::NoConnection));
}

/// Whoever begins to follow, or has a new connection, forgets all keys. One that changes at that very time is in the stream.
#[tokio::test]
async fn what_changes_while_all_keys_are_forgotten_is_read_from_the_stream() {
    let server = Server::start(&[]);
    let values = connected(Servers::Single(address(&server))).await;
    let mut other = server.connect();
    let mut announce = redis::cmd("XADD");
    announce.arg("test:changes").arg("*").arg("k").arg("late");
    for expected in [Followed::Begun, Followed::Reconnected] {
        let forget = |found| {
            assert_eq!(found, expected);
            announce.exec(&mut other).expect("Redis answers");
        };
        values.follow(MissingStream::Create, forget).await.expect("an answer");
        let mut changed = Vec::new();
        let hear = |found| {
            if let Followed::Keys(keys) = found {
                changed.extend(keys)
            }
        };
        values.follow(MissingStream::Create, hear).await.expect("an answer");
        assert_eq!(changed, [b"late"]);
        values.store().stats().connections_opened.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}
