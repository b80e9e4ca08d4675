//! What is owed when things end or come back: hits that were admitted alone, leases at the end of a node or of Redis'
//! memory, calls that come late, writes that replicas have to have, servers of a Cluster that forget.

use std::cell::RefCell;
use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tonic::Code;

use crate::harness::eventually_true;
use crate::harness::faulty::{Faulty, Wire};
use crate::harness::grpc::{Client, OK, OVER_LIMIT, ask_only, question};
use crate::harness::lateness::Lateness;
use crate::harness::redis::{Redis, cluster, cluster_behind};
use crate::harness::tidegate::{Setup, Tidegate, binary};

/// Windows far longer than a test.
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 20}}
  - {key: many, rate_limit: {unit: day, requests_per_unit: 10000}}
  - {key: fails, rate_limit: {unit: day, requests_per_unit: 100000, on_store_failure: error}}
";

fn setup(url: &str) -> Setup {
    // A busy machine is not what is tested.
    Setup::new().rules("shop.yaml", RULES).env("REDIS_URL", url).env("REDIS_TIMEOUT", "10s")
}

fn answer(client: &Client, key: &str, value: &str) -> Result<i32, Code> {
    let answer = client.call(question("shop", &[&[(key, value)]]));
    answer.map(|answer| answer.overall_code).map_err(|status| status.code())
}

fn passed(client: &Client, key: &str, value: &str, calls: usize) -> usize {
    (0..calls).filter(|_| answer(client, key, value) == Ok(OK)).count()
}

fn remaining(client: &Client, key: &str, value: &str) -> u32 {
    client.ask(ask_only("shop", &[&[(key, value)]])).statuses[0].limit_remaining
}

/// Every worker asks Redis again.
fn wait_for_redis(clients: &[Client]) {
    eventually_true("Redis to be asked by all", || {
        clients.iter().all(|client| (0..3).all(|_| answer(client, "fails", "x") == Ok(OK)))
    });
}

#[test]
fn nobody_overtakes_the_call_that_tells_redis_what_was_admitted_alone() {
    let redis = Redis::start(&[]);
    let wire = Faulty::to(redis.port);
    let node = setup(&format!("127.0.0.1:{}", wire.port))
        .env("REDIS_FAILURE_MODE", "local")
        .env("REDIS_TIMEOUT", "1s")
        .env("WORKER_THREADS", "4")
        .start();
    let clients: Vec<Client> = (0..12).map(|_| node.client()).collect();
    wait_for_redis(&clients);
    redis.stop();
    eventually_true("the loss to be seen", || answer(&clients[0], "fails", "x").is_err());
    let values: Vec<String> = (0..12).map(|value| value.to_string()).collect();
    values.iter().for_each(|value| assert_eq!(passed(&clients[0], "user", value, 21), 20));
    redis.wake();
    wait_for_redis(&clients);
    // Whatever overtakes has time to do so.
    wire.become_(Wire::Slow(Duration::from_millis(20)));
    for value in &values {
        let together = Barrier::new(clients.len());
        let more: usize = std::thread::scope(|scope| {
            let ask = |client| {
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    passed(client, "user", value, 2)
                })
            };
            let asking: Vec<_> = clients.iter().map(ask).collect();
            asking.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(more, 0, "all 20 of {value} were admitted before");
    }
}

/// A cost was spent, whatever is answered without Redis. Another node finds it when the next call for the counter has
/// carried it.
#[test]
fn what_was_reported_while_redis_was_away_counts_when_it_is_back() {
    let redis = Redis::start(&[]);
    let modes = ["error", "deny", "allow", "local"];
    let rule = |mode: &str| {
        format!(
            "  - {{key: {mode}, rate_limit: {{unit: day, requests_per_unit: 20, on_store_failure: {mode}}}}}\n"
        )
    };
    let rules = "domain: metered\ndescriptors:\n".to_owned() + &modes.map(rule).concat();
    let start = || setup(&redis.url()).rules("metered.yaml", &rules).env("REDIS_TIMEOUT", "1s").start();
    let (node, other) = (start(), start());
    let clients = [node.client(), other.client()];
    wait_for_redis(&clients);
    redis.stop();
    eventually_true("the loss to be seen", || answer(&clients[0], "fails", "x").is_err());
    for mode in modes {
        let mut cost = question("metered", &[&[(mode, "x")]]);
        cost.descriptors[0].hits_addend = Some(50);
        let shown = clients[0].call(cost).map(|answer| answer.overall_code).map_err(|status| status.code());
        let expected = match mode {
            "error" => Err(Code::Unavailable),
            "allow" => Ok(OK),
            _ => Ok(OVER_LIMIT),
        };
        assert_eq!(shown, expected, "{mode}");
    }
    redis.wake();
    wait_for_redis(&clients);
    for mode in modes {
        let ask = |client: &Client| client.ask(question("metered", &[&[(mode, "x")]]));
        assert_eq!(clients.each_ref().map(|client| ask(client).overall_code), [OVER_LIMIT; 2], "{mode}");
    }
}

