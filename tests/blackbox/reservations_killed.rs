//! A kill in the middle of two hundred reservations: of a limiter, of Redis, of the clients. With COLD_START=deny and failure
//! modes that deny, the clients' own log never has more than N hits that are spent or held, and after a `ttl` all of N is
//! free again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::http::Client;
use crate::harness::lateness::Lateness;
use crate::harness::redis::Redis;
use crate::harness::tidegate::Tidegate;
use crate::harness::{eventually_true, whole_machine};
use crate::slots_killed::strict;

const RULES: &str = "
domain: models
descriptors:
  - key: customer
    rate_limit: {window: 5s, requests_per_unit: 20400, algorithm: sliding_log}
    reserve: {ttl: 5s, expired: free}
";
const N: u64 = 20_400;
/// What each call reserves.
const MOST: u64 = 100;
const WINDOW: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_secs(5);
/// REDIS_LEASE_TIME, a pause before a new connection, and the rounds of the servers' own clocks.
const SLACK: Duration = Duration::from_millis(1_500);
/// More than there is room for.
const CALLERS: usize = 240;
const CALL: Duration = Duration::from_millis(1_500);
const PAUSE: Duration = Duration::from_millis(100);

/// A call that was admitted.
#[derive(Clone, Copy)]
struct Admitted {
    /// When the answer was there.
    since: Instant,
    /// When its commit was sent first.
    until: Option<Instant>,
    /// When the commit was answered, and the cost.
    spent: Option<(Instant, u64)>,
}

/// Clients, each with one call after the other, and their log.
struct Callers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    ports: Vec<u16>,
    stopped: AtomicBool,
    /// They are killed: they send nothing more.
    killed: AtomicBool,
    open: AtomicUsize,
    log: Mutex<Vec<Admitted>>,
}

impl Callers {
    /// Clients of these limiters.
    fn start(limiters: &[&Tidegate], names: &str) -> Self {
        let shared = Arc::new(Shared {
            ports: limiters.iter().map(|limiter| limiter.ports().http).collect(),
            stopped: false.into(),
            killed: false.into(),
            open: 0.into(),
            log: Mutex::default(),
        });
        let run = |number: usize| {
            let (shared, name) = (Arc::clone(&shared), format!("{names}{number}"));
            std::thread::spawn(move || shared.call(number, &name))
        };
        let threads = (0..CALLERS).map(run).collect();
        Self { shared, threads }
    }

    fn open(&self) -> usize {
        self.shared.open.load(Relaxed)
    }

    /// Nearly all of N is held.
    fn await_calls(&self) {
        eventually_true("two hundred calls", || self.open() >= 180);
    }

    /// As many calls again were admitted, and run.
    fn await_others(&self) {
        let admitted = || self.shared.log.lock().expect("no client panicked").len();
        let before = admitted();
        eventually_true("two hundred other calls", || admitted() >= before + 180 && self.open() >= 180);
    }

    /// All end, and their log is returned.
    fn stop(self) -> Vec<Admitted> {
        self.shared.stopped.store(true, Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("a client that ends"));
        self.shared.log.lock().expect("no client panicked").clone()
    }
}

