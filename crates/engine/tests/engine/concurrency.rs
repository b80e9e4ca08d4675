//! Bounds on calls in flight: their rules, and their slots compared with a naive list.

use tidegate_engine::cost::Cost;
use tidegate_engine::decision::{Code, Status, conclude};
use tidegate_engine::limit::{Algorithm, Limit, Slot};
use tidegate_engine::memory::{Cold, MemoryStore};
use tidegate_engine::overlay::{Effect, Exception, Exceptions, Overlay};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Check, Hits, Modes, Plan, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{Epochs, Reach, ResetPath, RuleSet};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{at, check, key, plan, small_store, store};
use crate::random::Random;
use crate::rules::{loaded, refused};
use crate::store_state::moved;

const RULES: &str = "
domain: d
descriptors:
  - key: user
    concurrency: {slots: 2, ttl: 60s, id: request_id, name: calls}
    descriptors:
      - {key: path, rate_limit: {unit: minute, requests_per_unit: 9}}";

/// The slots as a naive list.
#[derive(Default)]
struct Model {
    held: Vec<(Slot, u64)>,
    latest: u64,
}

impl Model {
    fn advance(&mut self, at: u64) {
        self.latest = at;
        self.held.retain(|&(_, until)| until > at);
    }

    /// Over, and how many are held.
    fn take(&mut self, (slots, ttl): (u32, u64), slot: Slot) -> (bool, u64) {
        let before = self.held.len() as u64;
        if let Some((_, until)) = self.held.iter_mut().find(|(held, _)| *held == slot) {
            *until = (*until).max(self.latest + ttl);
            return (false, before);
        }
        let holds_one = self.held.iter().any(|(held, _)| held.id == slot.id);
        let over = holds_one || before >= u64::from(slots);
        if !over {
            self.held.push((slot, self.latest + ttl));
        }
        (over, before)
    }
}

#[test]
fn slots_are_those_of_a_naive_list() {
    for seed in 0..300 {
        let (mut random, mut store, mut model) = (Random(seed), small_store(), Model::default());
        let (mut now, mut admitted) = (SECOND_NANOS, Vec::new());
        for number in 0..400 {
            now += random.below(2 * SECOND_NANOS);
            let (slots, ttl) = (random.below(6) as u32, (1 + random.below(20)) * SECOND_NANOS);
            let limit = Limit::concurrency(slots, ttl);
            let id = 1 + random.below(9);
            model.advance(now);
            match random.below(9) {
                kind @ 0..5 => {
                    // Another call, or one that may still hold its slot and keeps it.
                    let renews = kind == 4 && !admitted.is_empty();
                    let slot = if renews { random.pick(&admitted) } else { Slot::of(id, number) };
                    let is_held = model.held.iter().any(|(held, _)| *held == slot);
                    let (over, before) = model.take((slots, ttl), slot);
                    let verdict = store.take(&limit.for_slot(slot), key(1), 1, Timestamp::from_nanos(now));
                    assert_eq!((verdict.over, verdict.before), (over, before), "{seed} {number}");
                    let held = before + u64::from(!over && !is_held);
                    assert_eq!(verdict.remaining, u64::from(slots).saturating_sub(held), "{seed} {number}");
                    assert_eq!(verdict.reset_nanos, if over { SECOND_NANOS } else { 0 });
                    admitted.extend((!over).then_some(slot));
                }
                5 => {
                    let verdict = store.take(&limit, key(1), 0, Timestamp::from_nanos(now));
                    let held = model.held.len() as u64;
                    assert_eq!((verdict.over, verdict.before), (held >= u64::from(slots), held));
                }
                // A token of this or an earlier admission, or one that somebody guessed.
                6..8 => {
                    let guessed = Slot::of(id, 1_000);
                    let slot = if admitted.is_empty() { guessed } else { random.pick(&admitted) };
                    release(&store, limit, slot, now);
                    model.held.retain(|&(held, _)| held != slot);
                }
                _ => {
                    store = moved(&store, small_store(), Timestamp::from_nanos(now));
                }
            }
        }
    }
}

