//! Everything that a Redis can do wrong, and what the callers of a limiter get meanwhile: each as their rule says, in
//! time, without memory, and without anybody's help when it is over.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::Connection;
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tonic::Code;

use crate::harness::faulty::{Faulty, Wire};
use crate::harness::grpc::{Client, OK, OVER_LIMIT, ask_only, question};
use crate::harness::lateness::Lateness;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
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
/// Without a fault a busy machine has it too.
const BUDGET: Duration = Duration::from_secs(1);
/// A busy machine is not what is tested.
const SLACK: Duration = Duration::from_secs(1);
/// Callers at once.
const CROWD: usize = 10_000;
/// What one that waits may hold: its request, its answer, and the future between them (8.3 KiB were measured).
const CALLER_BYTES_MAX: u64 = 16 << 10;
const MEMORY_MAX: u64 = 24 << 20;

/// An answer may be later than its budget by this, and by what the machine keeps everybody waiting.
const LATE_MAX: Duration = Duration::from_millis(5);
/// Rounds of questions during a fault, in each of which every mode is asked once.
const ROUNDS: usize = 50;
const LIMIT: u32 = 100_000;
/// Says how many seconds a fault lasts instead of [`ROUNDS`].
const SOAK: &str = "TIDEGATE_FAULT_SECONDS";

type Answer = Result<i32, Code>;

/// Every mode, and its answer when there is none.
const MODES: [(&str, Answer); 4] =
    [("fails", Err(Code::Unavailable)), ("denies", Ok(OVER_LIMIT)), ("allows", Ok(OK)), ("alone", Ok(OK))];

