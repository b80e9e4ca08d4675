//! Records with a source that tests control: what it is asked for, and what applies while it does not answer.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::*;
use crate::clock::{Clock, monotonic, timer};
use crate::service::fixture::{metrics, rules};
use crate::service::{Batch, Counters, Service, ServiceError};
use tidegate_engine::Timestamp;
use tidegate_engine::decision::{Code, Decision};
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::DescriptorOptions;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    limits_from: store
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: path
    rate_limit: {unit: minute, requests_per_unit: 1000000}
";

/// A source whose records and answers tests set.
#[derive(Clone, Default)]
pub(super) struct Steered(Arc<Inner>);

#[derive(Default)]
struct Inner {
    records: Mutex<HashMap<RecordKey, Record>>,
    asked: AtomicU64,
    is_away: AtomicBool,
    is_held: AtomicBool,
    released: Notify,
}

impl RecordSource for Steered {
    fn get(&self, key: RecordKey) -> RecordAnswer<'_> {
        Box::pin(async move {
            self.0.asked.fetch_add(1, Relaxed);
            let record = self.0.records.lock().get(&key).copied();
            if self.0.is_held.load(Relaxed) {
                self.0.released.notified().await;
            }
            if self.0.is_away.load(Relaxed) { Err(NoAnswer) } else { Ok(record) }
        })
    }
}

impl Steered {
    pub(super) fn set(&self, user: &str, record: Option<Record>) {
        let mut records = self.0.records.lock();
        match record {
            Some(record) => records.insert(key(user), record),
            None => records.remove(&key(user)),
        };
    }

    fn asked(&self) -> u64 {
        self.0.asked.load(Relaxed)
    }
}

pub(super) fn key(user: &str) -> RecordKey {
    RecordKey::of("shop", [("user", user)]).expect("a key")
}

/// A shop with these records, at times that the test says.
pub(super) struct Shop {
    pub(super) source: Steered,
    pub(super) records: Arc<KnownRecords>,
    store: Arc<MemoryStore>,
    metrics: Arc<crate::metrics::Metrics>,
}

impl Shop {
    pub(super) fn with(stale_mode: StaleMode, cache_entries: usize) -> Self {
        let source = Steered::default();
        let options = RecordsOptions { cache_entries, timeout: Duration::from_millis(100), stale_mode };
        let records = Arc::new(KnownRecords::new(source.clone(), KeySecret::new([7; 16]), options));
        let store = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 30)));
        Self { source, records, store, metrics: metrics() }
    }

    /// The service at this second. All share the counters.
    pub(super) fn service(&self, second: u64) -> Service {
        // It begins later than the test ends, so it stands still.
        let begins = monotonic() + Duration::from_secs(86_400);
        let clock = Clock::new(begins, Timestamp::from_secs(second));
        let counters = Counters::Memory(Arc::clone(&self.store));
        let service = Service::new(counters, Arc::clone(&self.metrics), clock, Modes::default())
            .recorded(Some(Arc::clone(&self.records)));
        service.install(rules(RULES));
        service
    }

    /// Whether a request of this user passes at this second, and whether it was decided at once.
    pub(super) async fn asks(&self, user: &str, second: u64) -> (bool, bool) {
        decided(&self.service(second), &Request::new("shop", 1).descriptor(&[("user", user)])).await
    }

    /// The explanation, as text, and its part about the record as JSON.
    async fn explains(&self, user: &str, second: u64) -> (String, Value) {
        let service = self.service(second);
        let live = service.snapshot().expect("rules");
        let entries = [("user", user)];
        let request = Request::new("shop", 1).descriptor(&entries);
        let shown = service.explain(live.in_force(), &request, |explanation| {
            (explanation.to_string(), explanation.json()["descriptors"][0]["record"].clone())
        });
        shown.await.expect("memory answers")
    }

    /// The line about the record, and its JSON.
    async fn explains_record(&self, user: &str) -> (String, Value) {
        let (text, json) = self.explains(user, 1_000).await;
        let line = text.lines().find_map(|line| line.strip_prefix("  record    "));
        (line.expect("a line about the record").to_owned(), json)
    }

    /// How many of 10 requests pass.
    async fn passing(&self, user: &str, second: u64) -> usize {
        let service = self.service(second);
        let mut passing = 0;
        for _ in 0..10 {
            let request = Request::new("shop", 1).descriptor(&[("user", user)]);
            passing += usize::from(decided(&service, &request).await.0);
        }
        passing
    }
}

