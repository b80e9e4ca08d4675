//! Bans: which rules have one, and who is banned for how long, compared with a naive list of denials.

use std::collections::BTreeMap;

use tidegate_engine::cost::Cost;
use tidegate_engine::decision::{Code, Decision, Status, conclude};
use tidegate_engine::explain::explain;
use tidegate_engine::memory::{Cold, MemoryOptions, MemoryStore};
use tidegate_engine::overlay::{Effect, Exception, Exceptions, Overlay};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Check, Hits, Modes, Plan, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{Epochs, Reach, ResetPath, RuleSet};
use tidegate_engine::strikes::{beginning, lifting};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{at, small_store, store};
use crate::random::Random;
use crate::rules::{loaded, refused};
use crate::store_state::moved;

const BAN: &str = "ban: {after: 3 denials, within: 60s, every: 1s, for: 100s}";

fn rules(fields: &str) -> RuleSet {
    loaded(&format!("domain: d\ndescriptors: [{{key: user, {fields}}}]")).rules
}

/// One a minute, and this ban.
fn strict(ban: &str) -> RuleSet {
    rules(&format!("rate_limit: {{window: 60s, requests_per_unit: 1, algorithm: sliding_log}}, {ban}"))
}

fn request<'r>(entries: &[(&'r str, &'r str)], hits: u64) -> Request<'r> {
    let mut request = Request::new("d", 1);
    let options =
        DescriptorOptions { hits_addend: Some(hits), cost: Cost::Asked, ..DescriptorOptions::default() };
    request.push(entries.iter().map(|&(key, value)| Entry { key, value }), options);
    request
}

