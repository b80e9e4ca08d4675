//! Records: what they do to a plan, together with exceptions and with limits that requests bring.

use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::overlay::{Effect, Exception, Exceptions, Found, Overlay, Record};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Hits, Modes, Origin, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Override, Request, Reservation};
use tidegate_engine::rules::{Epochs, Reach, ResetPath, RuleSet, Unit, load};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_engine::unit::Window;
use tidegate_engine::{Code, Timestamp, decision::conclude};

use crate::rules::{file, loaded, options, refused};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    limits_from: store
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: tokens
    limits_from: store
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket, burst: 7}
  - key: log
    limits_from: store
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_log}
  - key: debtor
    limits_from: store
    rate_limit: {unit: minute, requests_per_unit: 3, cost: reported, carry_debt: true}
";

/// A store, and the rules with which it is asked.
struct Shop {
    rules: RuleSet,
    store: MemoryStore,
}

impl Shop {
    fn open() -> Self {
        Self { rules: loaded(RULES).rules, store: MemoryStore::new(MemoryOptions::new(1 << 20)) }
    }

    /// How many of 20 requests of this entry pass at this second, of a key with this record.
    fn passing(&self, entry: (&str, &str), record: Option<Record>, at: u64) -> usize {
        self.passing_under(entry, record, &Exceptions::default(), at)
    }

    fn passing_under(
        &self,
        entry: (&str, &str),
        record: Option<Record>,
        exceptions: &Exceptions,
        at: u64,
    ) -> usize {
        let request = Request::new("shop", 1).descriptor(&[entry]);
        let found = found(&self.rules, &request, record);
        let passes = |_: &usize| {
            let overlay = Overlay { records: Some(&found), exceptions: Some(exceptions) };
            let plan = self.rules.plan_under(&request, Modes::default(), overlay);
            let verdicts = self.store.apply(&plan, Timestamp::from_secs(at));
            conclude(&plan, &verdicts).code == Code::Ok
        };
        (0..20).filter(passes).count()
    }
}

/// The record of the only descriptor.
fn found(rules: &RuleSet, request: &Request<'_>, record: Option<Record>) -> Found {
    let mut found = Found::default();
    let plan = rules.plan(request, Modes::default());
    plan.recorded_rule(0).into_iter().for_each(|rule| found.add(0, rule, record.into()));
    found
}

/// These records and nothing else.
fn over(found: &Found) -> Overlay<'_> {
    Overlay { records: Some(found), ..Overlay::default() }
}

const ALICE: (&str, &str) = ("user", "alice");

#[test]
fn a_record_changes_n_of_its_key_and_what_was_counted_stays() {
    let shop = Shop::open();
    assert_eq!(shop.passing(ALICE, None, 1_000), 3);
    assert_eq!(shop.passing(ALICE, Some(Record::of(5)), 1_000), 2, "three of five are used");
    assert_eq!(shop.passing(ALICE, Some(Record::of(1)), 1_000), 0);
    assert_eq!(shop.passing(ALICE, None, 1_000), 0, "five are used");
    assert_eq!(shop.passing(("user", "bob"), Some(Record::of(0)), 1_000), 0);
}

#[test]
fn a_burst_of_its_own_stays_unless_the_record_has_one() {
    let passing = |record| Shop::open().passing(("tokens", "x"), Some(record), 1_000);
    assert_eq!(passing(Record::of(5)), 7);
    assert_eq!(passing(Record { burst: Some(9), ..Record::of(5) }), 9);
    assert_eq!(
        Shop::open().passing(ALICE, Some(Record { burst: Some(9), ..Record::of(5) }), 1_000),
        5,
        "no bucket"
    );
}

/// Seven of seven are spent, and none comes back by a change of N: see `limits_changed`.
#[test]
fn a_record_of_a_bucket_leaves_what_was_spent() {
    let shop = Shop::open();
    let passing = |record| shop.passing(("tokens", "x"), record, 1_000);
    assert_eq!([passing(None), passing(Some(Record::of(1))), passing(Some(Record::of(60)))], [7, 0, 0]);
    let burst = |requests, burst| Some(Record { burst: Some(burst), ..Record::of(requests) });
    assert_eq!([passing(burst(1, 2)), passing(burst(1, 9)), passing(None)], [0, 2, 0]);
}

