//! COLD_START=deny with Redis: when Redis may lack hits, counters count as full for a window. A loss costs denials,
//! never admissions.

use std::ops::Range;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::harness::admissions::Admissions;
use crate::harness::grpc::{Client, OK, ask_only, question};
use crate::harness::lateness::Lateness;
use crate::harness::redis::{Failover, Redis, cluster};
use crate::harness::tidegate::{Setup, Tidegate, binary};
use crate::harness::{StopOnDrop, eventually, eventually_true, free_port, http};
use crate::status_page;

const RULES: &str = "
domain: shop
descriptors:
  - {key: strict, rate_limit: {window: 2s, requests_per_unit: 20}}
  - {key: leased, rate_limit: {window: 2s, requests_per_unit: 200, sync: leased}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 10}}
";
const WINDOW: Duration = Duration::from_secs(2);
/// The limits of that window, and their N.
const LIMITS: [(&str, usize); 2] = [("strict", 20), ("leased", 200)];
/// REDIS_LEASE_TIME.
const LEASE_TIME: Duration = Duration::from_millis(100);
/// What the servers' own clocks and rounds add to a time, in addition to the machine's lateness.
const SLACK: Duration = Duration::from_millis(1_500);
const PAUSE: Duration = Duration::from_millis(2);

fn setup(url: &str) -> Setup {
    let setup = Setup::new().rules("shop.yaml", RULES).env("REDIS_URL", url).env("COLD_START", "deny");
    // A busy machine is not what is tested.
    setup.env("REDIS_TIMEOUT", "2s")
}

fn passes(client: &Client, key: &str, value: &str) -> bool {
    client.call(question("shop", &[&[(key, value)]])).is_ok_and(|answer| answer.overall_code == OK)
}

/// What was admitted of one limit, in microseconds since the test began.
#[derive(Default)]
struct Log(Mutex<Vec<(u64, u64)>>);

impl Log {
    /// How many hits were asked for within this time, and admitted.
    fn asked_within(&self, asked: Range<u64>) -> usize {
        let log = self.0.lock().expect("no panic");
        log.iter().filter(|(at, _)| asked.contains(at)).count()
    }
}

/// Clients of all nodes that ask for both limits, until it is dropped.
struct Load<'t> {
    began: Instant,
    logs: &'t [Log; 2],
    values: [&'t str; 2],
}

impl Load<'_> {
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).expect("tests are short")
    }

    fn ask(&self, client: &Client, limit: usize, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let asked = self.now();
            if passes(client, LIMITS[limit].0, self.values[limit]) {
                let answered = self.now();
                self.logs[limit].0.lock().expect("no panic").push((asked, answered));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until N hits of each limit were admitted that were asked for after this time.
    fn await_admissions(&self, what: &str, after: u64) {
        eventually_true(what, || {
            LIMITS.iter().zip(self.logs).all(|((_, n), log)| log.asked_within(after..u64::MAX) >= *n)
        });
    }
}

/// What was seen of a loss.
struct Seen {
    logs: [Log; 2],
    /// The time during which it happened.
    lost: Range<u64>,
    /// By how much times may be missed.
    late: Duration,
}

/// Asks all nodes before, during and after a loss, and judges what was admitted.
fn lose_under_load(nodes: &[Tidegate], values: [&str; 2], lose: impl FnOnce()) -> Seen {
    let watched = Lateness::watch();
    let (logs, stop) = (<[Log; 2]>::default(), AtomicBool::new(false));
    let load = Load { began: Instant::now(), logs: &logs, values };
    let lost = std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        for client in nodes.iter().map(Tidegate::client) {
            let (load, stop, client) = (&load, &stop, std::sync::Arc::new(client));
            for limit in 0..LIMITS.len() {
                let client = std::sync::Arc::clone(&client);
                scope.spawn(move || load.ask(&client, limit, stop));
            }
        }
        load.await_admissions("what was unknown at the start to be over", 0);
        let began = load.now();
        lose();
        let ended = load.now();
        load.await_admissions("the denials to end", ended);
        began..ended
    });
    let window = u64::try_from(WINDOW.as_micros()).expect("two seconds");
    for ((name, n), log) in LIMITS.iter().zip(&logs) {
        let mut admissions = Admissions::default();
        log.0
            .lock()
            .expect("no panic")
            .iter()
            .for_each(|&(asked, answered)| admissions.push(asked, answered));
        let most = admissions.most_in_a_window(window);
        println!("{name}: {most} of {n} in the fullest window, {} in all", admissions.len());
        assert!(most <= *n, "{name}: {most} of {n}");
    }
    let first = logs[0].0.lock().expect("no panic").iter().map(|it| it.0).find(|&at| at > lost.end);
    println!("denied for {} ms after the loss", (first.expect("it was awaited") - lost.end) / 1_000);
    Seen { logs, lost, late: watched.allowance() }
}