/// Decides a request as the fronts do. Whether it passes, and whether it was decided at once.
async fn decided<'r>(service: &Service, request: &Request<'r>) -> (bool, bool) {
    let passes = |decision: &Decision<'_>| decision.code == Code::Ok;
    let mut batch = Batch::default();
    batch.put(request.clone());
    let mut at_once = None;
    let live = service.snapshot().expect("rules");
    service.decide(live.in_force(), &batch, |_, _, decision| at_once = decision.map(passes));
    if let Some(passes) = at_once {
        return (passes, true);
    }
    let read = |place: &mut _| {
        *place = live.rules().asked(request);
        Ok::<_, ServiceError>(())
    };
    let later = service.finish(live.in_force(), read, None, |_, decision| passes(decision)).await;
    (later.expect("memory answers"), false)
}

fn of(requests: u32) -> Option<Record> {
    Some(Record::of(requests.into()))
}

/// A request that waits for Redis takes its records along, if it has any and all of them are in memory.
#[tokio::test]
async fn the_records_of_a_request_that_waits_are_kept() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.source.set("alice", of(5));
    let service = shop.service(1_000);
    let live = service.snapshot().expect("rules");
    let keeps = |key: &str| {
        let entries = [(key, "alice")];
        let request = Request::new("shop", 1).descriptor(&entries);
        let plan = live.rules().plan(&request, Modes::default());
        service.known(&request, &plan).map(|found| found.is_some())
    };
    assert_eq!([keeps("user"), keeps("path")], [None, Some(false)], "nothing is in memory");
    shop.asks("alice", 1_000).await;
    assert_eq!([keeps("user"), keeps("path")], [Some(true), Some(false)]);
}

/// The log of decisions says it.
#[tokio::test]
async fn a_request_that_waits_keeps_that_its_record_is_not_confirmed() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.asks("bob", 1_000).await;
    let service = shop.service(1_000);
    let live = service.snapshot().expect("rules");
    let request = Request::new("shop", 1).descriptor(&[("user", "bob")]);
    let plan = live.rules().plan(&request, Modes::default());
    let keeps_any = || service.known(&request, &plan).map(|found| found.is_some());
    assert_eq!(keeps_any(), Some(false), "it has none");
    shop.records.set_stale(true);
    assert_eq!(keeps_any(), Some(true));
}

#[tokio::test]
async fn a_record_is_fetched_once_and_holds_until_it_changes() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.source.set("alice", of(5));
    assert_eq!(shop.asks("alice", 1_000).await, (true, false), "fetched");
    assert_eq!(shop.asks("alice", 1_000).await, (true, true), "known");
    assert_eq!(shop.passing("alice", 1_000).await, 3);
    shop.source.set("alice", of(6));
    assert_eq!(shop.passing("alice", 1_000).await, 0, "no change was announced");
    shop.records.forget(&key("alice"));
    assert_eq!(shop.passing("alice", 1_000).await, 1, "what was counted stays");
    assert_eq!(shop.source.asked(), 2);
}

/// The rest is counted when it is decided.
#[tokio::test]
async fn of_a_batch_only_what_is_answered_at_once_is_counted() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.asks("alice", 1_000).await;
    let mut batch = Batch::default();
    batch.put(Request::new("shop", 1).descriptor(&[("user", "alice")]));
    batch.put(Request::new("shop", 1).descriptor(&[("user", "alice")]).descriptor(&[("user", "bob")]));
    let known = || {
        shop.metrics.scrape().find_map(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("tidegate_limits_known_total "));
            line?.parse::<u64>().ok()
        })
    };
    let (service, decided) = (shop.service(1_000), || shop.metrics.decision_time().0);
    let before = (known().unwrap_or(0), decided());
    service.decide(service.snapshot().expect("rules").in_force(), &batch, |_, _, _| {});
    assert_eq!((known(), decided()), (Some(before.0 + 1), before.1 + 1));
}