#[test]
fn what_was_admitted_alone_is_charged_though_nobody_asks_that_node_again() {
    let redis = Redis::start(&[]);
    let local = setup(&redis.url()).env("REDIS_FAILURE_MODE", "local").env("REDIS_TIMEOUT", "1s");
    let (node, other) = (local.start(), setup(&redis.url()).start());
    wait_for_redis(&[node.client(), other.client()]);
    // One of the keys is somebody else's: it does not keep the others from being charged.
    assert_eq!(answer(&other.client(), "user", "theirs"), Ok(OK));
    let theirs = redis.ask::<Vec<String>>(&["KEYS", "*theirs"]).remove(0);
    redis.ask::<()>(&["DEL", &theirs]);
    redis.ask::<()>(&["HSET", &theirs, "a", "b"]);
    redis.stop();
    let client = node.client();
    // What is asked before that may be charged twice: nobody knows whether Redis has counted it.
    eventually_true("the breaker to open", || {
        answer(&client, "fails", "x").is_err() && node.metric("tidegate_redis_breaker_open") == 1.0
    });
    let values: Vec<String> = (0..100).map(|value| value.to_string()).collect();
    values.iter().for_each(|value| assert_eq!(passed(&client, "user", value, 3), 3));
    assert_eq!(passed(&client, "user", "theirs", 3), 3);
    redis.wake();
    let (woken, watched, client) = (Instant::now(), Lateness::watch(), other.client());
    eventually_true("all of it to be charged", || {
        values.iter().all(|value| remaining(&client, "user", value) == 17)
    });
    // A node tries again within a second.
    let (took, late) = (woken.elapsed(), watched.allowance());
    assert!(took < Duration::from_secs(5) + late, "{took:?}, the machine is {late:?} late");
}

#[test]
fn what_was_admitted_alone_is_charged_where_one_server_of_a_cluster_stays_away() {
    let servers = cluster();
    for server in &servers {
        server.ask::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let url = format!("127.0.0.1:{}", servers[0].port);
    let cluster = || setup(&url).env("REDIS_TYPE", "cluster").env("REDIS_TIMEOUT", "1s");
    let (node, other) = (cluster().env("REDIS_FAILURE_MODE", "local").start(), cluster().start());
    wait_for_redis(&[node.client(), other.client()]);
    let values: Vec<String> = (0..30).map(|value| value.to_string()).collect();
    let client = other.client();
    values.iter().for_each(|value| assert_eq!(answer(&client, "user", value), Ok(OK)));
    let held = |server: &Redis| {
        let keys = server.ask::<Vec<String>>(&["KEYS", "shop*"]);
        values.iter().filter(|value| keys.iter().any(|key| key.ends_with(&format!("|{value}")))).collect()
    };
    let held: Vec<Vec<&String>> = servers.iter().map(held).collect();
    assert!(held[1].len() > 3, "{held:?}");
    servers.iter().skip(1).for_each(Redis::stop);
    let client = node.client();
    held[1].iter().for_each(|value| assert_eq!(passed(&client, "user", value, 5), 5));
    servers[1].wake();
    let client = other.client();
    // That one may have found the server away, too.
    let left = |value: &str| {
        let answer = client.call(ask_only("shop", &[&[("user", value)]]));
        answer.map(|answer| answer.statuses[0].limit_remaining)
    };
    eventually_true("all of it to be charged", || {
        held[1].iter().all(|value| left(value).is_ok_and(|left| left <= 14))
    });
    servers[2].wake();
}

#[test]
fn what_was_leased_of_a_memory_that_is_lost_does_not_go_back() {
    let redis = Redis::start(&[]);
    // Buckets of 24 minutes: what is leased counts in the one of now.
    let leased = setup(&redis.url()).env("REDIS_SYNC", "leased").env("REDIS_LEASE_TIME", "30s");
    let (mut node, other) = (leased.start(), setup(&redis.url()).start());
    let client = node.client();
    eventually_true("more to be leased than spent", || {
        assert_eq!(passed(&client, "many", "x", 10), 10);
        let scrape = node.scrape();
        scrape.sum("tidegate_redis_lease_hits_taken_total", &[])
            > scrape.sum("tidegate_redis_lease_hits_spent_total", &[])
    });
    redis.ask::<()>(&["FLUSHALL"]);
    assert_eq!(passed(&other.client(), "many", "x", 500), 500);
    node.signal(Signal::TERM);
    assert_eq!(node.exit_code(), 0);
    // A lease that was asked for before the memory was lost and granted after it is not known to be there.
    let left = remaining(&other.client(), "many", "x");
    assert!((9_400..=9_500).contains(&left), "{left}");
}

#[test]
fn what_is_over_is_forgotten_when_redis_has_forgotten_it() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).env("LOCAL_CACHE_SIZE_IN_BYTES", "100000").start();
    let client = node.client();
    assert_eq!(passed(&client, "user", "x", 25), 20);
    redis.ask::<()>(&["FLUSHALL"]);
    eventually_true("it to be asked again", || answer(&client, "user", "x") == Ok(OK));
}