impl Shared {
    fn call(&self, number: usize, name: &str) {
        let mut place = number;
        let mut client = Client::new(self.ports[place % self.ports.len()]);
        let mut send = |verb: &str, id: &str, amount: u64| {
            let entries = json!([{"entries": [{"key": "customer", "value": "acme"}]}]);
            let body = json!({"domain": "models", "id": id, "amount": amount, "descriptors": entries});
            let answer = client.send("POST", verb, &[], &body.to_string()).ok();
            if answer.is_none() {
                place += 1;
                client = Client::new(self.ports[place % self.ports.len()]);
            }
            answer.map_or(0, |answer| answer.status)
        };
        for call in 0.. {
            if self.stopped.load(Relaxed) || self.killed.load(Relaxed) {
                return;
            }
            let id = format!("{name}-{call}");
            if send("/reserve", &id, MOST) != 200 {
                std::thread::sleep(PAUSE);
                continue;
            }
            let at = self.admitted();
            std::thread::sleep(CALL);
            if self.killed.load(Relaxed) {
                return;
            }
            let cost = call % 3;
            self.log.lock().expect("no client panicked")[at].until = Some(Instant::now());
            self.open.fetch_sub(1, Relaxed);
            while send("/commit", &id, cost) != 200 {
                if self.stopped.load(Relaxed) || self.killed.load(Relaxed) {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
            self.log.lock().expect("no client panicked")[at].spent = Some((Instant::now(), cost));
        }
    }

    /// Logs a call, and returns its place.
    fn admitted(&self) -> usize {
        self.open.fetch_add(1, Relaxed);
        let mut log = self.log.lock().expect("no client panicked");
        log.push(Admitted { since: Instant::now(), until: None, spent: None });
        log.len() - 1
    }
}

/// The most that was certainly held and spent at one time. A hold counts from its answer until its commit is sent, or its `ttl`
/// may be over; a cost from the answer to its commit, until a window after the commit was sent.
fn most_held_and_spent(log: &[Admitted]) -> u64 {
    let mut changes: BTreeMap<Instant, i64> = BTreeMap::new();
    let mut counts = |from: Instant, to: Instant, hits: u64| {
        if from < to {
            *changes.entry(from).or_default() += hits as i64;
            *changes.entry(to).or_default() -= hits as i64;
        }
    };
    // The `ttl` began before the answer was there, by less than this.
    let margin = Duration::from_secs(1);
    for call in log {
        let expires = call.since + TTL - margin;
        counts(call.since, call.until.map_or(expires, |until| until.min(expires)), MOST);
        if let (Some(sent), Some((answered, cost))) = (call.until, call.spent) {
            counts(answered, sent + WINDOW, cost);
        }
    }
    let (mut now, mut most) = (0, 0);
    for change in changes.values() {
        now += change;
        most = most.max(now);
    }
    most as u64
}

/// Nothing more than N was admitted, and nearly N at some time.
fn check(log: &[Admitted]) {
    let most = most_held_and_spent(log);
    println!("{} calls, at most {most} held and spent", log.len());
    assert!((N - 30 * MOST..=N).contains(&most), "{most} of {N}");
}

/// All of N can be reserved at once, at the latest a `ttl` or a window after this time.
fn all_comes_back(limiter: &Tidegate, after: Instant, late: &Lateness) {
    let mut client = Client::new(limiter.ports().http);
    let entries = json!([{"entries": [{"key": "customer", "value": "acme"}]}]);
    let body = json!({"domain": "models", "id": "all", "amount": N, "descriptors": entries}).to_string();
    eventually_true("room for all", || {
        client.send("POST", "/reserve", &[], &body).is_ok_and(|answer| answer.status == 200)
    });
    let (took, most) = (after.elapsed(), TTL.max(WINDOW) + SLACK + late.allowance());
    println!("all is back after {took:?}");
    assert!(took < most, "{took:?}, at most {most:?}");
}

fn limiter(redis: Option<&Redis>) -> Tidegate {
    strict(RULES, redis)
}

/// The callers stop. Never more than N was spent and held, and then all of it is free.
fn ends(callers: Callers, limiter: &Tidegate, late: &Lateness) {
    let log = callers.stop();
    let stopped = Instant::now();
    check(&log);
    all_comes_back(limiter, stopped, late);
}

#[test]
fn a_killed_limiter_lets_nobody_hold_more() {
    let (_machine, late) = (whole_machine(), Lateness::watch());
    let mut limiter = limiter(None);
    let callers = Callers::start(&[&limiter], "a");
    callers.await_calls();
    limiter.kill();
    let limiter = limiter.restart();
    callers.await_others();
    ends(callers, &limiter, &late);
}

/// The other one goes on, and knows all holds.
#[test]
fn a_killed_limiter_loses_nothing_in_redis() {
    let (_machine, late) = (whole_machine(), Lateness::watch());
    let redis = Redis::start(&[]);
    let [mut one, other] = [(); 2].map(|()| limiter(Some(&redis)));
    let callers = Callers::start(&[&one, &other], "a");
    callers.await_calls();
    one.kill();
    callers.await_others();
    let one = one.restart();
    callers.await_others();
    ends(callers, &one, &late);
}

/// Its file may lack the last second.
#[test]
fn a_killed_redis_lets_nobody_hold_more() {
    let (_machine, late) = (whole_machine(), Lateness::watch());
    let mut redis = Redis::start(&["--appendonly", "yes"]);
    let limiter = limiter(Some(&redis));
    let callers = Callers::start(&[&limiter], "a");
    callers.await_calls();
    redis.kill();
    redis.restart();
    eventually_true("the loss to be noticed", || limiter.metric("tidegate_redis_memory_lost_total") == 1.0);
    callers.await_others();
    ends(callers, &limiter, &late);
}

/// Nobody commits what they hold, and others cannot have it before its `ttl` is over.
#[test]
fn what_killed_clients_hold_is_free_after_its_ttl() {
    let (_machine, late) = (whole_machine(), Lateness::watch());
    let limiter = limiter(None);
    let killed = Callers::start(&[&limiter], "a");
    killed.await_calls();
    killed.shared.killed.store(true, Relaxed);
    let others = Callers::start(&[&limiter], "b");
    others.await_calls();
    let log = [killed.stop(), others.stop()].concat();
    let stopped = Instant::now();
    check(&log);
    all_comes_back(&limiter, stopped, &late);
    let scrape = limiter.scrape();
    assert!(scrape.sum("tidegate_reservations_total", &[("result", "reserved")]) >= log.len() as f64);
    assert!(scrape.sum("tidegate_reservations_total", &[("result", "denied")]) > 0.0);
    assert!(scrape.sum("tidegate_commits_total", &[("was", "open")]) > 0.0);
}