#[tokio::test]
async fn a_key_without_a_record_is_asked_for_once() {
    let shop = Shop::with(StaleMode::Rule, 100);
    assert_eq!(shop.asks("bob", 1_000).await, (true, false));
    assert_eq!(shop.asks("bob", 1_000).await, (true, true));
    assert_eq!(shop.source.asked(), 1);
    shop.source.set("bob", of(0));
    shop.records.forget_all();
    assert_eq!(shop.asks("bob", 1_000).await, (false, false));
}

#[tokio::test]
async fn rules_without_records_ask_for_none() {
    let shop = Shop::with(StaleMode::Deny, 100);
    shop.source.0.is_away.store(true, Relaxed);
    let request = Request::new("shop", 1).descriptor(&[("path", "/")]);
    assert_eq!(decided(&shop.service(1_000), &request).await, (true, true));
    assert_eq!(shop.source.asked(), 0);
}

/// No record can be for a value that is too long. Nobody asks for it twice.
#[tokio::test]
async fn what_can_have_no_record_is_not_asked_for() {
    let shop = Shop::with(StaleMode::Deny, 100);
    let long = "x".repeat(5_000);
    assert_eq!(shop.asks(&long, 1_000).await, (true, false));
    assert_eq!(shop.asks(&long, 1_000).await, (true, true));
    assert_eq!(shop.source.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_that_wait_for_one_key_ask_once() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.source.set("alice", of(5));
    shop.source.0.is_held.store(true, Relaxed);
    let release = async {
        tokio::task::yield_now().await;
        shop.source.0.is_held.store(false, Relaxed);
        shop.source.0.released.notify_waiters();
    };
    let asking = futures_util::future::join_all((0..50).map(|_| shop.asks("alice", 1_000)));
    let (all, ()) = futures_util::future::join(asking, release).await;
    assert_eq!(all.iter().filter(|(passes, _)| *passes).count(), 5);
    assert_eq!(shop.source.asked(), 1);
}

/// The fetch began before the change, so what it brings may be older.
#[tokio::test(start_paused = true)]
async fn what_a_fetch_brings_that_a_change_overtook_is_not_kept() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.source.0.is_held.store(true, Relaxed);
    let change = async {
        tokio::task::yield_now().await;
        shop.source.set("alice", of(0));
        shop.records.forget(&key("alice"));
        shop.source.0.is_held.store(false, Relaxed);
        shop.source.0.released.notify_waiters();
    };
    let (old, ()) = futures_util::future::join(shop.asks("alice", 1_000), change).await;
    assert_eq!(old, (true, false), "it waited for the old answer");
    assert_eq!(shop.asks("alice", 1_000).await, (false, false), "the new one is fetched");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_waited_for_within_a_bound() {
    for (mode, passing) in [(StaleMode::Rule, 3), (StaleMode::Last, 3), (StaleMode::Deny, 0)] {
        let shop = Shop::with(mode, 100);
        shop.source.0.is_held.store(true, Relaxed);
        let began = timer();
        assert_eq!(shop.passing("alice", 1_000).await, passing, "{mode:?}");
        assert_eq!((timer() - began).as_millis(), 10 * 100, "each waits for its timeout");
        assert_eq!(shop.records.stats().stale.load(Relaxed), 10);
        assert_eq!(shop.source.asked(), 1, "they wait for one fetch");
    }
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_waited_for_together() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.source.0.is_held.store(true, Relaxed);
    let users = ["alice", "bob", "carol"].map(|user| [("user", user)]);
    let request = users.iter().fold(Request::new("shop", 1), |request, user| request.descriptor(user));
    let began = timer();
    assert_eq!(decided(&shop.service(1_000), &request).await, (true, false));
    assert_eq!(((timer() - began).as_millis(), shop.source.asked()), (100, 3));
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_for_less_is_answered_earlier_and_one_that_waits_for_more_is_not_later() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.source.0.is_held.store(true, Relaxed);
    let service = shop.service(1_000);
    let live = service.snapshot().expect("rules");
    for (waits, millis) in [(Some(20), 20), (Some(3_600_000), 100), (None, 100)] {
        let read = |request: &mut Request<'_>| {
            *request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
            Ok::<_, ServiceError>(())
        };
        let began = timer();
        let waits = waits.map(Duration::from_millis);
        service.finish(live.in_force(), read, waits, |_, _| ()).await.expect("memory answers");
        assert_eq!((timer() - began).as_millis(), millis);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fetch_that_took_too_long_says_nothing() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.source.set("alice", of(0));
    shop.source.0.is_held.store(true, Relaxed);
    assert_eq!(shop.asks("alice", 1_000).await, (true, false), "by the rule");
    tokio::time::sleep(FETCH_TIMEOUT).await;
    assert_eq!((shop.records.stats().failures.load(Relaxed), shop.records.cached()), (1, 0));
    shop.source.0.is_held.store(false, Relaxed);
    assert_eq!(shop.asks("alice", 1_000).await, (false, false), "it is fetched again");
}

#[tokio::test]
async fn what_was_known_last_holds_until_it_is_too_old() {
    for (mode, passing) in [(StaleMode::Rule, 3), (StaleMode::Last, 5), (StaleMode::Deny, 0)] {
        let shop = Shop::with(mode, 100);
        shop.source.set("alice", of(5));
        assert_eq!(shop.passing("alice", 1_000).await, 5);
        shop.source.0.is_away.store(true, Relaxed);
        assert_eq!(shop.passing("alice", 2_000).await, 5, "the last known");
        shop.records.set_stale(true);
        assert_eq!(shop.passing("alice", 3_000).await, passing, "{mode:?}");
        let unknown = if mode == StaleMode::Deny { 0 } else { 3 };
        assert_eq!(shop.passing("bob", 3_000).await, unknown, "{mode:?}: nothing is known");
        shop.source.0.is_away.store(false, Relaxed);
        shop.records.set_stale(false);
        assert_eq!(shop.passing("alice", 4_000).await, 5);
        assert_eq!(shop.passing("bob", 4_000).await, 3, "{mode:?}");
    }
}

/// Others may have had an answer that this request waits for in vain.
#[tokio::test(start_paused = true)]
async fn what_became_known_while_a_request_waited_is_what_was_known_last() {
    for (mode, passes) in [(StaleMode::Rule, false), (StaleMode::Last, true), (StaleMode::Deny, false)] {
        let shop = Shop::with(mode, 100);
        shop.source.0.is_held.store(true, Relaxed);
        let becomes_known = async {
            tokio::task::yield_now().await;
            shop.records.know(&key("alice"), of(5));
        };
        let four = DescriptorOptions { hits_addend: Some(4), ..DescriptorOptions::default() };
        let mut request = Request::new("shop", 1);
        request.push([Entry { key: "user", value: "alice" }], four);
        let service = shop.service(1_000);
        let (decided, ()) = futures_util::future::join(decided(&service, &request), becomes_known).await;
        assert_eq!(decided, (passes, false), "{mode:?}");
    }
}

/// A store that comes back confirms what it did not change. A request that read the cache before must not use the old
/// value as a confirmed one, however long it waits for another key.
#[tokio::test(start_paused = true)]
async fn what_was_read_in_an_outage_is_not_confirmed_later() {
    for (mode, passes) in [(StaleMode::Rule, false), (StaleMode::Last, true), (StaleMode::Deny, false)] {
        let shop = Shop::with(mode, 100);
        shop.source.set("alice", of(5));
        assert!(shop.asks("alice", 1_000).await.0, "her record is known from here on");
        shop.records.set_stale(true);
        shop.source.0.is_held.store(true, Relaxed);
        let comes_back = async {
            tokio::task::yield_now().await;
            shop.source.set("alice", of(0));
            shop.records.forget(&key("alice"));
            shop.records.set_stale(false);
            shop.source.0.is_held.store(false, Relaxed);
            shop.source.0.released.notify_waiters();
        };
        // What is waited for comes first, and what was known is looked at after it.
        let mut request = Request::new("shop", 1).descriptor(&[("user", "bob")]);
        let four = DescriptorOptions { hits_addend: Some(4), ..DescriptorOptions::default() };
        request.push([Entry { key: "user", value: "alice" }], four);
        let service = shop.service(2_000);
        let (decided, ()) = futures_util::future::join(decided(&service, &request), comes_back).await;
        assert_eq!(decided, (passes, false), "{mode:?}");
    }
}

#[tokio::test]
async fn nothing_is_kept_while_changes_are_not_heard_of() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.records.unfollow();
    assert_eq!(shop.asks("alice", 1_000).await, (true, false));
    assert_eq!(shop.asks("alice", 1_000).await, (true, false));
    shop.records.follow();
    assert_eq!(shop.asks("alice", 1_000).await, (true, false));
    assert_eq!(shop.asks("alice", 1_000).await, (false, true));
}

