//! Exceptions: which one a descriptor meets, and what it does to a plan. Random ones are compared with a list that is
//! read from its end, which shares no code with the engine.

use proptest::prelude::*;
use tidegate_engine::Timestamp;
use tidegate_engine::cost::Cost;
use tidegate_engine::decision::{Code, Status, conclude};
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::overlay::{Effect, Exception, Exceptions, Finding, Found, Overlay, Record};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Modes, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Override, Request};
use tidegate_engine::rules::{RuleSet, Unit};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_engine::unit::Window;

use crate::rules::loaded;

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: vip
    rate_limit: {unlimited: true}
  - key: seen
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: tokens
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket, burst: 7}
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: token_bucket}
  - key: owing
    rate_limit: {unit: minute, requests_per_unit: 3, algorithm: sliding_log, carry_debt: true}
";

fn rules() -> RuleSet {
    loaded(RULES).rules
}

fn exception(path: &[(&str, Option<&str>)], effect: Effect) -> Exception {
    let level = |&(key, value): &(&str, Option<&str>)| PathEntry {
        key: key.to_owned(),
        value: value.map(str::to_owned),
    };
    let path = Path { domain: "shop".into(), entries: path.iter().map(level).collect() };
    Exception { path, effect }
}

fn limit(requests: u32) -> Effect {
    Effect::Limit { requests: Some(requests.into()), burst: None }
}

/// How many of 20 requests pass at one moment.
fn passing(exceptions: &Exceptions, (rules, store): (&RuleSet, &MemoryStore), entry: (&str, &str)) -> usize {
    let request = Request::new("shop", 1).descriptor(&[entry]);
    let decide = |_: &usize| {
        let overlay = Overlay { exceptions: Some(exceptions), ..Overlay::default() };
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        let verdicts = store.apply(&plan, Timestamp::from_secs(1_000));
        let denies = |(step, verdict): (&Step<'_>, &Option<_>)| match (step, verdict) {
            (Step::Check(check), Some(tidegate_engine::limit::Verdict { over, .. })) => {
                *over && !check.shadow
            }
            _ => false,
        };
        !plan.steps.iter().zip(&verdicts).any(denies)
    };
    (0..20).filter(decide).count()
}

fn passing_anew(exceptions: &[Exception], entry: (&str, &str)) -> usize {
    let store = MemoryStore::new(MemoryOptions::new(1 << 20));
    passing(&Exceptions::new(exceptions), (&rules(), &store), entry)
}

#[test]
fn an_exception_for_a_range_is_for_the_addresses_in_it() {
    let range = exception(&[("user", Some("{cidr: 10.0.0.0/8}"))], limit(5));
    assert!(!range.is_exact());
    let passing = |value| passing_anew(std::slice::from_ref(&range), ("user", value));
    assert_eq!(["10.1.2.3", "[::ffff:10.0.0.1]:80", "11.0.0.1", "alice"].map(passing), [5, 5, 3, 3]);
}

#[test]
fn an_exception_changes_n_for_those_that_it_names() {
    let alice = exception(&[("user", Some("alice"))], limit(5));
    assert_eq!(passing_anew(std::slice::from_ref(&alice), ("user", "alice")), 5);
    assert_eq!(passing_anew(std::slice::from_ref(&alice), ("user", "bob")), 3);
    let nobody = exception(&[("user", Some("a*e"))], Effect::Deny);
    assert_eq!(
        passing_anew(&[nobody.clone(), alice.clone()], ("user", "alice")),
        0,
        "the newer one does not help"
    );
    assert_eq!(passing_anew(&[exception(&[("user", None)], Effect::Unlimited)], ("user", "bob")), 20);
    let two = [alice, exception(&[("user", Some("ali*"))], limit(6))];
    assert_eq!(passing_anew(&two, ("user", "alice")), 6, "the newest");
}

#[test]
fn what_was_counted_stays_when_an_exception_comes_and_goes() {
    let (rules, store) = (rules(), MemoryStore::new(MemoryOptions::new(1 << 20)));
    let more = Exceptions::new(&[exception(&[("user", Some("alice"))], limit(5))]);
    let alice = ("user", "alice");
    assert_eq!(passing(&Exceptions::default(), (&rules, &store), alice), 3);
    assert_eq!(passing(&more, (&rules, &store), alice), 2, "three of five are used");
    assert_eq!(passing(&Exceptions::default(), (&rules, &store), alice), 0);
}

