//! A kill in the middle of two hundred calls in flight: of the proxy, of a limiter, of Redis. With COLD_START=deny and all
//! failure modes deny, the application never has more calls than there are slots, and all slots are free after their `ttl`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::commands::tidegate;
use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::http::Client;
use crate::harness::lateness::Lateness;
use crate::harness::redis::Redis;
use crate::harness::slow::Slow;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, whole_machine};
use crate::slots;

const RULES: &str = "
domain: edge
descriptors:
  - key: user
    concurrency: {slots: 200, ttl: 5s, id: request_id, name: calls}
";
const SLOTS: usize = 200;
/// No call of these tests takes as long.
const TTL: Duration = Duration::from_secs(5);
/// REDIS_LEASE_TIME, a pause before a new connection, and the rounds of the servers' own clocks.
const SLACK: Duration = Duration::from_millis(1_500);
/// More than there are slots, so that some are denied at any time.
const CALLERS: usize = SLOTS + 40;
/// Calls that end together.
const TURNOVER: usize = 20;
/// After a refusal.
const PAUSE: Duration = Duration::from_millis(100);

const DENIED: u16 = 429;
/// Envoy's, when no limiter answers.
const NOT_ASKED: u16 = 500;

/// Clients that call through the proxy, each again after its answer, until this is dropped.
struct Callers(Arc<Answers>);

struct Answers {
    stopped: AtomicBool,
    by_status: [AtomicUsize; 600],
}

impl Callers {
    fn start(proxy: u16) -> Self {
        let by_status = [const { AtomicUsize::new(0) }; 600];
        let answers = Arc::new(Answers { stopped: false.into(), by_status });
        for _ in 0..CALLERS {
            let answers = Arc::clone(&answers);
            std::thread::spawn(move || answers.call(proxy));
        }
        Self(answers)
    }

    fn count(&self, status: u16) -> usize {
        self.0.by_status[usize::from(status)].load(Relaxed)
    }
}