#[tokio::test]
async fn a_record_with_another_window_counts_apart_and_an_explanation_says_so() {
    let shop = Shop::with(StaleMode::Rule, 100);
    assert_eq!(shop.passing("alice", 1_000).await, 3);
    let window =
        Some(tidegate_engine::unit::Window { unit: tidegate_engine::unit::Unit::Hour, multiplier: 1 });
    shop.source.set("alice", Some(Record { window, ..Record::of(4) }));
    shop.records.forget(&key("alice"));
    assert_eq!(shop.passing("alice", 1_000).await, 4, "it begins empty");
    assert_eq!(shop.passing("alice", 1_100).await, 0);
    let (text, record) = shop.explains("alice", 1_100).await;
    assert!(text.contains("  limit     4 per hour, sliding_window\n"), "{text}");
    assert!(text.contains("  record    4 instead of 3, per hour\n"), "{text}");
    assert_eq!(record["instead_of"]["requests_per_unit"], 3, "{record}");
}

#[tokio::test]
async fn an_explanation_says_what_is_not_known_and_what_holds_instead() {
    let known = json!({"unlimited": false, "shadow_mode": null, "burst": null, "requests_per_unit": 5,
        "instead_of": {"requests_per_unit": 3, "burst": 3}});
    let with = |mut record: Value, field: &str| {
        record[field] = true.into();
        record
    };
    let mut denied = known.clone();
    (denied["requests_per_unit"], denied["burst"], denied["shadow_mode"]) =
        (0.into(), 0.into(), false.into());
    let [none, denied] = [Value::Null, denied].map(|record| with(record, "not_known"));
    let last = |record| with(record, "known_last");
    let away = "the store of records does not answer";
    let rule = format!("not known: {away}; until it does, the rule's limit applies");
    let denies = format!("not known: {away}; until it does, nothing passes");
    let fives = format!("5 instead of 3, by the last known record: {away}");
    let nones = format!("none, by the last known record: {away}");
    for (mode, alice, bob, carol) in [
        (StaleMode::Rule, (&rule, none.clone()), (&rule, none.clone()), (&rule, none.clone())),
        (StaleMode::Last, (&fives, last(known.clone())), (&nones, last(Value::Null)), (&rule, none.clone())),
        (StaleMode::Deny, (&denies, denied.clone()), (&denies, denied.clone()), (&denies, denied.clone())),
    ] {
        let shop = Shop::with(mode, 100);
        shop.source.set("alice", of(5));
        for (user, text, json) in
            [("alice", "5 instead of 3", &known), ("bob", "none: the limit is the rule's", &Value::Null)]
        {
            assert_eq!(shop.explains_record(user).await, (text.to_owned(), json.clone()), "{mode:?} {user}");
        }
        shop.source.0.is_away.store(true, Relaxed);
        shop.records.set_stale(true);
        for (user, (text, json)) in [("alice", alice), ("bob", bob), ("carol", carol)] {
            assert_eq!(shop.explains_record(user).await, (text.clone(), json), "{mode:?} {user}");
        }
    }
}

