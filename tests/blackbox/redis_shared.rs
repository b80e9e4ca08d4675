//! Several nodes, one limit: what is counted in Redis, and what happens when Redis does not answer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tonic::Code;

use crate::harness::grpc::{Client, OK, OVER_LIMIT, ask_only, question};
use crate::harness::lateness::Lateness;
use crate::harness::load::drive;
use crate::harness::redis::{Redis, cluster};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{StopOnDrop, eventually, eventually_true, http};

/// Windows far longer than a test.
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 300}}
  - {key: log, rate_limit: {unit: day, requests_per_unit: 300, algorithm: sliding_log}}
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: fails, rate_limit: {unit: day, requests_per_unit: 5, on_store_failure: error}}
  - {key: denies, rate_limit: {unit: day, requests_per_unit: 5, on_store_failure: deny}}
  - {key: allows, rate_limit: {unit: day, requests_per_unit: 5, on_store_failure: allow}}
  - {key: alone, rate_limit: {unit: day, requests_per_unit: 5, on_store_failure: local}}
";

fn setup(url: &str) -> Setup {
    // A busy machine is not what is tested.
    Setup::new().rules("shop.yaml", RULES).env("REDIS_URL", url).env("REDIS_TIMEOUT", "10s")
}

/// How many of `calls` questions pass.
fn passed(client: &Client, key: &str, calls: usize) -> usize {
    (0..calls).filter(|_| client.ask(question("shop", &[&[(key, "x")]])).overall_code == OK).count()
}

fn remaining(client: &Client, key: &str) -> u32 {
    client.ask(ask_only("shop", &[&[(key, "x")]])).statuses[0].limit_remaining
}

/// What one call comes to.
fn answer(client: &Client, key: &str) -> Result<i32, Code> {
    let answer = client.call(question("shop", &[&[(key, "x")]]));
    answer.map(|answer| answer.overall_code).map_err(|status| status.code())
}

#[test]
fn two_nodes_admit_exactly_the_limit() {
    Redis::and_valkey().iter().for_each(admits_exactly_the_limit);
}

