//! Resets with real servers of Redis: one of them is away, slots move, a node stood still or was cut off, and somebody
//! wrote into the key of resets.

use rustix::process::Signal;
use serde_json::{Value, json};
use tonic::Code;

use crate::admin::TOKEN;
use crate::admin_resets::reset;
use crate::harness::faulty::{Faulty, Wire};
use crate::harness::grpc::{Client, OK, question};
use crate::harness::http;
use crate::harness::redis::{Redis, cluster};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually, eventually_true};

const N: usize = 3;
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 3, on_store_failure: error}}
  - {key: quick, rate_limit: {unit: second, unit_multiplier: 86400, requests_per_unit: 3, on_store_failure: error}}
";

fn setup(url: &str) -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    // A node that starts is ready although a server is away.
    let setup = setup.env("REDIS_FAILURE_MODE", "deny");
    // As long as a busy machine needs: servers that are away cost each node a few such times.
    setup.env("REDIS_URL", url).env("REDIS_TIMEOUT", "1s")
}

fn of_cluster(servers: &[Redis]) -> Setup {
    let url: Vec<String> = servers.iter().map(Redis::url).collect();
    setup(&url.join(",")).env("REDIS_TYPE", "cluster")
}

/// Three servers, of which two serve when the third is away.
fn partial_cluster() -> Vec<Redis> {
    let servers = cluster();
    servers.iter().for_each(|it| it.ask::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]));
    servers
}

/// It goes on, and all of them know it.
fn wake(servers: &[Redis], away: usize) {
    servers[away].wake();
    eventually_true("the cluster to be whole", || {
        servers.iter().all(|server| {
            let state = server.ask::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
            state && !server.ask::<String>(&["CLUSTER", "NODES"]).contains("fail")
        })
    });
}

fn answer(client: &Client, key: &str, value: &str) -> Result<bool, Code> {
    let answer = client.call(question("shop", &[&[(key, value)]]));
    answer.map(|answer| answer.overall_code == OK).map_err(|status| status.code())
}

/// How many of five hits pass.
fn passed(client: &Client, key: &str, value: &str) -> usize {
    (0..5).filter(|_| answer(client, key, value) == Ok(true)).count()
}

/// Asks until there is an answer.
fn decided(client: &Client, key: &str, value: &str) -> bool {
    eventually("a decision", || answer(client, key, value).ok())
}

fn spread(number: u32) -> String {
    format!("{:08x}", number.wrapping_mul(2_654_435_761))
}

/// A node that has charged one hit to each of these counters, has received a reset, and has charged all N since.
/// Returns it with the answer to the reset.
fn spent(setup: Setup, key: &str, values: &[String]) -> (Tidegate, Value) {
    let node = setup.start();
    let client = node.client();
    values.iter().for_each(|value| assert!(decided(&client, key, value)));
    let (status, done) = reset(&node, &json!([{"key": key}]), &json!({}));
    assert_eq!((status, &done["done"]), (200, &json!("reset")), "{done}");
    values.iter().for_each(|value| assert_eq!(passed(&client, key, value), N, "{value}"));
    (node, done)
}

/// The keys of resets that a server has.
fn keys(server: &Redis) -> Vec<String> {
    server.ask(&["KEYS", "tidegate:epochs*"])
}

/// A node that starts now admits nothing more of these counters, and a new counter of every server but `away`.
fn starts_right(servers: &[Redis], away: Option<usize>, values: &[String]) {
    let node = of_cluster(servers).start();
    let client = node.client();
    let admitted: Vec<_> =
        values.iter().filter(|value| (0..N).any(|_| answer(&client, "user", value) == Ok(true))).collect();
    assert!(admitted.is_empty(), "with {away:?} away: {admitted:?}");
    let mut asked = 0;
    // Twelve new counters: of each server some.
    let mut served = || {
        asked += 1;
        let value = |number| format!("{}-{asked}-{}", node.ports().grpc, spread(number));
        (0..12).filter(|&number| answer(&client, "user", &value(number)) == Ok(true)).count()
    };
    let all = if away.is_some() { 3 } else { 12 };
    eventually_true("new counters to be served", || served() >= all);
}

