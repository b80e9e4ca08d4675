//! How a node learns that its Redis is no good, and what that costs: a few calls in all, and few connections, however
//! many ask and whatever goes wrong.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::Connection;
use tonic::Code;

use crate::harness::grpc::{Client, OK, question};
use crate::harness::lateness::Lateness;
use crate::harness::redis::{Redis, cluster};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{StopOnDrop, eventually, eventually_true, free_port, http};

/// Windows far longer than a test.
const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000000}}
";
/// How long a fault lasts where connections are counted.
const LASTS: Duration = Duration::from_secs(2);
/// Each of two workers tries again after 50 ms, 100 ms and so on, or up to a half sooner.
const ATTEMPTS_MAX: u64 = 20;

fn setup(url: &str) -> Setup {
    // A busy machine is not what is tested.
    Setup::new()
        .rules("shop.yaml", RULES)
        .env("REDIS_URL", url)
        .env("REDIS_TIMEOUT", "1s")
        .env("REDIS_STARTUP_INITIAL_INTERVAL", "50ms")
        .env("REDIS_STARTUP_MAX_INTERVAL", "500ms")
        .env("WORKER_THREADS", "2")
}

fn answer(client: &Client) -> Result<i32, Code> {
    let answer = client.call(question("shop", &[&[("user", "x")]]));
    answer.map(|answer| answer.overall_code).map_err(|status| status.code())
}

/// Every worker asks Redis.
fn wait_for_redis(node: &Tidegate) {
    let clients = [(); 4].map(|()| node.client());
    eventually_true("Redis to be asked by all", || {
        clients.iter().all(|client| (0..3).all(|_| answer(client) == Ok(OK)))
    });
}

fn failures(node: &Tidegate, kind: &str) -> f64 {
    node.scrape().sum("tidegate_redis_failures_total", &[("kind", kind)])
}

/// A number of INFO.
fn shown(connection: &mut Connection, section: &str, name: &str) -> u64 {
    let info: String = redis::cmd("INFO").arg(section).query(connection).expect("it answers");
    let number = info.lines().find_map(|line| line.strip_prefix(name));
    let number = number.and_then(|it| it.split(|char: char| !char.is_ascii_digit()).next());
    number.and_then(|it| it.parse().ok()).unwrap_or(0)
}

/// Asks all the time from several callers while `during` runs.
fn under_load<T>(node: &Tidegate, during: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for _ in 0..4 {
            let (client, stop) = (node.client(), &stop);
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    let _ = answer(&client);
                }
            });
        }
        during()
    })
}

#[test]
fn five_calls_learn_that_redis_is_gone_and_all_others_are_answered_at_once() {
    let redis = Redis::start(&[]);
    // Long compared with the time that a busy machine keeps the node waiting.
    let node = setup(&redis.url()).env("REDIS_TIMEOUT", "4s").start();
    wait_for_redis(&node);
    let clients = [(); 8].map(|()| node.client());
    redis.stop();
    let ask = |client: &Client| client.begin(tokio_stream::once(question("shop", &[&[("user", "x")]])));
    let mut waiting: Vec<_> = clients[..5].iter().map(|client| (client, ask(client))).collect();
    eventually_true("five calls to wait", || node.metric("tidegate_redis_in_flight") >= 5.0);
    std::thread::sleep(Duration::from_secs(2));
    waiting.extend((0..400).map(|call| (&clients[call % 8], ask(&clients[call % 8]))));
    let (asked, watched) = (Instant::now(), Lateness::watch());
    for (client, call) in waiting {
        assert_eq!(client.finish(call).map_err(|status| status.code()), Err(Code::Unavailable));
    }
    let (took, late) = (asked.elapsed(), watched.allowance());
    assert!(took < Duration::from_millis(3_900) + late, "they did not wait: {took:?}, {late:?} late");
    assert_eq!(failures(&node, "timeout"), 5.0);
    assert_eq!(node.metric("tidegate_redis_breaker_open"), 1.0);
    redis.wake();
    wait_for_redis(&node);
}

/// Whether callers in a hurry open the breaker of a node that has just come up, and no probe does.
fn is_opened_by_callers_in_a_hurry(redis: &Redis) -> bool {
    let node = setup(&redis.url()).env("REDIS_TIMEOUT", "100ms").start();
    wait_for_redis(&node);
    redis.stop();
    let client = node.client();
    eventually_true("the breaker to open", || {
        // 8 ms are left for Redis.
        let hurried = question("shop", &[&[("user", "x")]]);
        assert!(client.call_within(Duration::from_millis(11), hurried).is_err());
        node.metric("tidegate_redis_breaker_open") == 1.0
    });
    eventually_true("the reason to be logged", || node.lines_with(" does not answer: ") > 0);
    let first = node.output().into_iter().find(|line| line.contains(" does not answer: "));
    redis.wake();
    wait_for_redis(&node);
    first.is_some_and(|line| line.contains("several calls in a row had no answer"))
}

#[test]
fn callers_in_a_hurry_learn_it_too_when_nobody_has_an_answer() {
    let redis = Redis::start(&[]);
    // A probe of the connection comes a second after it was made. Where the machine is busy with something else, it may come
    // before so many calls have.
    assert!((0..8).any(|_| is_opened_by_callers_in_a_hurry(&redis)), "by the probe");
}

