//! The shared store without a Redis: what a node answers alone.

mod classes;
mod denied;
mod known;
mod unsynced;

use super::*;
use crate::address::{Address, Servers};
use crate::clock::{monotonic, since_boot};
use crate::lease::{Demand, Source};
use crate::lost::Begins;
use crate::options::{DenyCold, RedisOptions};
use crate::script::{ChargeId, DataId, Granted};
use tidegate_engine::decision::{Code, conclude};
use tidegate_engine::key::KeySecret;
use tidegate_engine::limit::Verdict;
use tidegate_engine::memory::MemoryOptions;
use tidegate_engine::plan::{Modes, ReservationStep};
use tidegate_engine::request::{DescriptorOptions, Entry};
use tidegate_engine::rules::{Cost, LoadOptions, RuleSet, SourceFile, load};
use tidegate_engine::time::Timestamp;

const RULES: &str = "
domain: shop
descriptors:
  - {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: three, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: leased, rate_limit: {unit: day, requests_per_unit: 1000, sync: leased}}
  - {key: log, rate_limit: {unit: day, requests_per_unit: 3, algorithm: sliding_log}}
";

fn rules() -> RuleSet {
    rules_of(RULES)
}

fn rules_of(text: &str) -> RuleSet {
    let file = SourceFile { name: "shop.yaml".into(), bytes: text.into(), presumed: false };
    let options = LoadOptions::new(KeySecret::new([7; 16])).default_cost(Cost::Asked).strict(true);
    load(&[file], &options).expect("good rules").rules
}

/// A store that was never connected.
pub(super) fn store() -> SharedStore {
    store_with_share(1.0)
}

/// A store whose node has this share of each limit while it decides alone.
fn store_with_share(local_share: f64) -> SharedStore {
    store_with(SharedStoreOptions { local_share, ..SharedStoreOptions::default() })
}

fn store_with(options: SharedStoreOptions) -> SharedStore {
    let main = RedisStore::new(RedisOptions::new(Servers::Single(Address::Tcp("127.0.0.1".to_owned(), 1))));
    let local = MemoryStore::new(MemoryOptions::new(1 << 20));
    let options =
        SharedStoreOptions { mode: StoreFailure::Local, lease_time: Duration::from_secs(3_600), ..options };
    SharedStore::new(main, None, Arc::new(local), Clock::start(), options)
}

/// A request of so many hits for each key. Negative hits are given back.
fn request<'a>(keys: &[&'a str], hits: i64) -> Request<'a> {
    let mut request = Request::new("shop", 1);
    for &key in keys {
        let options = DescriptorOptions {
            hits_addend: Some(hits.unsigned_abs()),
            is_negative_hits: hits < 0,
            ..DescriptorOptions::default()
        };
        request.push([Entry { key, value: "x" }], options);
    }
    request
}

/// The overall code, and the remaining hits of each descriptor.
async fn ask(
    store: &SharedStore,
    rules: &RuleSet,
    keys: &[&str],
    hits: i64,
    modes: Modes,
) -> (Code, Vec<u64>) {
    let request = request(keys, hits);
    let plan = rules.plan(&request, modes);
    let applied = store.apply(&request, &plan, None).await.expect("it decides alone");
    let left = applied.verdicts.iter().flatten().map(|verdict| verdict.remaining).collect();
    (conclude(&plan, &applied.verdicts).code, left)
}

/// The unsynced hits of a counter.
fn unsynced(store: &SharedStore, rules: &RuleSet, key: &str) -> u64 {
    let request = request(&[key], 0);
    let plan = rules.plan(&request, Modes::default());
    let check = check_at(&plan, 0).expect("a rule");
    let now = monotonic();
    let mut taken = store.unsynced.take(std::iter::once((check.key, &check.limit)), now).expect("no call");
    taken.of(check.key).iter().map(|entry| entry.age_and_hits(now).1).sum()
}

#[tokio::test]
async fn alone_a_descriptor_in_quota_mode_is_charged() {
    let (store, rules) = (store(), rules());
    let modes = Modes { quota: true, ..Modes::default() };
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.push(ask(&store, &rules, &["one", "three"], 1, modes).await);
    }
    let ok = |left: [u64; 2]| (Code::Ok, left.to_vec());
    assert_eq!(codes[..3], [ok([0, 2]), ok([0, 1]), ok([0, 0])], "one is over, but not all");
    assert_eq!(codes[3].0, Code::OverLimit);
    assert_eq!((unsynced(&store, &rules, "one"), unsynced(&store, &rules, "three")), (1, 3));
}

