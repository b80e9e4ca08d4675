//! Epochs of a node whose servers are slow, refuse them or lose them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::world::{Answers, EpochHash};
use super::*;
use tidegate_redis::{Agreed, Numbers};

const SECOND: Duration = Duration::from_secs(1);
/// What servers have at first: the text of changes, and a number.
const FIELDS: [(&str, &str); 2] = [("", "text"), ("users", "1")];

/// The program of a node: the numbers that it has in force.
#[derive(Clone, Default)]
struct InForce(Arc<Mutex<BTreeMap<String, String>>>);

impl InForce {
    fn with(field: &str, number: &str) -> Self {
        let own = Self::default();
        own.agree(&vec![(field.to_owned(), number.to_owned())]);
        own
    }

    fn agree(&self, theirs: &Numbers) -> Agreed {
        let mut own = self.0.lock().expect("no panic");
        for (field, number) in theirs {
            let known = own.entry(field.clone()).or_default();
            *known = number.max(known).clone();
        }
        let has = |own: &(String, String)| theirs.iter().any(|it| it.0 == own.0 && it.1 >= own.1);
        let missing = own.clone().into_iter().filter(|own| !has(own)).collect();
        Agreed { missing, trouble: None }
    }

    fn all(&self) -> Numbers {
        self.0.lock().expect("no panic").clone().into_iter().collect()
    }
}

/// Two servers have the same fields.
fn both_begin(world: &World) {
    ["redis", "second"].iter().for_each(|host| world.epochs(host, |hash| *hash = EpochHash::with(&FIELDS)));
}

/// The number that a server has.
fn users_at(world: &World, host: &str) -> Option<String> {
    world.epochs(host, |hash| hash.get("users").map(str::to_owned))
}

/// A node that reads the epochs of these servers, with so many connections to each. It has read them all.
async fn following(
    node: &Node,
    (main, per_second): (&str, Option<&str>),
    connections: usize,
    own: &InForce,
) -> Arc<SharedStore<Node>> {
    let single = |host: &str| Servers::Single(Address::Tcp(host.to_owned(), 1));
    following_all(node, single(main), per_second.map(single), connections, own).await
}

/// The same with servers of any kind.
async fn following_all(
    node: &Node,
    main: Servers,
    per_second: Option<Servers>,
    connections: usize,
    own: &InForce,
) -> Arc<SharedStore<Node>> {
    let redis = |kind| {
        let options = RedisOptions { follows_epochs: true, workers: connections, ..RedisOptions::new(kind) };
        RedisStore::on(node.clone(), options)
    };
    let store = store_over(node, redis(main), 1_000_000, per_second.map(redis), local_options());
    for worker in 0..connections {
        node.set_worker(worker);
        store.attach();
    }
    let (followed, own) = (Arc::clone(&store), own.clone());
    node.spawn(async move {
        let agree = |theirs, _| std::future::ready(Some(own.agree(&theirs)));
        match followed.follow_epochs(agree).await {}
    });
    node.sleep(SECOND).await;
    assert!(store.has_read_epochs());
    store
}

/// The same with a Cluster of two servers, one of which has two ranges of slots.
async fn following_cluster(node: &Node, own: &InForce) -> Arc<SharedStore<Node>> {
    let cluster = Servers::Cluster(vec![Address::Tcp("redis".to_owned(), 1)]);
    following_all(node, cluster, None, 1, own).await
}

/// The node may be cut off from the server, and counters may be reset meanwhile.
#[test]
fn epochs_that_are_not_read_in_time_stop_every_connection_to_their_server() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        let (store, rules) = (following(&node, ("redis", None), 3, &InForce::default()).await, rules());
        let decides = async || {
            let mut decides = Vec::new();
            for worker in 0..3 {
                node.set_worker(worker);
                let since = clock.now();
                ask(&store, &rules, "a", 0).await;
                decides.push(clock.now() > since);
            }
            decides
        };
        assert_eq!(decides().await, [true; 3]);
        clock.epochs("redis", |hash| hash.answers = Answers::Nothing);
        // They are asked for within a quarter of a second, and waited for a second.
        node.sleep(Duration::from_millis(1_300)).await;
        assert_eq!(decides().await, [false; 3]);
        clock.epochs("redis", |hash| hash.answers = Answers::All);
        node.sleep(5 * SECOND).await;
        assert_eq!(decides().await, [true; 3]);
    });
}

/// A reply that waited for the node, while it stood still, says nothing of what was reset meanwhile.
#[test]
fn epochs_that_were_asked_for_before_the_node_stood_still_let_nothing_decide() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        let (store, rules) = (following(&node, ("redis", None), 1, &InForce::default()).await, rules());
        let decides = async || {
            let since = clock.now();
            ask(&store, &rules, "a", 0).await;
            clock.now() > since
        };
        assert!(decides().await);
        let since = clock.now();
        clock.epochs("redis", |hash| hash.stands_still = 10 * SECOND);
        node.sleep(SECOND).await;
        assert!(clock.now() > since + 10 * SECOND, "it stood still");
        assert!(!decides().await);
        node.sleep(SECOND).await;
        assert!(decides().await);
    });
}