#[test]
fn unlimited_and_shadow_count_and_never_deny() {
    let shop = Shop::open();
    let unlimited = Record { unlimited: true, ..Record::of(0) };
    assert_eq!(shop.passing(ALICE, Some(unlimited), 1_000), 20);
    assert_eq!(shop.passing(ALICE, None, 1_000), 0, "they were counted");
    let shadow = Record { shadow: Some(true), ..Record::of(1) };
    assert_eq!(shop.passing(("user", "bob"), Some(shadow), 1_000), 20);
}

#[test]
fn a_key_that_a_record_never_denies_passes_although_it_is_banned() {
    const RULE: &str = "key: user, limits_from: store, rate_limit: {unit: minute, requests_per_unit: 3}, \
                        ban: {after: 3 denials, within: 60s, every: 1s, for: 1h}";
    let rules = loaded(&format!("domain: shop\ndescriptors: [{{{RULE}}}]")).rules;
    let shop = Shop { rules, ..Shop::open() };
    let passing = |record, at| shop.passing(ALICE, record, at);
    assert_eq!([1_000, 1_001, 1_002, 1_200].map(|at| passing(None, at)), [3, 0, 0, 0], "banned for an hour");
    let unlimited = Record { unlimited: true, ..Record::of(0) };
    let shadow = Record { shadow: Some(true), ..Record::of(3) };
    let passing_again = [passing(Some(unlimited), 1_201), passing(Some(shadow), 1_202), passing(None, 1_300)];
    assert_eq!(passing_again, [20, 20, 0]);
}

#[test]
fn a_key_that_a_record_denies_is_banned_although_its_rule_is_in_shadow_mode() {
    const RULE: &str = "key: user, limits_from: store, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 3}, \
                        ban: {after: 3 denials, within: 60s, every: 1s, for: 1h}";
    let rules = loaded(&format!("domain: shop\ndescriptors: [{{{RULE}}}]")).rules;
    let shop = Shop { rules, ..Shop::open() };
    let passing = |record, at| shop.passing(ALICE, record, at);
    let denies = Some(Record { shadow: Some(false), ..Record::of(3) });
    assert_eq!(
        [1_000, 1_001, 1_002, 1_200].map(|at| passing(denies, at)),
        [3, 0, 0, 0],
        "banned for an hour"
    );
    assert_eq!([passing(None, 1_201), passing(denies, 1_300)], [20, 0]);
}

/// Slots, and a ban.
#[test]
fn a_record_that_never_denies_is_for_every_further_limit() {
    const RULE: &str = "key: user, limits_from: store, rate_limit: {unit: minute, requests_per_unit: 3}, \
                        concurrency: {slots: 1, ttl: 60s, id: call}, ban: {after: 3 denials, within: 60s, for: 1h}";
    let rules = loaded(&format!("domain: shop\ndescriptors: [{{{RULE}}}]")).rules;
    let request = Request::new("shop", 1).descriptor(&[ALICE, ("call", "1")]);
    let in_shadow = |record| {
        let found = found(&rules, &request, Some(record));
        let plan = rules.plan_under(&request, Modes::default(), over(&found));
        plan.checks().map(|(_, check)| check.shadow).collect::<Vec<_>>()
    };
    assert_eq!(in_shadow(Record { unlimited: true, ..Record::of(0) }), [true; 3]);
    assert_eq!(in_shadow(Record { shadow: Some(true), ..Record::of(3) }), [true; 3]);
    assert_eq!(in_shadow(Record::of(3)), [false; 3]);
}