/// No node knows which slots the others hold.
#[tokio::test]
async fn alone_no_node_gives_a_slot() {
    let limit = "rate_limit: {unlimited: true}, concurrency: {slots: 9, ttl: 60s, id: call}";
    let rules = rules_of(&format!("domain: shop\ndescriptors: [{{key: user, {limit}}}]"));
    assert_eq!(ask(&store(), &rules, &["user"], 1, Modes::default()).await.0, Code::OverLimit);
}

/// Together the nodes admit no more than the limit.
#[tokio::test]
async fn alone_the_share_of_a_node_is_rounded_down() {
    let (store, rules, modes) = (store_with_share(0.5), rules(), Modes::default());
    assert_eq!(ask(&store, &rules, &["three"], 1, modes).await, (Code::Ok, vec![0]));
    assert_eq!(ask(&store, &rules, &["three"], 1, modes).await.0, Code::OverLimit);
}

/// With `on_store_failure: deny` a key counts as banned when Redis does not say whether it is, and a ban is never in quota
/// mode.
#[tokio::test]
async fn alone_a_rule_with_a_ban_denies_by_itself_in_quota_mode() {
    let modes = Modes { quota: true, ..Modes::default() };
    let code = async |ban: &str| {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1, on_store_failure: deny}";
        let other = "{key: three, rate_limit: {unit: day, requests_per_unit: 3}}";
        let rules = rules_of(&format!("domain: shop\ndescriptors: [{{key: user, {limit}{ban}}}, {other}]"));
        ask(&store(), &rules, &["user", "three"], 1, modes).await.0
    };
    assert_eq!(code("").await, Code::Ok, "the other one has room");
    assert_eq!(code(", ban: {after: 3, within: 60s, for: 100s}").await, Code::OverLimit);
}

/// Redis answers for one counter of a request, and not for another.
#[test]
fn a_local_log_keeps_its_hits_when_redis_answers_another_check() {
    let (store, rules) = (store(), rules());
    let request = request(&["log"], 3);
    let plan = rules.plan(&request, Modes::default());
    let is_over = |plan: &Plan<'_>, secs: u64| {
        store.local.apply(plan, Timestamp::from_secs(1_000_000 + secs))[0].expect("a verdict").over
    };
    assert!(!is_over(&plan, 0));
    let mut answered = plan.clone();
    answered.steps[0] = Step::Check(fallback::decided_check(check_at(&plan, 0).expect("a rule"), false));
    assert!(!is_over(&answered, 10));
    assert!(is_over(&plan, 11), "all three are in the window");
}

#[tokio::test]
async fn hits_given_back_alone_are_not_reported_later() {
    let (store, rules) = (store(), rules());
    let modes = Modes::default();
    assert_eq!(ask(&store, &rules, &["three"], 3, modes).await, (Code::Ok, vec![0]));
    assert_eq!(ask(&store, &rules, &["three"], -2, modes).await, (Code::Ok, vec![2]));
    assert_eq!(unsynced(&store, &rules, "three"), 1);
    assert_eq!(ask(&store, &rules, &["three"], -9, modes).await, (Code::Ok, vec![3]));
    assert_eq!(unsynced(&store, &rules, "three"), 0);
}

#[tokio::test]
async fn hits_that_redis_may_have_given_back_are_not_given_back_again() {
    let (store, rules) = (store(), rules());
    assert_eq!(ask(&store, &rules, &["three"], 3, Modes::default()).await, (Code::Ok, vec![0]));
    let request = request(&["three"], -2);
    let plan = rules.plan(&request, Modes::default());
    let unsynced_after = |failure| {
        let failed = store.fall_back(&plan, &[], &[Some(Err(failure))], &mut smallvec![None]);
        assert!(failed.expect("it decides alone"));
        unsynced(&store, &rules, "three")
    };
    assert_eq!([Failure::Timeout, Failure::Down].map(unsynced_after), [3, 1]);
}

#[test]
fn hits_that_went_back_remain_and_an_empty_counter_waits_for_nothing() {
    let rules = rules();
    let request = request(&["three"], 2);
    let plan = rules.plan(&request, Modes::default());
    let after = |before, remaining, hits| {
        let charged =
            Verdict { over: false, before, after: before + 2, remaining, reset_nanos: 5, is_counted: true };
        let verdict = give_back::uncharged(check_at(&plan, 0).expect("a rule"), &charged, hits);
        (verdict.remaining, verdict.reset_nanos)
    };
    assert_eq!((after(1, 0, 2), after(0, 1, 2), after(1, 0, 9)), ((2, 5), (3, 0), (3, 5)));
}