/// Asks, and calls `see` with the decision.
fn ask_as<T>(
    rules: &RuleSet,
    store: &MemoryStore,
    request: &Request<'_>,
    second: f64,
    see: impl FnOnce(&Decision<'_>) -> T,
) -> T {
    let plan = rules.plan(request, Modes::default());
    see(&conclude(&plan, &store.apply(&plan, at(second))))
}

fn ask(rules: &RuleSet, store: &MemoryStore, user: &str, second: f64) -> Code {
    ask_as(rules, store, &request(&[("user", user)], 1), second, |decision| decision.code)
}

/// For how long the user is banned, as a question says; `None`: not at all.
fn banned_for(rules: &RuleSet, store: &MemoryStore, user: &str, second: f64) -> Option<f64> {
    ask_as(rules, store, &request(&[("user", user)], 0), second, |decision| {
        decision.bans().first().map(|ban| ban.nanos_left as f64 / SECOND_NANOS as f64)
    })
}

/// One key, as the documentation describes it.
#[derive(Default)]
struct Naive {
    admitted: Vec<u64>,
    strikes: Vec<u64>,
    until: u64,
    in_a_row: u32,
}

struct Terms {
    requests: usize,
    window: u64,
    after: usize,
    within: u64,
    every: u64,
    first: u64,
    longest: u64,
}

impl Naive {
    /// Whether it is admitted.
    fn ask(&mut self, terms: &Terms, now: u64) -> bool {
        if self.until > now {
            return false;
        }
        if self.admitted.iter().filter(|&&hit| hit + terms.window > now).count() < terms.requests {
            self.admitted.push(now);
            return true;
        }
        if self.strikes.last().is_some_and(|&last| now < last + terms.every) {
            return false;
        }
        self.strikes.push(now);
        if self.strikes.iter().filter(|&&strike| strike + terms.within > now).count() >= terms.after {
            let forgotten = self.until + terms.longest <= now;
            self.in_a_row = if forgotten { 0 } else { self.in_a_row };
            self.until = now + (terms.first << self.in_a_row.min(40)).min(terms.longest);
            self.in_a_row += 1;
            self.strikes.clear();
        }
        false
    }
}

#[test]
fn bans_are_those_of_a_naive_list() {
    let (mut begun, mut doubled) = (0, 0);
    for seed in 0..150 {
        let mut random = Random(seed);
        let s = |random: &mut Random, most| (1 + random.below(most)) * SECOND_NANOS;
        let (within, first) = (s(&mut random, 40), s(&mut random, 20));
        let terms = Terms {
            requests: 1 + random.below(3) as usize,
            window: s(&mut random, 10),
            after: 1 + random.below(5) as usize,
            within,
            every: random.below(3) * SECOND_NANOS / 2,
            first,
            longest: first * (1 + random.below(6)),
        };
        let Terms { requests, window, after, every, longest, .. } = terms;
        let secs = |nanos| nanos / SECOND_NANOS;
        let rules = rules(&format!(
            "rate_limit: {{window: {}s, requests_per_unit: {requests}, algorithm: sliding_log}}, ban: {{after: {after}, \
             within: {}s, every: {}ms, for: {}s, doubling_to: {}s}}",
            secs(window),
            secs(within),
            every.min(within) / 1_000_000,
            secs(first),
            secs(longest)
        ));
        let terms = Terms { every: every.min(within), ..terms };
        let (mut store, mut naive) = (small_store(), BTreeMap::<u64, Naive>::new());
        let mut now = 1_000 * SECOND_NANOS;
        for step in 0..400 {
            let most = if random.below(40) == 0 { 200 } else { 2 };
            now += random.below(most * SECOND_NANOS);
            let user = random.below(2);
            let (key, naive) = (user.to_string(), naive.entry(user).or_default());
            if random.below(50) == 0 {
                store = moved(&store, small_store(), Timestamp::from_nanos(now));
            }
            if random.below(20) == 0 {
                while !store.sweep(Timestamp::from_nanos(now)).round_done {}
            }
            let request = request(&[("user", &key)], 1);
            let plan = rules.plan(&request, Modes::default());
            let decision = conclude(&plan, &store.apply(&plan, Timestamp::from_nanos(now)));
            let (was_banned, in_a_row) = (naive.until > now, naive.in_a_row);
            let passes = naive.ask(&terms, now);
            assert_eq!(decision.code == Code::Ok, passes, "{seed} {step}");
            let left = decision.bans().first().map(|ban| (ban.nanos_left, ban.has_begun));
            let expected = (naive.until > now).then(|| (naive.until - now, !was_banned));
            assert_eq!(left, expected, "{seed} {step}");
            if let (Some((left, true)), Some(limited)) = (left, decision.tightest()) {
                assert!(limited.verdict.reset_nanos >= left && limited.remaining() == 0);
                begun += 1;
                doubled += u32::from(in_a_row > 0 && naive.in_a_row > 1);
            }
        }
    }
    assert!(begun > 1_000 && doubled > 300, "{begun} bans, {doubled} of them longer");
}

#[test]
fn a_banned_key_is_not_counted_by_any_algorithm() {
    for algorithm in ["sliding_window", "fixed_window", "token_bucket", "sliding_window_weighted"] {
        let rules =
            rules(&format!("rate_limit: {{unit: day, requests_per_unit: 1, algorithm: {algorithm}}}, {BAN}"));
        let store = store();
        let codes = [0.0, 1.0, 2.0, 3.0].map(|second| ask(&rules, &store, "a", second));
        assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::OverLimit, Code::OverLimit]);
        let counted = |second| {
            let request = request(&[("user", "a")], 0);
            let plan = rules.plan(&request, Modes::default());
            store.apply(&plan, at(second))[0].expect("a counter").before
        };
        let before = counted(3.0);
        assert_eq!([4.0, 5.0, 6.0].map(|second| ask(&rules, &store, "a", second)), [Code::OverLimit; 3]);
        assert_eq!(counted(6.0), before, "{algorithm}");
        assert_eq!(banned_for(&rules, &store, "a", 6.0), Some(97.0), "{algorithm}");
        assert_eq!(banned_for(&rules, &store, "b", 6.0), None, "{algorithm}");
    }
}