#[test]
fn a_record_leaves_the_candidate_of_another_descriptor() {
    let limit = "limits_from: store, rate_limit: {unit: minute, requests_per_unit: 3, candidate: {requests_per_unit: 1}}";
    let rules =
        loaded(&format!("domain: shop\ndescriptors: [{{key: user, {limit}}}, {{key: path, {limit}}}]")).rules;
    let request = Request::new("shop", 1).descriptor(&[ALICE]).descriptor(&[("path", "/")]);
    let tried = |record| {
        let found = found(&rules, &request, record);
        let plan = rules.plan_under(&request, Modes::default(), over(&found));
        plan.candidates.iter().map(|candidate| candidate.step).collect::<Vec<_>>()
    };
    assert_eq!([tried(None), tried(Some(Record::of(5)))], [vec![0, 1], vec![1]]);
}

#[test]
fn whoever_renews_a_slot_is_not_denied_where_a_record_never_denies() {
    const RULE: &str = "key: user, limits_from: store, rate_limit: {unit: minute, requests_per_unit: 100}, \
                        concurrency: {slots: 1, ttl: 60s, id: call}";
    let rules = loaded(&format!("domain: shop\ndescriptors: [{{{RULE}}}]")).rules;
    let shop = Shop { rules, ..Shop::open() };
    let ask = |call: &str, renews, record, at| {
        let options = DescriptorOptions { renews, ..DescriptorOptions::default() };
        let entries = [ALICE, ("call", call)].map(|(key, value)| Entry { key, value });
        let mut request = Request::new("shop", u32::from(!renews));
        request.push(entries, options);
        let found = found(&shop.rules, &request, record);
        let overlay = Overlay { records: Some(&found), exceptions: None };
        let plan = shop.rules.plan_under(&request, Modes::default(), overlay);
        let decision = conclude(&plan, &shop.store.apply(&plan, Timestamp::from_secs(at)));
        (decision.code, decision.slots().next().map(|(_, _, slot)| slot.to_string()))
    };
    let (_, first) = ask("1", false, None, 1_000);
    let first = first.expect("a slot is free");
    assert!(ask("2", false, None, 1_070).1.is_some(), "the first has ended");
    let renewed = [None, Some(Record::of(1_000)), Some(Record { unlimited: true, ..Record::of(0) })]
        .map(|record| ask(&first, true, record, 1_071));
    let denied = (Code::OverLimit, None);
    assert_eq!(renewed, [denied.clone(), denied, (Code::Ok, None)], "all slots are taken");
}

#[test]
fn a_key_that_an_exception_limits_is_banned_although_its_record_is_unlimited() {
    const RULE: &str = "key: user, limits_from: store, rate_limit: {unit: minute, requests_per_unit: 9}, \
                        ban: {after: 3 denials, within: 60s, every: 1s, for: 1h}";
    let rules = loaded(&format!("domain: shop\ndescriptors: [{{{RULE}}}]")).rules;
    let shop = Shop { rules, ..Shop::open() };
    let unlimited = Record { unlimited: true, ..Record::of(0) };
    let level = PathEntry { key: "user".to_owned(), value: Some("alice".to_owned()) };
    let path = Path { domain: "shop".into(), entries: vec![level] };
    let limited =
        Exceptions::new(&[Exception { path, effect: Effect::Limit { requests: Some(3), burst: None } }]);
    let passing = |at| shop.passing_under(ALICE, Some(unlimited), &limited, at);
    assert_eq!([1_000, 1_001, 1_002, 1_200].map(passing), [3, 0, 0, 0], "banned for an hour");
}

#[test]
fn another_window_or_algorithm_is_another_counter() {
    let shop = Shop::open();
    let hour = Record { window: Some(Window::of(Unit::Hour)), ..Record::of(4) };
    let log = Record { algorithm: Some(Algorithm::SlidingLog), ..Record::of(2) };
    assert_eq!(shop.passing(ALICE, None, 1_000), 3);
    assert_eq!(shop.passing(ALICE, Some(hour), 1_000), 4);
    assert_eq!(shop.passing(ALICE, Some(log), 1_000), 2);
    assert_eq!(shop.passing(ALICE, Some(hour), 1_100), 0, "an hour is not over");
    assert_eq!(shop.passing(ALICE, None, 1_100), 3, "a minute is");
    let same = Record {
        window: Some(Window { unit: Unit::Second, multiplier: 60 }),
        algorithm: Some(Algorithm::SlidingWindow),
        ..Record::of(5)
    };
    assert_eq!(shop.passing(ALICE, Some(same), 1_100), 2, "that is the counter of the rule");
}

