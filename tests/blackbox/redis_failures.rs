//! Everything that a Redis can do wrong, and what the callers of a limiter get meanwhile: each as their rule says, in
//! time, without memory, and without anybody's help when it is over.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::Connection;
use rustix::process::Signal;
use tonic::Code;

use crate::harness::faulty::{Faulty, Wire};
use crate::harness::grpc::{Client, OK, OVER_LIMIT, question};
use crate::harness::redis::{Failover, Redis};
use crate::harness::tidegate::Setup;
use crate::harness::{eventually_true, free_port, http, whole_machine};

/// Windows far longer than a test.
const RULES: &str = "
domain: shop
descriptors:
  - {key: fails, rate_limit: {unit: day, requests_per_unit: 100000, on_store_failure: error}}
  - {key: denies, rate_limit: {unit: day, requests_per_unit: 100000, on_store_failure: deny}}
  - {key: allows, rate_limit: {unit: day, requests_per_unit: 100000, on_store_failure: allow}}
  - {key: alone, rate_limit: {unit: day, requests_per_unit: 100000, on_store_failure: local}}
";
const BUDGET: Duration = Duration::from_millis(250);
/// A busy machine is not what is tested.
const SLACK: Duration = Duration::from_secs(1);
const MEMORY_MAX: u64 = 24 << 20;

type Answer = Result<i32, Code>;

/// Every mode, and its answer when there is none.
const MODES: [(&str, Answer); 4] =
    [("fails", Err(Code::Unavailable)), ("denies", Ok(OVER_LIMIT)), ("allows", Ok(OK)), ("alone", Ok(OK))];

/// A Redis, the wire to it, and a connection of the test's own past that wire.
struct Rig {
    redis: Redis,
    wire: Faulty,
    own: Connection,
}

impl Rig {
    fn start() -> Self {
        let redis = Redis::start(&[
            "--enable-debug-command",
            "yes",
            "--loading-process-events-interval-bytes",
            "1024",
        ]);
        let (wire, own) = (Faulty::to(redis.port), redis.connect());
        Self { redis, wire, own }
    }

    fn setup(&self) -> Setup {
        Setup::new()
            .rules("shop.yaml", RULES)
            .env("REDIS_URL", &format!("127.0.0.1:{}", self.wire.port))
            .env("REDIS_TIMEOUT", "250ms")
            .env("REDIS_STARTUP_INITIAL_INTERVAL", "50ms")
            .env("REDIS_STARTUP_MAX_INTERVAL", "500ms")
            .env("REDIS_FAILURE_MODE", "allow")
    }

    fn tell(&mut self, words: &[&str]) {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut self.own).expect("Redis does it");
    }

    /// Ends all connections but the test's own.
    fn cut(&mut self) {
        self.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
}

fn answer(client: &Client, key: &str) -> Answer {
    let answer = client.call(question("shop", &[&[(key, "x")]]));
    answer.map(|answer| answer.overall_code).map_err(|status| status.code())
}

/// Asks in every mode and holds what it gets against `allowed`.
fn ask_all(what: &str, client: &Client, rounds: usize, allowed: impl Fn(Answer, Answer) -> bool) {
    for round in 0..rounds {
        for (key, mode) in MODES {
            let asked = Instant::now();
            let answer = answer(client, key);
            assert!(asked.elapsed() < BUDGET + SLACK, "{what}: {key} took {:?}", asked.elapsed());
            assert!(allowed(answer, mode), "{what}: {key} got {answer:?} in round {round}");
        }
    }
}