#[test]
fn what_may_yet_go_back_is_not_remembered_as_over_for_long() {
    let wires = RefCell::new(Vec::new());
    let servers = cluster_behind(|port| {
        wires.borrow_mut().push(Faulty::to(port));
        wires.borrow().last().expect("just put there").port
    });
    let wires = wires.into_inner();
    let url = format!("127.0.0.1:{}", wires[0].port);
    let node = || {
        let setup = setup(&url).env("REDIS_TYPE", "cluster");
        setup.env("LOCAL_CACHE_SIZE_IN_BYTES", "100000").start()
    };
    let nodes = [node(), node()];
    wait_for_redis(&nodes.each_ref().map(|node| node.client()));
    let [one, other] = nodes.each_ref().map(|node| node.client());
    let holder = |value: &str| {
        assert_eq!(answer(&other, "user", value), Ok(OK));
        let has =
            |server: &Redis| !server.ask::<Vec<String>>(&["KEYS", &format!("shop*|{value}")]).is_empty();
        servers.iter().position(has).expect("one of them has it")
    };
    let first = holder("first");
    let values = (0..100).map(|value| value.to_string());
    let (second, far) =
        values.map(|value| (holder(&value), value)).find(|it| it.0 != first).expect("another");
    assert_eq!((passed(&other, "user", "first", 18), passed(&other, "user", &far, 19)), (18, 19));
    // The last hit of the first is charged for a request that the other server denies, when it answers: long after others
    // have asked.
    wires[second].become_(Wire::Slow(Duration::from_secs(2)));
    let both = question("shop", &[&[("user", "first")], &[("user", &far)]]);
    let waiting = one.begin(tokio_stream::once(both));
    eventually_true("the charge", || remaining(&other, "user", "first") == 0);
    assert_eq!(answer(&other, "user", "first"), Ok(OVER_LIMIT), "by a hit that goes back");
    assert_eq!(one.finish(waiting).expect("there was time").overall_code, OVER_LIMIT);
    let (denied, watched) = (Instant::now(), Lateness::watch());
    eventually_true("it to be asked again", || answer(&other, "user", "first") == Ok(OK));
    let (took, late) = (denied.elapsed(), watched.allowance());
    assert!(took < Duration::from_secs(3) + late, "{took:?}, the machine is {late:?} late");
}