/// A script sees it itself: nothing is admitted by a server that has just forgotten everything.
fn is_noticed_at_once(Seen { logs, lost, .. }: &Seen) {
    let window = u64::try_from(WINDOW.as_micros()).expect("two seconds");
    assert_eq!(logs[0].asked_within(lost.end..lost.start + window), 0);
}

/// One loss costs one window.
fn is_over_after_a_window(Seen { logs, lost, late }: &Seen) {
    let longest = u64::try_from((WINDOW + LEASE_TIME + SLACK + *late).as_micros()).expect("a few seconds");
    let admitted = [0, 1].map(|limit| logs[limit].asked_within(lost.end..lost.end + longest));
    assert!(admitted.iter().all(|&hits| hits > 0), "{admitted:?}");
}

#[test]
fn a_server_that_was_flushed_denies_for_a_window() {
    let redis = Redis::start(&[]);
    let nodes = [(); 2].map(|()| setup(&redis.url()).start());
    let seen = lose_under_load(&nodes, ["x", "x"], || redis.ask::<()>(&["FLUSHALL"]));
    is_noticed_at_once(&seen);
    is_over_after_a_window(&seen);
    for node in nodes {
        // The first line is of the start.
        eventually_true("it to be logged", || node.lines_with("cold: redis: ") == 2);
        assert_eq!(node.metric("tidegate_redis_memory_lost_total"), 1.0);
    }
}

#[test]
fn a_server_that_was_restarted_empty_denies_for_a_window() {
    for mut redis in [Redis::start(&[]), Redis::valkey(&[])] {
        let nodes = [(); 2].map(|()| setup(&redis.url()).start());
        let seen = lose_under_load(&nodes, ["x", "x"], || {
            redis.kill();
            redis.restart();
        });
        is_noticed_at_once(&seen);
    }
}

/// It has all keys of the last save, so only its process shows that it may lack others.
#[test]
fn a_server_that_comes_back_with_old_data_denies_for_a_window() {
    let mut redis = Redis::start(&[]);
    let nodes = [(); 2].map(|()| setup(&redis.url()).start());
    let seen = lose_under_load(&nodes, ["x", "x"], || {
        redis.ask::<()>(&["SAVE"]);
        assert!(passes_sometime(&nodes[0]), "something is admitted that is not saved");
        redis.kill();
        redis.restart();
        assert!(redis.ask::<Vec<String>>(&["KEYS", "*tidegate:mark:*"]).len() <= 2);
    });
    is_noticed_at_once(&seen);
}

/// The mark of a server, and its value: four numbers.
fn mark(redis: &Redis) -> (String, [f64; 4]) {
    let key = redis.ask::<Vec<String>>(&["KEYS", "tidegate:mark:*"]).remove(0);
    let value: Vec<u8> = redis::cmd("GET").arg(&key).query(&mut redis.connect()).expect("it is there");
    (key, std::array::from_fn(|at| f64::from_le_bytes(value[8 * at..][..8].try_into().expect("eight bytes"))))
}