/// A Redis that is there, then breaks so that nothing is answered, then is mended.
fn breaks(what: &str, break_it: impl FnOnce(&mut Rig), mend: impl FnOnce(&mut Rig)) {
    let mut rig = Rig::start();
    let node = rig.setup().start();
    let client = node.client();
    eventually_true("Redis to be used", || answer(&client, "denies") == Ok(OK));
    node.forget_memory_peak();
    let before = node.memory_peak_bytes();
    break_it(&mut rig);
    // What was under way may still be answered.
    eventually_true(what, || answer(&client, "fails") == Err(Code::Unavailable));
    ask_all(what, &client, 50, |answer, mode| answer == mode);
    let grown = node.memory_peak_bytes().saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{what}: {grown} bytes more");
    assert!(node.scrape().sum("tidegate_redis_failures_total", &[]) > 0.0, "{what}: it is counted");
    mend(&mut rig);
    eventually_true(&format!("{what}: recovery"), || answer(&client, "fails") == Ok(OK));
    // Several workers have connections of their own.
    eventually_true(&format!("{what}: full recovery"), || {
        (0..20).all(|_| answer(&client, "denies") == Ok(OK))
    });
    assert_eq!(node.lines_with("panicked"), 0, "{what}");
}

#[test]
fn absent_at_start() {
    let mut rig = Rig::start();
    rig.redis.kill();
    let node = rig.setup().start();
    let client = node.client();
    ask_all("absent", &client, 50, |answer, mode| answer == mode);
    rig.redis.restart();
    eventually_true("it to be used", || answer(&client, "fails") == Ok(OK));
}

#[test]
fn killed() {
    breaks("killed", |rig| rig.redis.kill(), |rig| rig.redis.restart());
}

#[test]
fn stopped() {
    breaks("stopped", |rig| rig.redis.stop(), |rig| rig.redis.wake());
}

#[test]
fn far_too_slow() {
    breaks(
        "slow",
        |rig| rig.wire.become_(Wire::Slow(Duration::from_secs(5))),
        |rig| rig.wire.become_(Wire::Good),
    );
}

#[test]
fn answering_garbage() {
    breaks("garbage", |rig| rig.wire.become_(Wire::Garbage), |rig| rig.wire.become_(Wire::Good));
}

#[test]
fn a_replica_that_may_not_write() {
    let nowhere = free_port().to_string();
    breaks(
        "read-only",
        |rig| rig.tell(&["REPLICAOF", "127.0.0.1", &nowhere]),
        |rig| rig.tell(&["REPLICAOF", "NO", "ONE"]),
    );
}

#[test]
fn full() {
    breaks(
        "full",
        |rig| rig.tell(&["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1"]),
        |rig| rig.tell(&["CONFIG", "SET", "maxmemory", "0"]),
    );
}

#[test]
fn a_password_that_changed() {
    breaks(
        "wrong password",
        |rig| {
            rig.tell(&["CONFIG", "SET", "requirepass", "other"]);
            rig.cut();
        },
        |rig| rig.tell(&["CONFIG", "SET", "requirepass", ""]),
    );
}

#[test]
fn too_many_clients() {
    breaks(
        "too many clients",
        |rig| {
            rig.tell(&["CONFIG", "SET", "maxclients", "1"]);
            rig.cut();
        },
        |rig| rig.tell(&["CONFIG", "SET", "maxclients", "1000"]),
    );
}

#[test]
fn loading() {
    breaks(
        "loading",
        |rig| {
            let text = "x".repeat(2_000);
            (0..400).for_each(|key| rig.tell(&["SET", &format!("filler{key}"), &text]));
            rig.tell(&["CONFIG", "SET", "key-load-delay", "50000", "rdbcompression", "no"]);
            // It answers when all is loaded again.
            let mut other = rig.redis.connect();
            std::thread::spawn(move || redis::cmd("DEBUG").arg("RELOAD").exec(&mut other));
        },
        |rig| rig.tell(&["CONFIG", "SET", "key-load-delay", "0"]),
    );
}

#[test]
fn slow_within_the_budget_is_only_slow() {
    let rig = Rig::start();
    let node = rig.setup().env("REDIS_TIMEOUT", "5s").start();
    let client = node.client();
    // Every worker connects by itself; until then it answers as the mode says.
    eventually_true("Redis to be used", || (0..20).all(|_| answer(&client, "denies") == Ok(OK)));
    let failures = || node.scrape().sum("tidegate_redis_failures_total", &[]);
    let before = failures();
    rig.wire.become_(Wire::Slow(Duration::from_millis(50)));
    for (key, _) in MODES.iter().cycle().take(12) {
        assert_eq!(answer(&client, key), Ok(OK), "{key}");
    }
    assert_eq!(failures(), before);
}