#[test]
fn a_denial_needs_no_limit_and_beats_every_mode() {
    for key in ["user", "vip", "seen", "tokens"] {
        let denied = exception(&[(key, Some("x"))], Effect::Deny);
        assert_eq!(passing_anew(&[denied], (key, "x")), 0, "{key}");
    }
    assert_eq!(
        passing_anew(&[exception(&[("vip", None)], limit(2))], ("vip", "x")),
        20,
        "there is nothing to change"
    );
}

/// A question of 0 hits is over in a fixed window only beyond N: who is denied has to be denied before the work.
#[test]
fn a_denial_is_for_questions_too_whatever_the_algorithm() {
    for algorithm in Algorithm::NAMED {
        let limit =
            format!("rate_limit: {{unit: minute, requests_per_unit: 3, algorithm: {}}}", algorithm.name());
        let rules =
            loaded(&format!("domain: shop\ndescriptors: [{{key: a, {limit}}}, {{key: b, {limit}}}]")).rules;
        let store = MemoryStore::new(MemoryOptions::new(1 << 20));
        let none = Exceptions::new(&[exception(&[("a", None)], Effect::Deny)]);
        let ask = |of_both: bool, exceptions| {
            let mut request = Request::new("shop", 1);
            let asks = DescriptorOptions { hits_addend: Some(0), ..DescriptorOptions::default() };
            request.push([Entry { key: "a", value: "x" }], asks);
            let request = if of_both { request.descriptor(&[("b", "x")]) } else { request };
            let plan =
                rules.plan_under(&request, Modes::default(), Overlay { exceptions, ..Overlay::default() });
            let decision = conclude(&plan, &store.apply(&plan, Timestamp::from_secs(1_000)));
            let left = decision.limits().last().map(|(_, limited)| limited.remaining());
            (decision.code, left)
        };
        for of_both in [false, true] {
            assert_eq!(ask(of_both, Some(&none)).0, Code::OverLimit, "{algorithm:?}");
        }
        let (code, left) = ask(true, None);
        let counted = u64::from(algorithm == Algorithm::FixedWindow);
        assert_eq!(
            (code, left),
            (Code::Ok, Some(2 - counted)),
            "{algorithm:?}: of a denied request only it counts"
        );
    }
}

#[test]
fn an_exception_that_changes_nothing_is_not_met() {
    let rules = rules();
    let met = |key: &str, effect| {
        let request = Request::new("shop", 1).descriptor(&[(key, "x")]);
        let exceptions = Exceptions::new(&[exception(&[(key, None)], effect)]);
        let overlay = Overlay { exceptions: Some(&exceptions), ..Overlay::default() };
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        overlay.met(&request, &plan).count()
    };
    assert_eq!(["user", "vip", "unknown"].map(|key| met(key, limit(2))), [1, 0, 0]);
    assert_eq!(["user", "vip"].map(|key| met(key, Effect::Deny)), [1, 1]);
}

#[test]
fn a_burst_of_its_own_stays_and_one_that_is_n_follows_n() {
    let more = |key| [exception(&[(key, None)], limit(5))];
    assert_eq!(passing_anew(&more("tokens"), ("tokens", "x")), 7);
    assert_eq!(passing_anew(&more("plain"), ("plain", "x")), 5);
    let burst = exception(&[("tokens", None)], Effect::Limit { requests: None, burst: Some(9) });
    assert_eq!(passing_anew(&[burst], ("tokens", "x")), 9);
}

/// Seven of seven are spent, and none comes back by a change of N: see `limits_changed`.
#[test]
fn an_exception_of_a_bucket_leaves_what_was_spent() {
    let (rules, store) = (rules(), MemoryStore::new(MemoryOptions::new(1 << 20)));
    let under = |effect: Option<Effect>| {
        let all: Vec<_> = effect.map(|effect| exception(&[("tokens", None)], effect)).into_iter().collect();
        passing(&Exceptions::new(&all), (&rules, &store), ("tokens", "x"))
    };
    let numbers = |requests, burst| Some(Effect::Limit { requests: Some(requests), burst });
    assert_eq!([under(None), under(numbers(1, None)), under(numbers(60, None))], [7, 0, 0]);
    assert_eq!([under(numbers(1, Some(2))), under(numbers(1, Some(9))), under(None)], [0, 2, 0]);
}