fn release(store: &MemoryStore, limit: Limit, slot: Slot, now: u64) {
    let check = check(limit.for_slot(slot), key(1), Hits::GiveBack(1));
    store.apply(&plan([check]), Timestamp::from_nanos(now));
}

/// A request of one descriptor.
fn request<'r>(entries: &'r [(&'r str, &'r str)], options: DescriptorOptions) -> Request<'r> {
    let mut request = Request::new("d", 1);
    request.push(entries.iter().map(|&(key, value)| Entry { key, value }), options);
    request
}

fn hits(hits: u64) -> DescriptorOptions {
    DescriptorOptions { hits_addend: Some(hits), ..DescriptorOptions::default() }
}

fn only<'a, 'p>(plan: &'a Plan<'p>) -> &'a Check<'p> {
    match &plan.steps[..] {
        [Step::Check(check)] => check,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_entry_behind_the_path_names_a_call_and_its_token_releases_it() {
    let (rules, store) = (loaded(RULES).rules, store());
    let ask = |entries: &[(&str, &str)], asked, is_negative_hits, seconds| {
        let request = request(entries, DescriptorOptions { is_negative_hits, ..hits(asked) });
        let plan = rules.plan(&request, Modes::default());
        let decision = conclude(&plan, &store.apply(&plan, at(seconds)));
        let slot = only(&plan).limit.slot();
        (decision.code == Code::Ok, slot.map(|slot| slot.to_string()).unwrap_or_default())
    };
    fn id(id: &str) -> (&str, &str) {
        ("request_id", id)
    }
    let user = ("user", "alice");
    let (passed, first) = ask(&[user, id("a")], 5, false, 0.0);
    assert!(passed);
    assert!(!ask(&[user, id("a")], 1, false, 1.0).0, "it runs already");
    assert!(ask(&[("user", "bob"), id("a")], 1, false, 1.0).0, "another counter");
    assert!(ask(&[user, id("")], 1, false, 1.0).0, "a call without an id");
    assert!(!ask(&[user], 1, false, 1.0).0, "two are in flight");
    assert!(!ask(&[user, id("b")], 1, false, 1.0).0);
    assert!(!ask(&[user, id("b")], 0, false, 1.0).0);
    let wrong = ["a".to_owned(), String::new(), first[1..].to_owned(), format!("{first}0"), "0".repeat(32)];
    for token in &wrong {
        assert!(ask(&[user, id(token)], 1, true, 2.0).0, "a release is no denial");
        assert!(!ask(&[user, id("b")], 0, false, 2.0).0, "{token} releases nothing");
    }
    ask(&[("user", "bob"), id(&first)], 1, true, 2.0);
    assert!(!ask(&[user, id("b")], 0, false, 2.0).0, "it is a slot of another counter");
    assert!(ask(&[user, id(&first)], 3, true, 2.0).0, "it was full until then");
    let (passed, again) = ask(&[user, id("a")], 1, false, 3.0);
    assert!(passed && again != first);
    ask(&[user, id(&first)], 1, true, 4.0);
    assert!(!ask(&[user, id("b")], 0, false, 4.0).0, "a token releases once");
    assert!(ask(&[user, id("b")], 1, false, 61.0).0, "the call without an id ended at its ttl");
}

#[test]
fn a_token_renews_its_slot_and_nothing_else() {
    let rate = "rate_limit: {unit: minute, requests_per_unit: 2}\n    concurrency:";
    let texts = [RULES.to_owned(), RULES.replacen("concurrency:", rate, 1)];
    // The slots deny in quota mode too.
    let in_modes =
        |text: String| [false, true].map(|quota| (text.clone(), Modes { quota, ..Modes::default() }));
    for (text, modes) in texts.into_iter().flat_map(in_modes) {
        let (rules, store) = (loaded(&text).rules, store());
        let ask = |id: &str, renews, seconds| {
            let entries = [("user", "a"), ("request_id", id)];
            let request = request(
                &entries,
                DescriptorOptions { renews, cost: Cost::Asked, ..hits(u64::from(!renews)) },
            );
            let plan = rules.plan(&request, modes);
            rules.check_calls(&request, &plan).map_err(|error| error.to_string())?;
            let decision = conclude(&plan, &store.apply(&plan, at(seconds)));
            assert_eq!(decision.statuses.len(), 1);
            assert_eq!(decision.code == Code::Ok, decision.slots().next().is_some());
            Ok::<_, String>(decision.slots().next().map(|(_, _, slot)| slot.to_string()))
        };
        let first = ask("1", false, 0.0).unwrap().expect("a slot is free");
        let second = ask("2", false, 1.0).unwrap().expect("a slot is free");
        // Both limits are used up, and this is about one slot alone.
        assert_eq!(ask(&first, true, 50.0), Ok(Some(first.clone())));
        assert_eq!(ask(&first, true, 109.0), Ok(Some(first.clone())), "the second has ended");
        assert_eq!(ask("1", false, 110.0), Ok(None), "it runs already");
        assert!(ask("3", false, 120.0).unwrap().is_some(), "there is room again");
        assert_eq!(ask(&second, true, 121.0), Ok(None), "it has ended, and all are taken");
        assert_eq!(ask(&second, true, 170.0), Ok(Some(second.clone())), "there is room for it again");
        let no_token = "descriptor 0: request_id: the slot to renew is not named by its token (expected 32 hexadecimal digits)";
        assert_eq!(ask("1", true, 170.0), Err(no_token.to_owned()));
    }
}

#[test]
fn what_renews_a_slot_from_before_a_reset_has_the_id_of_its_call() {
    let (rules, store) = (loaded(RULES).rules, store());
    let ask = |rules: &RuleSet, id: &str, renews| {
        let entries = [("user", "a"), ("request_id", id)];
        let request =
            request(&entries, DescriptorOptions { renews, cost: Cost::Asked, ..hits(u64::from(!renews)) });
        let plan = rules.plan(&request, Modes::default());
        conclude(&plan, &store.apply(&plan, at(0.0))).slots().next().map(|(_, _, slot)| slot.to_string())
    };
    let token = ask(&rules, "1", false).expect("a slot is free");
    let mut epochs = Epochs::default();
    let path = Path { domain: "d".into(), entries: Vec::new() };
    epochs.raise(ResetPath { path, reach: Reach::Below }, 1);
    let reset = rules.in_epochs(&epochs);
    assert_eq!(ask(&reset, &token, true), Some(token.clone()), "it is taken in the new counter");
    assert_eq!(ask(&reset, "1", false), None, "it runs already");
}

/// Otherwise whoever sends a release of nothing could take one slot more.
#[test]
fn what_a_release_frees_is_not_taken_by_the_same_request() {
    let rules = loaded(&RULES.replace("slots: 2", "slots: 1")).rules;
    let bogus = "1".repeat(32);
    let entries = |id| [("user", "a"), ("request_id", id)].map(|(key, value)| Entry { key, value });
    let mut request = Request::new("d", 1);
    request.push(entries("1"), DescriptorOptions::default());
    request.push(entries(&bogus), DescriptorOptions { is_negative_hits: true, ..hits(5) });
    request.push(entries("2"), DescriptorOptions::default());
    let plan = rules.plan(&request, Modes::default());
    assert_eq!(conclude(&plan, &store().apply(&plan, at(0.0))).code, Code::OverLimit);
}

/// Two rules of a proxy may make the same descriptor, and two headers may have the same value.
#[test]
fn a_call_that_its_request_names_twice_holds_one_slot() {
    let (rules, store) = (loaded(&RULES.replace("slots: 2", "slots: 1")).rules, store());
    let ask = |calls: &[(&'static str, &'static str)], seconds| {
        let mut request = Request::new("d", 1);
        for &(user, id) in calls {
            let entries = [("user", user), ("request_id", id)];
            request.push(entries.map(|(key, value)| Entry { key, value }), DescriptorOptions::default());
        }
        let plan = rules.plan(&request, Modes::default());
        let decision = conclude(&plan, &store.apply(&plan, at(seconds)));
        assert!(decision.code == Code::OverLimit || decision.statuses.iter().all(|it| it.code() == Code::Ok));
        let slots: Vec<_> = decision.slots().map(|(descriptor, _, slot)| (descriptor, slot)).collect();
        (decision.code == Code::Ok, slots)
    };
    let (passes, slots) = ask(&[("a", "1"), ("a", "1"), ("b", "1"), ("a", "1")], 0.0);
    assert!(passes);
    assert_eq!(slots.iter().map(|(descriptor, _)| *descriptor).collect::<Vec<_>>(), [0, 2]);
    assert!(!ask(&[("a", "1"), ("a", "1")], 1.0).0, "it runs already");
    assert!(!ask(&[("a", "2")], 1.0).0 && !ask(&[("b", "2")], 1.0).0);
    assert!(!ask(&[("c", "1"), ("c", "2")], 1.0).0, "two calls");
    assert!(!ask(&[("c", ""), ("c", "")], 1.0).0, "calls without an id are never the same");
    assert!(ask(&[("c", "1"), ("c", "1")], 1.0).0, "nothing was taken by those that were denied");
    let limit = rules.rules()[0].limit.expect("a limit");
    for (key, slot) in [("a", slots[0].1), ("b", slots[1].1)] {
        let key = rules.rules()[0].key(&[Entry { key: "user", value: key }]);
        let check = check(limit.for_slot(slot), key, Hits::GiveBack(1));
        store.apply(&plan([check]), at(2.0));
    }
    assert!(ask(&[("a", "2"), ("b", "2")], 3.0).0, "the tokens release all that was taken");
}

#[test]
fn a_call_that_is_named_twice_holds_one_slot_where_there_is_a_limit_too() {
    let both = "rate_limit: {unit: minute, requests_per_unit: 9}\n    concurrency: {slots: 1,";
    let (rules, store) = (loaded(&RULES.replace("concurrency: {slots: 2,", both)).rules, store());
    let entries = &[("user", "a"), ("request_id", "1")];
    let request = Request::new("d", 1).descriptor(entries).descriptor(entries);
    let plan = rules.plan(&request, Modes::default());
    assert_eq!(plan.steps.len(), 4, "each has a step for its slot: {plan:?}");
    assert_eq!(conclude(&plan, &store.apply(&plan, at(0.0))).code, Code::Ok);
}

#[test]
fn ids_are_bounded_where_they_are_used() {
    let rules =
        loaded(&format!("{RULES}\n  - {{key: other, rate_limit: {{unit: day, requests_per_unit: 1}}}}"))
            .rules;
    let other = "x".repeat(1_000);
    let checked = |entries: &[(&str, &str)], options| {
        let mut request = Request::new("d", 1);
        request.push([Entry { key: "other", value: &other }], DescriptorOptions::default());
        request.push(entries.iter().map(|&(key, value)| Entry { key, value }), options);
        rules
            .check_calls(&request, &rules.plan(&request, Modes::default()))
            .map_err(|error| error.to_string())
    };
    let (user, long) = (("user", "alice"), "é".repeat(64) + "x");
    let back = DescriptorOptions { is_negative_hits: true, ..hits(1) };
    for id in ["", "7f3a", &long[..128], " a\u{a0}b ", "%00"] {
        assert_eq!(checked(&[user, ("request_id", id)], hits(1)), Ok(()), "{id:?}");
    }
    let refused = |what: &str| Err(format!("descriptor 1: request_id: an id {what}"));
    for options in [hits(1), hits(9), back] {
        let too_long = refused("of 129 bytes is too long (at most 128)");
        assert_eq!(checked(&[user, ("request_id", &long)], options), too_long);
        for control in ["a\n", "\0", "\u{7f}", "\u{85}b"] {
            let with_control = refused("with a control character (expected none)");
            assert_eq!(checked(&[user, ("request_id", control)], options), with_control);
        }
    }
    // What names no call, and what takes no slot: a reported cost must not be lost.
    assert_eq!(checked(&[("user", &long)], hits(1)), Ok(()));
    assert_eq!(checked(&[user, ("path", &long)], hits(1)), Ok(()));
    assert_eq!(checked(&[user, ("request_id", &long)], hits(0)), Ok(()));
    let reported = DescriptorOptions { cost: Cost::Reported, ..hits(7) };
    assert_eq!(checked(&[user, ("request_id", &long)], reported), Ok(()));
}

#[test]
fn an_id_is_no_part_of_the_counter_and_costs_take_nothing() {
    let rules = loaded(RULES).rules;
    let plan = |entries: &[(&str, &str)], options| rules.plan(&request(entries, options), Modes::default());
    let call = [("user", "a"), ("request_id", "1")];
    let (with, without) = (plan(&call, hits(1)), plan(&call[..1], hits(1)));
    assert_eq!(only(&with).key, only(&without).key);
    assert_eq!(only(&with).limit.algorithm(), Algorithm::Concurrency);
    assert_eq!(rules.rules()[0].counts_text(&only(&with).limit), "2 in flight, ttl 60 s");
    // The same id has the same name on all nodes, and another number at each admission.
    let slots = [(); 2].map(|()| only(&plan(&call, hits(1))).limit.slot().unwrap());
    assert!(slots[0].id == slots[1].id && slots[0].number != slots[1].number);
    let below = plan(&[("user", "a"), ("path", "/")], hits(4));
    assert_eq!(only(&below).hits, Hits::Take(4), "another rule");
    let reported = plan(&call, DescriptorOptions { cost: Cost::Reported, ..hits(7) });
    assert_eq!((only(&reported).hits, only(&reported).limit.slot()), (Hits::Take(0), None));
}

/// What a cost means is learnt by the first limit of a rule, and holds for all of them.
#[test]
fn a_call_with_a_cost_takes_a_slot_once_costs_are_asked_for() {
    let rate = "rate_limit: {unit: day, requests_per_unit: 5}\n    concurrency:";
    let rules = loaded(&RULES.replace("concurrency:", rate)).rules;
    let request = request(&[("user", "a")], hits(1));
    let taken = |_: usize| {
        let plan = rules.plan(&request, Modes::default());
        rules.observe_costs(&request, &plan);
        let Step::Check(slots) = &plan.steps[1] else { panic!("it has slots") };
        slots.hits
    };
    let taken: Vec<_> = (0..102).map(taken).collect();
    assert_eq!(taken[..100], [Hits::Take(0); 100], "a cost is one that was spent");
    assert_eq!(taken[100..], [Hits::Take(1); 2], "nobody asks before");
}

#[test]
fn slots_that_are_held_stay_when_their_rule_changes() {
    let store = store();
    let passes = |rules: &str, id| {
        let (rules, call) = (loaded(rules).rules, [("user", "a"), ("request_id", id)]);
        let request = request(&call, hits(1));
        let plan = rules.plan(&request, Modes::default());
        conclude(&plan, &store.apply(&plan, at(0.0))).code == Code::Ok
    };
    assert!(passes(RULES, "1") && passes(RULES, "2"));
    assert!(!passes(&RULES.replace("ttl: 60s", "ttl: 1h"), "3"));
    assert!(!passes(&RULES.replace("id: request_id, name: calls", "id: request_id"), "3"));
    assert!(passes(&RULES.replace("slots: 2", "slots: 3"), "3"));
}

/// Calls in flight and calls a minute in one node, each a naive list.
#[test]
fn a_rate_limit_in_the_same_node_is_charged_together_with_the_slot() {
    let rules = loaded(
        "domain: d\ndescriptors: [{key: user, concurrency: {slots: 3, ttl: 40s, id: request_id}, \
         rate_limit: {unit: minute, requests_per_unit: 9, algorithm: sliding_log}}]",
    )
    .rules;
    let mut denied_by = [0; 2];
    for seed in 0..100 {
        let (mut random, store, mut calls) = (Random(seed), store(), Model::default());
        let (mut now, mut tokens, mut hits_at) = (SECOND_NANOS, vec!["0".repeat(32)], Vec::new());
        for number in 0..300 {
            now += random.below(4 * SECOND_NANOS);
            calls.advance(now);
            hits_at.retain(|time| time + 60 * SECOND_NANOS > now);
            let (kind, asked) = (random.below(8), random.below(3));
            // Beyond N a log keeps fewer times than a list.
            let asked = if kind == 2 { asked.min(9u64.saturating_sub(hits_at.len() as u64)) } else { asked };
            let release = random.below(tokens.len() as u64) as usize;
            let id = if kind == 0 { tokens[release].clone() } else { random.below(9).to_string() };
            let options = match kind {
                0 | 1 => DescriptorOptions { is_negative_hits: true, ..hits(1 + asked) },
                2 => DescriptorOptions { cost: Cost::Reported, ..hits(asked) },
                _ => DescriptorOptions { cost: Cost::Asked, ..hits(asked) },
            };
            let entries = [("user", "a"), ("request_id", &*id)];
            let request = request(&entries[..if kind == 1 { 1 } else { 2 }], options);
            let plan = rules.plan(&request, Modes::default());
            let decision = conclude(&plan, &store.apply(&plan, Timestamp::from_nanos(now)));
            let taken: Vec<_> = decision.slots().map(|(descriptor, _, slot)| (descriptor, slot)).collect();
            let Status::Limited(shown) = decision.statuses[0] else { panic!("a limit") };
            let is_slot = shown.limit.algorithm() == Algorithm::Concurrency;
            let no_slot = calls.held.len() >= 3;
            match kind {
                // A token gives a slot back and no hits; hits that are given back free no slot.
                0 => calls.held.retain(|(held, _)| held.to_string() != id),
                1 => drop(hits_at.drain(..hits_at.len().min(1 + asked as usize))),
                2 => hits_at.extend((0..asked).map(|_| now)),
                _ if asked == 0 => {
                    let over = no_slot || hits_at.len() >= 9;
                    assert_eq!(decision.code == Code::OverLimit, over, "{seed} {number}");
                }
                _ => {
                    let holds = |slot: Slot| calls.held.iter().any(|(held, _)| held.id == slot.id);
                    let Step::Check(Check { limit, .. }) = plan.steps[1] else { panic!("a slot") };
                    let slot = limit.slot().expect("it takes one");
                    let (slots_over, rate_over) = (no_slot || holds(slot), hits_at.len() as u64 + asked > 9);
                    let passes = !slots_over && !rate_over;
                    assert_eq!(decision.code == Code::Ok, passes, "{seed} {number}");
                    assert_eq!(taken, if passes { vec![(0, slot)] } else { vec![] });
                    if passes {
                        calls.held.push((slot, now + 40 * SECOND_NANOS));
                        hits_at.extend((0..asked).map(|_| now));
                        tokens.push(slot.to_string());
                        assert!(!is_slot, "an admitted call shows its rate limit");
                    }
                    if slots_over != rate_over {
                        assert_eq!(is_slot, slots_over, "{seed} {number}");
                        denied_by[usize::from(is_slot)] += 1;
                    }
                }
            }
        }
    }
    assert!(denied_by.iter().all(|denials| *denials > 500), "{denied_by:?}");
}

/// With SHADOW_MODE a request passes although nothing of it is charged.
#[test]
fn a_request_that_only_shadow_mode_admits_has_no_slot() {
    let rules = loaded(
        "domain: d\ndescriptors: [{key: user, rate_limit: {window: 60s, requests_per_unit: 1, algorithm: sliding_log}, \
         concurrency: {slots: 9, ttl: 60s, id: call}}]",
    )
    .rules;
    let (store, modes) = (store(), Modes { shadow: true, ..Modes::default() });
    let slots = |call: &str| {
        let entries = [("user", "a"), ("call", call)];
        let plan = rules.plan(&request(&entries, DescriptorOptions::default()), modes);
        let decision = conclude(&plan, &store.apply(&plan, at(1.0)));
        (decision.code, decision.slots().count())
    };
    assert_eq!([slots("1"), slots("2")], [(Code::Ok, 1), (Code::Ok, 0)]);
}

#[test]
fn exceptions_of_a_rate_limit_leave_the_slots_as_they_are() {
    let rules = loaded(&RULES.replacen(
        "concurrency:",
        "rate_limit: {unit: day, requests_per_unit: 5}\n    concurrency:",
        1,
    ))
    .rules;
    let checks = |effect| {
        let level = PathEntry { key: "user".to_owned(), value: Some("a".to_owned()) };
        let path = Path { domain: "d".into(), entries: vec![level] };
        let exceptions = Exceptions::new(&[Exception { path, effect }]);
        let overlay = Overlay { records: None, exceptions: Some(&exceptions) };
        let request = request(&[("user", "a"), ("request_id", "1")], hits(1));
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        plan.checks().map(|(_, check)| (check.limit.requests(), check.shadow)).collect::<Vec<_>>()
    };
    assert_eq!(checks(Effect::Limit { requests: Some(7), burst: None }), [(7, false), (2, false)]);
    assert_eq!(checks(Effect::Unlimited), [(5, true), (2, true)]);
    assert_eq!(checks(Effect::Deny), [(0, false), (2, false)]);
}

#[test]
fn exceptions_of_the_path_change_the_slots() {
    let rules = loaded(RULES).rules;
    let level = PathEntry { key: "user".to_owned(), value: Some("alice".to_owned()) };
    let path = Path { domain: "d".into(), entries: vec![level] };
    let effect = Effect::Limit { requests: Some(7), burst: None };
    let exceptions = Exceptions::new(&[Exception { path, effect }]);
    let overlay = Overlay { records: None, exceptions: Some(&exceptions) };
    let request = request(&[("user", "alice"), ("request_id", "1")], hits(1));
    let plan = rules.plan_under(&request, Modes::default(), overlay);
    assert_eq!(only(&plan).limit.requests(), 7);
    assert!(only(&plan).limit.slot().is_some());
}

#[test]
fn lost_slots_count_as_held_until_they_would_have_ended() {
    let cold = Cold::since(at(100.0), 3_600 * SECOND_NANOS);
    let store = store().cold(cold);
    let limit = Limit::concurrency(5, 60 * SECOND_NANOS).for_slot(Slot::of(1, 1));
    let over = |seconds| store.take(&limit, key(1), 1, at(seconds)).over;
    assert_eq!([100.0, 159.0, 160.0].map(over), [true, true, false]);
}

#[test]
fn what_is_refused() {
    let file = |node: &str| format!("domain: d\ndescriptors: [{{key: k, {node}}}]");
    let first = |node: &str| refused(file(node)).remove(0);
    for (node, expected) in [
        (
            "concurrency: {slots: 0, ttl: 1s, id: i}",
            "2:45: `slots` is `0` (expected a whole number from 1 to 10000)",
        ),
        (
            "concurrency: {slots: 10001, ttl: 1s, id: i}",
            "2:45: `slots` is `10001` (expected a whole number from 1 to 10000)",
        ),
        (
            "concurrency: {slots: 1, ttl: 0s, id: i}",
            "2:53: a `ttl` of 0 seconds (expected 1 second to 366 days)",
        ),
        (
            "concurrency: {slots: 1, ttl: 1500ms, id: i}",
            "2:53: `ttl` is `1500ms` (expected whole seconds, such as `90s`, `5m` or `1h30m`)",
        ),
        (
            "concurrency: {slots: 1, ttl: 1s}",
            "2:37: `id` is missing (expected `slots`, `ttl` and `id`: 20, 1h, request_id)",
        ),
        (
            "concurrency: {slots: 1, ttl: 1s, id: i, unit: day}",
            "2:64: unknown key `unit` in `concurrency` (expected slots, ttl, id, retry, name, replaces, on_store_failure, near)",
        ),
        (
            "concurrency: {slots: 1, ttl: 1s, id: i, on_store_failure: local}",
            "2:82: `on_store_failure: local` with `concurrency` (expected error, deny or allow: no node knows the calls of the others)",
        ),
        (
            "concurrency: {slots: 1, ttl: 1s, id: i}, rate_limit: {unit: day, requests_per_unit: 1}, quota_mode: true",
            "2:124: `quota_mode` with `concurrency` (expected a descriptor of its own for each)",
        ),
        (
            "concurrency: {slots: 1, ttl: 1s, id: i}, descriptors: [{key: i, value: x}]",
            "2:85: the key `i` names the calls of the limit above (expected another key)",
        ),
    ] {
        assert_eq!(first(node), expected, "{node}");
    }
}