#[test]
fn a_call_that_comes_late_does_nothing_however_long_the_one_before_took() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).env("WORKER_THREADS", "1").start();
    let client = node.client();
    assert_eq!(answer(&client, "fails", "x"), Ok(OK));
    redis.stop();
    let waiting = client.begin(tokio_stream::once(question("shop", &[&[("fails", "x")]])));
    std::thread::sleep(Duration::from_millis(800));
    redis.wake();
    assert_eq!(client.finish(waiting).expect("there was time").overall_code, OK);
    redis.stop();
    let late = question("shop", &[&[("fails", "late")]]);
    assert!(client.call_within(Duration::from_millis(100), late).is_err());
    std::thread::sleep(Duration::from_millis(300));
    redis.wake();
    assert_eq!(remaining(&client, "fails", "late"), 100_000);
}

#[test]
fn what_leases_still_have_at_the_end_of_a_node_goes_back() {
    let redis = Redis::start(&[]);
    let leased = setup(&redis.url()).env("REDIS_SYNC", "leased").env("REDIS_LEASE_TIME", "600s");
    let mut node = leased.start();
    let (client, mut asked) = (node.client(), 0);
    // More is leased than spent: how much at a time is a matter of when renewals come.
    let unspent = |node: &Tidegate| {
        let scrape = node.scrape();
        scrape.sum("tidegate_redis_lease_hits_taken_total", &[])
            - scrape.sum("tidegate_redis_lease_hits_spent_total", &[])
    };
    while asked < 100 || asked < 1_000 && unspent(&node) == 0.0 {
        assert_eq!(passed(&client, "many", "x", 1), 1);
        asked += 1;
    }
    assert!(unspent(&node) > 0.0);
    let (other, left) = (setup(&redis.url()).start(), 10_000 - asked);
    assert!(remaining(&other.client(), "many", "x") < left);
    node.signal(Signal::TERM);
    assert_eq!(node.exit_code(), 0);
    assert_eq!(remaining(&other.client(), "many", "x"), left);
    assert_eq!(node.lines_with("unspent leased hits"), 1);
}

#[test]
fn an_admission_is_answered_when_as_many_replicas_have_it_as_have_to() {
    let master = Redis::start(&[]);
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    eventually_true("replication", || {
        replica.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up")
    });
    let waits = |replicas: &str| {
        // A replica on a busy machine acknowledges later.
        setup(&master.url()).env("REDIS_WAIT_REPLICAS", replicas).env("REDIS_TIMEOUT", "2s").start()
    };
    let (node, too_many) = (waits("1"), waits("2"));
    let client = node.client();
    eventually_true("it to be logged", || answer(&client, "user", "x") == Ok(OK));
    let key = &replica.ask::<Vec<String>>(&["KEYS", "shop*"])[0];
    assert!(replica.ask::<i64>(&["STRLEN", key]) > 0, "the replica had it before the answer");
    assert_eq!(answer(&too_many.client(), "user", "y"), Err(Code::Unavailable));
    let failures =
        |node: &Tidegate| node.scrape().sum("tidegate_redis_failures_total", &[("kind", "unreplicated")]);
    assert!(failures(&too_many) > 0.0 && failures(&node) == 0.0);
    while answer(&client, "user", "x") == Ok(OK) {}
    replica.stop();
    assert_eq!(answer(&client, "user", "z"), Err(Code::Unavailable));
    eventually_true("denials, of which replicas need to know nothing", || {
        answer(&client, "user", "x") == Ok(OVER_LIMIT)
    });
    replica.wake();
    eventually_true("admissions again", || answer(&client, "user", "a") == Ok(OK));
}

#[test]
fn a_question_of_an_operator_is_answered_by_what_all_nodes_counted() {
    let redis = Redis::start(&[]);
    let nodes = [(); 2].map(|()| setup(&redis.url()).start());
    assert_eq!(passed(&nodes[0].client(), "user", "x", 20), 20);
    let ask = |node: &Tidegate, value: &str| {
        let output = Command::new(binary())
            .args(["ask", "shop", &format!("user={value}"), "--debug-host", "127.0.0.1"])
            .args(["--debug-port", &node.ports().debug.to_string()])
            .output();
        String::from_utf8(output.expect("it runs").stdout).expect("text")
    };
    for _ in 0..3 {
        for node in &nodes {
            let shown = ask(node, "x");
            assert!(shown.starts_with("shop: 1 hit would get OVER_LIMIT; nothing was counted\n"), "{shown}");
            assert!(shown.contains("  counter   20 counted, 0 left\n"), "{shown}");
            assert!(ask(node, "nobody").contains("  counter   0 counted, 20 left\n"));
        }
    }
    assert_eq!(redis.ask::<Vec<String>>(&["KEYS", "shop*"]).len(), 1, "a question creates no counter");
    drop(redis);
    let (node, shown) = (&nodes[0], "the shared store does not answer");
    let output = Command::new(binary())
        .args(["ask", "shop", "user=x", "--debug-host", "127.0.0.1"])
        .args(["--debug-port", &node.ports().debug.to_string()])
        .output()
        .expect("it runs");
    assert!(
        !output.status.success() && String::from_utf8_lossy(&output.stderr).contains(shown),
        "{output:?}"
    );
}