#[test]
fn a_reset_is_for_the_counter_of_a_record_too() {
    let rules = loaded(RULES).rules;
    let hour = Record { window: Some(Window::of(Unit::Hour)), ..Record::of(4) };
    let keys = |rules: &RuleSet| {
        let (_, _, key, shared) = planned(rules, Some(hour));
        (key, shared)
    };
    let level = |value: Option<&str>| PathEntry { key: "user".to_owned(), value: value.map(str::to_owned) };
    let mut seen = vec![keys(&rules)];
    for (value, reach) in [(None, Reach::Below), (Some("alice"), Reach::Counter)] {
        let path = Path { domain: "shop".into(), entries: vec![level(value)] };
        let mut epochs = Epochs::default();
        epochs.raise(ResetPath { path, reach }, 7);
        let after = keys(&rules.clone().in_epochs(&epochs));
        assert!(seen.iter().all(|before| before.0 != after.0 && before.1 != after.1), "{reach:?}");
        seen.push(after);
    }
}

/// The call may have cost what was held.
#[test]
fn an_expired_hold_counts_for_the_window_of_a_record() {
    let rules = loaded(
        "domain: shop\ndescriptors: [{key: user, limits_from: store, rate_limit: {unit: minute, requests_per_unit: 3}, \
         reserve: {ttl: 60s}}]",
    )
    .rules;
    let store = MemoryStore::new(MemoryOptions::new(1 << 20));
    let hour = Record { window: Some(Window::of(Unit::Hour)), ..Record::of(10) };
    let passes = |at: u64| {
        let id = at.to_string();
        let reservation = Reservation { id: &id, hits: 7, ttl_nanos: None, is_commit: false };
        let request = Request::new("shop", 1).descriptor(&[ALICE]).with_reservation(reservation);
        let found = found(&rules, &request, Some(hour));
        let plan = rules.plan_under(&request, Modes::default(), over(&found));
        conclude(&plan, &store.apply(&plan, Timestamp::from_secs(at))).code == Code::Ok
    };
    assert_eq!([1_000, 1_200, 4_659, 4_660].map(passes), [true, false, false, true]);
}

/// What the plan of a key says under a record: the limit, the unit in answers, and the keys of its counter.
fn planned(rules: &RuleSet, record: Option<Record>) -> (Limit, Window, u128, [u8; 16]) {
    let request = Request::new("shop", 1).descriptor(&[ALICE]);
    let found = found(rules, &request, record);
    let plan = rules.plan_under(&request, Modes::default(), over(&found));
    let Step::Check(check) = &plan.steps[0] else { panic!("no check") };
    let Origin::Rule { counting, .. } = check.origin else { panic!("no rule") };
    (check.limit, counting.window, check.key.0, counting.shared.0)
}

#[test]
fn another_counter_has_keys_of_its_own_and_the_unit_of_the_record() {
    let rules = loaded(RULES).rules;
    let (_, _, own, own_shared) = planned(&rules, None);
    let record = Record {
        window: Some(Window { unit: Unit::Hour, multiplier: 2 }),
        granularity_nanos: Some(60 * SECOND_NANOS),
        ..Record::of(9)
    };
    let (limit, window, key, shared) = planned(&rules, Some(record));
    let hours = 2 * 3_600 * SECOND_NANOS;
    let expected = Limit::new(Algorithm::SlidingWindow, 9, hours).with_granularity(60 * SECOND_NANOS);
    assert_eq!((limit, window), (expected, Window { unit: Unit::Hour, multiplier: 2 }));
    assert!(key != own && shared != own_shared);
    let (_, _, coarser, coarser_shared) =
        planned(&rules, Some(Record { granularity_nanos: Some(120 * SECOND_NANOS), ..record }));
    assert!(coarser != key && coarser_shared != shared, "another granularity is another counter");
    let (_, _, again, again_shared) = planned(&rules, Some(Record { requests: 1, ..record }));
    assert_eq!((again, again_shared), (key, shared), "N does not");
}