#[test]
fn a_ban_is_about_the_entries_that_it_names() {
    let rules = loaded(
        "domain: d\ndescriptors:\n- key: ip\n  descriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 1}\n    \
         ban: {after: 2, within: 60s, every: 0, for: 100s, on: [user]}",
    )
    .rules;
    let store = store();
    let ask = |ip, user, second| {
        let request = request(&[("ip", ip), ("user", user)], 1);
        ask_as(&rules, &store, &request, second, |decision| (decision.code, decision.bans().len()))
    };
    assert_eq!(ask("1", "mallory", 0.0), (Code::Ok, 0));
    assert_eq!(ask("1", "mallory", 1.0), (Code::OverLimit, 0));
    assert_eq!(ask("1", "mallory", 2.0), (Code::OverLimit, 1));
    assert_eq!(ask("2", "mallory", 3.0), (Code::OverLimit, 1), "from another address");
    assert_eq!(ask("1", "alice", 3.0), (Code::Ok, 0), "another user of the address");
}

/// Its calls may still run when it is banned, and another descriptor may report a cost: then its slots are looked at.
#[test]
fn a_ban_shows_the_numbers_of_the_rate_limit_also_if_no_slot_is_free() {
    let limit = "rate_limit: {window: 600s, requests_per_unit: 2, algorithm: sliding_log}";
    let slots = "concurrency: {slots: 1, ttl: 600s, id: call}";
    let ban = "ban: {after: 1, within: 60s, every: 0, for: 900s}";
    let rules = loaded(&format!(
        "domain: d\ndescriptors: [{{key: user, {limit}, {slots}, {ban}}}, {{key: all, rate_limit: {{unit: day, requests_per_unit: 9}}}}]"
    ))
    .rules;
    let store = store();
    let ask = |call: &str, hits: u64, second: f64| {
        let request = request(&[("user", "a"), ("call", call)], hits).descriptor(&[("all", "x")]);
        ask_as(&rules, &store, &request, second, |decision| match &decision.statuses[0] {
            Status::Limited(it) => (it.is_denied(), it.limit.requests(), it.remaining(), it.reset_secs()),
            _ => panic!("a limit applies"),
        })
    };
    assert_eq!(ask("1", 1, 0.0), (false, 2, 1, 600));
    assert_eq!(ask("2", 2, 1.0), (true, 2, 0, 900), "the denial of the limit begins the ban");
    assert_eq!(ask("2", 1, 2.0), (true, 2, 0, 899), "no slot is free, but it is not denied by that");
    assert_eq!(ask("1", 1, 3.0), (true, 2, 0, 898));
}

/// Redis does not have them any more.
#[test]
fn denials_that_no_longer_count_do_not_count_again_when_more_time_is_looked_at() {
    let within = |secs| strict(&format!("ban: {{after: 2, within: {secs}s, every: 0, for: 100s}}"));
    let (short, long, store) = (within(60), within(600), store());
    assert_eq!([0.0, 1.0].map(|second| ask(&short, &store, "a", second)), [Code::Ok, Code::OverLimit]);
    assert_eq!([62.0, 63.0].map(|second| ask(&long, &store, "a", second)), [Code::Ok, Code::OverLimit]);
    assert_eq!(banned_for(&long, &store, "a", 63.0), None);
    assert_eq!(ask(&long, &store, "a", 64.0), Code::OverLimit);
    assert_eq!(banned_for(&long, &store, "a", 64.0), Some(100.0));
}