#[test]
fn closing_connections_again_and_again() {
    let rig = Rig::start();
    let node = rig.setup().start();
    let client = node.client();
    eventually_true("Redis to be used", || answer(&client, "denies") == Ok(OK));
    rig.wire.become_(Wire::Closing);
    ask_all("closing", &client, 100, |answer, mode| answer == mode || answer == Ok(OK));
    rig.wire.become_(Wire::Good);
    eventually_true("recovery", || (0..20).all(|_| answer(&client, "denies") == Ok(OK)));
    assert_eq!(node.lines_with("panicked"), 0);
}

/// Asks on all connections before it hears from any; what they are told.
fn ask_at_once(crowd: &mut [BufReader<TcpStream>]) -> Vec<u16> {
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"denies","value":"x"}]}]}"#;
    let question = format!("POST /json HTTP/1.1\r\nhost: t\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for stream in &mut *crowd {
        stream.get_mut().write_all(question.as_bytes()).expect("it listens");
    }
    crowd.iter_mut().map(|stream| http::read_answer(stream, false).expect("it answers").status).collect()
}

#[test]
fn a_crowd_that_asks_while_redis_hangs() {
    let _machine = whole_machine();
    let rig = Rig::start();
    let mut node = rig.setup().start();
    let port = node.ports().http;
    // One after the other: more than wait for a worker at a time are turned away.
    let connect = |_| {
        let mut stream = BufReader::with_capacity(512, http::connect(port).expect("it listens"));
        stream.get_mut().write_all(b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n").expect("it listens");
        http::read_answer(&mut stream, false).expect("it answers");
        stream
    };
    let mut crowd: Vec<_> = (0..4_000).map(connect).collect();
    // The fastest way to find Redis slow is to ask for too much at once: what they are told now may be either.
    let told = ask_at_once(&mut crowd);
    assert!(told.iter().all(|status| [200, 429].contains(status)));
    eventually_true("Redis to be used", || answer(&node.client(), "denies") == Ok(OK));
    node.forget_memory_peak();
    let before = node.memory_peak_bytes();
    rig.redis.stop();
    let asked = Instant::now();
    assert_eq!(ask_at_once(&mut crowd), vec![429; 4_000]);
    assert!(asked.elapsed() < BUDGET + 10 * SLACK, "{:?}", asked.elapsed());
    let grown = node.memory_peak_bytes().saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{grown} bytes more");
    let asked = Instant::now();
    node.signal(Signal::TERM);
    assert_eq!(node.exit_code(), 0);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    rig.redis.wake();
}

/// A master that dies under load: another one is asked within seconds, by the same process.
fn fails_over(mut failover: Failover, setup: Setup) {
    let setup = setup.rules("shop.yaml", RULES).env("REDIS_TIMEOUT", "250ms");
    let node = setup.start();
    let client = node.client();
    eventually_true("Redis to be used", || answer(&client, "fails") == Ok(OK));
    failover.wait_for_replicas();
    failover.kill_a_master();
    let (began, mut in_a_row) = (Instant::now(), 0);
    // Different values live in different slots: those of the dead master too.
    for value in (0..200).cycle() {
        let asked = Instant::now();
        let answer = client.call(question("shop", &[&[("fails", &value.to_string())]]));
        assert!(asked.elapsed() < BUDGET + SLACK, "{:?}", asked.elapsed());
        in_a_row = if answer.is_ok() { in_a_row + 1 } else { 0 };
        if in_a_row == 200 && failover.has_happened() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(15), "still no service");
    }
    assert_eq!(node.lines_with("panicked"), 0);
}

#[test]
fn a_failover_of_sentinels() {
    let failover = Failover::of_sentinel();
    let setup = Setup::new().env("REDIS_TYPE", "sentinel").env("REDIS_URL", &failover.url());
    fails_over(failover, setup);
}

#[test]
fn a_failover_in_a_cluster() {
    let failover = Failover::of_cluster();
    let setup = Setup::new().env("REDIS_TYPE", "cluster").env("REDIS_URL", &failover.url());
    fails_over(failover, setup);
}