/// What its algorithm and window cannot have goes, or is the next that they can have.
#[test]
fn another_way_to_count_keeps_what_the_record_leaves_out() {
    let rule = |more: &str| {
        format!("{{key: k, limits_from: store, rate_limit: {{unit: minute, requests_per_unit: 3, {more}}}}}")
    };
    let limit = |more: &str, record: Record| {
        let rules = loaded(&format!("domain: shop\ndescriptors: [{}]", rule(more))).rules;
        let request = Request::new("shop", 1).descriptor(&[("k", "x")]);
        let found = found(&rules, &request, Some(record));
        let plan = rules.plan_under(&request, Modes::default(), over(&found));
        let Step::Check(check) = &plan.steps[0] else { panic!("no check") };
        check.limit
    };
    let (burst, fine) =
        ("algorithm: token_bucket, burst: 7", "algorithm: sliding_window, granularity: 250ms");
    let window = |unit| Some(Window { unit, multiplier: 1 });
    let (minute, hour) = (60 * SECOND_NANOS, 3_600 * SECOND_NANOS);
    let hourly = Record { window: window(Unit::Hour), ..Record::of(5) };
    let by = |algorithm| Record { algorithm: Some(algorithm), ..Record::of(5) };
    assert_eq!(limit(burst, hourly), Limit::new(Algorithm::TokenBucket, 5, hour).with_burst(7));
    let leaky = by(Algorithm::LeakyBucket);
    assert_eq!(limit(burst, leaky), Limit::new(Algorithm::LeakyBucket, 5, minute).with_burst(7));
    assert_eq!(limit(burst, Record { burst: Some(9), ..hourly }).burst(), 9);
    assert_eq!(limit(burst, by(Algorithm::SlidingLog)), Limit::new(Algorithm::SlidingLog, 5, minute));
    assert_eq!(limit("algorithm: token_bucket", hourly).burst(), 5, "one that equals N follows N");
    let quarters = |seconds: u64| Limit::new(Algorithm::SlidingWindow, 5, seconds * SECOND_NANOS);
    let half_minute = Record { window: Some(Window { unit: Unit::Second, multiplier: 30 }), ..Record::of(5) };
    assert_eq!(limit(fine, half_minute), quarters(30).with_granularity(SECOND_NANOS / 4));
    assert_eq!(limit(fine, hourly), quarters(3_600).with_granularity(SECOND_NANOS), "1/3600 is the finest");
    assert_eq!(limit(fine, by(Algorithm::FixedWindow)), Limit::new(Algorithm::FixedWindow, 5, minute));
    assert_eq!(limit("algorithm: sliding_window", hourly), quarters(3_600), "1/60 of the window");
}

#[test]
fn what_no_counter_can_hold_is_cut() {
    let rules = loaded(RULES).rules;
    let limit = |entry, record| {
        let request = Request::new("shop", 1).descriptor(&[entry]);
        let found = found(&rules, &request, Some(record));
        let plan = rules.plan_under(&request, Modes::default(), over(&found));
        let Step::Check(check) = &plan.steps[0] else { panic!("no check") };
        check.limit
    };
    assert_eq!(limit(("log", "x"), Record::of(u32::MAX.into())).requests(), 100_000);
    let slow = Record { burst: Some(u32::MAX.into()), ..Record::of(1) };
    assert_eq!(limit(("tokens", "x"), slow).burst(), 500 * 365 * 24 * 60, "500 years, a hit a minute");
}

#[test]
fn an_exception_stands_before_a_record_and_leaves_its_counter() {
    let exception = |effect| {
        let level = PathEntry { key: "user".to_owned(), value: Some("alice".to_owned()) };
        let path = Path { domain: "shop".into(), entries: vec![level] };
        Exceptions::new(&[Exception { path, effect }])
    };
    let limited = exception(Effect::Limit { requests: Some(6), burst: None });
    let unlimited = Record { unlimited: true, ..Record::of(0) };
    let shop = Shop::open();
    let hour = Record { window: Some(Window::of(Unit::Hour)), ..Record::of(4) };
    assert_eq!(shop.passing_under(ALICE, Some(hour), &limited, 1_000), 6);
    assert_eq!(shop.passing_under(ALICE, Some(hour), &limited, 1_200), 0, "in the window of the record");
    assert_eq!(Shop::open().passing_under(ALICE, Some(unlimited), &limited, 1_000), 6);
    assert_eq!(Shop::open().passing_under(ALICE, Some(unlimited), &exception(Effect::Deny), 1_000), 0);
    let all = exception(Effect::Unlimited);
    assert_eq!(Shop::open().passing_under(ALICE, Some(Record::of(1)), &all, 1_000), 20);
}

