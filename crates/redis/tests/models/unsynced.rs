//! Unsynced hits, and the calls of all workers when Redis is back: whichever call takes the hits, and whichever
//! fails, no call is answered by a Redis that does not count them.

use std::sync::Arc;

use shuttle::future::block_on;
use shuttle::sync::Mutex;
use shuttle::thread;

use super::unsynced::UnsyncedHits;
use crate::explore::explore;
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit};

const KEY: Key = Key(1);
const N: u64 = 3;

/// The end of a call to Redis.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Answered,
    /// It was never executed.
    Lost,
    /// It was executed, but the answer was lost.
    Unheard,
}

/// Asks for a hit until a call is not lost. Returns whether it passed.
fn ask(unsynced: &UnsyncedHits, redis: &Mutex<u64>, calls: &[Call]) -> bool {
    let (limit, now) = (limit(), some_time());
    for &call in calls.iter().chain([&Call::Answered]) {
        let mut taken = loop {
            match unsynced.take(std::iter::once((KEY, &limit)), now) {
                Ok(taken) => break taken,
                Err(landed) => block_on(landed),
            }
        };
        let reported: u64 = taken.of(KEY).iter().map(|entry| entry.age_and_hits(now).1).sum();
        thread::yield_now();
        if call == Call::Lost {
            continue;
        }
        let mut count = redis.lock().expect("no panic");
        *count += reported;
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
    Limit::new(Algorithm::SlidingWindow, N, 3_600_000_000_000)
}

/// Any moment: time does not matter here.
#[allow(clippy::disallowed_methods, reason = "the clock of a test")]
fn some_time() -> std::time::Instant {
    std::time::Instant::now()
}

#[test]
fn no_call_is_answered_before_redis_has_the_unsynced_hits() {
    explore(|| {
        let (unsynced, redis) = (Arc::new(UnsyncedHits::default()), Arc::new(Mutex::new(0)));
        unsynced.note(KEY, &limit(), N, some_time(), || None);
        let calls: [&[Call]; 3] = [&[Call::Lost], &[Call::Unheard, Call::Lost], &[]];
        let threads = calls.map(|calls| {
            let (unsynced, redis) = (Arc::clone(&unsynced), Arc::clone(&redis));
            thread::spawn(move || ask(&unsynced, &redis, calls))
        });
        let passed = threads.map(|thread| thread.join().expect("no panic"));
        assert_eq!(passed, [false; 3]);
        let count = *redis.lock().expect("no panic");
        assert!(count == N || count == 2 * N, "reported once, or twice when the answer was lost: {count}");
    });
}
