//! Resets and exceptions under load: nodes alone, and three that share Redis, strict and leased. No call fails, each epoch
//! admits exactly N, and no window holds more than the largest N that was in force.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use crate::admin::{TOKEN, call, exception, put};
use crate::harness::admissions::Admissions;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{StopOnDrop, eventually_true, grpc};

const N: usize = 50;
const RESETS: usize = 8;
const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 50}
  - key: second
    rate_limit: {unit: second, requests_per_unit: 50}
";
/// N of exceptions that come and go.
const LARGER: usize = 120;
const SMALLER: usize = 20;
const SECOND_MICROS: u64 = 1_000_000;

/// What clients have asked, and what has passed.
#[derive(Default)]
struct Load {
    asked: AtomicUsize,
    passed: AtomicUsize,
    is_over: AtomicBool,
}

impl Load {
    /// Asks until it is over. An error of a call ends the test.
    fn ask(&self, limiter: &Tidegate) {
        let _ends = Ends(self);
        let client = limiter.client();
        while !self.is_over.load(Relaxed) {
            let answer = client.ask(grpc::question("shop", &[&[("user", "a")]]));
            self.passed.fetch_add(usize::from(answer.overall_code == grpc::OK), Relaxed);
            self.asked.fetch_add(1, Relaxed);
        }
    }

    /// Waits until many more questions were answered.
    fn goes_on(&self) {
        let before = self.asked.load(Relaxed);
        eventually_true("more questions", || self.asked.load(Relaxed) > before + 500);
    }
}

/// Whoever fails ends the load, so that nobody waits for it.
struct Ends<'l>(&'l Load);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
    }
}

#[test]
fn each_epoch_admits_n_and_no_call_fails() {
    for sync in ["strict", "leased"] {
        let redis = Redis::start(&[]);
        let start = |_| {
            let setup = Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
            let setup = setup.env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s");
            setup.env("REDIS_SYNC", sync).env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000").start()
        };
        let limiters = [0, 1, 2].map(start);
        let load = Load::default();
        thread::scope(|scope| {
            let _ends = Ends(&load);
            for limiter in &limiters {
                scope.spawn(|| load.ask(limiter));
            }
            for epoch in 1..=RESETS + 1 {
                eventually_true("all of it to pass", || load.passed.load(Relaxed) >= epoch * N);
                load.goes_on();
                assert_eq!(load.passed.load(Relaxed), epoch * N, "{sync}: no more passes");
                if epoch <= RESETS {
                    // All counters of the domain, or this one alone.
                    let mut body = json!({"domain": "shop", "who": "jane", "why": "a test"});
                    let path = if epoch % 2 == 0 { "/admin/resets" } else { "/admin/counters/reset" };
                    if epoch % 2 == 1 {
                        body["entries"] = json!([{"key": "user", "value": "a"}]);
                    }
                    let answer = call(&limiters[epoch % 3], "POST", path, &body);
                    assert_eq!(answer.status, 200, "{answer:?}");
                }
            }
        });
    }
}

/// Asks until it has to stop. An error of a call ends the test.
fn admitted(limiter: &Tidegate, stop: &AtomicBool, began: Instant) -> Admissions {
    let _stops = StopOnDrop(stop);
    let (client, mut log) = (limiter.client(), Admissions::default());
    let micros = || began.elapsed().as_micros() as u64;
    while !stop.load(Relaxed) {
        let asked = micros();
        if client.ask(grpc::question("shop", &[&[("second", "a")]])).overall_code == grpc::OK {
            log.push(asked, micros());
        }
    }
    log
}

/// What one request would get at every limiter.
fn all_say(limiters: &[Tidegate], path: &[&str], expected: &Value) -> bool {
    let counter = json!({"domain": "shop", "entries": [{"key": "second", "value": "a"}]});
    limiters.iter().all(|limiter| {
        let peeked = call(limiter, "POST", "/admin/counters/peek", &counter).body;
        let peeked: Value = serde_json::from_str(&peeked).expect("JSON");
        path.iter().fold(&peeked["descriptors"][0], |value, name| &value[name]) == expected
    })
}

/// Makes exceptions at all limiters and ends them, again and again, each when the one before is in force.
fn come_and_go(limiters: &[Tidegate]) {
    let body = |more: Value| {
        let mut body = exception(Some("a"), &more);
        body["entries"][0]["key"] = "second".into();
        body
    };
    for _ in 0..3 {
        for requests in [LARGER, SMALLER] {
            let larger = body(json!({"requests_per_unit": requests}));
            limiters.iter().for_each(|limiter| put(limiter, "a", &larger));
            let n = json!(requests);
            eventually_true("it to be in force", || all_say(limiters, &["limit", "requests_per_unit"], &n));
        }
        limiters.iter().for_each(|limiter| put(limiter, "b", &body(json!({"deny": true}))));
        eventually_true("nothing to pass", || all_say(limiters, &["exception", "id"], &json!("b")));
        for id in ["a", "b"] {
            for limiter in limiters {
                let path = format!("/admin/exceptions/{id}");
                let ended = call(limiter, "DELETE", &path, &json!({"who": "jane"}));
                assert_eq!(ended.status, 200, "{ended:?}");
            }
        }
        eventually_true("the rule to hold", || all_say(limiters, &["exception", "id"], &Value::Null));
    }
}

fn exceptions_come_and_go_at(limiters: &[Tidegate]) {
    let (stop, began) = (AtomicBool::new(false), Instant::now());
    let log = thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        let asking: Vec<_> = limiters
            .iter()
            .map(|limiter| {
                let stop = &stop;
                scope.spawn(move || admitted(limiter, stop, began))
            })
            .collect();
        come_and_go(limiters);
        stop.store(true, Relaxed);
        let mut log = Admissions::default();
        asking.into_iter().for_each(|thread| log.append(thread.join().expect("no panic")));
        log
    });
    let most = log.most_in_a_window(SECOND_MICROS);
    assert!((1..=LARGER).contains(&most), "{most} in a window");
}

#[test]
fn no_window_holds_more_than_the_largest_limit_of_exceptions_that_come_and_go() {
    let setup = || Setup::new().rules("shop.yaml", RULES).env("ADMIN_TOKEN", TOKEN);
    exceptions_come_and_go_at(&[setup().start()]);
    let redis = Redis::start(&[]);
    for sync in ["strict", "leased"] {
        let setup = || setup().env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s");
        let setup = || setup().env("REDIS_SYNC", sync).env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000");
        exceptions_come_and_go_at(&[0, 1, 2].map(|_| setup().start()));
        redis.ask::<()>(&["FLUSHALL"]);
    }
}