/// Quota mode passes a request while another of its descriptors has room. A ban denies it all the same.
#[test]
fn with_quota_mode_a_ban_denies_by_itself() {
    let limit = "rate_limit: {window: 60s, requests_per_unit: 1, algorithm: sliding_log}";
    let ban = "ban: {after: 1, within: 60s, every: 0, for: 100s}";
    let rules = loaded(&format!(
        "domain: d\ndescriptors: [{{key: user, {limit}, {ban}}}, {{key: all, rate_limit: {{unit: day, requests_per_unit: 9}}}}]"
    ))
    .rules;
    let store = store();
    let ask = |with_room: bool, second: f64| {
        let mut request = request(&[("user", "a")], 1);
        if with_room {
            request = request.descriptor(&[("all", "x")]);
        }
        let plan = rules.plan(&request, Modes { quota: true, ..Modes::default() });
        let decision = conclude(&plan, &store.apply(&plan, at(second)));
        (decision.code, decision.bans().len())
    };
    assert_eq!([0.0, 1.0].map(|second| ask(true, second)), [(Code::Ok, 0); 2], "one is over, but not all");
    assert_eq!(ask(false, 2.0), (Code::OverLimit, 1), "all are over, so this denial begins a ban");
    assert_eq!([3.0, 101.0].map(|second| ask(true, second)), [(Code::OverLimit, 1); 2]);
    assert_eq!(ask(true, 102.0), (Code::Ok, 0));
}

#[test]
fn only_denials_by_this_limit_count() {
    let (rules, store) = (strict("ban: {after: 2, within: 60s, every: 0, for: 100s}"), store());
    assert_eq!(ask(&rules, &store, "a", 0.0), Code::Ok);
    let with = |change: &dyn Fn(&mut Check<'_>), modes: Modes, hits: u64| {
        let request = request(&[("user", "a")], hits);
        let mut plan = rules.plan(&request, modes);
        if let Step::Check(check) = &mut plan.steps[0] {
            change(check);
        }
        store.apply(&plan, at(1.0));
    };
    for _ in 0..3 {
        with(&|_| {}, Modes::default(), 0);
        with(&|_| {}, Modes { shadow: true, ..Modes::default() }, 1);
        with(&|check| check.shadow = true, Modes::default(), 1);
        with(&|check| check.limit = check.limit.with_requests(0), Modes::default(), 1);
        with(&|check| check.hits = Hits::GiveBack(0), Modes::default(), 1);
        with(&|check| check.reported = true, Modes::default(), 1);
    }
    assert_eq!(banned_for(&rules, &store, "a", 1.0), None);
    assert_eq!([1.0, 2.0].map(|second| ask(&rules, &store, "a", second)), [Code::OverLimit; 2]);
    assert_eq!(banned_for(&rules, &store, "a", 2.0), Some(100.0));
    // What a client reports or takes back goes on.
    let mut refund = Request::new("d", 1);
    let options = DescriptorOptions { is_negative_hits: true, ..DescriptorOptions::default() };
    refund.push([Entry { key: "user", value: "a" }], options);
    assert_eq!(ask_as(&rules, &store, &refund, 3.0, |decision| decision.bans().len()), 0);
    assert_eq!(banned_for(&rules, &store, "a", 103.0), None);
    assert_eq!(ask(&rules, &store, "a", 103.0), Code::Ok, "the hit went back");
}

/// Another descriptor denies the request. What an exception makes unlimited has a part in no denial.
#[test]
fn a_limit_in_shadow_mode_has_no_part_in_what_another_descriptor_denies() {
    let of_user =
        "rate_limit: {window: 60s, requests_per_unit: 1}, ban: {after: 1, within: 60s, every: 0, for: 100s}";
    let closed = "{key: closed, rate_limit: {window: 60s, requests_per_unit: 0}}";
    let rules = loaded(&format!("domain: d\ndescriptors: [{{key: user, {of_user}}}, {closed}]")).rules;
    let bans = |is_shadow: bool| {
        let store = store();
        let request = request(&[("user", "a")], 2).descriptor(&[("closed", "x")]);
        let mut plan = rules.plan(&request, Modes::default());
        if let Step::Check(check) = &mut plan.steps[0] {
            check.shadow = is_shadow;
        }
        assert_eq!(conclude(&plan, &store.apply(&plan, at(1.0))).code, Code::OverLimit);
        banned_for(&rules, &store, "a", 1.0)
    };
    assert_eq!([false, true].map(bans), [Some(100.0), None]);
}