/// A demand for a lease, of a counter that is asked often enough for one.
fn demand<'s>(store: &'s SharedStore, check: &Check<'_>) -> Option<Demand<'s>> {
    (0..2).for_each(|_| drop(store.leases.hold(check, since_boot())));
    store.demand(check, b"k")
}

/// They are at two servers, whose slots have the same numbers.
#[tokio::test]
async fn leases_of_two_stores_are_asked_for_in_two_calls() {
    let rules = rules_of(
        "domain: shop\ndescriptors:\n  \
         - {key: day, rate_limit: {unit: day, requests_per_unit: 1000, sync: leased}}\n  \
         - {key: hours, rate_limit: {window: 12h, requests_per_unit: 1000, sync: leased}}\n  \
         - {key: seconds, rate_limit: {window: 14401s, requests_per_unit: 1000, sync: leased}}",
    );
    let [main, second] = [1, 2].map(|port| {
        RedisStore::new(RedisOptions::new(Servers::Single(Address::Tcp("127.0.0.1".to_owned(), port))))
    });
    let local = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20)));
    let options = SharedStoreOptions { lease_time: Duration::from_secs(3_600), ..Default::default() };
    let store = SharedStore::new(main, Some(second), local, Clock::start(), options);
    for key in ["day", "hours", "seconds"] {
        let request = request(&[key], 1);
        let plan = rules.plan(&request, Modes::default());
        let check = check_at(&plan, 0).expect("a rule");
        let demand = demand(&store, check).expect("it is asked often enough");
        grant(&demand, check, 10);
        drop(demand);
        (0..10).for_each(|_| drop(store.leases.hold(check, since_boot())));
    }
    assert_eq!(store.renewals().count(), 2);
}

/// With QUOTA_MODE a descriptor without a limit is one that is not over.
#[tokio::test]
async fn a_slot_is_asked_with_the_descriptors_that_have_no_limit() {
    let (store, rules) = (store(), rules());
    let request = request(&["one", "nobody", "nothing"], 1);
    let quotas = |quota: bool| {
        let plan = rules.plan(&request, Modes { quota, ..Modes::default() });
        let mut part = Part::new(&store.main, 0);
        part.add(0, b"k".to_vec(), None);
        let summary = part::request_summary(&plan, &part, &smallvec![None; 3]);
        (summary.quotas, summary.quotas_over)
    };
    assert_eq!([false, true].map(quotas), [(0, 0), (2, 0)]);
}

#[tokio::test]
async fn a_reported_cost_asks_for_no_lease() {
    let (store, rules) = (store(), rules());
    let request = request(&["leased"], 1);
    let plan = rules.plan(&request, Modes::default());
    let check = check_at(&plan, 0).expect("a rule");
    assert!(demand(&store, &Check { reported: true, ..*check }).is_none());
    assert!(demand(&store, check).is_some());
}

/// The call of one slot has some of the request's checks, at other places.
#[tokio::test]
async fn a_lease_is_that_of_the_check_that_asked_for_it() {
    let (store, rules) = (store(), rules());
    let request = request(&["one", "leased"], 1);
    let plan = rules.plan(&request, Modes::default());
    let check = check_at(&plan, 1).expect("a rule");
    let mut part = Part::new(&store.main, 0);
    part.add(1, b"k".to_vec(), demand(&store, check));
    let verdict =
        Verdict { over: false, before: 0, after: 1, remaining: 9, reset_nanos: 1, is_counted: true };
    let counter = CounterAnswered { verdict, charged: 1, stamp: ChargeId::default(), quiet_nanos: 0 };
    let leases = vec![Granted { hits: 2, stamp: 1 }];
    let answered = Answered { now_micros: 1, counters: vec![counter], leases, complete_since_micros: None };
    store.take_leases(&plan, &part, &answered, since_boot());
    assert!(store.leases.hold(check, since_boot()).is_some());
}

/// Gives a lease of so many hits to whom asks for one.
fn grant(demand: &Demand<'_>, check: &Check<'_>, hits: u64) {
    let source = Source {
        unit: check.unit(),
        slot: 0,
        key: b"k".to_vec(),
        counter: check.key,
        limit: check.limit,
        stamp: 1,
        data: None,
    };
    let verdict =
        Verdict { over: false, before: 0, after: 1, remaining: 999, reset_nanos: 1, is_counted: true };
    assert!(demand.granted(source, Granted { hits, stamp: 1 }, &verdict, since_boot()).is_empty());
}