/// Changes the numbers of the mark, as if a node had written it so.
fn change_mark(redis: &Redis, change: impl FnOnce(&mut [f64; 4])) {
    let (key, mut numbers) = mark(redis);
    change(&mut numbers);
    let numbers = numbers.map(f64::to_le_bytes);
    redis::cmd("SETRANGE")
        .arg(key)
        .arg(0)
        .arg(numbers.as_flattened())
        .exec(&mut redis.connect())
        .expect("it is");
}

/// A mark is later than the clock after a loss, when the clock was set back.
#[test]
fn a_clock_that_is_set_back_an_hour_costs_one_window() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).start();
    let client = node.client();
    eventually_true("what was unknown at the start to be over", || passes(&client, "strict", "a"));
    // The node may notice it by itself before it is asked.
    let (began, watched) = (Instant::now(), Lateness::watch());
    change_mark(&redis, |[since, _, longest_at, _]| {
        *since += 3_600e6;
        *longest_at += 3_600e6;
    });
    assert!(!passes(&client, "strict", "b"));
    eventually_true("an admission", || passes(&client, "strict", "b"));
    let denied = began.elapsed();
    let most = WINDOW + LEASE_TIME + SLACK + watched.allowance();
    assert!(denied >= WINDOW && denied < most, "{denied:?}, at most {most:?}");
    eventually_true("the end on the page", || node.metric("tidegate_cold_seconds") <= 3_600.0);
}

/// The one with the shorter one would write marks that are over too early.
#[test]
fn nodes_agree_on_the_longest_lease_time() {
    let redis = Redis::start(&[]);
    let [short, long] = ["100ms", "3s"].map(|time| setup(&redis.url()).env("REDIS_LEASE_TIME", time).start());
    let differ = |node: &Tidegate| status_page::troubles(node).contains("Nodes differ in REDIS_LEASE_TIME: ");
    eventually_true("both to know", || differ(&short) && differ(&long));
    assert!(status_page::troubles(&short).contains("100ms here, 3s is the longest."));
    assert_eq!(short.lines_with("nodes differ in REDIS_LEASE_TIME"), 1, "{:#?}", short.output());
    drop(long);
    // The one that is left notices the loss.
    redis.ask::<()>(&["FLUSHALL"]);
    assert!(!passes(&short.client(), "strict", "x"));
    assert_eq!(mark(&redis).1[1], 3e6);
    // Once the loss is over, the mark changes for this alone: a look that is on its way meanwhile knows it still.
    let now = || redis.ask::<Vec<u64>>(&["TIME"])[0] as f64 * 1e6;
    eventually_true("the loss to be over", || mark(&redis).1[0] < now());
    // A minute later nobody has it any more, nor is it known that nodes had different ones.
    change_mark(&redis, |mark| (mark[2], mark[3]) = (mark[2] - 64e6, mark[3] - 64e6));
    eventually_true("the longest lease time to be forgotten", || mark(&redis).1[1] == 100e3);
    eventually_true("the page to know", || !differ(&short));
}

fn passes_sometime(node: &Tidegate) -> bool {
    let client = node.client();
    eventually("an admission", || passes(&client, "strict", "another").then_some(true))
}

/// Half of its data are of before a replica took over from it, and it knows the old mark.
#[test]
fn a_primary_that_was_a_replica_meanwhile_denies_for_a_window() {
    let (redis, other) = (Redis::start(&[]), Redis::start(&[]));
    let nodes = [(); 2].map(|()| setup(&redis.url()).start());
    let port = other.port.to_string();
    lose_under_load(&nodes, ["x", "x"], || {
        // The other one has copied nothing but the mark.
        let mark = redis.ask::<Vec<String>>(&["KEYS", "tidegate:mark:*"]).remove(0);
        let value: Vec<u8> = redis::cmd("GET").arg(&mark).query(&mut redis.connect()).expect("it is there");
        redis::cmd("SET").arg(&mark).arg(value).exec(&mut other.connect()).expect("it is empty");
        redis.ask::<()>(&["REPLICAOF", "127.0.0.1", &port]);
        eventually_true("the copy", || {
            redis.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up")
        });
        redis.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
    });
}