/// Nothing fits into a bucket of no hits, as an operator may have wanted.
#[test]
fn denials_by_a_bucket_of_no_hits_are_no_strikes() {
    let rules = rules(
        "rate_limit: {window: 60s, requests_per_unit: 1, algorithm: token_bucket}, \
         ban: {after: 1, within: 60s, every: 0, for: 100s}",
    );
    let banned_by = |burst: u64| {
        let (store, request) = (store(), request(&[("user", "a")], 2));
        let level = PathEntry { key: "user".to_owned(), value: Some("a".to_owned()) };
        let path = Path { domain: "d".into(), entries: vec![level] };
        let effect = Effect::Limit { requests: None, burst: Some(burst) };
        let exceptions = Exceptions::new(&[Exception { path, effect }]);
        let overlay = Overlay { exceptions: Some(&exceptions), ..Overlay::default() };
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        let decision = conclude(&plan, &store.apply(&plan, at(1.0)));
        (decision.code, decision.bans().len())
    };
    assert_eq!([0, 1].map(banned_by), [(Code::OverLimit, 0), (Code::OverLimit, 1)]);
}

#[test]
fn denials_of_another_descriptor_are_strikes_during_a_ban() {
    let level =
        |key: &str| format!("{{key: {key}, rate_limit: {{window: 60s, requests_per_unit: 1}}, {BAN}}}");
    let rules = loaded(&format!("domain: d\ndescriptors: [{}, {}]", level("user"), level("team"))).rules;
    let (store, options) = (store(), DescriptorOptions { cost: Cost::Asked, ..DescriptorOptions::default() });
    let request = |keys: &[&'static str]| {
        let mut request = Request::new("d", 1);
        keys.iter().for_each(|&key| request.push([Entry { key, value: "x" }], options));
        request
    };
    let banned = |keys: &[&'static str], second| {
        let keys_of =
            |decision: &Decision<'_>| decision.bans().iter().map(|ban| ban.descriptor).collect::<Vec<_>>();
        ask_as(&rules, &store, &request(keys), second, keys_of)
    };
    (0..4).for_each(|second| _ = banned(&["user"], f64::from(second)));
    banned(&["team"], 4.0);
    let both = [5.0, 6.0, 7.0, 8.0].map(|second| banned(&["user", "team"], second));
    assert_eq!(both[..2], [[0], [0]], "two denials of the team begin no ban");
    assert_eq!(both[3], [0, 1], "the third one does");
}

#[test]
fn a_denial_of_a_counter_that_did_not_decide_is_no_strike() {
    let rules = strict("ban: {after: 1, within: 60s, for: 100s}");
    let cold = store().cold(Cold::since(at(0.0), 3_600 * SECOND_NANOS));
    assert_eq!(ask(&rules, &cold, "a", 1.0), Code::OverLimit);
    assert_eq!(banned_for(&rules, &cold, "a", 1.0), None);
    let full = MemoryStore::new(MemoryOptions::new(0));
    assert_eq!(ask(&rules, &full, "a", 1.0), Code::OverLimit);
    assert_eq!(banned_for(&rules, &full, "a", 1.0), None);
}

#[test]
fn a_ban_that_finds_no_room_does_not_begin_and_is_counted() {
    let rules = strict("ban: {after: 1, within: 60s, for: 100s}");
    let user = |number: u32| format!("user {number}");
    let filled = MemoryStore::new(MemoryOptions::new(40_000));
    let admitted: Vec<_> =
        (0..10_000).filter(|&number| ask(&rules, &filled, &user(number), 1.0) == Code::Ok).collect();
    let before = filled.full_total().deny;
    let banned = admitted.iter().filter(|&&number| {
        ask(&rules, &filled, &user(number), 2.0);
        banned_for(&rules, &filled, &user(number), 2.0).is_some()
    });
    let banned = banned.count() as u64;
    assert!(banned < admitted.len() as u64, "{banned} of {}", admitted.len());
    assert_eq!(filled.full_total().deny - before, admitted.len() as u64 - banned);
}