/// What is left of the counts when a fault is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// All that callers were answered, and nothing else.
    Kept,
    /// The same, and perhaps what questions were charged whose answers were lost.
    KeptAndMore,
    /// Redis has forgotten all that it knew before.
    Lost,
}

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
            .env("REDIS_TIMEOUT", "1s")
            .env("REDIS_STARTUP_INITIAL_INTERVAL", "50ms")
            .env("REDIS_STARTUP_MAX_INTERVAL", "500ms")
            .env("REDIS_FAILURE_MODE", "allow")
    }

    fn run(&mut self, words: &[&str]) {
        redis::cmd(words[0]).arg(&words[1..]).exec(&mut self.own).expect("Redis does it");
    }

    /// Ends all connections but the test's own.
    fn cut(&mut self) {
        self.run(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
}

/// A caller that remembers what it was answered.
struct Caller {
    client: Client,
    /// Hits by mode that passed and were counted, by Redis or by the node alone.
    counted: [u32; MODES.len()],
    /// Calls by mode of which nobody knows whether Redis charged them.
    unknown: [u32; MODES.len()],
    took: Vec<Duration>,
}

impl Caller {
    fn of(node: &Tidegate) -> Self {
        Self { client: node.client(), counted: [0; 4], unknown: [0; 4], took: Vec::new() }
    }

    fn ask(&mut self, mode: usize) -> Answer {
        let asked = Instant::now();
        let answer = self.client.call(question("shop", &[&[(MODES[mode].0, "x")]]));
        self.took.push(asked.elapsed());
        let passed = answer.as_ref().is_ok_and(|answer| answer.overall_code == OK);
        // What passes uncounted leaves all of the limit.
        let is_counted = passed && answer.as_ref().is_ok_and(|it| it.statuses[0].limit_remaining < LIMIT);
        self.counted[mode] += u32::from(is_counted);
        self.unknown[mode] += u32::from(!is_counted);
        answer.map(|answer| answer.overall_code).map_err(|status| status.code())
    }

    /// Asks in every mode and holds what it gets against `allowed`.
    fn ask_all(&mut self, what: &str, allowed: impl Fn(Answer, Answer) -> bool) {
        for (mode, (key, expected)) in MODES.iter().enumerate() {
            let answer = self.ask(mode);
            assert!(allowed(answer, *expected), "{what}: {key} got {answer:?}");
        }
    }

    /// Asks until the fault has lasted long enough; what 99 of 100 answers took at most.
    fn ask_on(&mut self, what: &str, allowed: impl Fn(Answer, Answer) -> bool) -> Duration {
        let (began, watched) = (Instant::now(), Lateness::watch());
        let seconds = std::env::var(SOAK).map_or(0, |seconds| seconds.parse().expect("a number of seconds"));
        self.took.clear();
        let mut rounds = 0;
        while rounds < ROUNDS || began.elapsed() < Duration::from_secs(seconds) {
            self.ask_all(what, &allowed);
            rounds += 1;
            if seconds > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.took.sort_unstable();
        let p99 = self.took[self.took.len() * 99 / 100];
        let late = watched.allowance();
        assert!(
            p99 < BUDGET + LATE_MAX + late,
            "{what}: 1 of 100 took {p99:?}; the machine is {late:?} late"
        );
        p99
    }

    /// Whether Redis has what it should: only a question shows it.
    fn check_counts(&self, what: &str, memory: Memory) {
        for (mode, (key, _)) in MODES.iter().enumerate() {
            let shown = self.client.ask(ask_only("shop", &[&[(key, "x")]])).statuses[0].limit_remaining;
            let (count, least) = (LIMIT - shown, self.counted[mode]);
            let most = match memory {
                Memory::KeptAndMore if *key == "alone" => u32::MAX, // What is carried along may be, again and again.
                Memory::KeptAndMore => least + self.unknown[mode],
                _ => least,
            };
            assert!((least..=most).contains(&count), "{what}: {count} of {key}, not {least} to {most}");
        }
    }
}

/// A Redis that breaks, so that nothing is answered, and is then mended.
struct Fault {
    what: &'static str,
    memory: Memory,
    /// What may be answered meanwhile, in addition to what the mode says.
    or: Option<Answer>,
}

impl Fault {
    fn breaks(self, break_it: impl FnOnce(&mut Rig), mend: impl FnOnce(&mut Rig)) {
        let what = self.what;
        let mut rig = Rig::start();
        let node = rig.setup().start();
        let mut caller = Caller::of(&node);
        // Every worker connects by itself; until then it answers as the mode says.
        eventually_true("Redis to be used", || (0..20).all(|_| caller.ask(1) == Ok(OK)));
        (0..10).for_each(|_| caller.ask_all(what, |answer, _| answer == Ok(OK)));
        caller.check_counts(what, Memory::Kept);
        node.forget_memory_peak();
        let before = node.memory_peak_bytes();
        break_it(&mut rig);
        if self.memory == Memory::Lost {
            caller.counted = [0; 4];
        }
        // What was under way may still be answered.
        if self.or.is_none() {
            eventually_true(what, || caller.ask(0) == Err(Code::Unavailable));
        }
        self.lasts(&node, before, &mut caller);
        assert!(node.scrape().sum("tidegate_redis_failures_total", &[]) > 0.0, "{what}: it is counted");
        mend(&mut rig);
        self.is_over(&node, &mut caller);
    }

    fn lasts(&self, node: &Tidegate, memory_before: u64, caller: &mut Caller) {
        let what = self.what;
        let p99 = caller.ask_on(what, |answer, mode| answer == mode || Some(answer) == self.or);
        let grown = node.memory_peak_bytes().saturating_sub(memory_before);
        assert!(grown < MEMORY_MAX, "{what}: {grown} bytes more");
        let (calls, most) = (caller.took.len(), caller.took.last());
        println!("{what}: {calls} calls, p99 {p99:?}, the slowest {most:?}, {} KiB more", grown / 1024);
    }

    /// It is used again by itself, and has counted what it should.
    fn is_over(&self, node: &Tidegate, caller: &mut Caller) {
        let (what, began) = (self.what, Instant::now());
        eventually_true(&format!("{what}: recovery"), || caller.ask(0) == Ok(OK));
        let recovered = began.elapsed();
        // Several workers have connections of their own.
        eventually_true(&format!("{what}: full recovery"), || (0..20).all(|_| caller.ask(1) == Ok(OK)));
        // What was admitted alone is sent with the next question.
        caller.ask_all(what, |answer, _| answer == Ok(OK));
        caller.check_counts(what, self.memory);
        println!("{what}: used again after {recovered:?}; {:?} counted, {:?}", caller.counted, self.memory);
        assert_eq!(node.lines_with("panicked"), 0, "{what}");
    }
}

/// A fault under which every answer is as its mode says.
fn fault(what: &'static str, memory: Memory) -> Fault {
    Fault { what, memory, or: None }
}

#[test]
fn absent_at_start() {
    let mut rig = Rig::start();
    rig.redis.kill();
    let node = rig.setup().start();
    let (mut caller, fault) = (Caller::of(&node), fault("absent", Memory::Lost));
    fault.lasts(&node, node.memory_peak_bytes(), &mut caller);
    rig.redis.restart();
    fault.is_over(&node, &mut caller);
}

/// It comes back without what it knew: counters and scripts.
#[test]
fn killed() {
    fault("killed", Memory::Lost).breaks(|rig| rig.redis.kill(), |rig| rig.redis.restart());
}

/// What came too late did nothing.
#[test]
fn stopped() {
    fault("stopped", Memory::Kept).breaks(|rig| rig.redis.stop(), |rig| rig.redis.wake());
}

#[test]
fn far_too_slow() {
    fault("slow", Memory::KeptAndMore).breaks(
        |rig| rig.wire.become_(Wire::Slow(Duration::from_secs(5))),
        |rig| rig.wire.become_(Wire::Good),
    );
}

#[test]
fn answering_garbage() {
    fault("garbage", Memory::KeptAndMore)
        .breaks(|rig| rig.wire.become_(Wire::Garbage), |rig| rig.wire.become_(Wire::Good));
}

#[test]
fn closing_connections_again_and_again() {
    let fault = Fault { what: "closing", memory: Memory::KeptAndMore, or: Some(Ok(OK)) };
    fault.breaks(|rig| rig.wire.become_(Wire::Closing), |rig| rig.wire.become_(Wire::Good));
}

#[test]
fn a_replica_that_may_not_write() {
    let nowhere = free_port().to_string();
    fault("read-only", Memory::Kept).breaks(
        |rig| rig.run(&["REPLICAOF", "127.0.0.1", &nowhere]),
        |rig| rig.run(&["REPLICAOF", "NO", "ONE"]),
    );
}

#[test]
fn full() {
    fault("full", Memory::Kept).breaks(
        |rig| rig.run(&["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "1"]),
        |rig| rig.run(&["CONFIG", "SET", "maxmemory", "0"]),
    );
}

#[test]
fn a_password_that_changed() {
    fault("wrong password", Memory::Kept).breaks(
        |rig| {
            rig.run(&["CONFIG", "SET", "requirepass", "other"]);
            rig.cut();
        },
        |rig| rig.run(&["CONFIG", "SET", "requirepass", ""]),
    );
}

#[test]
fn too_many_clients() {
    fault("too many clients", Memory::Kept).breaks(
        |rig| {
            rig.run(&["CONFIG", "SET", "maxclients", "1"]);
            rig.cut();
        },
        |rig| rig.run(&["CONFIG", "SET", "maxclients", "1000"]),
    );
}

#[test]
fn loading() {
    fault("loading", Memory::Kept).breaks(
        |rig| {
            let text = "x".repeat(2_000);
            // 50 ms each: more than any fault lasts, and nothing waits for the rest.
            (0..1_000).for_each(|key| rig.run(&["SET", &format!("filler{key}"), &text]));
            rig.run(&["CONFIG", "SET", "key-load-delay", "50000", "rdbcompression", "no"]);
            // It answers when all is loaded again.
            let mut other = rig.redis.connect();
            std::thread::spawn(move || redis::cmd("DEBUG").arg("RELOAD").exec(&mut other));
        },
        |rig| rig.run(&["CONFIG", "SET", "key-load-delay", "0"]),
    );
}

#[test]
fn slow_within_the_budget_is_only_slow() {
    let rig = Rig::start();
    let node = rig.setup().env("REDIS_TIMEOUT", "5s").start();
    let mut caller = Caller::of(&node);
    eventually_true("Redis to be used", || (0..20).all(|_| caller.ask(1) == Ok(OK)));
    let failures = || node.scrape().sum("tidegate_redis_failures_total", &[]);
    let before = failures();
    rig.wire.become_(Wire::Slow(Duration::from_millis(50)));
    (0..3).for_each(|_| caller.ask_all("50 ms", |answer, _| answer == Ok(OK)));
    assert_eq!(failures(), before);
    caller.check_counts("50 ms", Memory::Kept);
}

/// Asks on all connections before it hears from any; what they are answered.
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
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).expect("within the maximum");
    assert!(files.maximum.is_none_or(|files| files > CROWD as u64 + 2_000), "too few open files: {files:?}");
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
    let mut crowd: Vec<_> = (0..CROWD).map(connect).collect();
    // The fastest way to find Redis slow is to ask for too much at once: what they are answered now may be either.
    let shown = ask_at_once(&mut crowd);
    assert!(shown.iter().all(|status| [200, 429].contains(status)));
    // They are as many as there may be: nobody else is let in.
    eventually_true("Redis to be used", || ask_at_once(&mut crowd[..20]) == [200; 20]);
    node.forget_memory_peak();
    let before = node.memory_peak_bytes();
    rig.redis.stop();
    let (asked, watched) = (Instant::now(), Lateness::watch());
    assert_eq!(ask_at_once(&mut crowd), vec![429; CROWD]);
    let (took, late) = (asked.elapsed(), watched.allowance());
    assert!(took < BUDGET + 10 * SLACK + late, "{took:?}, the machine is {late:?} late");
    let grown = node.memory_peak_bytes().saturating_sub(before);
    assert!(grown < CROWD as u64 * CALLER_BYTES_MAX, "{grown} bytes more");
    // Nor does it grow with what is asked.
    node.forget_memory_peak();
    let before = node.memory_peak_bytes();
    (0..3).for_each(|_| assert_eq!(ask_at_once(&mut crowd), vec![429; CROWD]));
    let grown = node.memory_peak_bytes().saturating_sub(before);
    assert!(grown < MEMORY_MAX, "{grown} bytes more");
    let asked = Instant::now();
    node.signal(Signal::TERM);
    assert_eq!(node.exit_code(), 0);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    rig.redis.wake();
}
