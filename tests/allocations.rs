//! What a decision allocates once its counters are there: nothing, for up to eight descriptors, by every algorithm,
//! among few rules and among many.
//!
//! A binary of its own, with one test: the allocator counts for the whole process.

use std::alloc::System;
use std::fmt::Write as _;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tidegate::engine::decision::{Code, conclude};
use tidegate::engine::key::KeySecret;
use tidegate::engine::limit::Algorithm;
use tidegate::engine::plan::Modes;
use tidegate::engine::request::{DescriptorOptions, Entry, Request};
use tidegate::engine::rules::{LoadOptions, RuleSet, SourceFile, load};
use tidegate::engine::time::Timestamp;
use tidegate::store::{MemoryOptions, MemoryStore, StoreFull};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const DESCRIPTORS_MAX: usize = 8;
const NOW: Timestamp = Timestamp::from_secs(1_000_000_000);

#[test]
fn a_decision_allocates_nothing() {
    let keys: Vec<String> = (0..DESCRIPTORS_MAX).map(|number| format!("key-{number}")).collect();
    for rule_count in [DESCRIPTORS_MAX, 20_000] {
        for algorithm in Algorithm::ALL {
            let rules = rules(algorithm, rule_count);
            for count in 1..=DESCRIPTORS_MAX {
                let store = MemoryStore::new(MemoryOptions { max_bytes: 64 << 20, full: StoreFull::Deny });
                let ask = |wanted| assert_eq!(decide(&rules, &store, &keys[..count]), wanted);
                let name = algorithm.name();
                assert!(allocations(1, || ask(Code::Ok)) > 0, "the first one makes the counters of {name}");
                // A log makes room for the number of hits beside their time.
                (0..2).for_each(|_| ask(Code::Ok));
                let passing = allocations(97, || ask(Code::Ok));
                let denied = allocations(99, || ask(Code::OverLimit));
                assert_eq!((passing, denied), (0, 0), "{name}, {count} descriptors, {rule_count} rules");
            }
        }
    }
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

/// Allocations of so many calls. The harness's own thread only waits meanwhile.
fn allocations(calls: usize, mut call: impl FnMut()) -> usize {
    let mut of_one = || {
        let before = ALLOCATOR.stats();
        call();
        let after = ALLOCATOR.stats();
        (after.allocations - before.allocations) + (after.reallocations - before.reallocations)
    };
    (0..calls).map(|_| of_one()).sum()
}

/// A hundred an hour for each of so many keys.
fn rules(algorithm: Algorithm, count: usize) -> RuleSet {
    let mut text = String::from("domain: shop\ndescriptors:\n");
    for number in 0..count {
        let limit = "rate_limit: {unit: hour, requests_per_unit: 100}";
        writeln!(text, "  - {{key: key-{number}, {limit}}}").expect("a String takes all");
    }
    let file = SourceFile { name: "shop.yaml".into(), bytes: text.into_bytes(), presumed: false };
    let options = LoadOptions {
        default_algorithm: algorithm,
        merge_domains: false,
        strict: true,
        max_file_bytes: 32 << 20,
        secret: KeySecret::new([7; 16]),
    };
    load(&[file], &options).expect("good rules").rules
}