/// An exception counts as before: also where no fixed window is charged once another limit is over.
#[test]
fn hits_that_an_exception_admits_during_a_ban_count() {
    let rules = "{key: user, rate_limit: {window: 60s, requests_per_unit: 2, algorithm: fixed_window}, \
                 ban: {after: 1, within: 60s, for: 65s}}";
    let rules = loaded(&format!("domain: d\ndescriptors: [{rules}]")).rules;
    let user = PathEntry { key: "user".into(), value: Some("a".into()) };
    let path = Path { domain: "d".into(), entries: vec![user] };
    let exceptions = Exceptions::new(&[Exception { path, effect: Effect::Unlimited }]);
    let modes = Modes { stop_increment_when_over: true, ..Modes::default() };
    let store = store();
    let left = |hits, second, exceptions| {
        let (request, overlay) = (request(&[("user", "a")], hits), Overlay { records: None, exceptions });
        let plan = rules.plan_under(&request, modes, overlay);
        let decision = conclude(&plan, &store.apply(&plan, at(second)));
        (decision.code, decision.tightest().expect("a limit").remaining())
    };
    assert_eq!(left(3, 1.0, None), (Code::OverLimit, 0));
    // In the next window, while the key is banned.
    assert_eq!(left(1, 61.0, Some(&exceptions)), (Code::Ok, 1));
    assert_eq!(left(1, 61.0, Some(&exceptions)), (Code::Ok, 0));
    assert_eq!(left(1, 67.0, None), (Code::OverLimit, 0), "the ban is over, and the window is full");
}

#[test]
fn exceptions_and_resets_lift_a_ban() {
    let (rules, store) = (strict("ban: {after: 1, within: 60s, for: 100s}"), store());
    assert_eq!([0.0, 1.0].map(|second| ask(&rules, &store, "a", second)), [Code::Ok, Code::OverLimit]);
    let path =
        Path { domain: "d".into(), entries: vec![PathEntry { key: "user".into(), value: Some("a".into()) }] };
    let under = |effect| {
        let exceptions = Exceptions::new(&[Exception { path: path.clone(), effect }]);
        let overlay = Overlay { records: None, exceptions: Some(&exceptions) };
        let request = request(&[("user", "a")], 1);
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        let decision = conclude(&plan, &store.apply(&plan, at(2.0)));
        (decision.code, decision.bans().len())
    };
    assert_eq!(under(Effect::Unlimited), (Code::Ok, 0));
    assert_eq!(under(Effect::Limit { requests: Some(9), burst: None }), (Code::OverLimit, 1));
    // Of this key's counter, and of all counters of its rule.
    let of_rule = Path { entries: vec![PathEntry { key: "user".into(), value: None }], ..path.clone() };
    for (path, reach) in [(path, Reach::Counter), (of_rule, Reach::Below)] {
        let mut epochs = Epochs::default();
        epochs.raise(ResetPath { path, reach }, 1);
        let reset = rules.clone().in_epochs(&epochs);
        assert_eq!(
            (ask(&rules, &store, "a", 3.0), ask(&reset, &store, "a", 3.0)),
            (Code::OverLimit, Code::Ok)
        );
    }
}

#[test]
fn bans_stay_when_their_terms_change() {
    let store = store();
    let before = strict("ban: {after: 1, within: 60s, for: 100s}");
    assert_eq!([0.0, 1.0].map(|second| ask(&before, &store, "a", second)), [Code::Ok, Code::OverLimit]);
    let after = strict("ban: {after: 9, within: 300s, for: 5s}");
    assert_eq!(banned_for(&after, &store, "a", 2.0), Some(99.0));
}

#[test]
fn a_ban_on_other_entries_is_another_counter() {
    let on = |keys| {
        loaded(&format!(
            "domain: d\ndescriptors:\n- key: ip\n  descriptors:\n  - key: user\n    rate_limit: {{unit: day, requests_per_unit: 1}}\n    \
             ban: {{after: 1, within: 60s, for: 100s, on: [{keys}]}}"
        ))
        .rules
    };
    let ban_of = |rules: &RuleSet| {
        let request = request(&[("ip", "x"), ("user", "x")], 1);
        let plan = rules.plan(&request, Modes::default());
        plan.checks().find(|(_, check)| check.is_ban()).map(|(_, check)| check.key)
    };
    let keys = ["ip", "user", "ip, user"].map(|keys| ban_of(&on(keys)).expect("a ban"));
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2], "{keys:?}");
}