#[test]
fn a_server_of_a_cluster_that_forgets_is_reported_once() {
    let servers = cluster();
    let node = setup(&servers[0].url()).env("REDIS_TYPE", "cluster").start();
    for server in &servers {
        eventually_true("its generation", || {
            server.ask::<Vec<String>>(&["KEYS", "tidegate:generation:*"]).len() == 1
        });
    }
    for (shown, server) in (1..).zip(&servers) {
        server.ask::<()>(&["FLUSHALL"]);
        eventually_true("the loss to be logged", || node.lines_with("has lost its data") == shown);
    }
    assert_eq!(node.metric("tidegate_redis_memory_lost_total"), 3.0);
}

#[test]
fn looking_for_the_servers_of_a_cluster_needs_no_further_connections() {
    let servers = cluster();
    let node = setup(&servers[0].url()).env("REDIS_TYPE", "cluster").env("WORKER_THREADS", "2").start();
    wait_for_redis(&[node.client(), node.client()]);
    let mut own: Vec<_> = servers.iter().map(Redis::connect).collect();
    let mut shown = |section: &str, name: &str| -> u64 {
        let values = own.iter_mut().map(|connection| {
            let info: String = redis::cmd("INFO").arg(section).query(connection).expect("it answers");
            let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0").to_owned();
            line.split(|char: char| !char.is_ascii_digit())
                .next()
                .and_then(|it| it.parse().ok())
                .unwrap_or(0_u64)
        });
        values.sum()
    };
    let before = shown("stats", "total_connections_received:");
    let asked = shown("commandstats", "cmdstat_cluster|slots:calls=");
    eventually_true("several looks", || shown("commandstats", "cmdstat_cluster|slots:calls=") >= asked + 6);
    assert_eq!(shown("stats", "total_connections_received:"), before);
    assert_eq!(node.metric("tidegate_redis_connections"), 6.0, "one a worker and server");
}

#[test]
fn callers_in_a_hurry_do_not_cost_others_their_connection() {
    let redis = Redis::start(&[]);
    let wire = Faulty::to(redis.port);
    let node = setup(&format!("127.0.0.1:{}", wire.port)).env("WORKER_THREADS", "1").start();
    let client = node.client();
    assert_eq!(answer(&client, "fails", "x"), Ok(OK));
    let opened = node.metric("tidegate_redis_connections_opened_total");
    wire.become_(Wire::Slow(Duration::from_millis(50)));
    let timeouts = || node.scrape().sum("tidegate_redis_failures_total", &[("kind", "timeout")]);
    eventually_true("many that did not wait", || {
        let hurried = client.call_within(Duration::from_millis(9), question("shop", &[&[("fails", "x")]]));
        assert!(hurried.is_err());
        timeouts() >= 20.0
    });
    wire.become_(Wire::Good);
    assert_eq!(answer(&client, "fails", "x"), Ok(OK));
    assert_eq!(node.metric("tidegate_redis_connections_opened_total"), opened);
}

#[test]
fn round_trips_are_a_histogram() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).start();
    assert_eq!(passed(&node.client(), "user", "x", 7), 7);
    let scrape = node.scrape();
    let count = scrape.sum("tidegate_redis_round_trip_seconds_count", &[("store", "main")]);
    assert!(count >= 7.0);
    assert_eq!(scrape.sum("tidegate_redis_round_trip_seconds_bucket", &[("le", "+Inf")]), count);
    assert_eq!(scrape.sum("tidegate_redis_round_trips_total", &[]), count);
    assert!(scrape.sum("tidegate_redis_round_trip_seconds_sum", &[]) > 0.0);
}