/// A record with a limit of 0 is a record.
#[tokio::test]
async fn a_record_of_zero_is_shown_as_one() {
    let shop = Shop::with(StaleMode::Deny, 100);
    let zero = Record { burst: Some(0), shadow: Some(false), ..Record::of(0) };
    shop.source.set("alice", Some(zero));
    let (text, json) = shop.explains_record("alice").await;
    assert_eq!(text, "0 instead of 3, burst 0, shadow_mode false");
    assert_eq!(json["not_known"], Value::Null, "{json}");
}

/// A record with another granularity has another counter: who looks for its hits has to see why.
#[tokio::test]
async fn all_fields_of_a_record_are_shown() {
    let shop = Shop::with(StaleMode::Rule, 100);
    let fields = |granularity_nanos| Record {
        algorithm: Some(Algorithm::SlidingWindow),
        granularity_nanos: Some(granularity_nanos),
        ..Record::of(5)
    };
    for (nanos, granularity) in [(2_000_000_000, "2s"), (1_500_000_000, "1500ms")] {
        shop.source.set("alice", Some(fields(nanos)));
        shop.records.forget(&key("alice"));
        let (text, json) = shop.explains_record("alice").await;
        assert_eq!(text, format!("5 instead of 3, sliding_window, granularity {granularity}"));
        assert_eq!(json["granularity"], granularity);
    }
}

