//! What an explanation sees of counters in Redis, without charging them: what the decision finds that follows.

use std::sync::Arc;

use tidegate_engine::clock::{Clock, monotonic};
use tidegate_engine::key::KeySecret;
use tidegate_engine::limit::Verdict;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, Sync, load};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};
use tidegate_redis::address::{Address, Servers};
use tidegate_redis::{Contact, RedisOptions, RedisStore, SharedStore, SharedStoreOptions};

use crate::server::Server;

const HOUR: u64 = 3_600 * SECOND_NANOS;
/// A run takes less.
const MINUTE: u64 = 60 * SECOND_NANOS;

/// A limit of ten hits a day, and a candidate, of each algorithm that counts hits.
const RULES: &str = "
domain: shop
descriptors:
  - key: log
    rate_limit:
      {unit: hour, requests_per_unit: 10, algorithm: sliding_log, candidate: {requests_per_unit: 4}}
  - {key: sliding, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: sliding_window}}
  - {key: fixed, rate_limit: {unit: day, requests_per_unit: 10, algorithm: fixed_window}}
  - {key: bucket, rate_limit: {unit: day, requests_per_unit: 10, algorithm: token_bucket}}
";

fn rules() -> RuleSet {
    let file = SourceFile { name: "shop.yaml".into(), bytes: RULES.into(), presumed: false };
    load(&[file], &LoadOptions::new(KeySecret::new([7; 16])).strict(true)).expect("good rules").rules
}

async fn connected(server: &Server) -> Arc<SharedStore> {
    let kind = Servers::Single(Address::Tcp("127.0.0.1".to_owned(), server.port));
    let main = RedisStore::new(RedisOptions::new(kind));
    let (local, clock) = (
        MemoryStore::new(MemoryOptions::new(1 << 20)),
        Clock::new(monotonic(), Timestamp::from_secs(1_000_000)),
    );
    let options = SharedStoreOptions { sync: Sync::Strict, ..SharedStoreOptions::default() };
    let store = Arc::new(SharedStore::new(main, None, Arc::new(local), clock, options));
    store.attach();
    let (_, main) = store.stores().next().expect("the main store");
    main.contact().wait_for(|contact| *contact == Contact::Up).await.expect("the store lives");
    store
}

/// A request that asks each limit for so many hits, or gives as many back.
fn request(hits: i64) -> Request<'static> {
    let mut request = Request::new("shop", 1);
    for key in ["log", "sliding", "fixed", "bucket"] {
        let options = DescriptorOptions {
            hits_addend: Some(hits.unsigned_abs()),
            is_negative_hits: hits < 0,
            ..DescriptorOptions::default()
        };
        request.push([Entry { key, value: "a" }], options);
    }
    request
}

#[tokio::test]
async fn a_look_shows_what_the_next_decision_finds() {
    agree(&[3, 4, 9, -2, 2, 1, 1, 7, 2, -30, 1]).await;
    // Who asks for no hits reports a cost later, which counts beyond the limit too.
    agree(&[0, 3, 4, 9, -2, -5, 2, 1, -30, 1]).await;
}

async fn agree(hits: &[i64]) {
    let (server, rules) = (Server::start(&[]), rules());
    let store = connected(&server).await;
    for &hits in hits {
        let request = request(hits);
        let plan = rules.plan(&request, Modes::default());
        let looks = store.look(&request, &plan).await.expect("Redis answers");
        let again = store.look(&request, &plan).await.expect("Redis answers");
        let decided = store.apply(&request, &plan, None).await.expect("Redis answers");
        assert_eq!(looks.len(), plan.places());
        for (place, check) in plan.checks() {
            let shown = |verdict: &Verdict| (verdict.over, verdict.before);
            let (look, found) = (looks[place].as_ref().expect("a look"), decided.verdicts[place]);
            let what = format!("{hits} hits, {:?}, {look:?}, {found:?}", check.limit);
            assert_eq!(shown(&look.verdict), shown(&found.expect("a verdict")), "{what}");
            assert_eq!(again[place].as_ref().map(|look| shown(&look.verdict)), Some(shown(&look.verdict)));
            let before = look.verdict.before;
            // A single hit waits now, when nothing has gone back.
            let waits = look.wait_one_nanos > 0;
            assert!(waits == (before >= check.limit.capacity()) || hits < 0 && waits, "{what}");
            let Some(leaving) = &look.leaving else {
                assert!(!check.limit.algorithm().is_strict() || before == 0, "{what}");
                continue;
            };
            // All that counts came within the last minute, so it leaves in the last slice. What goes back is there still.
            let leaves: u64 = leaving.slices.iter().sum();
            assert_eq!(leaving.slices.last(), Some(&leaves), "{what}");
            assert!(leaves == before || hits < 0 && leaves > before, "{what}");
            let (first, last) = leaving.nanos;
            assert!(HOUR - MINUTE <= first && first <= last && last <= HOUR + MINUTE, "{what}");
        }
    }
}