#[test]
fn a_replica_is_not_asked_again_at_once() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).start();
    wait_for_redis(&node);
    let mut own = redis.connect();
    let nowhere = free_port().to_string();
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(&nowhere).exec(&mut own).expect("it obeys");
    let mut connections = || shown(&mut own, "stats", "total_connections_received:");
    let before = connections();
    let more = under_load(&node, || {
        std::thread::sleep(LASTS);
        connections() - before
    });
    assert!((1..=ATTEMPTS_MAX).contains(&more), "{more} connections in {LASTS:?}");
    let ready = http::get(node.ports().http, "/readyz").expect("an answer").body;
    assert!(ready.to_lowercase().contains("read only replica"), "{ready}");
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut own).expect("it obeys");
    wait_for_redis(&node);
}

/// Two servers of which each says that the other has the slot.
#[test]
fn a_slot_that_nobody_has_is_not_looked_for_all_the_time() {
    let servers = cluster();
    let node = setup(&servers[0].url()).env("REDIS_TYPE", "cluster").start();
    wait_for_redis(&node);
    let keys = |server: &Redis| server.ask::<Vec<String>>(&["KEYS", "shop*"]);
    let holder = servers.iter().position(|server| !keys(server).is_empty()).expect("one of them has it");
    let key = keys(&servers[holder]).remove(0);
    let (holder, other) = (&servers[holder], &servers[(holder + 1) % 3]);
    let slot = holder.ask::<u64>(&["CLUSTER", "KEYSLOT", &key]).to_string();
    let id: String = other.ask(&["CLUSTER", "MYID"]);
    holder.ask::<()>(&["DEL", &key]);
    holder.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
    eventually_true("it to be missed", || answer(&node.client()).is_err());
    let mut own: Vec<_> = servers.iter().map(Redis::connect).collect();
    let mut looks = || -> u64 {
        own.iter_mut().map(|own| shown(own, "commandstats", "cmdstat_cluster|slots:calls=")).sum()
    };
    let before = looks();
    let more = under_load(&node, || {
        std::thread::sleep(LASTS);
        looks() - before
    });
    assert!((1..=ATTEMPTS_MAX).contains(&more), "{more} looks in {LASTS:?}");
    other.ask::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
    wait_for_redis(&node);
}

#[test]
fn a_replica_that_hangs_costs_a_few_calls_their_budget() {
    let master = Redis::start(&[]);
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    eventually_true("replication", || {
        replica.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up")
    });
    // Long compared with the time that a busy machine keeps a call waiting.
    let budget = Duration::from_secs(1);
    let node = setup(&master.url()).env("REDIS_WAIT_REPLICAS", "1").env("REDIS_TIMEOUT", "1s").start();
    wait_for_redis(&node);
    replica.stop();
    let client = node.client();
    let waited = |_| {
        let asked = Instant::now();
        assert_eq!(answer(&client), Err(Code::Unavailable));
        let waited = asked.elapsed() >= budget;
        std::thread::sleep(Duration::from_millis(2));
        waited
    };
    let waited = (0..500).filter(|call| waited(*call)).count();
    // Five in a row open the circuit breaker. Where the reply to the change itself was late, too little was left to wait
    // for replicas, and that call proves nothing about them.
    assert!((1..=10).contains(&waited), "{waited} calls waited");
    assert!(failures(&node, "unreplicated") > 0.0);
    eventually_true("it to be logged", || node.lines_with(" does not answer: ") > 0);
    // The line names what came first, perhaps a connection that was just closed for that.
    eventually_true("the reason", || {
        http::get(node.ports().http, "/readyz").is_ok_and(|answer| answer.body.contains("replicas"))
    });
    replica.wake();
    wait_for_redis(&node);
}

#[test]
fn a_node_of_a_cluster_is_no_single_server() {
    for server in [Redis::start, Redis::valkey] {
        let bus = free_port().to_string();
        let server = server(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
        let setup = setup(&server.url());
        let process = setup.spawn();
        eventually_true("the mistake to be logged", || {
            process.lines_with("is a node of a Cluster (expected REDIS_TYPE=cluster)") > 0
        });
        let ready = eventually("an answer", || http::get(setup.ports.http, "/readyz").ok());
        assert_eq!(ready.status, 500, "{}", ready.body);
    }
}

#[test]
fn a_single_server_is_no_cluster() {
    let server = Redis::start(&[]);
    let setup = setup(&server.url()).env("REDIS_TYPE", "cluster");
    let process = setup.spawn();
    eventually_true("the mistake to be logged", || process.lines_with("(expected REDIS_TYPE=single)") > 0);
}

#[test]
fn what_somebody_else_wrote_in_place_of_the_generation_makes_way() {
    let redis = Redis::start(&[]);
    let generation = "tidegate:generation";
    redis.ask::<()>(&["LPUSH", generation, "x"]);
    let node = setup(&redis.url()).start();
    wait_for_redis(&node);
    assert_eq!(redis.ask::<usize>(&["STRLEN", generation]), 32);
    assert!(redis.ask::<i64>(&["TTL", generation]) > 0);
    redis.ask::<()>(&["DEL", generation]);
    redis.ask::<()>(&["HSET", generation, "x", "y"]);
    eventually_true("it to be logged", || node.lines_with("tidegate:generation has another type") == 2);
    eventually_true("the loss to be logged", || node.lines_with("has lost its data") == 1);
    wait_for_redis(&node);
}
