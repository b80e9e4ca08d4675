//! Reservations: which rules have them, and what passes, compared with a naive list of hits and holds.

use std::collections::BTreeMap;

use tidegate_engine::cost::Cost;
use tidegate_engine::decision::{Code, Decision, conclude};
use tidegate_engine::limit::{AMOUNT_MAX, Found};
use tidegate_engine::memory::{Cold, MemoryOptions, MemoryStore};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Hits, Modes, ReservationStep};
use tidegate_engine::request::{DescriptorOptions, Entry, Request, Reservation};
use tidegate_engine::rules::{Epochs, Reach, ResetPath, RuleSet};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{at, small_store, store};
use crate::random::Random;
use crate::rules::{loaded, refused};
use crate::store_state::moved;

fn rules(fields: &str) -> RuleSet {
    loaded(&format!("domain: d\ndescriptors: [{{key: user, {fields}}}]")).rules
}

/// 10 in any minute, as an exact log, and these reservations.
fn ten(reserve: &str) -> RuleSet {
    rules(&format!(
        "rate_limit: {{window: 60s, requests_per_unit: 10, algorithm: sliding_log}}, reserve: {{{reserve}}}"
    ))
}

fn request<'r>(users: &[&'r str], options: DescriptorOptions) -> Request<'r> {
    let mut request = Request::new("d", 1);
    for value in users {
        request.push([Entry { key: "user", value }], options);
    }
    request
}

