//! What a node admitted alone, and calls of all its workers when Redis is back: whoever carries the hits, and whoever
//! fails to, nobody is answered by a Redis that does not count them.

use std::sync::Arc;

use shuttle::future::block_on;
use shuttle::sync::Mutex;
use shuttle::thread;

use super::carried::Carried;
use crate::explore::explore;
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit};

const KEY: Key = Key(1);
const N: u64 = 3;

/// What a call to Redis comes to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Answered,
    /// It was never executed.
    Lost,
    /// It was executed, and nobody knows.
    Unheard,
}

/// Asks for a hit until the call is not lost; whether it passed.
fn ask(carried: &Carried, redis: &Mutex<u64>, calls: &[Call]) -> bool {
    let (limit, now) = (limit(), some_time());
    for &call in calls.iter().chain([&Call::Answered]) {
        let mut taken = loop {
            match carried.take(std::iter::once((KEY, &limit)), now) {
                Ok(taken) => break taken,
                Err(landed) => block_on(landed),
            }
        };
        let told: u64 = taken.of(KEY).iter().map(|entry| entry.told(&limit, now).1).sum();
        thread::yield_now();
        if call == Call::Lost {
            continue;
        }
        let mut count = redis.lock().expect("no panic");
        *count += told;
        let passes = *count < N;
        *count += u64::from(passes);
        drop(count);
        thread::yield_now();
        if call == Call::Answered {
            taken.charged();
            return passes;
        }
    }
    unreachable!("the last call is answered")
}

fn limit() -> Limit {
    Limit::new(Algorithm::SlidingWindow, N as u32, 3_600_000_000_000)
}

/// Some moment: time does not matter here.
#[allow(clippy::disallowed_methods, reason = "the clock of a test")]
fn some_time() -> std::time::Instant {
    std::time::Instant::now()
}

#[test]
fn nobody_is_answered_before_redis_knows_what_was_admitted_alone() {
    explore(|| {
        let (carried, redis) = (Arc::new(Carried::default()), Arc::new(Mutex::new(0)));
        carried.note(KEY, &limit(), N, some_time(), || None);
        let calls: [&[Call]; 3] = [&[Call::Lost], &[Call::Unheard, Call::Lost], &[]];
        let threads = calls.map(|calls| {
            let (carried, redis) = (Arc::clone(&carried), Arc::clone(&redis));
            thread::spawn(move || ask(&carried, &redis, calls))
        });
        let passed = threads.map(|thread| thread.join().expect("no panic"));
        assert_eq!(passed, [false; 3]);
        let count = *redis.lock().expect("no panic");
        assert!(count == N || count == 2 * N, "told once, or twice where nobody heard that: {count}");
    });
}
