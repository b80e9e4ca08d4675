//! The slowest decisions: in a long log, while tables grow, while counters expire.
//!
//! On a shared machine the host takes the processor away for milliseconds, and even processor time jumps. So the tail
//! of one run means little. A decision that is slow because of the store is slow in every run of the same sequence. So
//! each sequence runs several times, and a decision counts with its shortest time. A loop that decides nothing is
//! measured too. Work at other places in each run (of the allocator, by the clock) shows in the line of one run.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Instant;

use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::time::SECOND_NANOS;

use crate::{Ours, START, processor_nanos, user};

/// How often a sequence runs.
const RUNS: usize = 5;
/// The parts in which counters expire.
const TENTHS: usize = 10;

/// One full log, which drops a hit for each new one. The time of a decision must not depend on its length.
pub(crate) fn long_log() {
    println!(
        "\none sliding_log of N hits, full, each decision timed (processor time); every 1,000th gap empties a tenth of it"
    );
    for requests in [100, 1_000, 10_000, 100_000, 1_000_000_u32] {
        let mut ours = Ours::new(Algorithm::SlidingLog, 1 << 30);
        let (window, key) = (60 * SECOND_NANOS, user(1));
        ours.check.limit = Limit::new(Algorithm::SlidingLog, requests.into(), window);
        let (mut now, step) = (START, window / u64::from(requests));
        let mut times: Vec<u32> = (0..requests.max(100_000) * 3)
            .map(|call| {
                now = now.plus(if call % 1_000 == 999 { window / 10 } else { step });
                timed(|| ours.decide(&key, now))
            })
            .collect();
        print_times(&format!("N = {requests}"), &mut times);
    }
}

/// The slowest decisions while an empty store fills; each of them may have to grow a table. In a store with much room,
/// whose tables stay small, and in one that ends up full, whose tables get as large as possible.
pub(crate) fn growth(keys: usize) {
    println!("\nfilling a store, each decision timed (processor time)");
    let seed = &Ours::new(Algorithm::SlidingWindow, 1 << 20).seed;
    several_runs("(a loop that decides nothing)", keys, || move |key: &str| black_box(seed.key([key])).0 > 0);
    let (exact, estimate) = (Algorithm::SlidingWindow, Algorithm::SlidingWindowWeighted);
    let stores = [(exact, keys, 4 << 30), (estimate, keys, 4 << 30)];
    let full = [(exact, keys * 9 / 10, 64 * keys as u64), (estimate, keys * 13 / 10, 64 * keys as u64)];
    for (algorithm, keys, max_bytes) in stores.into_iter().chain(full) {
        let name = algorithm.name();
        several_runs(&format!("{name}, {keys} keys in {} MiB", max_bytes >> 20), keys, || {
            let mut ours = Ours::new(algorithm, max_bytes);
            move |key| ours.decide(key, START)
        });
    }
}

/// Runs a sequence of decisions several times. Prints one run, and each decision with its shortest time.
fn several_runs<D: FnMut(&str) -> bool>(name: &str, keys: usize, mut begin: impl FnMut() -> D) {
    let mut best = vec![u32::MAX; keys];
    for run in 0..RUNS {
        let mut decide = begin();
        let mut times = Vec::with_capacity(keys);
        for number in 0..keys {
            let key = user(number);
            times.push(timed(|| assert!(decide(&key))));
        }
        best.iter_mut().zip(&times).for_each(|(best, &time)| *best = time.min(*best));
        if run == RUNS - 1 {
            print_times(&format!("{name}, one run"), &mut times);
        }
    }
    print_times(&format!("{name}, best of {RUNS}"), &mut best);
}

/// Decisions on other keys, alone and while a tenth of the counters expires, ten times in turn, so that other work on
/// the machine affects both.
pub(crate) fn expiry(keys: usize) {
    println!(
        "\ndecisions on 10,000 live keys, alone and while {keys} counters expire beside them, a tenth at a time"
    );
    for algorithm in [Algorithm::SlidingWindow, Algorithm::SlidingWindowWeighted] {
        let name = algorithm.name();
        let mut ours = Ours::new(algorithm, 4 << 30);
        let store = Arc::clone(&ours.store);
        // The hits of one of these have expired long before the next.
        let period = |number: usize| START.plus(number as u64 * 180 * SECOND_NANOS);
        (0..keys).for_each(|key| _ = ours.decide(&user(key), period(key * TENTHS / keys)));
        let live: Vec<String> = (0..10_000).map(|key| user(keys + key)).collect();
        let mut decide_until = |times: &mut Vec<u32>, done: &dyn Fn(usize) -> bool| {
            let mut calls = 0;
            while !done(calls) {
                let key = &live[calls * 7_919 % live.len()];
                let start = Instant::now();
                black_box(ours.decide(key, period(TENTHS)));
                times.push(start.elapsed().as_nanos() as u32);
                calls += 1;
            }
        };
        decide_until(&mut Vec::new(), &|calls| calls == live.len());
        let (mut alone, mut beside) = (Vec::with_capacity(8 << 20), Vec::with_capacity(8 << 20));
        for tenth in 0..TENTHS {
            decide_until(&mut alone, &|calls| calls == 300_000);
            let swept = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !store.sweep(period(tenth).plus(150 * SECOND_NANOS)).round_done {}
                    swept.store(true, Relaxed);
                });
                decide_until(&mut beside, &|_| swept.load(Relaxed));
            });
        }
        assert_eq!(store.expired_total(), keys as u64);
        print_times(&format!("{name}, alone"), &mut alone);
        print_times(&format!("{name}, beside expiry"), &mut beside);
    }
}

/// Processor time of one call, in nanoseconds.
fn timed<T>(call: impl FnOnce() -> T) -> u32 {
    let start = processor_nanos();
    black_box(call());
    (processor_nanos() - start) as u32
}

fn print_times(name: &str, times: &mut [u32]) {
    times.sort_unstable();
    let at = |share: f64| f64::from(times[((times.len() - 1) as f64 * share) as usize]) / 1_000.0;
    println!(
        "{name:<56} p50 {:.2} µs, p99 {:.2} µs, p99.9 {:.2} µs, p99.999 {:.1} µs, most {:.1} µs",
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.99999),
        at(1.0)
    );
}