#[test]
fn a_first_replica_is_no_loss() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).start();
    let client = node.client();
    eventually_true("admissions", || passes(&client, "strict", "x"));
    let _replica = Redis::start(&["--replicaof", "127.0.0.1", &redis.port.to_string()]);
    eventually_true("the replica", || {
        redis.ask::<String>(&["INFO", "replication"]).contains("connected_slaves:1")
    });
    let later = setup(&redis.url()).start();
    eventually_true("the mark to be read", || later.metric("tidegate_redis_connections") > 0.0);
    assert_eq!(later.lines_with("cold: redis: "), 1, "of the first start, which windows of an hour know");
    assert_eq!(node.metric("tidegate_redis_memory_lost_total"), 0.0);
    assert!(passes(&later.client(), "strict", "another"));
}

/// The values of counters of both limits that live on the first server.
fn values_there(client: &Client, is_there: impl Fn(&str) -> bool) -> [String; 2] {
    eventually_true("admissions", || passes(client, "strict", "0"));
    LIMITS.map(|(limit, _)| {
        let mut values = (0..200).map(|value| format!("{limit}{value}"));
        let found = values.find(|value| {
            eventually_true("an admission", || passes(client, limit, value));
            is_there(value)
        });
        found.expect("every server has slots")
    })
}

fn fails_over(mut failover: Failover, setup: impl Fn() -> Setup) {
    let nodes = [(); 2].map(|()| setup().start());
    let values = values_there(&nodes[0].client(), |value| failover.log_key(value).is_some());
    lose_under_load(&nodes, values.each_ref().map(String::as_str), || {
        failover.wait_for_replicas();
        failover.stop_replication();
        // Some windows that the replica knows nothing of.
        std::thread::sleep(WINDOW / 2);
        failover.kill_a_master();
        let died = Instant::now();
        failover.wait_for_takeover();
        println!("taken over after {:?}", died.elapsed());
    });
}

#[test]
fn a_replica_that_takes_over_from_a_sentinels_master_denies_for_a_window() {
    let failover = Failover::of_sentinel();
    let url = failover.url();
    fails_over(failover, || setup(&url).env("REDIS_TYPE", "sentinel"));
}

#[test]
fn a_replica_that_takes_over_in_a_cluster_denies_for_a_window() {
    let failover = Failover::of_cluster();
    let url = failover.url();
    fails_over(failover, || setup(&url).env("REDIS_TYPE", "cluster"));
}

#[test]
fn a_server_of_a_cluster_that_was_flushed_denies_for_a_window() {
    let servers = cluster();
    let url = format!("127.0.0.1:{}", servers[0].port);
    let nodes = [(); 2].map(|()| setup(&url).env("REDIS_TYPE", "cluster").start());
    let has = |server: &Redis, value: &str| {
        !server.ask::<Vec<String>>(&["KEYS", &format!("shop*|{value}")]).is_empty()
    };
    let values = values_there(&nodes[0].client(), |value| has(&servers[0], value));
    let seen = lose_under_load(&nodes, values.each_ref().map(String::as_str), || {
        servers[0].ask::<()>(&["FLUSHALL"]);
    });
    is_noticed_at_once(&seen);
}

