//! The limiter inside another program: rules from a text, decisions from memory. No server, no runtime, no clock but
//! the caller's.
//!
//! `cargo run --release --example embed`

use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_engine::decision::{Code, Status, conclude};
use tidegate_engine::key::KeySecret;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::{MemoryOptions, MemoryStore, StoreFull};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::Request;
use tidegate_engine::rules::{Cost, LoadOptions, SourceFile, load};
use tidegate_engine::time::Timestamp;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
";

fn main() {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).expect("the system has random bytes");
    let options = LoadOptions {
        default_algorithm: Algorithm::SlidingWindow,
        default_cost: Cost::default(),
        merge_domains: false,
        strict: true,
        max_file_bytes: 1 << 20,
        secret: KeySecret::new(secret),
    };
    let file = SourceFile { name: "shop.yaml".to_owned(), bytes: RULES.into(), presumed: false };
    let rules = match load(&[file], &options) {
        Ok(loaded) => loaded.rules,
        Err(problems) => return problems.iter().for_each(|problem| eprintln!("{problem}")),
    };
    // Once every second or so, on any thread: `store.sweep(now())` gives back what has expired.
    let store = MemoryStore::new(MemoryOptions { max_bytes: 64 << 20, full: StoreFull::Deny });

    for number in 1..=4 {
        let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
        let plan = rules.plan(&request, Modes::default());
        let decision = conclude(&plan, &store.apply(&plan, now()));
        let passes = decision.code == Code::Ok;
        if let Some(Status::Limited(limited)) = decision.statuses.first() {
            let (remaining, seconds) = (limited.remaining(), limited.reset_secs());
            println!("request {number}: passes: {passes}, remaining: {remaining}, seconds: {seconds}");
        }
    }
}

/// One reading of the clock a request. A program that must survive steps of the wall clock reads it once, at start, and
/// adds a monotonic clock to it.
#[allow(clippy::disallowed_methods, reason = "the caller's clock")]
fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_nanos(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
}