fn admits_exactly_the_limit(redis: &Redis) {
    let nodes = [setup(&redis.url()).start(), setup(&redis.url()).start()];
    for key in ["user", "log"] {
        let passed: usize = std::thread::scope(|scope| {
            let ask = |node: &Tidegate| {
                let client = node.client();
                scope.spawn(move || passed(&client, key, 100))
            };
            let asking: Vec<_> = nodes.iter().flat_map(|node| [ask(node), ask(node), ask(node)]).collect();
            asking.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(passed, 300, "{key}");
        assert_eq!(remaining(&nodes[0].client(), key), 0);
    }
    for key in redis.ask::<Vec<String>>(&["KEYS", "*"]) {
        assert!(redis.ask::<i64>(&["PTTL", &key]) > 0, "{key} lives for ever");
    }
}

/// Six algorithms, windows that end while they are looked at, leases, refunds: whenever a key is seen, it has an end.
#[test]
fn every_key_expires_at_all_times() {
    let redis = Redis::start(&[]);
    let algorithm = |name| {
        format!(
            "\n  - {{key: {name}, rate_limit: {{unit: second, requests_per_unit: 50, algorithm: {name}}}}}"
        )
    };
    let rules = "domain: brief\ndescriptors:".to_owned() + &ALGORITHMS.map(algorithm).concat();
    let node = setup(&redis.url()).rules("brief.yaml", &rules).env("REDIS_SYNC", "leased").start();
    let (ports, done) = ([node.ports().grpc], AtomicBool::new(false));
    let seen = std::thread::scope(|scope| {
        let looking = scope.spawn(|| look_at_keys(&redis, &done));
        let _done = StopOnDrop(&done);
        for round in 0..30 {
            let value = format!("value{round}");
            let mut all = question(
                "brief",
                &ALGORITHMS.map(|name| [(name, value.as_str())]).each_ref().map(|it| &it[..]),
            );
            assert_eq!(drive(&ports, &all, 300).lost, 0);
            all.descriptors.iter_mut().for_each(|descriptor| descriptor.is_negative_hits = true);
            assert_eq!(drive(&ports, &all, 30).lost, 0);
        }
        done.store(true, Relaxed);
        looking.join().expect("every key has an end")
    });
    assert!(seen > 1_000, "{seen} keys were seen");
    eventually_true("all of them to be gone", || redis.ask::<Vec<String>>(&["KEYS", "brief|*"]).is_empty());
}

const ALGORITHMS: [&str; 6] = [
    "sliding_window",
    "sliding_log",
    "sliding_window_weighted",
    "fixed_window",
    "token_bucket",
    "leaky_bucket",
];

/// Looks at all keys until it has to stop; how many it saw.
fn look_at_keys(redis: &Redis, done: &AtomicBool) -> usize {
    let (mut connection, mut cursor, mut seen) = (redis.connect(), 0, 0);
    while !done.load(Relaxed) {
        let mut scan = redis::cmd("SCAN");
        let keys: (u64, Vec<String>) = scan.arg(cursor).query(&mut connection).expect("it answers");
        cursor = keys.0;
        for key in keys.1 {
            let lives: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).expect("it answers");
            assert_ne!(lives, -1, "{key} lives for ever");
            seen += 1;
        }
    }
    seen
}

#[test]
fn slots_of_a_cluster_charge_all_or_nothing() {
    let servers = cluster();
    let setup = setup(&format!("{},{}", servers[0].url(), servers[1].url())).env("REDIS_TYPE", "cluster");
    let (node, mut keys) = (setup.start(), Vec::new());
    let client = node.client();
    let both = question("shop", &[&[("user", "x")], &[("one", "x")], &[("log", "x")]]);
    let passed = (0..30).filter(|_| client.ask(both.clone()).overall_code == OK).count();
    assert_eq!(passed, 1);
    eventually_true("what was denied to be given back", || {
        remaining(&client, "user") == 299 && remaining(&client, "log") == 299
    });
    for server in &servers {
        keys.push(server.ask::<Vec<String>>(&["KEYS", "shop*"]).len());
    }
    assert_eq!(keys.iter().sum::<usize>(), 3, "a key a counter: {keys:?}");
    assert!(keys.iter().filter(|&&count| count > 0).count() > 1, "they should be in several slots: {keys:?}");
}

/// Calls that come together share a command, but while their slot moves one counter is here and another one there.
#[test]
fn in_a_slot_that_moves_to_another_server_every_counter_is_found() {
    let servers = cluster();
    let setup = setup(&servers[0].url()).env("REDIS_TYPE", "cluster").env("WORKER_THREADS", "1");
    let node = setup.start();
    let client = node.client();
    // Spread wide: a checksum like that of slots keeps apart what differs little.
    let name = |number: u32| format!("{:08x}", number.wrapping_mul(2_654_435_761));
    let users: Vec<String> = (0..600).map(name).collect();
    let ask = |user: &str| client.ask(question("shop", &[&[("user", user)]])).overall_code == OK;
    assert!(users.iter().all(|user| ask(user)));
    let (from, slot, [(stays, _), (moved, moved_key)]) = two_of_one_slot(&servers, &users);
    let to = &servers[(from + 1) % servers.len()];
    let id = |server: &Redis| server.ask::<String>(&["CLUSTER", "MYID"]);
    to.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(&servers[from])]);
    servers[from].ask::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    servers[from].ask::<()>(&["DEL", &moved_key]);
    let passed: Vec<(usize, usize)> = std::thread::scope(|scope| {
        let both = || {
            (0..40).fold((0, 0), |(one, other), _| {
                (one + usize::from(ask(stays)), other + usize::from(ask(moved)))
            })
        };
        let asking: Vec<_> = (0..16).map(|_| scope.spawn(both)).collect();
        asking.into_iter().map(|thread| thread.join().expect("every call is answered")).collect()
    });
    let total = passed.iter().fold((0, 0), |total, passed| (total.0 + passed.0, total.1 + passed.1));
    assert_eq!(total, (299, 300), "one was asked before; the other one starts from 0 where it is now");
    assert_eq!(to.ask::<u64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot]), 1);
}