#[tokio::test]
async fn a_request_that_was_given_up_spends_nothing_of_a_lease() {
    let (store, rules) = (store(), rules());
    let request = request(&["leased"], 1);
    let plan = rules.plan(&request, Modes::default());
    let check = check_at(&plan, 0).expect("a rule");
    let now = since_boot();
    let hold = || store.hold(&plan, now, &mut smallvec![None]);
    drop((hold(), hold()));
    let demand = store.demand(check, b"k").expect("seen twice");
    grant(&demand, check, 2);
    drop(demand);
    let taken = (hold(), hold());
    assert!(store.leases.hold(check, now).is_none(), "two hits");
    drop(taken);
    let again = (hold(), hold());
    assert!(store.leases.hold(check, now).is_none(), "the same two");
    drop(again);
    let mut reported = plan.clone();
    reported.steps[0] = Step::Check(Check { reported: true, ..*check });
    let mut verdicts = smallvec![None];
    drop(store.hold(&reported, now, &mut verdicts));
    assert_eq!(verdicts[0], None, "a reported cost is asked of Redis: it must not go back to a lease");
    assert_eq!(store.end_leases(Duration::MAX), 2);
}

/// The clock of the runtime is paused. A lease that is due is asked for by a task, which does not run here.
/// Another descriptor denies the request. What it has taken of a lease goes back, and is shown and counted like that.
#[tokio::test]
async fn hits_of_a_denied_request_go_back_to_their_lease() {
    let (store, rules) = (store(), rules());
    let request = request(&["leased", "one"], 1);
    let plan = rules.plan(&request, Modes::default());
    let leased = check_at(&plan, 0).expect("a rule");
    grant(&demand(&store, leased).expect("it is asked often enough"), leased, 10);
    let after = |over: bool| {
        let mut verdicts = smallvec![None; 2];
        let held = store.hold(&plan, since_boot(), &mut verdicts);
        let (remaining, reset_nanos) = (u64::from(!over), 5);
        verdicts[1] = Some(Verdict { over, before: 0, after: 1, remaining, reset_nanos, is_counted: true });
        held.settle(&plan, &mut verdicts);
        let remaining = verdicts[0].expect("the lease answers").remaining;
        (remaining, store.leases().hits_spent, store.leased_hits_left())
    };
    assert_eq!([true, false].map(after), [(999, 0, 10), (998, 1, 9)]);
}

#[tokio::test]
async fn a_request_that_a_lease_can_answer_is_no_question_and_spends_nothing_of_it() {
    let (store, rules) = (store(), rules());
    let request = request(&["leased"], 1);
    let plan = rules.plan(&request, Modes::default());
    let check = check_at(&plan, 0).expect("a rule");
    grant(&demand(&store, check).expect("it is asked often enough"), check, 10);
    assert!(store.question(&request, &plan, None).is_none());
    assert_eq!(store.leased_hits_left(), 10);
}

#[tokio::test(start_paused = true)]
async fn the_last_worker_does_not_wait_for_leases_that_are_no_longer_asked_for() {
    let (store, rules) = (store(), rules());
    let request = request(&["leased"], 1);
    let plan = rules.plan(&request, Modes::default());
    let check = check_at(&plan, 0).expect("a rule");
    let demand = demand(&store, check).expect("it is asked often enough");
    grant(&demand, check, 10);
    drop(demand);
    (0..10).for_each(|_| drop(store.leases.hold(check, since_boot())));
    assert!(store.leases.demand(check).is_none(), "the next one is due");
    store.workers.send_modify(|workers| *workers += 1);
    assert!(tokio::time::timeout(Duration::from_millis(1), store.detach()).await.is_ok());
}

/// What a report says is spent, so it is sent later if it may have been lost. Of one that too few replicas have, Redis has
/// the charge.
/// Where hits cannot go back, because nobody knows in which data they were charged, others go back nevertheless.
#[tokio::test]
async fn a_slot_whose_data_is_not_known_keeps_no_other_from_giving_back() {
    let (store, rules) = (store(), rules());
    let request = request(&["one", "three"], 1);
    let plan = rules.plan(&request, Modes::default());
    let mut parts = [0, 1].map(|slot| Part::new(&store.main, slot));
    (0..2).for_each(|step| parts[step].add(step, vec![b'k'], None));
    let data = DataId { key: b"g".to_vec(), generation: b"1".to_vec(), connection: 1 };
    parts[1].data.set(Arc::new(data)).expect("it was not known");
    let answered = |over: bool| {
        let (remaining, charged) = if over { (0, 0) } else { (2, 1) };
        let verdict = Verdict { over, before: 1, after: 2, remaining, reset_nanos: 5, is_counted: true };
        CounterAnswered { verdict, charged, stamp: ChargeId::default(), quiet_nanos: 0 }
    };
    let outcomes = [true, false].map(|over| Some(Ok(answered(over))));
    let mut verdicts = [true, false].map(|over| Some(answered(over).verdict)).into_iter().collect();
    store.give_back(&plan, &parts, &outcomes, &mut verdicts);
    assert_eq!(verdicts.iter().flatten().map(|it| it.remaining).collect::<Vec<_>>(), [0, 3]);
}