#[test]
fn with_any_server_away_the_others_decide_after_the_reset_at_a_node_that_starts_too() {
    let servers = partial_cluster();
    let values: Vec<String> = (0..12).map(spread).collect();
    let (node, _) = spent(of_cluster(&servers), "user", &values);
    assert!(servers.iter().all(|server| keys(server).len() == 1), "each server has all resets");
    for away in 0..servers.len() {
        servers[away].stop();
        let client = node.client();
        values.iter().for_each(|value| assert_ne!(answer(&client, "user", value), Ok(true)));
        starts_right(&servers, Some(away), &values);
        wake(&servers, away);
        eventually_true("all servers to decide again", || {
            values.iter().all(|value| answer(&client, "user", value) == Ok(false))
        });
    }
    // Nobody is there who knows of the reset, but the servers.
    drop(node);
    starts_right(&servers, None, &values);
}

#[test]
fn a_reset_names_the_servers_that_lack_it_and_is_finished_by_sending_it_again() {
    let servers = partial_cluster();
    let values: Vec<String> = (0..12).map(spread).collect();
    let node = of_cluster(&servers).start();
    let client = node.client();
    values.iter().for_each(|value| assert_eq!((0..5).filter(|_| decided(&client, "user", value)).count(), N));
    servers[1].stop();
    let (status, done) = reset(&node, &json!([{"key": "user"}]), &json!({"id": "0000000000000007"}));
    let error = done["error"].as_str().unwrap_or_default();
    let expected = "the reset 0000000000000007 is in force, and not kept by all servers";
    assert!(status == 503 && error.starts_with(expected), "{status} {done}");
    assert!(error.contains(&servers[1].url()) && !error.contains(&servers[0].url()), "{done}");
    let begun = values.iter().filter(|value| passed(&client, "user", value) == N).count();
    assert!((1..values.len()).contains(&begun), "{begun} counters of the servers that answer");
    wake(&servers, 1);
    let again = || reset(&node, &json!([{"key": "user"}]), &json!({"id": "0000000000000007"}));
    eventually_true("it to be kept by all", || again().0 == 200);
    assert_eq!(again().1["done"], "unchanged");
    assert!(servers.iter().all(|server| keys(server).len() == 1));
    let hits = |value: &String| (0..5).filter(|_| decided(&client, "user", value)).count();
    let more: usize = values.iter().map(hits).sum();
    assert_eq!(more, (values.len() - begun) * N);
}

/// Moves a slot with its keys.
fn move_slot(servers: &[Redis], slot: &str, (from, to): (usize, usize)) {
    let ids: Vec<String> = servers.iter().map(|server| server.ask(&["CLUSTER", "MYID"])).collect();
    servers[to].ask::<()>(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &ids[from]]);
    servers[from].ask::<()>(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &ids[to]]);
    for key in servers[from].ask::<Vec<String>>(&["CLUSTER", "GETKEYSINSLOT", slot, "1000"]) {
        let port = servers[to].port.to_string();
        servers[from].ask::<()>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
    }
    for at in [to, from, 3 - to - from] {
        servers[at].ask::<()>(&["CLUSTER", "SETSLOT", slot, "NODE", &ids[to]]);
    }
}

#[test]
fn while_the_slots_of_resets_move_no_node_decides_in_the_epoch_before() {
    let servers = partial_cluster();
    let values: Vec<String> = (0..12).map(spread).collect();
    let (node, _) = spent(of_cluster(&servers), "user", &values);
    let client = node.client();
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        for key in keys(&servers[from]) {
            let slot = servers[from].ask::<u64>(&["CLUSTER", "KEYSLOT", &key]).to_string();
            let id: String = servers[to].ask(&["CLUSTER", "MYID"]);
            // Half of the move: the key is there still, and then not any more.
            servers[from].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id]);
            starts_right(&servers, None, &values);
            servers[from].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
            move_slot(&servers, &slot, (from, to));
            values.iter().for_each(|value| assert_ne!(answer(&client, "user", value), Ok(true)));
        }
        starts_right(&servers, None, &values);
        eventually_true("another key", || !keys(&servers[from]).is_empty());
        servers[to].stop();
        starts_right(&servers, Some(to), &values);
        wake(&servers, to);
        eventually_true("all servers", || {
            values.iter().all(|value| answer(&client, "user", value) == Ok(false))
        });
    }
}