impl Answers {
    fn call(&self, proxy: u16) {
        let mut client = Client::new(proxy);
        while !self.stopped.load(Relaxed) {
            let answer = client.send("GET", "/model/", &[("x-user", "alice")], "");
            let status = answer.map_or(0, |answer| answer.status);
            self.by_status[usize::from(status)].fetch_add(1, Relaxed);
            if status != 200 {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.0.stopped.store(true, Relaxed);
    }
}

/// An application with as many calls as there are slots, behind an Envoy that lets nothing pass without a limiter.
struct Scene {
    application: Slow,
    callers: Callers,
    envoy: Envoy,
    late: Lateness,
}

impl Scene {
    /// Also with calls that have ended, each of which made room for another.
    fn start(limiters: &Upstream) -> Self {
        let application = Slow::default();
        let closed = ("failure_mode_deny: false", "failure_mode_deny: true");
        let envoy = slots::envoy(limiters, &application, &[closed]);
        let callers = Callers::start(envoy.port);
        let scene = Self { application, callers, envoy, late: Lateness::watch() };
        for _ in 0..2 * SLOTS / TURNOVER {
            scene.await_calls();
            scene.application.answer(TURNOVER);
        }
        scene.await_calls();
        scene
    }

    fn await_calls(&self) {
        eventually_true("calls in all slots", || self.application.in_flight() == SLOTS);
    }

    /// Kills while calls end and others ask for their slots.
    fn kill(&mut self, kill: impl FnOnce(&mut Self)) {
        self.application.answer(TURNOVER);
        kill(self);
        self.is_busy();
    }

    /// Many calls run, and no more than there are slots.
    fn is_busy(&self) {
        let (calls, most) = (self.application.in_flight(), self.application.most());
        assert!(
            (SLOTS - TURNOVER..=SLOTS).contains(&calls) && most == SLOTS,
            "{calls} calls, {most} at most"
        );
    }

    /// While these calls run, many others are refused with this status.
    fn refuses(&self, status: u16) {
        let before = self.callers.count(status);
        eventually_true("refusals", || {
            self.is_busy();
            self.callers.count(status) - before > CALLERS
        });
    }

    /// Calls end, and others get all slots, at the latest one `ttl` after this time.
    fn all_slots_come_back(&self, after: Instant) {
        self.application.answer_all();
        let mut answered = Instant::now();
        eventually_true("calls in all slots", || {
            if answered.elapsed() > TTL / 2 {
                self.application.answer_all();
                answered = Instant::now();
            }
            self.application.in_flight() == SLOTS
        });
        let (took, most) = (after.elapsed(), TTL + SLACK + self.late.allowance());
        println!("all slots are back after {took:?}");
        assert!(took < most, "{took:?}, at most {most:?}");
        self.refuses(DENIED);
        self.application.answer(CALLERS);
    }
}

fn limiter(redis: Option<&Redis>) -> Tidegate {
    strict(RULES, redis)
}

/// A limiter with these rules that lost nothing so far, and lets nothing pass that it does not know.
pub fn strict(rules: &str, redis: Option<&Redis>) -> Tidegate {
    let setup = Setup::new().rules("rules.yaml", rules).env("COLD_START", "deny");
    let setup = match redis {
        None => setup.keeping_counters(),
        // A busy machine is not what is tested.
        Some(redis) => {
            setup.env("REDIS_URL", &redis.url()).env("REDIS_FAILURE_MODE", "deny").env("REDIS_TIMEOUT", "2s")
        }
    };
    let settings: Vec<_> = setup.variables().iter().map(|(name, value)| (&**name, &**value)).collect();
    let (code, _, complaints) = tidegate(&["state", "init"], &settings);
    assert_eq!(code, 0, "{complaints}");
    setup.start()
}

#[test]
fn a_killed_proxy_frees_no_slot_of_a_call_that_runs() {
    let _machine = whole_machine();
    let limiter = limiter(None);
    let mut scene = Scene::start(&Upstream::at(&limiter));
    scene.kill(|scene| scene.envoy.kill());
    let killed = Instant::now();
    scene.envoy.restart();
    scene.refuses(DENIED);
    scene.all_slots_come_back(killed);
}

#[test]
fn a_killed_limiter_frees_no_slot_of_a_call_that_runs() {
    let _machine = whole_machine();
    let mut limiter = limiter(None);
    let mut scene = Scene::start(&Upstream::at(&limiter));
    scene.kill(|_| limiter.kill());
    scene.refuses(NOT_ASKED);
    let limiter = limiter.restart();
    let restarted = Instant::now();
    scene.refuses(DENIED);
    scene.all_slots_come_back(restarted);
    assert_eq!(limiter.scrape().sum("tidegate_state_start_total", &[("outcome", "unclean")]), 1.0);
}

/// The other one goes on, and knows all slots.
#[test]
fn a_killed_limiter_frees_no_slot_in_redis() {
    let _machine = whole_machine();
    let redis = Redis::start(&[]);
    let [mut one, other] = [(); 2].map(|()| limiter(Some(&redis)));
    let mut scene = Scene::start(&Upstream::at(&one).and_at(&other));
    scene.kill(|_| one.kill());
    let killed = Instant::now();
    scene.refuses(DENIED);
    let _one = one.restart();
    scene.refuses(DENIED);
    scene.all_slots_come_back(killed);
}

/// Its file may lack the last second.
#[test]
fn a_killed_redis_frees_no_slot_of_a_call_that_runs() {
    let _machine = whole_machine();
    let mut redis = Redis::start(&["--appendonly", "yes"]);
    let limiter = limiter(Some(&redis));
    let mut scene = Scene::start(&Upstream::at(&limiter));
    scene.kill(|_| redis.kill());
    scene.refuses(DENIED);
    redis.restart();
    let mut connection = redis.connect();
    // While it reads, it answers with errors.
    eventually_true("it to have read its file", || {
        let keys = redis::cmd("KEYS").arg("edge*").query::<Vec<String>>(&mut connection);
        keys.is_ok_and(|keys| !keys.is_empty())
    });
    let restarted = Instant::now();
    scene.refuses(DENIED);
    scene.all_slots_come_back(restarted);
    assert_eq!(limiter.metric("tidegate_redis_memory_lost_total"), 1.0);
}
