//! Resets under load: three nodes that share Redis, strict and leased, admit exactly N in each epoch, and no call fails.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use serde_json::json;

use crate::admin::{TOKEN, call};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, grpc};

const N: usize = 50;
const RESETS: usize = 8;
const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 50}
";

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
    let redis = Redis::start(&[]);
    for sync in ["strict", "leased"] {
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
                    let body = json!({"domain": "shop", "who": "jane", "why": "a test"});
                    let answer = call(&limiters[epoch % 3], "POST", "/admin/resets", &body);
                    assert_eq!(answer.status, 200, "{answer:?}");
                }
            }
        });
        redis.ask::<()>(&["FLUSHALL"]);
    }
}