/// Costs of calls that have begun before, which are reported while nothing may pass: by an exception, by a record, and by an
/// exception to a record. When hits may pass again, as much is owed as by the N that is in force otherwise.
#[test]
fn what_was_spent_counts_although_nothing_may_pass_when_it_is_reported() {
    let zero = Effect::Limit { requests: Some(0), burst: Some(0) };
    let unlimited = Record { unlimited: true, ..Record::of(9) };
    let cases = [
        (None, Some(Effect::Deny), 3),
        (None, Some(zero), 3),
        (Some(Record::of(0)), None, 3),
        (Some(Record::NOTHING_PASSES), None, 3),
        (Some(Record::of(0)), Some(Effect::Deny), 3),
        (Some(Record::of(4)), Some(Effect::Deny), 4),
        (Some(unlimited), Some(Effect::Deny), 3),
    ];
    for (record, effect, requests) in cases {
        for (cost, owed) in [(1, 1), (5 * requests, 5 * requests), (20 * requests, 17 * requests)] {
            for key in ["plain", "owing"] {
                let (rules, store) = (rules(), MemoryStore::new(MemoryOptions::new(1 << 20)));
                report_where_nothing_passes((&rules, &store), (record, effect), (key, cost));
                let case = format!("{key}, {record:?}, {effect:?}, {cost}");
                assert_eq!(store.reported_total().dropped, cost - owed, "{case}");
                let request = Request::new("shop", 0).descriptor(&[(key, "x")]);
                let has_room = |windows: u64| {
                    let plan = rules.plan(&request, Modes::default());
                    let at = Timestamp::from_secs(1_000 + 60 * windows);
                    store.apply(&plan, at)[0].is_some_and(|verdict| !verdict.over)
                };
                let windows = owed / requests;
                let before = has_room(windows.saturating_sub(1));
                assert_eq!((before, has_room(windows + 1)), (cost == 1, true), "{case}");
            }
        }
    }
}

/// Reports a cost at 1,000 s, and looks at what is answered.
fn report_where_nothing_passes(
    (rules, store): (&RuleSet, &MemoryStore),
    (record, effect): (Option<Record>, Option<Effect>),
    (key, cost): (&str, u64),
) {
    let mut request = Request::new("shop", 1);
    let options =
        DescriptorOptions { hits_addend: Some(cost), cost: Cost::Reported, ..DescriptorOptions::default() };
    request.push([Entry { key, value: "x" }], options);
    let of_rules = rules.plan(&request, Modes::default());
    let mut found = Found::default();
    found.add(0, of_rules.steps[0].rule().expect("a rule"), Finding::from(record));
    let exceptions = effect.map(|effect| Exceptions::new(&[exception(&[(key, None)], effect)]));
    let overlay = Overlay { records: Some(&found), exceptions: exceptions.as_ref() };
    let plan = rules.plan_under(&request, Modes::default(), overlay);
    let decision = conclude(&plan, &store.apply(&plan, Timestamp::from_secs(1_000)));
    let Status::Limited(limited) = &decision.statuses[0] else { panic!("a limit") };
    assert_eq!((decision.code, limited.limit.requests(), limited.remaining()), (Code::OverLimit, 0, 0));
}

#[test]
fn a_limit_that_a_request_brings_yields_to_a_denial_alone() {
    let rules = rules();
    let mut request = Request::new("shop", 1);
    let brought = Override { requests_per_unit: 4, window: Window::of(Unit::Hour) };
    let options = DescriptorOptions { limit: Some(brought), ..DescriptorOptions::default() };
    request.push([Entry { key: "user", value: "alice" }], options);
    let requests = |effect| {
        let exceptions = Exceptions::new(&[exception(&[("user", None)], effect)]);
        let overlay = Overlay { exceptions: Some(&exceptions), ..Overlay::default() };
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        let Step::Check(check) = plan.steps[0] else { panic!("{plan:?}") };
        check.limit.requests()
    };
    assert_eq!(requests(limit(9)), 4);
    assert_eq!(requests(Effect::Deny), 0);
}

/// Whether a text fits a pattern, by recursion.
fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|at| fits(rest, &text[at..])),
        Some((byte, rest)) => text.first() == Some(byte) && fits(rest, &text[1..]),
    }
}