fn ask<T>(
    (rules, store): (&RuleSet, &MemoryStore),
    request: &Request<'_>,
    now: Timestamp,
    see: impl FnOnce(&Decision<'_>) -> T,
) -> T {
    let plan = rules.plan(request, Modes::default());
    let decision = conclude(&plan, &store.apply(&plan, now));
    rules.observe_commit(request, &plan, decision.found());
    see(&decision)
}

/// Whether it passes, and what was found under the id.
fn ends(decision: &Decision<'_>) -> (bool, Option<Found>) {
    (decision.code == Code::Ok, decision.held().first().and_then(|held| held.found))
}

fn reserve(of: (&RuleSet, &MemoryStore), id: &str, hits: u64, second: f64) -> (bool, Option<Found>) {
    let reservation = Reservation { id, hits, ttl_nanos: None, is_commit: false };
    let request = request(&["a"], DescriptorOptions::default()).with_reservation(reservation);
    ask(of, &request, at(second), ends)
}

fn commit(of: (&RuleSet, &MemoryStore), id: &str, cost: u64, second: f64) -> Option<Found> {
    commit_and_see(of, id, cost, second, ends).1
}

fn commit_and_see<T>(
    of: (&RuleSet, &MemoryStore),
    id: &str,
    cost: u64,
    second: f64,
    see: impl FnOnce(&Decision<'_>) -> T,
) -> T {
    let reservation = Reservation { id, hits: cost, ttl_nanos: None, is_commit: true };
    let request = request(&["a"], DescriptorOptions::default()).with_reservation(reservation);
    ask(of, &request, at(second), see)
}

/// What remains for a question.
fn remaining(of: (&RuleSet, &MemoryStore), second: f64) -> u32 {
    remaining_for(of, "a", second)
}

fn remaining_for(of: (&RuleSet, &MemoryStore), user: &str, second: f64) -> u32 {
    let options = DescriptorOptions { hits_addend: Some(0), ..DescriptorOptions::default() };
    ask(of, &request(&[user], options), at(second), |decision| {
        decision.tightest().expect("a limit").remaining()
    })
    .try_into()
    .unwrap()
}

#[test]
fn a_hold_counts_until_it_ends_and_a_commit_charges_the_cost() {
    let (rules, store) = (ten("ttl: 300s"), store());
    let of = (&rules, &store);
    assert_eq!(reserve(of, "x", 7, 0.0), (true, Some(Found::Nothing)));
    assert_eq!(remaining(of, 1.0), 3);
    assert!(!reserve(of, "y", 4, 1.0).0);
    // It counts beyond the window.
    assert_eq!(remaining(of, 200.0), 3);
    assert_eq!(commit(of, "x", 2, 200.0), Some(Found::Open));
    assert_eq!(remaining(of, 200.0), 8);
    assert_eq!(commit(of, "x", 2, 201.0), Some(Found::Ended));
    assert_eq!(remaining(of, 259.9), 8);
    assert_eq!(remaining(of, 260.0), 10, "the cost counts for a window");
    assert_eq!(reserve(of, "x", 7, 260.0), (false, Some(Found::Ended)), "its id is remembered for one ttl");
    assert_eq!(reserve(of, "x", 7, 500.0), (true, Some(Found::Nothing)));
}

/// Of calls that were committed, ids are forgotten before their holds would have been.
#[test]
fn counters_can_be_moved_when_some_ids_or_all_are_forgotten() {
    let (rules, store) = (ten("ttl: 300s"), store());
    commit((&rules, &store), "y", 2, 0.0);
    assert!(reserve((&rules, &store), "x", 7, 0.0).0);
    commit((&rules, &store), "x", 2, 1.0);
    for (second, found) in [(300.0, Found::Ended), (300.9, Found::Ended), (301.0, Found::Nothing)] {
        assert_eq!(remaining((&rules, &store), second), 10);
        let after = moved(&store, small_store(), at(second));
        assert_eq!(commit((&rules, &after), "x", 0, second), Some(found));
    }
}

#[test]
fn the_same_reservation_again_is_answered_as_the_first() {
    let (rules, store) = (ten("ttl: 300s"), store());
    let of = (&rules, &store);
    for second in [0.0, 1.0, 100.0] {
        assert!(reserve(of, "x", 7, second).0);
        assert_eq!(remaining(of, second), 3);
    }
    assert_eq!(reserve(of, "x", 6, 100.0), (false, Some(Found::Other)));
    commit(of, "y", 20, 200.0);
    assert_eq!(
        reserve(of, "x", 7, 200.0),
        (true, Some(Found::Open)),
        "also when others have gone beyond the limit"
    );
    assert_eq!(remaining(of, 300.0), 3, "an expired hold counts for a window");
    assert_eq!(remaining(of, 360.0), 10);
}

/// Also if costs have gone beyond the limit since.
#[test]
fn the_same_reservation_is_answered_as_the_first_where_two_descriptors_name_its_counter() {
    let (rules, store) = (ten_learnt("0"), store());
    let of = (&rules, &store);
    let reservation = Reservation { id: "x", hits: 6, ttl_nanos: None, is_commit: false };
    let twice = request(&["a", "a"], DescriptorOptions::default()).with_reservation(reservation);
    assert_eq!(ask(of, &twice, at(0.0), ends), (true, Some(Found::Nothing)));
    let options =
        DescriptorOptions { hits_addend: Some(5), cost: Cost::Reported, ..DescriptorOptions::default() };
    ask(of, &request(&["a"], options), at(0.0), |_| ());
    assert_eq!(ask(of, &twice, at(0.0), ends), (true, Some(Found::Open)));
}

#[test]
fn a_reservation_lasts_as_long_as_it_says_and_no_longer_than_its_rule_says() {
    let (rules, store) = (ten("ttl: 10s, expired: free"), store());
    for (id, secs) in [("short", 5), ("long", 60)] {
        let reservation = Reservation { id, hits: 4, ttl_nanos: Some(secs * SECOND_NANOS), is_commit: false };
        let request = request(&["a"], DescriptorOptions::default()).with_reservation(reservation);
        assert_eq!(ask((&rules, &store), &request, at(0.0), ends), (true, Some(Found::Nothing)));
    }
    assert_eq!([4.9, 5.0, 9.9, 10.0].map(|second| remaining((&rules, &store), second)), [2, 6, 6, 10]);
}

#[test]
fn an_expired_hold_is_paid_or_free() {
    let of_rules = [("expired: charge", 3_u32), ("expired: free", 10)];
    for (expired, left) in of_rules {
        let (rules, store) = (ten(&format!("ttl: 5s, {expired}")), store());
        let of = (&rules, &store);
        assert!(reserve(of, "x", 7, 0.0).0);
        assert_eq!([remaining(of, 4.9), remaining(of, 5.0)], [3, left], "{expired}");
        let found = commit(of, "x", 9, 6.0);
        assert_eq!(found, Some(Found::Expired((10 - left).into())), "{expired}");
        assert_eq!(remaining(of, 6.0), 1, "{expired}: nine in all");
        assert_eq!(commit(of, "x", 9, 7.0), Some(Found::Ended));
        // The part that the expiry charged counts from then on.
        assert_eq!(remaining(of, 65.0), if left == 3 { 8 } else { 1 }, "{expired}");
        assert_eq!(remaining(of, 66.0), 10, "{expired}");
    }
}

#[test]
fn the_surplus_of_an_expired_hold_goes_back() {
    let (rules, store) = (ten("ttl: 5s"), store());
    let of = (&rules, &store);
    assert!(reserve(of, "x", 7, 0.0).0);
    assert_eq!(commit(of, "x", 2, 20.0), Some(Found::Expired(7)));
    assert_eq!(remaining(of, 20.0), 8);
    assert_eq!([remaining(of, 64.9), remaining(of, 65.0)], [8, 10]);
}

#[test]
fn what_only_holds_deny_waits_for_retry() {
    let wait = |of, second| {
        let request = request(&["a"], DescriptorOptions::default());
        ask(of, &request, at(second), |decision| decision.retry_after_secs())
    };
    let (rules, store) = (ten("ttl: 300s, retry: 7s"), store());
    let of = (&rules, &store);
    assert!(reserve(of, "x", 10, 0.0).0);
    assert_eq!(wait(of, 1.0), Some(7));
    assert_eq!(commit(of, "x", 10, 1.0), Some(Found::Open));
    assert_eq!([2.0, 58.0].map(|second| wait(of, second)), [Some(59), Some(3)], "hits say when they leave");
}

/// A period of a calendar ends long after that.
#[test]
fn whose_id_is_taken_waits_for_retry_and_not_until_all_that_is_spent_is_back() {
    let period = "rate_limit: {requests_per_unit: 9, period: {calendar: month}}";
    let (rules, store) = (rules(&format!("{period}, reserve: {{ttl: 60s, retry: 5s}}")), store());
    let waits = |hits| {
        let reservation = Reservation { id: "a", hits, ttl_nanos: None, is_commit: false };
        let request = request(&["a"], DescriptorOptions::default()).with_reservation(reservation);
        ask((&rules, &store), &request, at(1_000.0), |decision| decision.retry_after_secs())
    };
    assert_eq!([2, 3].map(waits), [None, Some(5)]);
}

/// What is held for a call of this amount.
fn hold_of(rules: &RuleSet, amount: u64) -> u64 {
    let reservation = Reservation { id: "x", hits: amount, ttl_nanos: None, is_commit: false };
    let request = request(&["a"], DescriptorOptions::default()).with_reservation(reservation);
    let plan = rules.plan(&request, Modes::default());
    let held = plan.checks().find(|(_, check)| check.reservation == ReservationStep::Hold);
    match held.expect("a check that holds").1.hits {
        Hits::Take(hits) => hits,
        Hits::GiveBack(_) => 0,
    }
}

/// Ten, and a hold that is learnt.
fn ten_learnt(overdraft: &str) -> RuleSet {
    ten(&format!("ttl: 300s, overdraft: {overdraft}, hold: {{percentile: 99, initial: 2, max: 6}}"))
}

#[test]
fn a_hold_below_the_worst_case_is_denied_by_either_sum() {
    let (rules, store) = (ten_learnt("0.5"), store());
    let of = (&rules, &store);
    assert!(reserve(of, "a", 6, 0.0).0 && reserve(of, "b", 6, 0.0).0);
    assert_eq!(remaining(of, 0.0), 3, "twelve of fifteen may be spent");
    assert!(!reserve(of, "c", 6, 0.0).0, "six and twelve are more than fifteen");
    assert!(reserve(of, "c", 3, 0.0).0, "a call of three fits");
    assert_eq!(remaining(of, 0.0), 0);
    assert_eq!(commit(of, "a", 6, 1.0), Some(Found::Open));
    assert_eq!(remaining(of, 1.0), 0, "six are spent, nine may be");
    assert_eq!(commit(of, "b", 1, 1.0), Some(Found::Open));
    assert_eq!(commit(of, "c", 1, 1.0), Some(Found::Open));
    assert_eq!(remaining(of, 1.0), 2);
    // Everybody is asked by both: two hits more, and nobody could keep what was promised.
    assert!(reserve(of, "d", 6, 1.0).0);
    assert_eq!(remaining(of, 1.0), 0);
    let plain = ask(of, &request(&["a"], DescriptorOptions::default()), at(1.0), |it| it.retry_after_secs());
    assert_eq!(plain, Some(1), "the wait of what only holds deny");
}

#[test]
fn a_call_that_says_more_than_max_is_taken_to_cost_max() {
    let (rules, store) = (ten_learnt("0.5"), store());
    let of = (&rules, &store);
    assert!(reserve(of, "a", 50, 0.0).0 && reserve(of, "b", 50, 0.0).0, "twelve of fifteen may be spent");
    assert!(!reserve(of, "c", 50, 0.0).0);
    assert_eq!(remaining(of, 0.0), 3);
}

/// The limit itself has room: when its hits leave says nothing.
#[test]
fn what_only_worst_cases_deny_waits_for_retry() {
    let (rules, store) = (ten_learnt("0"), store());
    let of = (&rules, &store);
    let options =
        DescriptorOptions { hits_addend: Some(1), cost: Cost::Asked, ..DescriptorOptions::default() };
    assert!(ask(of, &request(&["a"], options), at(0.0), |decision| ends(decision).0));
    assert!(reserve(of, "x", 6, 0.0).0);
    let reservation = Reservation { id: "y", hits: 6, ttl_nanos: None, is_commit: false };
    let request = request(&["a"], DescriptorOptions::default()).with_reservation(reservation);
    assert_eq!(ask(of, &request, at(1.0), |decision| decision.retry_after_secs()), Some(1));
}

#[test]
fn what_never_fits_waits_for_hits_and_not_for_holds() {
    let (rules, store) = (ten_learnt("0"), store());
    let of = (&rules, &store);
    let options =
        DescriptorOptions { hits_addend: Some(6), cost: Cost::Asked, ..DescriptorOptions::default() };
    assert!(ask(of, &request(&["a"], options), at(0.0), |decision| ends(decision).0));
    let reservation = Reservation { id: "x", hits: 6, ttl_nanos: None, is_commit: false };
    let request = request(&["a"], DescriptorOptions::default()).with_reservation(reservation);
    assert_eq!(ask(of, &request, at(10.0), |decision| decision.retry_after_secs()), Some(50));
    assert!(reserve(of, "x", 6, 60.0).0);
}

#[test]
fn an_expired_hold_counts_on_as_it_did_and_its_commit_makes_both_sums_the_cost() {
    let reserve_key = "ttl: 5s, overdraft: 0.5, hold: {percentile: 99, initial: 2, max: 6}";
    let (rules, store) = (ten(reserve_key), store());
    let of = (&rules, &store);
    assert!(reserve(of, "x", 6, 0.0).0 && reserve(of, "y", 6, 0.0).0);
    assert_eq!(remaining(of, 6.0), 3, "twelve of fifteen");
    assert_eq!(commit(of, "x", 3, 7.0), Some(Found::Expired(6)));
    assert_eq!(remaining(of, 7.0), 5, "three are spent, and two held");
    assert_eq!(commit(of, "y", 9, 7.0), Some(Found::Expired(6)));
    assert_eq!(remaining(of, 7.0), 0, "twelve");
    assert_eq!(remaining(of, 65.0), 7, "what the expiry has paid counts from then on");
    assert_eq!(remaining(of, 67.0), 10);
}

#[test]
fn what_is_held_is_learnt_and_the_same_reservation_keeps_what_it_held() {
    let (rules, store) = (
        rules(
            "rate_limit: {window: 60s, requests_per_unit: 100, algorithm: sliding_log}, \
             reserve: {ttl: 300s, overdraft: 10, hold: {percentile: 50, initial: 30, max: 80}}",
        ),
        store(),
    );
    let of = (&rules, &store);
    assert!(reserve(of, "first", 80, 0.0).0);
    assert_eq!(remaining(of, 0.0), 70);
    for call in 0..20 {
        let id = format!("call-{call}");
        let now = 100.0 * f64::from(call);
        // The first one is kept open, longer than its `ttl`: then it counts for a window.
        assert_eq!(hold_of(&rules, 80), 30);
        assert!(reserve(of, &id, 80, now).0);
        assert_eq!(commit(of, &id, 8, now), Some(Found::Open));
        assert_eq!(commit(of, &id, 80, now), Some(Found::Ended), "which teaches nothing");
    }
    assert_eq!([hold_of(&rules, 80), hold_of(&rules, 5)], [8, 5]);
    assert!(reserve(of, "second", 80, 5_000.0).0);
    for call in 0..100 {
        assert_eq!(commit(of, &format!("later-{call}"), 50, 5_000.0), Some(Found::Nothing));
    }
    assert_eq!(hold_of(&rules, 80), 8, "what was not reserved teaches nothing");
    assert_eq!(remaining(of, 5_100.0), 92);
    for call in 0..20 {
        let id = format!("large-{call}");
        let now = 6_000.0 + 100.0 * f64::from(call);
        assert!(reserve(of, &id, 80, now).0);
        assert_eq!(commit(of, &id, 70, now), Some(Found::Open));
    }
    let now = 7_980.0;
    assert!(reserve(of, "third", 80, now).0);
    let left = remaining(of, now);
    assert_eq!(reserve(of, "third", 80, now), (true, Some(Found::Open)));
    assert_eq!(remaining(of, now), left);
    assert_eq!(reserve(of, "third", 79, now), (false, Some(Found::Other)));
}

/// Also of a rule whose counters were reset: the new rules are not reset yet.
#[test]
fn a_reload_keeps_what_was_learnt() {
    let path = Path { domain: "d".into(), entries: Vec::new() };
    let mut reset = Epochs::default();
    reset.raise(ResetPath { path, reach: Reach::Below }, 7);
    for epochs in [Epochs::default(), reset] {
        let (before, mut after, store) = (ten_learnt("1").in_epochs(&epochs), ten_learnt("0.5"), store());
        for call in 0..20 {
            let (id, now) = (call.to_string(), 100.0 * f64::from(call));
            assert!(reserve((&before, &store), &id, 6, now).0);
            commit((&before, &store), &id, 4, now);
        }
        assert_eq!([hold_of(&before, 6), hold_of(&after, 6)], [4, 2]);
        after.keep_learnt(&before);
        assert_eq!(hold_of(&after, 6), 4);
    }
}

/// What its calls cost is known under one name, before the reset and after it.
#[test]
fn a_counter_that_was_reset_goes_on_learning() {
    let entry = PathEntry { key: "user".to_owned(), value: Some("a".to_owned()) };
    let path = Path { domain: "d".into(), entries: vec![entry] };
    let mut reset = Epochs::default();
    reset.raise(ResetPath { path, reach: Reach::Counter }, 7);
    let before = ten("ttl: 300s, overdraft: 1, hold: {percentile: 99, of: counter, initial: 2, max: 6}");
    let (after, store) = (before.clone().in_epochs(&reset), store());
    for (rules, cost, begun) in [(&before, 3, 0.0), (&after, 5, 5_000.0)] {
        for call in 0..20 {
            let (id, now) = (format!("{cost}-{call}"), begun + 100.0 * f64::from(call));
            assert!(reserve((rules, &store), &id, 6, now).0);
            assert_eq!(commit((rules, &store), &id, cost, now), Some(Found::Open));
        }
        assert_eq!(hold_of(rules, 6), cost);
    }
}

/// Calls that cost no more than `max` and end before their `ttl`: in no window is more spent than N and the overdraft, and
/// without an overdraft no more than N.
#[test]
fn nobody_spends_more_than_the_overdraft_allows() {
    const N: u64 = 100;
    for (overdraft, most) in [("0", 100), ("0.05", 105), ("0.5", 150), ("1", 200)] {
        let mut highest = 0;
        for seed in 0..30 {
            let mut random = Random(seed);
            let rules = rules(&format!(
                "rate_limit: {{window: 60s, requests_per_unit: {N}, algorithm: sliding_log}}, \
                 reserve: {{ttl: 300s, overdraft: {overdraft}, hold: {{percentile: 50, initial: 5, max: 40}}}}"
            ));
            let (store, mut tenths) = (small_store(), 10_000_u64);
            let (mut open, mut spent) = (Vec::<(String, u64, u64)>::new(), Vec::<(u64, u64)>::new());
            for step in 0..400 {
                let of = (&rules, &store);
                tenths += random.pick(&[0, 1, 5, 30]);
                let now = tenths as f64 / 10.0;
                if random.one_in(8) {
                    let options =
                        DescriptorOptions { hits_addend: Some(3), cost: Cost::Asked, ..Default::default() };
                    let passes = ask(of, &request(&["a"], options), at(now), |decision| ends(decision).0);
                    spent.extend(passes.then_some((tenths, 3)));
                } else if random.one_in(2) || open.is_empty() {
                    let id = step.to_string();
                    if reserve(of, &id, 40, now).0 {
                        let cost = if random.one_in(3) { 40 } else { 1 + random.below(6) };
                        open.push((id, cost, tenths + 2_000));
                    }
                } else {
                    let (id, cost, until) = open.swap_remove(random.below(open.len() as u64) as usize);
                    if tenths < until {
                        assert_eq!(commit(of, &id, cost, now), Some(Found::Open));
                        spent.push((tenths, cost));
                    }
                }
                let window = spent.iter().filter(|(at, _)| *at + 600 > tenths).map(|(_, hits)| hits);
                let sum = window.sum::<u64>();
                assert!(sum <= most, "{sum} with {overdraft}, seed {seed}, step {step}");
                highest = highest.max(sum);
            }
        }
        assert!(highest * 10 > most * 9, "at most {highest} of {most} were spent: nothing was tried");
    }
}

/// One key, as the documentation describes it. Times in microseconds.
#[derive(Default)]
struct Naive {
    hits: Vec<(u64, u64)>,
    holds: BTreeMap<String, Held>,
}

struct Held {
    hits: u64,
    worst: u64,
    expires: u64,
    /// With `expired: charge`.
    counts_until: u64,
    ended: Option<u64>,
}

struct Terms {
    requests: u64,
    window: u64,
    ttl: u64,
    charges: bool,
    /// The overdraft in thousandths, and `max`.
    hold: Option<(u64, u64)>,
}

impl Terms {
    /// The most that a call of this amount may cost.
    fn worst(&self, amount: u64) -> u64 {
        self.hold.map_or(amount, |(_, max)| amount.min(max))
    }
}

impl Naive {
    /// What is left of N for what is spent and held, and of the limit and its overdraft for what is spent and may still be.
    fn left(&self, terms: &Terms, now: u64) -> [u64; 2] {
        let hits = self.hits.iter().filter(|(at, _)| at + terms.window > now).map(|(_, hits)| hits);
        let spent = hits.sum::<u64>();
        let counting = || self.holds.values().filter(|held| held.counts_until > now);
        let held = counting().map(|held| held.hits).sum::<u64>();
        let worst = counting().map(|held| held.worst).sum::<u64>();
        let most = terms.requests * (1_000 + terms.hold.map_or(0, |(overdraft, _)| overdraft)) / 1_000;
        [terms.requests.saturating_sub(spent + held), most.saturating_sub(spent + worst)]
    }

    fn fits(&self, terms: &Terms, now: u64, [hits, worst]: [u64; 2]) -> bool {
        let [left, worst_left] = self.left(terms, now);
        hits <= left && worst <= worst_left
    }

    fn forget(&mut self, terms: &Terms, now: u64) {
        self.holds.retain(|_, held| {
            held.ended.map_or(held.expires + terms.ttl, |at| at + terms.ttl).max(held.counts_until) > now
        });
    }

    fn ask(&mut self, terms: &Terms, now: u64, hits: u64, is_reported: bool) -> bool {
        let fits = match is_reported {
            true => hits <= self.left(terms, now)[0],
            false => self.fits(terms, now, [hits; 2]),
        };
        if fits || is_reported {
            self.hits.push((now, hits));
        }
        fits
    }

    fn reserve(&mut self, terms: &Terms, now: u64, id: &str, [hits, worst]: [u64; 2]) -> bool {
        if let Some(held) = self.holds.get(id)
            && (held.ended.is_some() || held.expires <= now || held.worst != worst)
        {
            return false;
        }
        if self.holds.contains_key(id) {
            return true;
        }
        let fits = self.fits(terms, now, [hits, worst]);
        let expires = now + terms.ttl;
        let counts_until = expires + if terms.charges { terms.window } else { 0 };
        if fits {
            self.holds.insert(id.to_owned(), Held { hits, worst, expires, counts_until, ended: None });
        }
        fits
    }

    fn commit(&mut self, terms: &Terms, now: u64, id: &str, cost: u64) {
        let ended = Held { hits: 0, worst: 0, expires: 0, counts_until: 0, ended: Some(now) };
        let paid = match self.holds.get_mut(id) {
            None => {
                self.holds.insert(id.to_owned(), ended);
                0
            }
            Some(held) if held.ended.is_some() => return,
            Some(held) if held.expires > now => {
                *held = ended;
                0
            }
            Some(held) => {
                let paid = if terms.charges { held.worst } else { 0 };
                held.ended = Some(now);
                held.worst = held.worst.min(cost);
                held.hits = held.worst;
                if held.hits == 0 || !terms.charges || held.counts_until <= now {
                    *held = ended;
                }
                paid
            }
        };
        self.hits.push((now, cost.saturating_sub(paid)));
    }
}

#[test]
fn reservations_are_those_of_a_naive_list() {
    let (mut denied, mut reserved, mut unequal) = (0, 0, 0);
    for seed in 0..300 {
        let mut random = Random(seed);
        let terms = Terms {
            requests: random.pick(&[1, 5, 20, 100]),
            window: random.pick(&[10, 60]) * 1_000_000,
            ttl: random.pick(&[5, 20, 100]) * 1_000_000,
            charges: random.one_in(2),
            hold: random.one_in(2).then(|| (random.pick(&[0, 50, 500, 1_000]), random.pick(&[2, 12, 40]))),
        };
        let Terms { requests, window, ttl, charges, hold } = &terms;
        let (window, ttl) = (window / 1_000_000, ttl / 1_000_000);
        let expired = if *charges { "charge" } else { "free" };
        let hold = hold.map_or_else(String::new, |(overdraft, max)| {
            let (whole, thousandths) = (overdraft / 1_000, overdraft % 1_000);
            format!(
                ", overdraft: {whole}.{thousandths:03}, hold: {{percentile: 60, of: counter, initial: 2, max: {max}}}"
            )
        });
        let rules = rules(&format!(
            "rate_limit: {{window: {window}s, requests_per_unit: {requests}, algorithm: sliding_log, cost: asked}}, \
             reserve: {{ttl: {ttl}s, expired: {expired}{hold}}}"
        ));
        let (mut store, mut naive, mut now) = (small_store(), Naive::default(), 1_000_000_000_u64);
        for step in 0..120 {
            now += random.pick(&[0, 1, 100_000, 1_000_000, 7_000_000, terms.ttl, terms.window]);
            naive.forget(&terms, now);
            let of = (&rules, &store);
            let second = now as f64 / 1e6;
            let id = ["p", "q", "r", "s", "t"][random.below(5) as usize];
            let hits = random.pick(&[1, 2, requests / 2 + 1, *requests, requests + 1]);
            let place = format!("seed {seed}, step {step}");
            match random.below(8) {
                0..=2 => {
                    let hold = hold_of(&rules, hits);
                    assert!(hold <= terms.worst(hits), "{place}");
                    unequal += u64::from(hold < terms.worst(hits));
                    let passes = naive.reserve(&terms, now, id, [hold, terms.worst(hits)]);
                    assert_eq!(reserve(of, id, hits, second).0, passes, "{place}");
                    (denied, reserved) = (denied + u64::from(!passes), reserved + u64::from(passes));
                }
                3 | 4 => {
                    let cost = random.pick(&[0, 1, hits]);
                    naive.commit(&terms, now, id, cost);
                    let said = commit_and_see(of, id, cost, second, |decision| {
                        decision.tightest().expect("a limit").remaining()
                    });
                    let left = naive.left(&terms, now)[0];
                    assert_eq!(said, left, "{place}: as of a commit of {cost}");
                }
                5 => store = moved(&store, small_store(), at(second)),
                kind => {
                    let cost = if kind == 6 { Cost::Reported } else { Cost::Asked };
                    let options =
                        DescriptorOptions { hits_addend: Some(hits), cost, ..DescriptorOptions::default() };
                    let fits = naive.ask(&terms, now, hits, kind == 6);
                    let over = ask(of, &request(&["a"], options), at(second), |decision| {
                        decision.tightest().expect("a limit").verdict.over
                    });
                    assert_eq!(!over, fits, "{place}");
                }
            }
            let [left, worst_left] = naive.left(&terms, now);
            let left = left.min(worst_left);
            assert_eq!(u64::from(remaining((&rules, &store), second)), left, "{place}");
        }
    }
    assert!(denied > 1_000 && reserved > 1_000, "{denied} denied, {reserved} reserved");
    assert!(unequal > 1_000, "{unequal} held less than the worst case");
}

/// All or nothing, and once for a counter that several descriptors name.
#[test]
fn several_limits_hold_together() {
    let (rules, store) = (ten("ttl: 300s"), store());
    let of = (&rules, &store);
    let both = |id, hits, users: &[&'static str]| {
        let reservation = Reservation { id, hits, ttl_nanos: None, is_commit: false };
        request(users, DescriptorOptions::default()).with_reservation(reservation)
    };
    assert!(reserve(of, "x", 7, 0.0).0);
    let denied = ask(of, &both("y", 4, &["b", "a"]), at(0.0), ends);
    assert!(!denied.0, "there is no room for `a`");
    assert!(ask(of, &both("z", 10, &["b"]), at(0.0), ends).0, "nothing of it is held for `b`");
    assert!(ask(of, &both("v", 10, &["c", "c"]), at(0.0), ends).0);
    let over = ask(of, &both("w", 1, &["c"]), at(0.0), ends);
    assert!(!over.0);
}

#[test]
fn of_several_limits_each_leaves_out_what_its_expired_hold_has_paid() {
    let (rules, store) = (ten("ttl: 5s"), store());
    let of = (&rules, &store);
    let both = |hits, is_commit| {
        let reservation = Reservation { id: "x", hits, ttl_nanos: None, is_commit };
        request(&["a", "b"], DescriptorOptions::default()).with_reservation(reservation)
    };
    assert!(ask(of, &both(7, false), at(0.0), ends).0);
    ask(of, &both(9, true), at(20.0), |_| ());
    assert_eq!(["a", "b"].map(|user| remaining_for(of, user, 20.0)), [1, 1], "nine in all");
}

/// A commit charges no limit without `reserve`, and gives no slots back.
#[test]
fn other_limits_are_asked_by_a_reservation_alone() {
    let rules = loaded(
        "domain: d\ndescriptors:\n\
         - {key: user, rate_limit: {unit: hour, requests_per_unit: 10}, reserve: {ttl: 60s}}\n\
         - {key: call, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_log}}",
    )
    .rules;
    let store = store();
    let of = |id, hits, is_commit, second| {
        let mut request = Request::new("d", 1);
        for key in ["user", "call"] {
            request.push([Entry { key, value: "a" }], DescriptorOptions::default());
        }
        let request = request.with_reservation(Reservation { id, hits, ttl_nanos: None, is_commit });
        ask((&rules, &store), &request, at(second), ends).0
    };
    assert!(of("1", 5, false, 0.0));
    assert!(of("1", 3, true, 1.0));
    assert!(of("2", 5, false, 2.0));
    assert!(of("2", 1, true, 3.0));
    assert!(!of("3", 1, false, 4.0), "two calls an hour");
}

/// A lost hold may still be open, so one ttl long nothing passes.
#[test]
fn a_cold_store_denies_for_one_ttl() {
    let (rules, cold) = (ten("ttl: 300s"), Cold::since(at(1_000.0), 3_600 * SECOND_NANOS));
    let store = store().cold(cold);
    let of = (&rules, &store);
    assert!(!reserve(of, "x", 1, 1_299.0).0);
    assert_eq!(commit(of, "y", 4, 1_299.0), Some(Found::Nothing));
    assert!(reserve(of, "x", 6, 1_300.0).0);
    assert!(!reserve(of, "z", 1, 1_300.0).0, "the cost was counted");
}

#[test]
fn a_million_holds_take_less_than_100_bytes_each() {
    let rules = rules("rate_limit: {unit: hour, requests_per_unit: 1000}, reserve: {ttl: 300s}");
    let store = MemoryStore::new(MemoryOptions::new(16 << 20));
    let plan_of = |user: &str, id: &str| {
        let reservation = Reservation { id, hits: 1, ttl_nanos: None, is_commit: false };
        let request = request(&[user], DescriptorOptions::default()).with_reservation(reservation);
        let plan = rules.plan(&request, Modes::default());
        assert_eq!(conclude(&plan, &store.apply(&plan, at(1.0))).code, Code::Ok);
    };
    // As many as leave the most room free.
    for (user, id) in (0..100).flat_map(|user| (0..513).map(move |id| (user, id))) {
        plan_of(&user.to_string(), &id.to_string());
    }
    let each = store.bytes() / 51_300;
    assert!(each <= 100, "{each} bytes");
}

#[test]
fn what_does_not_go_with_reservations_is_refused() {
    let limit = "rate_limit: {unit: hour, requests_per_unit: 10}";
    let held = |reserve: &str| format!("{limit}, reserve: {{ttl: 60s, {reserve}}}");
    for (fields, expected) in [
        ("reserve: {ttl: 60s}", "`reserve` without `rate_limit`"),
        (&format!("{limit}, reserve: {{}}"), "`ttl` is missing"),
        (&format!("{limit}, reserve: {{ttl: 0s}}"), "`ttl`"),
        (&format!("{limit}, reserve: {{ttl: 60s, expired: maybe}}"), "expired"),
        (&format!("{limit}, reserve: {{ttl: 60s, retry: 0s}}"), "`retry`"),
        (&format!("{limit}, reserve: {{ttl: 60s, tll: 1s}}"), "unknown key `tll` in `reserve`"),
        (&format!("{limit}, reserve: {{ttl: 60s}}, quota_mode: true"), "`quota_mode` with `reserve`"),
        (
            "rate_limit: {unit: hour, requests_per_unit: 10, sync: leased}, reserve: {ttl: 60s}",
            "`reserve` with `sync: leased`",
        ),
        (&held("hold: {percentile: 99, initial: 2, max: 6}"), "`hold` without `overdraft`"),
        (&held("overdraft: 0.5"), "`overdraft` without `hold`"),
        (&held("overdraft: 10.5, hold: {percentile: 99, initial: 2, max: 6}"), "`overdraft` is `10.5`"),
        (&held("overdraft: 0.0001, hold: {percentile: 99, initial: 2, max: 6}"), "at most three decimals"),
        (
            &held("overdraft: -1, hold: {percentile: 99, initial: 2, max: 6}"),
            "expected a number from 0 to 10",
        ),
        (&held("overdraft: 1, hold: {percentile: 99, initial: 7, max: 6}"), "`max` is 6, below `initial`"),
        (&held("overdraft: 1, hold: {percentile: 100, initial: 2, max: 6}"), "`percentile`"),
        (&held("overdraft: 1, hold: {percentile: 0, initial: 2, max: 6}"), "`percentile`"),
        (&held("overdraft: 1, hold: {percentile: 99, initial: 0, max: 6}"), "`initial`"),
        (&held("overdraft: 1, hold: {percentile: 99, initial: 2, max: 4294967296}"), "`max`"),
        (&held("overdraft: 1, hold: {percentile: 99, of: key, initial: 2, max: 6}"), "`of`"),
        (&held("overdraft: 1, hold: {percentile: 99, max: 6}"), "`initial` is missing"),
        (
            &held("overdraft: 1, hold: {percentil: 99, initial: 2, max: 6}"),
            "unknown key `percentil` in `hold`",
        ),
        ("rate_limit: {unlimited: true}, reserve: {ttl: 60s}", "`reserve` with `unlimited: true`"),
        (
            "rate_limit: {unit: hour, requests_per_unit: 10}, prefix: {v6: {64: 1, 48: 2}}, reserve: {ttl: 60s}",
            "`reserve` with a `prefix` of several lengths",
        ),
        (
            "rate_limit: {unit: hour, requests_per_unit: 10}, prefix: {v6: {64: 1, 48: 1}}, reserve: {ttl: 60s}",
            "`reserve` with a `prefix` of several lengths",
        ),
    ] {
        let refused = refused(format!("domain: d\ndescriptors: [{{key: user, {fields}}}]"));
        assert!(format!("{refused:?}").contains(expected), "{fields}: {refused:?}");
    }
}

/// A request with a descriptor that no rule knows is decided in the way of all requests, one without in a shorter one.
#[test]
fn a_request_of_one_limit_is_decided_as_any_other() {
    let limit = |unit: &str| format!("rate_limit: {{requests_per_unit: 9, {unit}}}");
    let of_algorithm = |name: &str| limit(&format!("window: 10s, algorithm: {name}"));
    let names = "sliding_log sliding_window sliding_window_weighted fixed_window token_bucket leaky_bucket";
    let limits = names.split(' ').map(of_algorithm).chain([limit("period: {calendar: day}")]);
    let modes = ["", ", shadow_mode: true"];
    let mut random = Random(20);
    for (limit, mode) in limits.flat_map(|limit| modes.map(|mode| (limit.clone(), mode))) {
        for expired in ["charge", "free"] {
            let rules = rules(&format!("{limit}, reserve: {{ttl: 7s, expired: {expired}}}{mode}"));
            let stores = [store(), store()];
            let mut now = at(0.0);
            for step in 0..600 {
                now = now.plus(random.below(2) * random.below(SECOND_NANOS));
                let (hits, reported, refunds) = (random.below(5), random.one_in(5), random.one_in(5));
                let options = DescriptorOptions {
                    hits_addend: Some(hits),
                    cost: if reported { Cost::Reported } else { Cost::Asked },
                    is_negative_hits: refunds,
                    ..DescriptorOptions::default()
                };
                let id = random.pick(&["a", "b", "c", "d", "e"]);
                let ttl_nanos = random.one_in(3).then_some(2 * SECOND_NANOS);
                let reservation = Reservation { id, hits, ttl_nanos, is_commit: random.one_in(2) };
                let reserves = random.one_in(2);
                let verdicts = [0, 1].map(|unknown| {
                    let options = if reserves { DescriptorOptions::default() } else { options };
                    let mut request = request(&["a"], options);
                    for _ in 0..unknown {
                        request.push([Entry { key: "unknown", value: "" }], DescriptorOptions::default());
                    }
                    let request = if reserves { request.with_reservation(reservation) } else { request };
                    let verdicts = stores[unknown].apply(&rules.plan(&request, Modes::default()), now);
                    [verdicts[0], verdicts[1 + unknown]]
                });
                assert_eq!(verdicts[0], verdicts[1], "step {step}: {limit}, {expired}{mode}");
                assert_eq!(stores[0].reported_total(), stores[1].reported_total());
            }
        }
    }
}

/// The sum of what is held is exact, whatever clients ask for.
#[test]
fn in_shadow_mode_no_more_is_held_than_numbers_can_be() {
    let limit = "rate_limit: {requests_per_unit: 10, window: 60s}, shadow_mode: true";
    let (rules, store) = (rules(&format!("{limit}, reserve: {{ttl: 300s}}")), store());
    let of = (&rules, &store);
    commit(of, "first", 1, 0.0);
    assert_eq!(reserve(of, "large", AMOUNT_MAX, 0.0), (true, Some(Found::Nothing)), "it is not enforced");
    for number in 0..3_000 {
        let found = reserve(of, &format!("{number}"), AMOUNT_MAX, 0.0);
        assert_eq!(found, (true, Some(Found::Full)), "reservation {number}");
    }
    assert_eq!(reserve(of, "8", 8, 0.0), (true, Some(Found::Full)));
    assert_eq!(reserve(of, "7", 7, 0.0), (true, Some(Found::Nothing)), "2^53 - 1 in all");
    assert_eq!(commit(of, "new", AMOUNT_MAX, 0.0), Some(Found::Nothing), "what ends a hold needs no room");
    assert_eq!(commit(of, "large", 1, 0.0), Some(Found::Open));
    assert_eq!(reserve(of, "8", 8, 0.0), (true, Some(Found::Nothing)));
}

/// What is held takes no part of a counter's numbers: memory for a cost is reserved where it is charged.
#[test]
fn a_cost_beside_more_held_hits_than_a_counter_counts_is_charged_and_paid_for() {
    let limit = "rate_limit: {requests_per_unit: 10, window: 60s, algorithm: sliding_log}, shadow_mode: true";
    let (rules, store) = (rules(&format!("{limit}, reserve: {{ttl: 300s}}")), store());
    let of = (&rules, &store);
    assert_eq!(reserve(of, "large", AMOUNT_MAX, 0.0), (true, Some(Found::Nothing)));
    assert_eq!(commit(of, "small", 3, 0.0), Some(Found::Nothing));
    assert_eq!(commit(of, "large", 3, 0.0), Some(Found::Open));
    assert_eq!(remaining(of, 0.0), 4);
}
