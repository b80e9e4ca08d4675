//! A decision allocates nothing once its counters are there: for up to eight descriptors, by every algorithm, among
//! few rules and among many. And the bytes that the store counts for a counter are those that it has allocated.
//!
//! A binary of its own, whose tests run one after the other, because the allocator counts for the whole process.

use std::alloc::System;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tidegate_engine::decision::{Code, conclude};
use tidegate_engine::key::KeySecret;
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, load};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;
/// A test holds it while it counts.
static COUNTING: Mutex<()> = Mutex::new(());

const DESCRIPTORS_MAX: usize = 8;
const NOW: Timestamp = Timestamp::from_secs(1_000_000_000);

#[test]
fn a_decision_allocates_nothing() {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let keys: Vec<String> = (0..DESCRIPTORS_MAX).map(|number| format!("key-{number}")).collect();
    for rule_count in [DESCRIPTORS_MAX, 20_000] {
        for algorithm in Algorithm::OF_HITS {
            let rules = rules(algorithm, rule_count);
            for count in 1..=DESCRIPTORS_MAX {
                // The test harness's own thread allocates now and then.
                let least = (0..3).map(|_| of_many(&rules, &keys[..count])).min_by_key(|(a, b)| a + b);
                let name = algorithm.name();
                assert_eq!(least, Some((0, 0)), "{name}, {count} descriptors, {rule_count} rules");
            }
        }
    }
}

/// One counter that grows and shrinks, of each algorithm whose counters do.
#[test]
fn a_counter_holds_the_bytes_that_the_store_counts() {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    let window = 3_600 * SECOND_NANOS;
    let algorithms = [
        Limit::new(Algorithm::SlidingLog, u32::MAX.into(), window),
        Limit::new(Algorithm::SlidingWindow, u32::MAX.into(), window).with_granularity(SECOND_NANOS),
    ];
    for limit in algorithms {
        // The test harness's own thread allocates now and then.
        let least = (0..3).map(|_| bytes_miscounted(&limit)).min();
        assert_eq!(least, Some(0), "{}", limit.algorithm().name());
    }
}

/// The largest difference between the bytes that the store counts for one counter and those that the allocator counts.
fn bytes_miscounted(limit: &Limit) -> usize {
    let store = MemoryStore::new(MemoryOptions::new(64 << 20));
    let key = KeySecret::new([7; 16]).seed([b"shop".as_slice()]).key(["alice"]);
    let take = |hits, now| store.take(limit, key, hits, now);
    take(1, NOW);
    let (counted, held) = (store.bytes() as isize, held_bytes());
    let mut most = 0;
    // Two windows and a half, then a pause after which one hit alone is left.
    for step in 0..9_001 {
        let pause = if step == 9_000 { 2 * limit.window_nanos() } else { 0 };
        take(1 + step % 3, NOW.plus(step * SECOND_NANOS + pause));
        most = most.max((store.bytes() as isize - counted).abs_diff(held_bytes() - held));
    }
    most
}

/// Bytes that are allocated now.
fn held_bytes() -> isize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as isize - stats.bytes_deallocated as isize
}

/// Allocations of requests that pass, and of those that are denied, after the few that make the counters.
fn of_many(rules: &RuleSet, keys: &[String]) -> (usize, usize) {
    let store = MemoryStore::new(MemoryOptions::new(64 << 20));
    let ask = |wanted| assert_eq!(decide(rules, &store, keys), wanted);
    assert!(allocations(1, || ask(Code::Ok)) > 0, "the first one makes the counters");
    // A log makes room later for the number of hits at each time.
    (0..2).for_each(|_| ask(Code::Ok));
    (allocations(97, || ask(Code::Ok)), allocations(97, || ask(Code::OverLimit)))
}

/// One request, from its parts to the answer.
fn decide(rules: &RuleSet, store: &MemoryStore, keys: &[String]) -> Code {
    let mut request = Request::new("shop", 1);
    for key in keys {
        request.push([Entry { key, value: "alice" }], DescriptorOptions::default());
    }
    let plan = rules.plan(&request, Modes::default());
    conclude(&plan, &store.apply(&plan, NOW)).code
}

/// Allocations of this many calls.
fn allocations(calls: usize, mut call: impl FnMut()) -> usize {
    let before = ALLOCATOR.stats();
    (0..calls).for_each(|_| call());
    let after = ALLOCATOR.stats();
    (after.allocations - before.allocations) + (after.reallocations - before.reallocations)
}

/// A hundred an hour for each of this many keys.
fn rules(algorithm: Algorithm, count: usize) -> RuleSet {
    let mut text = String::from("domain: shop\ndescriptors:\n");
    for number in 0..count {
        let limit = "rate_limit: {unit: hour, requests_per_unit: 100}";
        writeln!(text, "  - {{key: key-{number}, {limit}}}").expect("a String takes all");
    }
    let file = SourceFile { name: "shop.yaml".into(), bytes: text.into_bytes(), presumed: false };
    let options = LoadOptions::new(KeySecret::new([7; 16])).default_algorithm(algorithm).strict(true);
    load(&[file], &options).expect("good rules").rules
}