/// A limit that a request brings has no rule, so nothing is looked for.
/// A hold need not be the worst case: what bounds worst cases is the counter of the record, with its N and the overdraft.
#[test]
fn the_bound_on_worst_cases_follows_a_record_and_an_exception() {
    let rules = loaded(
        "domain: shop\ndescriptors: [{key: user, limits_from: store, rate_limit: {unit: minute, requests_per_unit: 3}, \
         reserve: {ttl: 60s, overdraft: 0.5, hold: {percentile: 90, initial: 1, max: 2}}}]",
    )
    .rules;
    let reservation = Reservation { id: "x", hits: 5, ttl_nanos: None, is_commit: false };
    let request = Request::new("shop", 1).descriptor(&[("user", "alice")]).with_reservation(reservation);
    let hour = Record { window: Some(Window::of(Unit::Hour)), shadow: Some(true), ..Record::of(10) };
    let level = PathEntry { key: "user".to_owned(), value: None };
    let path = Path { domain: "shop".into(), entries: vec![level] };
    let limit = Effect::Limit { requests: Some(100), burst: None };
    for (record, exception, requests, most) in [
        (None, None, 3, 4),
        (Some(hour), None, 10, 15),
        (None, Some(limit), 100, 150),
        (Some(hour), Some(limit), 100, 150),
    ] {
        let found = found(&rules, &request, record);
        let exceptions = exception.map(|effect| Exceptions::new(&[Exception { path: path.clone(), effect }]));
        let overlay = Overlay { records: Some(&found), exceptions: exceptions.as_ref() };
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        let check = |place: usize| match &plan.steps[place] {
            Step::Check(check) => *check,
            step => panic!("{step:?}"),
        };
        let (limited, bound) = (check(0), check(plan.bound_of(0).expect("a bound")));
        assert_eq!([limited.limit, bound.limit].map(|limit| limit.capacity()), [requests, most]);
        assert_eq!((limited.key, limited.limit.window_nanos()), (bound.key, bound.limit.window_nanos()));
        let held = check(plan.hold_of(0).expect("holds"));
        assert_eq!(
            [bound.unit(), held.unit()],
            [limited.unit(); 2],
            "where there is another Redis for seconds"
        );
        assert_eq!([limited.shadow, bound.shadow], [record.is_some() && exception.is_none(); 2]);
        assert_eq!([limited.hits, bound.hits], [Hits::Take(1), Hits::Take(2)]);
    }
}

/// 25 hits of 20 in 10 s: what is above the 10 of a record drains by 2 a second, and the rest by 1.
#[test]
fn worst_cases_wait_for_a_bucket_that_drains_faster_above_its_burst() {
    let rules = loaded(
        "domain: shop\ndescriptors: [{key: user, limits_from: store, rate_limit: {window: 10s, requests_per_unit: 20, \
         algorithm: token_bucket}, reserve: {ttl: 60s, overdraft: 1, hold: {percentile: 90, initial: 1, max: 100}}}]",
    )
    .rules;
    let store = MemoryStore::new(MemoryOptions::new(1 << 20));
    let entries = [("user", "alice")];
    let commit = Reservation { id: "y", hits: 25, ttl_nanos: None, is_commit: true };
    let commit = Request::new("shop", 1).descriptor(&entries).with_reservation(commit);
    store.apply(&rules.plan(&commit, Modes::default()), Timestamp::from_secs(100));
    for (worst, waits_millis) in [(2, 3_500), (6, 5_500), (10, 7_500), (12, 9_500)] {
        let reservation = Reservation { id: "x", hits: worst, ttl_nanos: None, is_commit: false };
        let request = Request::new("shop", 1).descriptor(&entries).with_reservation(reservation);
        let found = found(&rules, &request, Some(Record::of(10)));
        let overlay = Overlay { records: Some(&found), exceptions: None };
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        let bound = plan.bound_of(0).expect("a bound");
        let verdict = store.apply(&plan, Timestamp::from_secs(100))[bound].expect("a verdict");
        assert_eq!((verdict.over, verdict.reset_nanos / 1_000_000), (true, waits_millis), "{worst}");
    }
}