/// A server, a slot of it, and two users whose counters are there, with their keys.
fn two_of_one_slot<'u>(servers: &[Redis], users: &'u [String]) -> (usize, String, [(&'u str, String); 2]) {
    let mut slots = BTreeMap::<(usize, u16), Vec<(&str, String)>>::new();
    for (at, server) in servers.iter().enumerate() {
        for key in server.ask::<Vec<String>>(&["KEYS", "shop*"]) {
            let slot = server.ask(&["CLUSTER", "KEYSLOT", &key]);
            let user = users.iter().find(|user| key.contains(*user)).expect("a key contains its user");
            slots.entry((at, slot)).or_default().push((user.as_str(), key));
        }
    }
    let (&(at, slot), _) = slots.iter().find(|(_, users)| users.len() == 2).expect("some share a slot");
    let [one, other] = <[_; 2]>::try_from(slots.remove(&(at, slot)).expect("it is there")).expect("two");
    (at, slot.to_string(), [one, other])
}

#[test]
fn a_server_that_lost_its_scripts_is_sent_them_again() {
    for redis in Redis::and_valkey() {
        let node = setup(&redis.url()).start();
        let client = node.client();
        assert_eq!(passed(&client, "user", 1), 1);
        redis.ask::<()>(&["SCRIPT", "FLUSH"]);
        assert_eq!(passed(&client, "user", 2), 2);
        assert_eq!(remaining(&client, "user"), 297);
    }
}

#[test]
fn a_stopped_server_costs_no_more_than_the_budget_and_changes_nothing_when_it_wakes() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).env("REDIS_TIMEOUT", "1s").start();
    let client = node.client();
    assert_eq!(passed(&client, "user", 10), 10);
    redis.stop();
    let (began, watched) = (Instant::now(), Lateness::watch());
    for _ in 0..20 {
        let asked = Instant::now();
        assert_eq!(answer(&client, "user"), Err(Code::Unavailable));
        let (took, late) = (asked.elapsed(), watched.allowance());
        assert!(took < Duration::from_secs(3) + late, "{took:?}, the machine is {late:?} late");
    }
    let (took, late) = (began.elapsed(), watched.allowance());
    assert!(took < Duration::from_secs(8) + late, "a breaker opens: {took:?}, the machine is {late:?} late");
    redis.wake();
    eventually_true("Redis to be asked again", || answer(&client, "one").is_ok());
    assert_eq!(remaining(&client, "user"), 290, "what came too late did nothing");
    assert!((1..=2).contains(&node.lines_with("does not answer")), "a line a change, not a line a request");
}

#[test]
fn every_mode_answers_as_it_says_and_a_server_that_comes_back_is_used() {
    let mut redis = Redis::start(&[]);
    let node = setup(&redis.url()).env("REDIS_FAILURE_MODE", "allow").start();
    let client = node.client();
    // A loss can be seen by a node that has seen what was there.
    eventually_true("its generation", || {
        redis.ask::<Vec<String>>(&["KEYS", "tidegate:generation"]).len() == 1
    });
    assert_eq!(passed(&client, "user", 1), 1);
    redis.kill();
    eventually_true("the loss to be seen", || answer(&client, "fails") == Err(Code::Unavailable));
    assert_eq!(answer(&client, "denies"), Ok(OVER_LIMIT));
    let alone: Vec<_> = (0..6).map(|_| answer(&client, "alone")).collect();
    assert_eq!(alone, [Ok(OK), Ok(OK), Ok(OK), Ok(OK), Ok(OK), Ok(OVER_LIMIT)]);
    assert!((0..10).all(|_| answer(&client, "allows") == Ok(OK) && answer(&client, "user") == Ok(OK)));
    let mixed = question("shop", &[&[("allows", "x")], &[("denies", "x")]]);
    assert_eq!(client.ask(mixed).overall_code, OVER_LIMIT);
    let mixed = question("shop", &[&[("allows", "x")], &[("fails", "x")]]);
    assert_eq!(client.call(mixed).expect_err("one says error").code(), Code::Unavailable);
    redis.restart();
    eventually_true("Redis to be asked again", || answer(&client, "fails") == Ok(OK));
    eventually_true("the loss of its data to be logged", || node.lines_with("has lost its data") == 1);
}

