//! The engine inside another program, with counters in a Redis that it shares with others: with a second run of itself,
//! and with every `tidegate` that has these rules and this Redis.
//!
//! `cargo run --release --example embed_redis -- 127.0.0.1:6379`

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tidegate_engine::clock::Clock;
use tidegate_engine::decision::{Code, Status, conclude};
use tidegate_engine::key::KeySecret;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::Request;
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, StoreFailure, load};
use tidegate_redis::address::RedisUrl;
use tidegate_redis::{Contact, RedisOptions, RedisStore};
use tidegate_redis::{SharedStore, SharedStoreOptions};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
";

// Decisions wait for Redis, so there is a runtime. Each of its threads that attaches has connections of its own; all
// other threads share them.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6379".to_owned());
    let redis = RedisStore::new(RedisOptions::new(RedisUrl::parse("single", &url, "")?.kind));
    let mut contact = redis.contact();
    // Decides while Redis does not answer, with StoreFailure::Local.
    let local = MemoryStore::new(MemoryOptions::new(64 << 20));
    let options = SharedStoreOptions { mode: StoreFailure::Local, ..SharedStoreOptions::default() };
    let store = Arc::new(SharedStore::new(redis, None, Arc::new(local), Clock::start(), options));
    store.attach();
    tokio::time::timeout(Duration::from_secs(5), contact.wait_for(|it| *it == Contact::Up)).await??;

    let rules = rules()?;
    for number in 1..=2 {
        let request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
        let plan = rules.plan(&request, Modes::default());
        // An error only with StoreFailure::Error, when Redis does not answer.
        let decision = conclude(&plan, &store.apply(&request, &plan, None).await?.verdicts);
        let passes = decision.code == Code::Ok;
        if let Some(Status::Limited(limited)) = decision.statuses.first() {
            let (remaining, seconds) = (limited.remaining(), limited.reset_secs());
            println!("request {number}: passes: {passes}, remaining: {remaining}, seconds: {seconds}");
        }
    }
    Ok(())
}

fn rules() -> Result<RuleSet, Box<dyn Error>> {
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)?;
    let options = LoadOptions::new(KeySecret::new(secret)).strict(true);
    let file = SourceFile { name: "shop.yaml".to_owned(), bytes: RULES.into(), presumed: false };
    let report = |problems: Vec<_>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    Ok(load(&[file], &options).map_err(report)?.rules)
}
