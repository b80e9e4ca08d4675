//! Reservations: which rules have them, and what passes, compared with a naive list of hits and holds.

use std::collections::BTreeMap;

use tidegate_engine::cost::Cost;
use tidegate_engine::decision::{Code, Decision, conclude};
use tidegate_engine::limit::Found;
use tidegate_engine::memory::{Cold, MemoryOptions, MemoryStore};
use tidegate_engine::plan::Modes;
use tidegate_engine::request::{DescriptorOptions, Entry, Request, Reservation};
use tidegate_engine::rules::RuleSet;
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
    see(&conclude(&plan, &store.apply(&plan, now)))
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
    let reservation = Reservation { id, hits: cost, ttl_nanos: None, is_commit: true };
    let request = request(&["a"], DescriptorOptions::default()).with_reservation(reservation);
    ask(of, &request, at(second), ends).1
}

/// What remains for a question.
fn remaining(of: (&RuleSet, &MemoryStore), second: f64) -> u32 {
    let options = DescriptorOptions { hits_addend: Some(0), ..DescriptorOptions::default() };
    ask(of, &request(&["a"], options), at(second), |decision| {
        decision.tightest().expect("a limit").remaining()
    })
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

#[test]
fn an_expired_hold_is_paid_or_free() {
    let of_rules = [("expired: charge", 3), ("expired: free", 10)];
    for (expired, left) in of_rules {
        let (rules, store) = (ten(&format!("ttl: 5s, {expired}")), store());
        let of = (&rules, &store);
        assert!(reserve(of, "x", 7, 0.0).0);
        assert_eq!([remaining(of, 4.9), remaining(of, 5.0)], [3, left], "{expired}");
        let found = commit(of, "x", 9, 6.0);
        assert_eq!(found, Some(Found::Expired(10 - left)), "{expired}");
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
    assert_eq!(wait(of, 2.0), Some(59), "hits say when they leave");
}

/// One key, as the documentation describes it. Times in microseconds.
#[derive(Default)]
struct Naive {
    hits: Vec<(u64, u64)>,
    holds: BTreeMap<String, Held>,
}

struct Held {
    hits: u64,
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
}

impl Naive {
    /// What counts.
    fn count(&self, terms: &Terms, now: u64) -> u64 {
        let hits = self.hits.iter().filter(|(at, _)| at + terms.window > now).map(|(_, hits)| hits);
        let held = self.holds.values().filter(|held| held.counts_until > now).map(|held| held.hits);
        hits.sum::<u64>() + held.sum::<u64>()
    }

    fn forget(&mut self, terms: &Terms, now: u64) {
        self.holds.retain(|_, held| {
            held.ended.map_or(held.expires + terms.ttl, |at| at + terms.ttl).max(held.counts_until) > now
        });
    }

    fn ask(&mut self, terms: &Terms, now: u64, hits: u64, is_reported: bool) -> bool {
        let fits = self.count(terms, now) + hits <= terms.requests;
        if fits || is_reported {
            self.hits.push((now, hits));
        }
        fits
    }

    fn reserve(&mut self, terms: &Terms, now: u64, id: &str, hits: u64) -> bool {
        if let Some(held) = self.holds.get(id)
            && (held.ended.is_some() || held.expires <= now || held.hits != hits)
        {
            return false;
        }
        if self.holds.contains_key(id) {
            return true;
        }
        let fits = self.count(terms, now) + hits <= terms.requests;
        let expires = now + terms.ttl;
        let counts_until = expires + if terms.charges { terms.window } else { 0 };
        if fits {
            self.holds.insert(id.to_owned(), Held { hits, expires, counts_until, ended: None });
        }
        fits
    }

    fn commit(&mut self, terms: &Terms, now: u64, id: &str, cost: u64) {
        let ended = Held { hits: 0, expires: 0, counts_until: 0, ended: Some(now) };
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
                let paid = if terms.charges { held.hits } else { 0 };
                held.ended = Some(now);
                held.hits = held.hits.min(cost);
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
    let (mut denied, mut reserved) = (0, 0);
    for seed in 0..200 {
        let mut random = Random(seed);
        let terms = Terms {
            requests: random.pick(&[1, 5, 20, 100]),
            window: random.pick(&[10, 60]) * 1_000_000,
            ttl: random.pick(&[5, 20, 100]) * 1_000_000,
            charges: random.one_in(2),
        };
        let Terms { requests, window, ttl, charges } = &terms;
        let (window, ttl) = (window / 1_000_000, ttl / 1_000_000);
        let expired = if *charges { "charge" } else { "free" };
        let rules = rules(&format!(
            "rate_limit: {{window: {window}s, requests_per_unit: {requests}, algorithm: sliding_log, cost: asked}}, \
             reserve: {{ttl: {ttl}s, expired: {expired}}}"
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
                    let passes = naive.reserve(&terms, now, id, hits);
                    assert_eq!(reserve(of, id, hits, second).0, passes, "{place}");
                    (denied, reserved) = (denied + u64::from(!passes), reserved + u64::from(passes));
                }
                3 | 4 => {
                    let cost = random.pick(&[0, 1, hits]);
                    naive.commit(&terms, now, id, cost);
                    commit(of, id, cost, second);
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
            let left = requests.saturating_sub(naive.count(&terms, now));
            assert_eq!(u64::from(remaining((&rules, &store), second)), left, "{place}");
        }
    }
    assert!(denied > 1_000 && reserved > 1_000, "{denied} denied, {reserved} reserved");
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
        ("rate_limit: {unlimited: true}, reserve: {ttl: 60s}", "`reserve` with `unlimited: true`"),
        (
            "rate_limit: {unit: hour, requests_per_unit: 10}, prefix: {v6: {64: 1, 48: 2}}, reserve: {ttl: 60s}",
            "`reserve` with a `prefix` of several lengths",
        ),
    ] {
        let refused = refused(format!("domain: d\ndescriptors: [{{key: user, {fields}}}]"));
        assert!(format!("{refused:?}").contains(expected), "{fields}: {refused:?}");
    }
}