#[test]
fn the_name_of_a_record_depends_on_the_entries_alone() {
    let other = RULES.replace("3}", "4, algorithm: fixed_window}").replace("unit: minute", "unit: day");
    let (one, other) = (loaded(RULES).rules, loaded(&other).rules);
    let name = |rules: &RuleSet, value| rules.rules()[0].records.map(|seed| seed.record_name([value]));
    assert_eq!(name(&one, "alice"), name(&other, "alice"));
    assert_ne!(name(&one, "alice"), name(&one, "bob"));
    assert_eq!(name(&one, "alice"), Some(options().secret.records("shop", ["user"]).record_name(["alice"])));
    let mut request = Request::new("shop", 1);
    let limit = Override { requests_per_unit: 4, window: Window::of(Unit::Hour) };
    let options = DescriptorOptions { limit: Some(limit), ..DescriptorOptions::default() };
    request.push([Entry { key: "user", value: "alice" }], options);
    let plan = one.plan(&request, Modes::default());
    assert!(matches!(&plan.steps[0], Step::Check(check) if matches!(check.origin, Origin::Override { .. })));
}

#[test]
fn a_rule_without_limits_from_has_no_records() {
    assert!(loaded(RULES).rules.has_records());
    let rules =
        loaded("domain: d\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]").rules;
    assert!(!rules.has_records() && rules.rules()[0].records.is_none());
}

#[test]
fn where_there_can_be_no_records_they_are_refused() {
    let text = |node: &str| format!("domain: d\ndescriptors:\n- {node}\n");
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    for (node, expected) in [
        (
            format!("{{key: k, limits_from: stores, {limit}}}"),
            "3:25: `limits_from` is `stores` (expected store; the closest is `store`)",
        ),
        (
            "{key: k, limits_from: store, descriptors: [{key: l, rate_limit: {unit: day, requests_per_unit: 1}}]}".to_owned(),
            "3:25: `limits_from` without `rate_limit` (expected the limit of keys that have no record)",
        ),
        (
            "{key: k, limits_from: store, rate_limit: {unlimited: true}}".to_owned(),
            "3:25: `limits_from` with `unlimited: true` (expected a limit; a record may be `unlimited`)",
        ),
        (
            format!("{{key: k, value: a*, share_threshold: true, descriptors: [{{key: l, limits_from: store, {limit}}}]}}"),
            "3:82: `limits_from` with `share_threshold`, whose values share a counter (expected one of the two: a \
             record is for one value)",
        ),
    ] {
        assert_eq!(refused(text(&node)), [expected], "{node}");
    }
    let file = file("a.yaml", text(&format!("{{key: k, limits_from: store, {limit}}}")));
    let errors = load(&[file], &options().no_records(Some("LIMITS_DIR"))).expect_err("there is no store");
    let expected = "a.yaml:3:25: `limits_from: store` without a store of records (expected LIMITS_DIR)";
    assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}

/// Random records over every algorithm, on a clock that moves: in no window are there more hits than the largest N that
/// was in force in it.
mod strict {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const WINDOW_SECS: u64 = 60;