/// A slot moves to a server at which counters may have been reset meanwhile.
#[test]
fn a_redirect_leads_to_no_server_whose_epochs_were_not_read() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        both_begin(&clock);
        let (store, rules) = (following_cluster(&node, &InForce::default()).await, rules());
        let asked = async || {
            let since = clock.now();
            for user in ["a", "b", "c", "d"] {
                ask(&store, &rules, user, 0).await;
            }
            let asked = |host| clock.primaries(|it| it.asked.iter().any(|it| it.0 == host && it.1 > since));
            ["redis", "second"].map(asked)
        };
        assert_eq!(asked().await, [true, true]);
        clock.epochs("second", |hash| hash.answers = Answers::Nothing);
        node.sleep(2 * SECOND).await;
        assert_eq!(asked().await, [true, false]);
        clock.primaries(|primaries| primaries.redirects = Some(("redis".to_owned(), "ASK")));
        assert_eq!(asked().await, [true, false]);
        clock.epochs("second", |hash| hash.answers = Answers::All);
        node.sleep(5 * SECOND).await;
        assert_eq!(asked().await, [true, true]);
    });
}

/// Whether a server that has these fields, and answers so for a second, gets the node's number within `wait` after that.
fn is_written_later(
    fields: &'static [(&'static str, &'static str)],
    answers: Answers,
    wait: Duration,
) -> bool {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        clock.epochs("redis", |hash| *hash = EpochHash { answers, ..EpochHash::with(fields) });
        let store = following(&node, ("redis", None), 1, &InForce::with("users", "2")).await;
        let has_it = || clock.epochs("redis", |hash| hash.get("users") == Some("2"));
        assert!(!has_it());
        assert_eq!(store.epoch_troubles().len(), 1, "it is reported");
        clock.epochs("redis", |hash| hash.answers = Answers::All);
        node.sleep(wait).await;
        has_it() && store.epoch_troubles().is_empty()
    })
}

#[test]
fn epochs_that_a_server_refuses_are_written_until_it_has_them() {
    let older = &[("", "text"), ("users", "1")];
    assert!(is_written_later(older, Answers::Reads, SECOND));
    assert!(is_written_later(&[], Answers::Reads, SECOND), "it has none");
    assert!(is_written_later(older, Answers::Behind, 61 * SECOND));
}

/// All numbers may be many, and a server without memory may stay so for hours.
#[test]
fn a_server_that_refuses_epochs_has_no_other_read_in_full() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        clock.epochs("redis", |hash| *hash = EpochHash::with(&[("", "text"), ("users", "2")]));
        let older = EpochHash::with(&[("", "text"), ("users", "1")]);
        clock.epochs("second", |hash| *hash = EpochHash { answers: Answers::Reads, ..older });
        following(&node, ("redis", Some("second")), 1, &InForce::default()).await;
        let full_reads = || ["redis", "second"].map(|host| clock.epochs(host, |hash| hash.full_reads));
        let before = full_reads();
        node.sleep(10 * SECOND).await;
        let after = full_reads();
        assert_eq!(after[0], before[0]);
        assert!(after[1] > before[1] + 30, "it is tried again: {before:?} {after:?}");
    });
}

/// The texts of changes are those of before: nothing else shows that a number is missing.
#[test]
fn a_server_that_did_not_answer_gets_the_reset_later() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        both_begin(&clock);
        let own = InForce::default();
        let store = following(&node, ("redis", Some("second")), 1, &own).await;
        clock.epochs("second", |hash| hash.answers = Answers::Nothing);
        let reset = vec![("users".to_owned(), "2".to_owned())];
        let raised = store.raise_epochs(&reset, &|| own.all()).await;
        assert_eq!((raised.kept, raised.missing.len()), (1, 1), "{raised:?}");
        own.agree(&reset);
        node.sleep(5 * SECOND).await;
        let second =
            || clock.epochs("second", |hash| ["", "users"].map(|it| hash.get(it).map(str::to_owned)));
        assert_eq!(second(), ["text", "1"].map(|it| Some(it.to_owned())));
        clock.epochs("second", |hash| hash.answers = Answers::All);
        node.sleep(5 * SECOND).await;
        assert_eq!(second()[1].as_deref(), Some("2"));
    });
}

#[test]
fn a_reset_is_written_once_to_a_server_of_several_ranges() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        both_begin(&clock);
        let own = InForce::default();
        let store = following_cluster(&node, &own).await;
        let raised = store.raise_epochs(&vec![("users".to_owned(), "2".to_owned())], &|| own.all()).await;
        assert_eq!((raised.kept, raised.missing.len()), (2, 0), "{raised:?}");
    });
}

/// As after a failover to a replica that did not have it yet.
#[test]
fn a_server_that_loses_a_reset_before_it_is_read_gets_it_again() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        clock.epochs("redis", |hash| *hash = EpochHash::with(&FIELDS));
        let own = InForce::default();
        let store = following(&node, ("redis", None), 1, &own).await;
        let reset = vec![("users".to_owned(), "2".to_owned())];
        let raised = store.raise_epochs(&reset, &|| own.all()).await;
        clock.epochs("redis", |hash| *hash = EpochHash::with(&FIELDS));
        assert_eq!(raised.kept, 1, "{raised:?}");
        assert_eq!(own.all()[0].1, "1", "it was not read meanwhile");
        own.agree(&reset);
        node.sleep(SECOND).await;
        assert_eq!(users_at(&clock, "redis").as_deref(), Some("2"));
    });
}

/// The node that wrote it may have ended before it reached all servers.
#[test]
fn a_reset_that_one_server_shows_is_written_to_the_others() {
    let world = Arc::new(World::default());
    let (node, clock) = (Node::new(&world, 7, Duration::ZERO), Arc::clone(&world));
    world.run(async move {
        both_begin(&clock);
        following(&node, ("redis", Some("second")), 1, &InForce::default()).await;
        clock.epochs("second", |hash| *hash = EpochHash::with(&[("", "new"), ("users", "2")]));
        node.sleep(SECOND).await;
        assert_eq!(users_at(&clock, "redis").as_deref(), Some("2"));
    });
}