#[test]
fn an_operator_bans_and_lifts() {
    let (rules, store) = (strict(BAN), store());
    let request = request(&[("user", "a")], 1);
    let plan = rules.plan(&request, Modes::default());
    let (_, ban) = plan.checks().find(|(_, check)| check.is_ban()).expect("a ban");
    assert!(!store.decide(&beginning(ban, 7).expect("a ban"), at(1.0)).over);
    assert_eq!(banned_for(&rules, &store, "a", 2.0), Some(6.0));
    let explained = explain(&rules, &request, &plan, store.look(&plan, at(2.0))).to_string();
    for line in [
        "capacity  none while its key is banned",
        "settled   charges nothing: its key is banned",
        "answer    OVER_LIMIT: banned for 6 s more",
    ] {
        assert!(explained.contains(line), "{explained}");
    }
    store.decide(&lifting(ban), at(3.0));
    assert_eq!((banned_for(&rules, &store, "a", 3.0), ask(&rules, &store, "a", 3.0)), (None, Code::Ok));
}

/// A denial that came between two steps would begin a ban that the operator's does not replace.
#[test]
fn a_ban_by_an_operator_replaces_any_other_in_one_step() {
    let (rules, store) =
        (strict("ban: {after: 1 denial, within: 60s, for: 100s, doubling_to: 400s}"), store());
    let request = request(&[("user", "a")], 1);
    let plan = rules.plan(&request, Modes::default());
    let (_, ban) = plan.checks().find(|(_, check)| check.is_ban()).expect("a ban");
    assert_eq!([1.0, 1.0].map(|second| ask(&rules, &store, "a", second)), [Code::Ok, Code::OverLimit]);
    assert_eq!(banned_for(&rules, &store, "a", 2.0), Some(99.0));
    for (second, secs) in [(3.0, 7_u32), (4.0, 600), (5.0, 2)] {
        let verdict = store.decide(&beginning(ban, secs).expect("a ban"), at(second));
        assert!(!verdict.over && verdict.is_counted);
        assert_eq!(banned_for(&rules, &store, "a", second), Some(secs.into()));
    }
    assert_eq!(banned_for(&rules, &store, "a", 7.0), None);
    assert_eq!(ask(&rules, &store, "a", 7.0), Code::OverLimit);
    assert_eq!(banned_for(&rules, &store, "a", 7.0), Some(100.0), "the first ban in a row");
}

#[test]
fn after_a_ban_that_was_lifted_the_next_has_the_first_length() {
    let rules = strict("ban: {after: 1 denial, within: 60s, for: 10s, doubling_to: 80s}");
    let again_after = |is_lifted: bool| {
        let store = store();
        let request = request(&[("user", "a")], 1);
        let plan = rules.plan(&request, Modes::default());
        let (_, ban) = plan.checks().find(|(_, check)| check.is_ban()).expect("a ban");
        (0..2).for_each(|_| _ = ask(&rules, &store, "a", 1.0));
        assert_eq!(banned_for(&rules, &store, "a", 1.0), Some(10.0));
        if is_lifted {
            store.decide(&lifting(ban), at(2.0));
        }
        ask(&rules, &store, "a", 20.0);
        banned_for(&rules, &store, "a", 20.0)
    };
    assert_eq!([false, true].map(again_after), [Some(20.0), Some(10.0)]);
}

#[test]
fn the_status_of_a_ban_is_that_of_its_limit() {
    let (rules, store) = (strict("ban: {after: 1, within: 60s, for: 100s}"), store());
    let see = |second| {
        ask_as(&rules, &store, &request(&[("user", "a")], 1), second, |decision| {
            let [Status::Limited(limited)] = &decision.statuses[..] else { panic!("a limit") };
            (limited.limit.requests(), limited.remaining(), limited.reset_secs(), decision.retry_after_secs())
        })
    };
    assert_eq!(see(0.0), (1, 0, 60, None));
    assert_eq!(see(1.0), (1, 0, 100, Some(100)), "the denial that begins the ban says when it ends");
    assert_eq!(see(31.0), (1, 0, 70, Some(70)));
}