    #[derive(Clone, Debug)]
    enum Event {
        Wait(u64),
        Ask,
        Record(Option<u32>),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0_u64..20).prop_map(Event::Wait),
            Just(Event::Ask),
            Just(Event::Ask),
            Just(Event::Ask),
            proptest::option::of(0_u32..8).prop_map(Event::Record),
        ]
    }

    proptest! {
        #[test]
        fn the_largest_n_in_force_in_a_window_bounds_it(key in prop::sample::select(vec!["user", "log"]),
                                                        events in prop::collection::vec(event(), 1..200)) {
            let shop = Shop::open();
            let request = Request::new("shop", 1).descriptor(&[(key, "alice")]);
            let (mut now, mut record) = (1_000_u64, None);
            // When which N came into force (several may in one second), and when hits passed.
            let (mut in_force, mut passed) = (vec![(0, 3_u32)], VecDeque::new());
            for event in events {
                match event {
                    Event::Wait(seconds) => now += seconds,
                    Event::Record(n) => {
                        record = n;
                        in_force.push((now, n.unwrap_or(3)));
                    }
                    Event::Ask => {
                        let found = found(&shop.rules, &request, record.map(|n| Record::of(n.into())));
                        let plan = shop.rules.plan_under(&request, Modes::default(), over(&found));
                        let verdicts = shop.store.apply(&plan, Timestamp::from_secs(now));
                        if conclude(&plan, &verdicts).code == Code::Ok {
                            passed.push_back(now);
                        }
                        let from = now.saturating_sub(WINDOW_SECS - 1);
                        let before = in_force.iter().rposition(|&(since, _)| since < from).unwrap_or(0);
                        let most = in_force[before..].iter().map(|&(_, n)| n).max().unwrap_or(0);
                        let count = passed.iter().filter(|&&at| at >= from).count();
                        prop_assert!(count <= most as usize, "{count} of {most} in the minute before {now}");
                    }
                }
            }
        }
    }
}

/// A question of 0 hits is over in a fixed window only beyond N. An exception stands before the record.
#[test]
fn where_nothing_passes_no_question_does_whatever_the_algorithm() {
    for algorithm in Algorithm::NAMED {
        let by = format!("requests_per_unit: 3, algorithm: {}}}", algorithm.name());
        let rules = loaded(&RULES.replace("requests_per_unit: 3}", &by)).rules;
        let store = MemoryStore::new(MemoryOptions::new(1 << 20));
        let mut request = Request::new("shop", 1);
        let asks = DescriptorOptions { hits_addend: Some(0), ..DescriptorOptions::default() };
        request.push([Entry { key: "user", value: "alice" }], asks);
        let found = found(&rules, &request, Some(Record::NOTHING_PASSES));
        let code = |exceptions: &Exceptions| {
            let overlay = Overlay { records: Some(&found), exceptions: Some(exceptions) };
            let plan = rules.plan_under(&request, Modes::default(), overlay);
            conclude(&plan, &store.apply(&plan, Timestamp::from_secs(1_000))).code
        };
        assert_eq!(code(&Exceptions::default()), Code::OverLimit, "{algorithm:?}");
        let level = PathEntry { key: "user".to_owned(), value: Some("alice".to_owned()) };
        let path = Path { domain: "shop".into(), entries: vec![level] };
        let effect = Effect::Limit { requests: Some(5), burst: Some(5) };
        assert_eq!(code(&Exceptions::new(&[Exception { path, effect }])), Code::Ok, "{algorithm:?}");
    }
}

/// Whether debts are carried is said by the rule alone.
#[test]
fn debts_are_carried_whatever_a_record_says() {
    let shop = Shop::open();
    let carries = |record: Record| {
        let request = Request::new("shop", 1).descriptor(&[("debtor", "alice")]);
        let found = found(&shop.rules, &request, Some(record));
        let plan = shop.rules.plan_under(&request, Modes::default(), over(&found));
        matches!(plan.steps[0], Step::Check(check) if check.limit.carries_debt())
    };
    let (window, granularity_nanos) =
        (Some(Window { unit: Unit::Second, multiplier: 90 }), Some(10 * SECOND_NANOS));
    let algorithm = Some(Algorithm::SlidingLog);
    let records = [
        Record::of(5),
        Record { window, ..Record::of(5) },
        Record { algorithm, ..Record::of(5) },
        Record { granularity_nanos, ..Record::of(5) },
        Record { window, granularity_nanos, ..Record::of(5) },
    ];
    assert_eq!(records.map(carries), [true; 5]);
}
