//! Keys that come once each, by the million, at a rule whose keys may have records: memory stays as it is, and keys that are
//! in use stay in memory.

use std::path::Path;

use super::limiter::{Limiter, With};
use super::request::{Expected, Keys};
use super::{Args, above, below, server};

/// Keys that come once, between two looks.
const SLICE: u64 = 1_000_000;
/// Slices after which the cache is full.
const FILLED: u64 = 3;
/// Keys that are in use, and how often each is asked for between two slices.
const IN_USE: u64 = 10_000;
const TIMES: u64 = 5;
/// Calls under way at a time.
const STREAMS: usize = 64;
const MIB: f64 = 1_048_576.0;

/// By so much memory may grow once the cache is full: it moves by what is under way, and by what an allocator keeps.
const GROWTH_MIB_MAX: f64 = 24.0;
/// So many of the keys in use are answered from memory.
const KNOWN_MIN: f64 = 0.99;

/// Measures, and returns what is worse than it should be.
pub(crate) fn measure(args: &Args, folder: &Path) -> Result<Vec<String>, String> {
    server::pin_self(&args.generator_core)?;
    let limiter = start(args, folder)?;
    in_use(&limiter)?;
    let (mut resident, mut worst) = (Vec::new(), 1.0_f64);
    println!("{:>10} {:>12} {:>10} {:>12}", "keys", "resident MiB", "cached", "in use known");
    for slice in 0..args.keys / SLICE {
        limiter.ask_at_a_time(Keys::InTurn(slice * SLICE), SLICE, STREAMS)?;
        let bytes = limiter.server.resident_bytes() as f64;
        resident.push(bytes);
        let (cached, known) = (limiter.metric("tidegate_limits_cached")?, in_use(&limiter)?);
        worst = worst.min(known);
        println!("{:>10} {:>12.1} {cached:>10} {known:>12.4}", (slice + 1) * SLICE, bytes / MIB);
    }
    let full = resident.iter().take(FILLED as usize).copied().fold(0.0, f64::max);
    let most = resident.iter().copied().fold(0.0, f64::max);
    println!(
        "after {FILLED} million: {:.1} MiB more at most; {worst:.4} of the keys in use known",
        (most - full) / MIB
    );
    let growth = above("MiB that memory grew by", (most - full) / MIB, GROWTH_MIB_MAX);
    Ok(growth.into_iter().chain(below("the share of keys in use that are known", worst, KNOWN_MIN)).collect())
}

fn start(args: &Args, folder: &Path) -> Result<Limiter, String> {
    let variables = vec![("LIMITS_TIMEOUT", "5s".to_owned())];
    // What is denied makes no counter, so counters are not what is measured.
    let rate_limit = "{unit: hour, requests_per_unit: 0}, limits_from: store";
    let mut limiter = Limiter::start(args, With { rate_limit, folder, has_records: true, variables })?;
    limiter.server.answers = Expected::Over;
    Ok(limiter)
}

/// Asks for the keys in use, and returns the share of them that were known.
fn in_use(limiter: &Limiter) -> Result<f64, String> {
    let known = "tidegate_limits_known_total";
    let before = limiter.metric(known)?;
    limiter.ask_at_a_time(Keys::InTurn(0), IN_USE, STREAMS)?;
    let found = limiter.metric(known)? - before;
    for _ in 1..TIMES {
        limiter.ask_at_a_time(Keys::InTurn(0), IN_USE, STREAMS)?;
    }
    // A few more are asked than are counted: those that were under way at the end.
    Ok((found / IN_USE as f64).min(1.0))
}