#[test]
fn the_redis_of_limits_per_second_has_all_resets_too() {
    let (main, quick) = (Redis::start(&[]), Redis::start(&[]));
    let setup = || setup(&main.url()).env("REDIS_PERSECOND", "true").env("REDIS_PERSECOND_URL", &quick.url());
    let values = [spread(1)];
    let (node, _) = spent(setup(), "quick", &values);
    main.stop();
    let next = setup().start();
    let client = next.client();
    assert_eq!(passed(&client, "quick", &values[0]), 0);
    assert!(decided(&client, "quick", "new"), "it decides by itself");
    main.wake();
    assert!(decided(&client, "user", "new"));
    // A server that lost everything gets it from the other.
    drop(node);
    quick.ask::<()>(&["FLUSHALL"]);
    assert!(decided(&setup().start().client(), "quick", &values[0]));
    assert_eq!(quick.ask::<u64>(&["HLEN", "tidegate:epochs"]), 2);
}

#[test]
fn a_node_that_stood_still_or_was_cut_off_reads_resets_before_it_decides_again() {
    let redis = Redis::start(&[]);
    let wire = Faulty::to(redis.port);
    let (still, cut) = (setup(&redis.url()).start(), setup(&format!("127.0.0.1:{}", wire.port)).start());
    let clients = [still.client(), cut.client()];
    clients.iter().for_each(|client| assert!(decided(client, "user", "a")));
    still.signal(Signal::STOP);
    wire.become_(Wire::Slow(std::time::Duration::from_secs(2)));
    let (node, _) = spent(setup(&redis.url()), "user", &["a".to_owned()]);
    std::thread::scope(|scope| {
        // Sent before it goes on, so that it is there first.
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(|| answer(&still.client(), "user", "a"))).collect();
        std::thread::sleep(std::time::Duration::from_secs(6));
        still.signal(Signal::CONT);
        let answers: Vec<_> = asked.into_iter().map(|asked| asked.join().expect("an answer")).collect();
        assert!(!answers.contains(&Ok(true)), "{answers:?}");
    });
    wire.become_(Wire::Good);
    clients.iter().for_each(|client| {
        assert!(!decided(client, "user", "a"));
        assert_eq!(passed(client, "user", "a"), 0);
    });
    drop(node);
}

#[test]
fn what_somebody_wrote_into_the_key_of_resets_is_shown_and_blocks_nothing() {
    let redis = Redis::start(&[]);
    let user = json!({"domain": "shop", "entries": [{"key": "user"}]}).to_string();
    let planted = [("", "x"), (user.as_str(), "ffffffffffffffff"), ("junk", "7")];
    planted.iter().for_each(|(field, text)| redis.ask::<()>(&["HSET", "tidegate:epochs", field, text]));
    let node = setup(&redis.url()).start();
    let client = node.client();
    assert!(decided(&client, "user", "a"), "it is no reason for the fallback");
    let troubles = |node: &Tidegate| node.metric("tidegate_redis_reset_troubles");
    eventually_true("the trouble", || troubles(&node) == 1.0);
    eventually_true("it to be logged", || {
        node.lines_with("2 are ignored, because they cannot be read or are more than an hour ahead") > 0
    });
    for _ in 0..2 {
        let (status, done) = reset(&node, &json!([{"key": "user"}]), &json!({}));
        assert_eq!((status, &done["done"]), (200, &json!("reset")), "{done}");
        assert_eq!(passed(&client, "user", "a"), N);
    }
    redis.ask::<()>(&["HDEL", "tidegate:epochs", "junk"]);
    let (status, _) = reset(&node, &json!([{"key": "quick"}]), &json!({}));
    assert_eq!(status, 200);
    eventually_true("no trouble", || troubles(&node) == 0.0);

    redis.ask::<()>(&["DEL", "tidegate:epochs"]);
    redis.ask::<()>(&["SET", "tidegate:epochs", "x"]);
    eventually_true("the trouble", || troubles(&node) == 1.0);
    assert_eq!(passed(&client, "user", "a"), 0, "in the epoch that it knows");
    let (status, done) = reset(&node, &json!([{"key": "user"}]), &json!({}));
    let error = done["error"].as_str().unwrap_or_default();
    assert!(status == 503 && error.starts_with("not done") && error.contains("WRONGTYPE"), "{done}");
    let page = http::Client::new(node.ports().debug).send("GET", "/status", &[("host", "localhost")], "");
    let page: Value = serde_json::from_str(&page.expect("an answer").body).expect("JSON");
    assert!(
        page["troubles"].to_string().contains("Resets of counters in Redis: 127.0.0.1"),
        "{}",
        page["troubles"]
    );
    assert!(decided(&setup(&redis.url()).start().client(), "user", "b"));

    redis.ask::<()>(&["DEL", "tidegate:epochs"]);
    eventually_true("it to be written again", || troubles(&node) == 0.0);
    redis.ask::<()>(&["ACL", "SETUSER", "default", "-hget"]);
    eventually_true("the trouble", || troubles(&node) == 1.0);
    assert_eq!(passed(&client, "user", "c"), N);
    eventually_true("it to be logged", || node.lines_with("NoPerm") > 0);
}