#[test]
fn a_candidate_passes_where_its_limit_begins_a_ban() {
    let candidate = |n| {
        let limit =
            format!("rate_limit: {{unit: day, requests_per_unit: 1, candidate: {{requests_per_unit: {n}}}}}");
        rules(&format!("{limit}, ban: {{after: 1, within: 60s, for: 100s}}"))
    };
    for (n, expected) in [(5, [Some(true), Some(true), Some(false)]), (0, [Some(false); 3])] {
        let (rules, store, request) = (candidate(n), store(), request(&[("user", "a")], 1));
        let passes = [0.0, 1.0, 2.0].map(|second| {
            ask_as(&rules, &store, &request, second, |it| it.trials().first().map(|trial| trial.passes))
        });
        assert_eq!(passes, expected, "the second request begins a ban, the third is banned");
    }
}

#[test]
fn what_does_not_go_with_a_ban_is_refused() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 1}";
    let file = |fields: &str| format!("domain: d\ndescriptors:\n- {{key: a, {fields}}}");
    let ban = |fields: &str| file(&format!("{limit}, ban: {{{fields}}}"));
    let good = "after: 5, within: 10m, for: 1h";
    for (text, expected) in [
        (file("ban: {after: 5, within: 10m, for: 1h}"), "`ban` without `rate_limit`"),
        (file(&format!("rate_limit: {{unlimited: true}}, ban: {{{good}}}")), "`ban` with `unlimited: true`"),
        (file(&format!("{limit}, quota_mode: true, ban: {{{good}}}")), "`quota_mode` with `ban`"),
        (
            file(&format!(
                "rate_limit: {{unit: minute, requests_per_unit: 1, sync: leased}}, ban: {{{good}}}"
            )),
            "`ban` with `sync: leased`",
        ),
        (ban("within: 10m, for: 1h"), "`after` is missing"),
        (ban("after: 5, for: 1h"), "`within` is missing"),
        (ban("after: 5, within: 10m"), "`for` is missing"),
        (ban("after: 0, within: 10m, for: 1h"), "`after` is `0` (expected 1 to 1000 denials"),
        (ban("after: many, within: 10m, for: 1h"), "`after` is `many`"),
        (ban("after: 5, within: 0s, for: 1h"), "a `within` of 0 seconds"),
        (ban("after: 5, within: 10m, for: 0s"), "a `for` of 0 seconds (expected 1 second to 366 days)"),
        (ban("after: 5, within: 10m, for: 1500ms"), "`for` is `1500ms` (expected whole seconds"),
        (
            ban("after: 5, within: 10m, every: 11m, for: 1h"),
            "`every` is `11m` (expected a time up to `within`",
        ),
        (ban("after: 5, within: 10m, for: 1h, doubling_to: 30m"), "`doubling_to` is less than `for`"),
        (
            ban("after: 5, within: 10m, for: 1h, on: [b]"),
            "`on` names `b`, which is no key of this descriptor",
        ),
        (ban("after: 5, within: 10m, for: 1h, on: []"), "`on` names no key"),
        (ban("after: 5, within: 10m, for: 1h, until: 1h"), "unknown key `until` in `ban`"),
    ] {
        let messages = refused(&text);
        assert!(messages.iter().any(|message| message.contains(expected)), "{text}: {messages:?}");
    }
}

#[test]
fn a_plan_without_bans_is_as_before() {
    let rules = rules("rate_limit: {unit: minute, requests_per_unit: 1}");
    let request = request(&[("user", "a")], 1);
    let plan: Plan<'_> = rules.plan(&request, Modes::default());
    assert!(plan.further.is_empty() && plan.steps.len() == 1);
}