/// Keys that come once evict few of those that come repeatedly.
#[tokio::test]
async fn a_scan_through_many_keys_leaves_what_is_used() {
    let shop = Shop::with(StaleMode::Rule, 1_000);
    let name = |user: &str| KeySecret::new([7; 16]).records("shop", ["user"]).record_name([user]);
    let used: Vec<Key> = (0..300).map(|user| name(&format!("used-{user}"))).collect();
    let known = |key: &Key| shop.records.cache.get(*key).is_some();
    for _ in 0..3 {
        used.iter().for_each(|&key| {
            if !known(&key) {
                shop.records.cache.insert(key, None);
            }
        });
    }
    let mut missed = 0;
    for hostile in 0..200_000 {
        shop.records.cache.insert(name(&format!("hostile-{hostile}")), None);
        if hostile % 100 == 0 {
            missed += used.iter().filter(|key| !known(key)).count();
        }
    }
    let asked = 2_000 * used.len();
    assert!(missed * 100 < asked, "{missed} of {asked} were pushed out");
    assert!(shop.records.cached() <= 1_100, "{} in a cache of 1,000", shop.records.cached());
}

/// After a gap in the stream of changes: the fetch began before it.
#[tokio::test(start_paused = true)]
async fn what_a_fetch_brings_that_a_gap_overtook_is_not_kept() {
    let shop = Shop::with(StaleMode::Rule, 100);
    shop.source.0.is_held.store(true, Relaxed);
    let gap = async {
        tokio::task::yield_now().await;
        shop.source.set("alice", of(0));
        shop.records.forget_all();
        shop.source.0.is_held.store(false, Relaxed);
        shop.source.0.released.notify_waiters();
    };
    let (old, ()) = futures_util::future::join(shop.asks("alice", 1_000), gap).await;
    assert_eq!(old, (true, false), "it waited for the old answer");
    assert_eq!(shop.asks("alice", 1_000).await, (false, false), "the new one is fetched");
}

#[tokio::test]
async fn what_is_known_beforehand_is_not_fetched() {
    let shop = Shop::with(StaleMode::Rule, 100);
    for (user, record) in [("alice", of(5)), ("bob", None), ("carol", of(0))] {
        shop.records.know(&key(user), record);
    }
    assert_eq!(shop.records.cached(), 3);
    assert_eq!([shop.passing("alice", 1_000).await, shop.passing("bob", 1_000).await], [5, 3]);
    assert_eq!((shop.asks("carol", 1_000).await, shop.source.asked()), ((false, true), 0));
}