#[test]
fn of_two_stores_the_one_that_lost_hits_last_says_how_long_counters_are_cold() {
    let (window_max, now) = (Duration::from_secs(60), monotonic());
    let clock = Clock::new(now - 2 * window_max, Timestamp::from_secs(1_000_000));
    for secs_ago in [[20, 5], [5, 20]] {
        let [main, second] = secs_ago.map(|secs| {
            let kind = Servers::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
            let deny_cold = Some(DenyCold { window_max, lease_time: Duration::from_millis(100) });
            let redis = RedisStore::new(RedisOptions { deny_cold, ..RedisOptions::new(kind) });
            let begins = Begins { since_micros: (100 - secs) * 1_000_000, now_micros: 100_000_000 };
            redis.shared().losses.lock().begins(begins, window_max, now);
            redis
        });
        let local = Arc::new(MemoryStore::new(MemoryOptions::new(1 << 20)));
        let store = SharedStore::new(main, Some(second), local, clock, SharedStoreOptions::default());
        let left = store.coldness().nanos_left(60_000_000_000, clock.at(now));
        assert_eq!(left, 55_000_000_000, "{secs_ago:?}");
    }
}

#[tokio::test]
async fn a_report_that_redis_has_or_that_comes_again_is_not_sent_again() {
    let (store, rules) = (store(), rules());
    let request = request(&["three"], 2);
    let mut plan = rules.plan(&request, Modes::default());
    let check = Check { reported: true, ..*check_at(&plan, 0).expect("a rule") };
    let mut unsynced_after = |failure, reservation| {
        plan.steps[0] = Step::Check(Check { reservation, ..check });
        store.fall_back(&plan, &[], &[Some(Err(failure))], &mut smallvec![None]).expect("it decides alone");
        unsynced(&store, &rules, "three")
    };
    assert_eq!(unsynced_after(Failure::Unreplicated, ReservationStep::None), 0);
    assert_eq!(unsynced_after(Failure::Timeout, ReservationStep::Commit), 0, "its client commits again");
    assert_eq!(unsynced_after(Failure::Timeout, ReservationStep::None), 2);
}

/// Of its three hits one fitted.
#[tokio::test]
async fn what_a_report_charges_beyond_its_limit_is_counted() {
    let (store, rules) = (store(), rules());
    let request = request(&["three"], 3);
    let mut plan = rules.plan(&request, Modes::default());
    plan.keep_report(true);
    let verdict = Verdict { over: true, before: 2, after: 5, remaining: 0, reset_nanos: 5, is_counted: true };
    let counter = CounterAnswered { verdict, charged: 3, stamp: ChargeId::default(), quiet_nanos: 0 };
    let (outcomes, mut verdicts) = (smallvec![Some(Ok(counter))], smallvec![None]);
    store.take_in(&plan, &[], &outcomes, &mut verdicts, monotonic()).expect("Redis answered");
    assert_eq!(store.reported_total(), ReportedTotal { beyond: 2, dropped: 0 });
}

/// It was spent, whatever the answer is: also if that is an error because of another descriptor.
#[tokio::test]
async fn a_report_is_sent_later_whichever_descriptor_makes_the_answer_an_error() {
    let rules = rules_of(
        "domain: shop\ndescriptors:\n  \
         - {key: fails, rate_limit: {unit: day, requests_per_unit: 3, on_store_failure: error}}\n  \
         - {key: three, rate_limit: {unit: day, requests_per_unit: 3}}",
    );
    for keys in [["fails", "three"], ["three", "fails"]] {
        let (store, request) = (store(), request(&keys, 2));
        let mut plan = rules.plan(&request, Modes::default());
        for step in &mut plan.steps {
            if let Step::Check(check) = step {
                check.reported = true;
            }
        }
        let failed = [Some(Err(Failure::Timeout)), Some(Err(Failure::Timeout))];
        store.fall_back(&plan, &[], &failed, &mut smallvec![None; 2]).expect_err("one rule wants an error");
        assert_eq!(keys.map(|key| unsynced(&store, &rules, key)), [2, 2], "{keys:?}");
    }
}