/// `tidegate state init` with these settings: the exit code, and what it says.
fn init(settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut tidegate = Command::new(binary());
    tidegate.args(["state", "init"]).env_clear().envs(settings.iter().copied());
    let output = tidegate.output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn a_first_deployment_that_has_no_history_denies_nobody() {
    for redis in Redis::and_valkey() {
        let url = redis.url();
        let settings = [("REDIS_URL", &*url), ("CACHE_KEY_PREFIX", "blue:")];
        let declared = (Some(0), format!("{url}: there is no history\n"));
        assert_eq!([(); 2].map(|()| init(&settings)), [declared.clone(), declared.clone()]);
        let setup = |prefix| setup(&url).env("CACHE_KEY_PREFIX", prefix);
        let node = setup("blue:").start();
        let client = node.client();
        eventually_true("a limit of an hour to be served", || passes(&client, "hour", "x"));
        assert_eq!(node.lines_with("cold: redis: "), 0, "{:#?}", node.output());
        assert_eq!(init(&settings), declared, "what it says is true still");
        // A loss is one all the same, and nobody can say it away.
        redis.ask::<()>(&["FLUSHALL"]);
        assert!(!passes(&client, "hour", "x"));
        let (code, refused) = init(&settings);
        assert!(code == Some(1) && refused.contains("a limiter has used it before"), "{refused}");
        assert!(!passes(&client, "hour", "x"));
        // Others under another prefix are others.
        let other = setup("green:").start();
        eventually_true("an exempt limit to be served", || passes(&other.client(), "day", "x"));
        assert!(!passes(&other.client(), "hour", "x"));
    }
}

#[test]
fn every_server_of_a_cluster_learns_that_there_is_no_history() {
    let servers = cluster();
    let url = format!("127.0.0.1:{}", servers[0].port);
    let (code, output) = init(&[("REDIS_URL", &url), ("REDIS_TYPE", "cluster")]);
    assert_eq!((code, output.matches("there is no history").count()), (Some(0), 3), "{output}");
    let node = setup(&url).env("REDIS_TYPE", "cluster").start();
    let client = node.client();
    eventually_true("a limit of an hour to be served", || passes(&client, "hour", "first"));
    assert!((0..100).all(|user| passes(&client, "hour", &user.to_string())));
}

#[test]
fn a_history_is_denied_of_a_server_that_answers() {
    let (code, said) = init(&[]);
    assert!(code == Some(1) && said.contains("neither STATE_DIR nor REDIS_URL"), "{said}");
    let nobody = format!("127.0.0.1:{}", free_port());
    let (code, said) = init(&[("REDIS_URL", &nobody)]);
    assert!(code == Some(1) && said.contains("redis: "), "{said}");
}

#[test]
fn it_says_for_how_long_and_which_limits_are_exempt() {
    let redis = Redis::start(&[]);
    let node = setup(&redis.url()).env("COLD_START_MAX_WINDOW", "2h").start();
    let client = node.client();
    eventually_true("an exempt limit to be served", || passes(&client, "day", "x"));
    assert_eq!(node.lines_with("hits of shop.day count longer"), 1, "{:#?}", node.output());
    assert_eq!(node.lines_with("cold: redis: "), 1, "{:#?}", node.output());
    let remaining = |key| client.ask(ask_only("shop", &[&[(key, "x")]])).statuses[0].limit_remaining;
    assert_eq!(["hour", "day"].map(remaining), [0, 9]);
    assert!(!passes(&client, "hour", "x"));
    let probe = |path| http::get(node.ports().http, path).expect("it answers").status;
    assert_eq!(["/readyz", "/readyz?window=1h", "/readyz?window=3h"].map(probe), [200, 503, 200]);
    let cold = node.metric("tidegate_cold_seconds");
    assert!((6_000.0..=7_201.0).contains(&cold), "{cold}");
    let troubles = status_page::troubles(&node);
    assert!(troubles.contains("Redis lost counters. They count as full for "), "{troubles}");
    let ask = |key: &str| {
        let body =
            format!(r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"{key}","value":"x"}}]}}]}}"#);
        http::Client::new(node.ports().debug).send("POST", "/ask", &[], &body).expect("an answer").body
    };
    assert!(ask("hour").contains("counts as full for 3"), "{}", ask("hour"));
    assert!(!ask("day").contains("COLD_START"), "{}", ask("day"));
    // Another node finds the same.
    let other = setup(&redis.url()).start();
    eventually_true("an exempt limit to be served there", || passes(&other.client(), "day", "x"));
    assert!(!passes(&other.client(), "hour", "x"));
}
