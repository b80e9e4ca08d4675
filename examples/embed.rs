//! The engine inside another program: rules from a text, counters in memory. No server and no runtime.
//!
//! `cargo run --release --example embed`

use tidegate_engine::{Clock, Limiter, Request};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
";

fn main() {
    let limiter = match Limiter::builder().file("shop.yaml", RULES).max_bytes(64 << 20).build() {
        Ok(limiter) => limiter,
        Err(problems) => return problems.iter().for_each(|problem| eprintln!("{problem}")),
    };
    // Once every second or so, on any thread: `limiter.sweep(clock.now())` frees the memory of expired counters.
    let clock = Clock::start();

    for number in 1..=4 {
        let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
        let answer = limiter.decide(&request, clock.now());
        let (passes, left, seconds) = (answer.passes(), answer.remaining, answer.reset_secs);
        if let (Some(remaining), Some(seconds)) = (left, seconds) {
            println!("request {number}: passes: {passes}, remaining: {remaining}, seconds: {seconds}");
        }
    }
}