/// The exception that holds, by reading the list from its end.
fn expected(all: &[Exception], domain: &str, entries: &[(String, String)]) -> Option<usize> {
    let fit = |exception: &Exception| {
        let level = |(level, (key, value)): (&PathEntry, &(String, String))| {
            level.key == *key
                && level.value.as_ref().is_none_or(|pattern| fits(pattern.as_bytes(), value.as_bytes()))
        };
        *exception.path.domain == *domain
            && exception.path.entries.len() == entries.len()
            && exception.path.entries.iter().zip(entries).all(level)
    };
    let newest = |wanted: fn(&Exception) -> bool| {
        all.iter().rposition(|exception| fit(exception) && wanted(exception))
    };
    newest(|exception| exception.effect == Effect::Deny).or_else(|| newest(|_| true))
}

fn level() -> impl Strategy<Value = PathEntry> {
    let value = proptest::option::of("[ab*]{0,3}");
    ("[kl]", value).prop_map(|(key, value)| PathEntry { key, value })
}

fn any_exception() -> impl Strategy<Value = Exception> {
    let effect = prop_oneof![Just(Effect::Deny), Just(Effect::Unlimited), (1..9_u32).prop_map(limit)];
    let entries = proptest::collection::vec(level(), 1..3);
    ("[de]", entries, effect).prop_map(|(domain, entries, effect)| Exception {
        path: Path { domain: domain.into(), entries },
        effect,
    })
}

proptest! {
    #[test]
    fn the_newest_that_fits_holds_and_denials_go_first(
        all in proptest::collection::vec(any_exception(), 0..12),
        domain in "[de]",
        entries in proptest::collection::vec(("[kl]", "[ab]{0,3}"), 1..3),
    ) {
        let exceptions = Exceptions::new(&all);
        let pairs: Vec<_> = entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let request = Request::new(&domain, 1).descriptor(&pairs);
        let keys: Vec<_> = entries.iter().map(|(key, _)| key.as_str()).collect();
        let rules = loaded(&rule_of(&domain, &keys)).rules;
        let plan = rules.plan(&request, Modes::default());
        let overlay = Overlay { exceptions: Some(&exceptions), ..Overlay::default() };
        let found = overlay.met(&request, &plan).next().map(|met| met.index);
        let wanted = expected(&all, &domain, &entries);
        // Of two denials, either says the same.
        let effect = |id: Option<usize>| id.map(|id| all[id].effect);
        prop_assert_eq!(effect(found), effect(wanted));
        if effect(found) != Some(Effect::Deny) {
            prop_assert_eq!(found, wanted);
        }
    }
}

/// Rules with one limit, at the end of this path.
fn rule_of(domain: &str, keys: &[&str]) -> String {
    let mut text = format!("domain: {domain}\n");
    let mut indent = String::new();
    for key in keys {
        text += &format!("{indent}descriptors:\n{indent}- key: {key}\n");
        indent += "  ";
    }
    text + &format!("{indent}rate_limit: {{unit: day, requests_per_unit: 3}}\n")
}

/// A rule of two limits: the wait of the exception is that of the first one, and the other may deny for longer.
#[test]
fn whom_an_exception_denies_waits_for_every_limit_of_the_rule() {
    const LIMITS: &str = "prefix: {v4: {24: 1, 16: 1}}, rate_limit: {window: 60s, requests_per_unit: 1, algorithm: sliding_log}";
    let rules = loaded(&format!("domain: shop\ndescriptors: [{{key: ip, {LIMITS}}}]")).rules;
    let waits = |secs: u64| {
        let store = MemoryStore::new(MemoryOptions::new(1 << 20));
        let denied = Exceptions::new(&[exception(&[("ip", Some("10.0.0.1"))], Effect::Deny)]);
        let ask = |address, exceptions| {
            let request = Request::new("shop", 1).descriptor(&[("ip", address)]);
            let overlay = Overlay { exceptions, ..Overlay::default() };
            let plan = rules.plan_under(&request, Modes::default(), overlay);
            let mut decision = conclude(&plan, &store.apply(&plan, Timestamp::from_secs(1_200)));
            decision.deny_first_for(&plan, 0, secs * SECOND_NANOS);
            let Status::Limited(shown) = decision.statuses[0] else { panic!("a limit is shown") };
            (shown.limit.requests(), decision.retry_after_secs())
        };
        // It fills the shorter prefix that both addresses share.
        assert_eq!(ask("10.0.1.1", None), (1, None));
        ask("10.0.0.1", Some(&denied))
    };
    assert_eq!(waits(5), (1, Some(60)), "the other limit denies for a minute");
    assert_eq!(waits(500), (0, Some(500)));
}
