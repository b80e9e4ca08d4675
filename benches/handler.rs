//! `cargo bench --bench handler`: the allocations of one call behind the transport, from the bytes of the request to
//! the bytes of the answer. Beside it those of decoding the request with prost, which the handler does not do.

use std::alloc::System;
use std::fmt::Write as _;
use std::hint::black_box;

use prost::Message;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::answerer;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tidegate::proto::envoy::service::ratelimit::v3::RateLimitRequest;
use tidegate_serve::service::fixture;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const CALLS: usize = 1_000;

fn main() {
    println!("allocations a call, after the first of its kind");
    println!(
        "{:>8} {:>12} {:>6} {:>22} {:>22}",
        "rules", "descriptors", "handler", "the request, by prost", "bytes, handler"
    );
    for rules in [1, 1_000, 100_000] {
        let metrics = fixture::metrics();
        let answer = answerer(fixture::service(Some(&rules_text(rules)), &metrics), metrics);
        for descriptors in [1, 2, 4, 8, 16] {
            row(rules, descriptors, &answer);
        }
    }
}

fn row(rules: usize, descriptors: usize, answer: impl Fn(&[u8]) -> Option<bytes::Bytes>) {
    let request = request(descriptors);
    assert!(answer(&request).is_some_and(|message| message.len() > 10 * descriptors), "a decision");
    let (handler, bytes) = counted(|| drop(black_box(answer(black_box(&request)))));
    let (decoded, _) = counted(|| drop(black_box(RateLimitRequest::decode(black_box(&request[..])))));
    println!("{rules:>8} {descriptors:>12} {handler:>6} {decoded:>22} {bytes:>22}");
}

/// Allocations (and reallocations) and their bytes, of one call.
fn counted(call: impl Fn()) -> (usize, usize) {
    let region = Region::new(ALLOCATOR);
    for _ in 0..CALLS {
        call();
    }
    let change = region.change();
    ((change.allocations + change.reallocations) / CALLS, change.bytes_allocated / CALLS)
}

/// A limit for every `user`, and further rules up to this number.
fn rules_text(rules: usize) -> String {
    let limit = "rate_limit: {unit: hour, requests_per_unit: 1000000000}";
    let mut text = format!("domain: bench\ndescriptors:\n  - {{key: user, {limit}}}\n");
    for at in 1..rules {
        writeln!(text, "  - {{key: id, value: v{at}, {limit}}}").expect("a String takes all");
    }
    text
}

fn request(descriptors: usize) -> Vec<u8> {
    let entry = |at| Entry { key: "user".into(), value: format!("user-{at}") };
    let descriptor = |at| RateLimitDescriptor { entries: vec![entry(at)], ..Default::default() };
    let descriptors = (0..descriptors).map(descriptor).collect();
    RateLimitRequest { domain: "bench".into(), descriptors, hits_addend: 0 }.encode_to_vec()
}