#[test]
fn what_a_node_admitted_alone_counts_when_redis_is_back() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).env("REDIS_FAILURE_MODE", "local").env("REDIS_TIMEOUT", "1s").start();
    let client = node.client();
    assert_eq!(passed(&client, "user", 10) + passed(&client, "log", 10), 20);
    redis.stop();
    assert_eq!(passed(&client, "user", 7) + passed(&client, "log", 7), 14);
    redis.wake();
    eventually_true("Redis to count again", || {
        // Only a request reaches Redis; while it is away, the node answers with what it knows alone.
        remaining(&client, "user") == 283 && remaining(&client, "log") == 283
    });
}

#[test]
fn a_node_without_its_redis_is_not_ready_until_it_comes() {
    let redis = Redis::start(&[]);
    let port = redis.port;
    drop(redis);
    let setup = setup(&format!("127.0.0.1:{port}")).env("REDIS_STARTUP_INITIAL_INTERVAL", "50ms");
    let process = setup.spawn();
    let ready = || http::get(setup.ports.http, "/readyz").map_or(0, |answer| answer.status);
    eventually_true("the node to say that it is not ready", || ready() == 500);
    let _redis = Redis::start_on(port, &[]);
    eventually_true("the node to be ready", || ready() == 200);
    assert_eq!(process.lines_with("panicked"), 0);
}

#[test]
fn a_wrong_password_is_named_by_its_setting_and_tried_again() {
    let redis = Redis::start(&[]);
    redis.ask::<()>(&["CONFIG", "SET", "requirepass", "right"]);
    let setup = setup(&redis.url())
        .env("REDIS_AUTH", "hunter2")
        .env("REDIS_STARTUP_INITIAL_INTERVAL", "50ms")
        .env("REDIS_STARTUP_MAX_INTERVAL", "200ms");
    let process = setup.spawn();
    eventually_true("the password to be logged", || process.lines_with("REDIS_AUTH") > 0);
    // Its port may be open a moment later.
    let ready = eventually("the port of probes", || http::get(setup.ports.http, "/readyz").ok());
    assert_eq!(ready.status, 500, "{}", ready.body);
    let client = redis::Client::open(format!("redis://:right@127.0.0.1:{}", redis.port)).expect("a URL");
    let mut connection = client.get_connection().expect("the right password");
    redis::cmd("CONFIG").arg(&["SET", "requirepass", "hunter2"]).exec(&mut connection).expect("it is set");
    eventually_true("the node to be ready", || {
        http::get(setup.ports.http, "/readyz").is_ok_and(|answer| answer.status == 200)
    });
    assert_eq!(process.lines_with("hunter2"), 0);
}

#[test]
fn a_wrong_url_ends_the_start_without_telling_its_password() {
    let mut process = setup("redis://:hunter2@nowhere").spawn();
    assert_eq!(process.exit_code(), 64);
    assert!(process.lines_with("REDIS_URL") > 0);
    assert_eq!(process.lines_with("hunter2"), 0);
}

#[test]
fn what_is_over_is_answered_without_redis() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000").start();
    let client = node.client();
    assert_eq!(passed(&client, "one", 2), 1);
    let before = node.metric("tidegate_redis_round_trips_total");
    assert_eq!(passed(&client, "one", 20), 0);
    let scrape = node.scrape();
    assert_eq!(scrape.sum("tidegate_redis_round_trips_total", &[]), before);
    let name = "ratelimit_service_rate_limit_over_limit_with_local_cache";
    assert_eq!(scrape.sum(name, &[]), 20.0);
    assert_eq!(scrape.sum("ratelimit_service_rate_limit_over_limit", &[]), 21.0);
    assert!(redis.ask::<String>(&["PING"]) == "PONG");
}