/// Whatever stands in the key while a node runs, and whatever it may do with it: that node decides on by the counters of
/// Redis, and its trouble ends with the cause.
#[test]
fn no_junk_in_the_key_of_resets_makes_a_running_node_fall_back() {
    let redis = Redis::start(&[]);
    let (node, _) = spent(setup(&redis.url()), "user", &["a".to_owned()]);
    let client = node.client();
    let troubles = || node.metric("tidegate_redis_reset_troubles");
    let other_types: [&[&str]; 4] = [
        &["SET", "junk", "x"],
        &["LPUSH", "junk", "x"],
        &["SADD", "junk", "x"],
        &["XADD", "junk", "*", "x", "y"],
    ];
    let fields: [&[&str]; 3] = [
        &["HSET", "tidegate:epochs", "", "x", "junk", "7"],
        &["HSET", "tidegate:epochs", "", "y", "\n\u{7f}", "not a number"],
        &["HSET", "tidegate:epochs", "", "z", "{\"domain\":\"shop\",\"entries\":[]}", "ffffffffffffffff"],
    ];
    let rights: [&[&str]; 3] = [
        &["ACL", "SETUSER", "default", "-hget"],
        &["ACL", "SETUSER", "default", "-hgetall"],
        &["ACL", "SETUSER", "default", "resetkeys", "~shop*", "~tidegate:[^e]*"],
    ];
    let mut asked = 0;
    for junk in other_types.into_iter().chain(fields).chain(rights) {
        redis.ask::<()>(junk);
        match junk[1] {
            // At once, for the node writes a key that is gone.
            "junk" => redis.ask::<()>(&["RENAME", "junk", "tidegate:epochs"]),
            // Else there is no reason to read all fields.
            "SETUSER" if junk.contains(&"-hgetall") => redis.ask::<()>(&["HSET", "tidegate:epochs", "", "w"]),
            _ => {}
        }
        let mut decides = || {
            asked += 1;
            assert_eq!(passed(&client, "user", &format!("b{asked}")), N, "{junk:?}");
            assert_eq!(answer(&client, "user", "a"), Ok(false), "in the epoch that it knows: {junk:?}");
        };
        eventually_true("the trouble", || {
            decides();
            troubles() == 1.0
        });
        (0..20).for_each(|_| decides());
        redis.ask::<()>(&["ACL", "SETUSER", "default", "allkeys", "+@all"]);
        redis.ask::<()>(&["DEL", "tidegate:epochs"]);
        eventually_true("no trouble", || {
            decides();
            troubles() == 0.0
        });
    }
}

#[test]
fn the_single_key_of_older_versions_is_taken_over_by_all_servers() {
    let servers = partial_cluster();
    let values: Vec<String> = (0..12).map(spread).collect();
    let node = of_cluster(&servers).start();
    values.iter().for_each(|value| assert!(decided(&node.client(), "user", value)));
    drop(node);
    let slot: u64 = servers[0].ask(&["CLUSTER", "KEYSLOT", "tidegate:epochs"]);
    let holder = (slot / 5_461).min(2) as usize;
    let user = json!({"domain": "shop", "entries": [{"key": "user"}]}).to_string();
    for server in &servers {
        keys(server).iter().for_each(|key| server.ask::<()>(&["DEL", key]));
    }
    let old: [&str; 6] = ["HSET", "tidegate:epochs", "", "x", &user, "0000000000000007"];
    servers[holder].ask::<()>(&old);
    // Nobody knows of it while its server is away: the others do not decide.
    servers[holder].stop();
    let early = of_cluster(&servers).start();
    let client = early.client();
    let admitted = values.iter().filter(|value| answer(&client, "user", value) == Ok(true)).count();
    assert_eq!(admitted, 0, "in the epoch before");
    servers[holder].wake();
    let more: usize =
        values.iter().map(|value| (0..5).filter(|_| decided(&client, "user", value)).count()).sum();
    assert_eq!(more, values.len() * N, "in the epoch of the old key");
    assert!(servers.iter().all(|server| keys(server).len() == 1));
}
