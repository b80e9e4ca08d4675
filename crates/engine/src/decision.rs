//! The decision on a request, made from its plan and the verdicts of its counters.
//!
//! Everything that is reported later (codes, remaining, reset times, headers, metadata, metrics) is derived from the
//! [`Decision`], in one place.

mod reservation;

use std::cmp::Ordering;

use smallvec::SmallVec;

use crate::key::Key;
use crate::limit::{Algorithm, Found, Limit, RETRY_NANOS, Slot, Verdict};
use crate::named;
use crate::overlay::Met;
use crate::plan::{Check, Hits, Origin, Plan, Step};
use crate::rule::Rule;
use crate::settle::{settle, settle_trial};
use crate::time::ceil_secs;

pub use reservation::{EndedAs, ReserveResult};

named! {
    /// A code of `envoy.service.ratelimit.v3`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[allow(missing_docs)]
    pub enum Code {
        Ok(1) = "OK",
        OverLimit(2) = "OVER_LIMIT",
    }
}

/// The verdicts of a request's counters, one for each [place](Plan::checks) of the plan: `Some` for every
/// [`Step::Check`]. The verdict of a candidate is `None` if its counter did not answer.
pub type Verdicts = SmallVec<[Option<Verdict>; 8]>;

/// The outcome of a request.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// The overall code of the answer.
    pub code: Code,
    /// The overall code would be OVER_LIMIT without the process's shadow mode.
    pub shadowed: bool,
    /// The request's domain has rules.
    pub domain_known: bool,
    /// One status per descriptor, in request order. If its rule has several limits, that of the one which says most.
    pub statuses: SmallVec<[Status<'a>; 8]>,
    /// Parts that few decisions have. They share one field, because each field with memory of its own costs every
    /// decision a write and a branch.
    pub rare: Option<Box<Rare<'a>>>,
}

/// Parts that few decisions have.
#[derive(Clone, Debug, Default)]
pub struct Rare<'a> {
    /// The trials of candidates.
    pub trials: Vec<Trial<'a>>,
    /// The exceptions that its descriptors met.
    pub exceptions: Vec<Met>,
    /// The limits that statuses do not show, because another limit of the same descriptor says more: each with the index of
    /// its descriptor.
    pub not_shown: SmallVec<[(usize, Limited<'a>); 1]>,
    /// The bans that deny it.
    pub bans: SmallVec<[Banned<'a>; 1]>,
    /// What is held of its limits.
    pub held: SmallVec<[Held; 1]>,
}

/// What reservations hold of the limit of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The index of the descriptor.
    pub descriptor: usize,
    /// Hits that other reservations hold.
    pub others: u64,
    /// What was found under the id of the request's reservation. `None`: it has none, or the counter did not decide.
    pub found: Option<Found>,
}

/// A ban that denies a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Banned<'a> {
    /// The index of the descriptor.
    pub descriptor: usize,
    /// The rule of the ban: its limit has the terms.
    pub rule: &'a Rule,
    /// The key of its counter.
    pub key: Key,
    /// For how long.
    pub nanos_left: u64,
    /// This denial has begun it.
    pub has_begun: bool,
}

/// The verdict of a candidate on one descriptor. The answer does not depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The index of the descriptor.
    pub descriptor: usize,
    /// Whether the request would pass with the candidates of this rule in place of its limit.
    pub passes: bool,
    /// The candidate, and the verdict of its own counter.
    pub limited: Limited<'a>,
}

/// The outcome of one descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Status<'a> {
    /// No limit applies: OK and nothing else.
    NoLimit,
    /// The descriptor's rule is replaced by another descriptor's rule: OK and nothing else.
    Replaced(&'a Rule),
    /// OK, by a rule without a bound.
    Unlimited(&'a Rule),
    /// A counter was checked.
    Limited(Limited<'a>),
}

/// A limit, and the verdict of its counter on one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Limited<'a> {
    /// Where the limit comes from.
    pub origin: Origin<'a>,
    /// The limit.
    pub limit: Limit,
    /// The hits of the descriptor.
    pub hits: Hits,
    /// What the counter answered.
    pub verdict: Verdict,
    /// The rule's shadow mode.
    pub shadow: bool,
    /// The rule's quota mode, or the process's.
    pub quota: bool,
}

/// Makes the decision from plan and verdicts.
pub fn conclude<'a>(plan: &Plan<'a>, verdicts: &Verdicts) -> Decision<'a> {
    let mut decision = Decision::empty();
    conclude_into(plan, verdicts, &mut decision);
    decision
}

/// Like [`conclude`], but overwrites `decision` in place to avoid a large move.
pub fn conclude_into<'a>(plan: &Plan<'a>, verdicts: &Verdicts, decision: &mut Decision<'a>) {
    let verdict_of = |index: usize| verdicts.get(index).copied().flatten();
    let passes = settle(plan, |index| verdict_of(index).is_some_and(|verdict| verdict.over)).passes;
    decision.code = if passes || plan.modes.shadow { Code::Ok } else { Code::OverLimit };
    decision.shadowed = !passes && plan.modes.shadow;
    decision.domain_known = plan.domain_known;
    decision.statuses.clear();
    // Each is created in its place: `extend` would create it elsewhere and move it.
    for (index, step) in plan.steps.iter().take(plan.descriptors()).enumerate() {
        decision.statuses.push(match (step, verdict_of(index)) {
            (Step::Check(check), Some(verdict)) => Status::Limited(limited(check, verdict, plan.modes.quota)),
            (Step::Replaced(rule), _) => Status::Replaced(rule),
            (Step::Unlimited(rule), _) => Status::Unlimited(rule),
            _ => Status::NoLimit,
        });
    }
    decision.rare = None;
    if !plan.further.is_empty() {
        conclude_further(plan, verdicts, decision);
    }
    if !plan.candidates.is_empty() {
        conclude_trials(plan, verdicts, decision);
    }
}

#[inline(never)] // Few have candidates: the way of all others stays short.
fn conclude_trials<'a>(plan: &Plan<'a>, verdicts: &Verdicts, decision: &mut Decision<'a>) {
    let trials = &mut decision.rare.get_or_insert_default().trials;
    let verdict_of = |place: usize| verdicts.get(place).copied().flatten();
    for (place, candidate) in (plan.steps.len()..).zip(&plan.candidates) {
        let Some(verdict) = verdict_of(place) else { continue };
        // What the candidate admits begins no ban.
        let is_ban = |place| matches!(plan.steps.get(place), Some(Step::Check(check)) if check.is_ban());
        let over = |place| {
            verdict_of(place).is_some_and(|verdict| verdict.over && !(is_ban(place) && has_begun(&verdict)))
        };
        let passes = settle_trial(plan, candidate.rule, over).passes || plan.modes.shadow;
        let limited = limited(&candidate.check, verdict, plan.modes.quota);
        trials.push(Trial { descriptor: candidate.step, passes, limited });
    }
}

/// Shows for each descriptor the limit that says most.
#[inline(never)] // As above.
fn conclude_further<'a>(plan: &Plan<'a>, verdicts: &Verdicts, decision: &mut Decision<'a>) {
    // Slots come last, because bans and holds are about hits.
    for (place, descriptor) in of_slots(plan, false).chain(of_slots(plan, true)) {
        let (Step::Check(check), Some(verdict)) = (&plan.steps[place], verdicts[place]) else { continue };
        let mut further = limited(check, verdict, plan.in_quota_mode(place, check));
        if check.is_ban() {
            if let (Status::Limited(shown), true) = (&mut decision.statuses[descriptor], further.is_denied())
            {
                shown.deny_for(verdict.reset_nanos);
            }
            if let Some(banned) = banned(descriptor, check, &verdict) {
                decision.rare.get_or_insert_default().bans.push(banned);
            }
            continue;
        }
        if check.is_of_holds() {
            let held = held(descriptor, check, &verdict);
            let retry_nanos = check.origin.rule().map_or(RETRY_NANOS, |rule| rule.retry_nanos);
            if let Status::Limited(shown) = &mut decision.statuses[descriptor] {
                if further.is_denied() {
                    shown.deny_for(verdict.reset_nanos.max(retry_nanos));
                } else if shown.verdict.over && held.others > 0 {
                    shown.verdict.reset_nanos = shown.verdict.reset_nanos.max(retry_nanos);
                }
            }
            decision.rare.get_or_insert_default().held.push(held);
            continue;
        }
        if check.is_bound() {
            if let Status::Limited(shown) = &mut decision.statuses[descriptor] {
                shown.bound_by(&verdict);
            }
            continue;
        }
        match &mut decision.statuses[descriptor] {
            Status::Limited(shown) => {
                if further.says_more_than(shown) {
                    std::mem::swap(shown, &mut further);
                }
                decision.rare.get_or_insert_default().not_shown.push((descriptor, further));
            }
            status => *status = Status::Limited(further),
        }
    }
}

/// The further steps that are about slots, or those that are not: each with its descriptor.
fn of_slots(plan: &Plan<'_>, wanted: bool) -> impl Iterator<Item = (usize, usize)> {
    let is_slots = |place: usize| matches!(&plan.steps[place], Step::Check(check) if check.limit.algorithm() == Algorithm::Concurrency);
    let further = (plan.descriptors()..).zip(plan.further.iter().copied());
    further.filter(move |&(place, _)| is_slots(place) == wanted)
}

/// What this verdict on the check of holds says.
fn held(descriptor: usize, check: &Check<'_>, verdict: &Verdict) -> Held {
    let names_one = verdict.is_counted && check.limit.slot().is_some() && check.hits != Hits::Take(0);
    let found = names_one.then(|| Found::numbered(verdict.remaining));
    Held { descriptor, others: if verdict.is_counted { verdict.before } else { 0 }, found }
}

/// The ban of a descriptor, if this verdict on its check says that the key is banned.
fn banned<'a>(descriptor: usize, check: &Check<'a>, verdict: &Verdict) -> Option<Banned<'a>> {
    let rule = check.origin.rule()?;
    let is_banned = verdict.over && verdict.is_counted && !check.shadow;
    let has_begun = has_begun(verdict);
    is_banned.then_some(Banned {
        descriptor,
        rule,
        key: check.key,
        nanos_left: verdict.reset_nanos,
        has_begun,
    })
}

/// Whether the denial of this request has begun a ban: a request only asks, a strike takes a hit.
fn has_begun(verdict: &Verdict) -> bool {
    verdict.after > verdict.before
}

fn limited<'a>(check: &Check<'a>, mut verdict: Verdict, quota_mode: bool) -> Limited<'a> {
    if let (Algorithm::Concurrency, true, Origin::Rule { rule, .. }) =
        (check.limit.algorithm(), verdict.over, check.origin)
    {
        verdict.reset_nanos = verdict.reset_nanos.max(rule.retry_nanos);
    }
    Limited {
        origin: check.origin,
        limit: check.limit.shown(),
        hits: check.hits,
        verdict,
        shadow: check.shadow,
        quota: check.quota || quota_mode,
    }
}

impl<'a> Decision<'a> {
    /// The decision on a request without descriptors.
    #[inline]
    pub fn empty() -> Self {
        Self { code: Code::Ok, shadowed: false, domain_known: false, statuses: SmallVec::new(), rare: None }
    }

    /// The trials of candidates.
    pub fn trials(&self) -> &[Trial<'a>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.trials)
    }

    /// The limit that a candidate stands in for: its status may show another limit of the same rule.
    pub fn tried(&self, trial: &Trial<'a>) -> Option<&Limited<'a>> {
        let rule = |limited: &Limited<'a>| limited.origin.rule().map(|rule| rule.id);
        let of_descriptor = self.limits().filter(|(descriptor, _)| *descriptor == trial.descriptor);
        of_descriptor.map(|(_, limited)| limited).find(|limited| rule(limited) == rule(&trial.limited))
    }

    /// The bans that deny it.
    pub fn bans(&self) -> &[Banned<'a>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.bans)
    }

    /// What is held of its limits.
    pub fn held(&self) -> &[Held] {
        self.rare.as_ref().map_or(&[], |rare| &rare.held)
    }

    /// What was found of the reservation of the request, for each descriptor by its index.
    pub fn found(&self) -> impl Iterator<Item = (usize, Found)> {
        self.held().iter().filter_map(|held| Some((held.descriptor, held.found?)))
    }

    /// The exceptions that its descriptors met.
    pub fn exceptions(&self) -> &[Met] {
        self.rare.as_ref().map_or(&[], |rare| &rare.exceptions)
    }

    /// All limits that were checked, each with the index of its descriptor. Those that statuses show come first.
    pub fn limits(&self) -> impl Iterator<Item = (usize, &Limited<'a>)> {
        let shown = self.statuses.iter().enumerate().filter_map(|(descriptor, status)| match status {
            Status::Limited(limited) => Some((descriptor, limited)),
            _ => None,
        });
        let not_shown = self.rare.iter().flat_map(|rare| &rare.not_shown);
        shown.chain(not_shown.map(|(descriptor, limited)| (*descriptor, limited)))
    }

    /// The limits of a descriptor that its status does not show.
    pub fn not_shown(&self, descriptor: usize) -> impl Iterator<Item = &Limited<'a>> {
        let all = self.rare.iter().flat_map(|rare| &rare.not_shown);
        all.filter(move |(of, _)| *of == descriptor).map(|(_, limited)| limited)
    }

    /// The counter whose numbers (limit, remaining, reset) represent the request where there is room for one only, as
    /// in response headers: the last one that is denied and not in quota mode, else the first one with the least
    /// remaining. `None` when no counter was checked.
    pub fn tightest(&self) -> Option<&Limited<'a>> {
        let denied = self.limited().rev().find(|limited| limited.is_denied() && !limited.quota);
        denied.or_else(|| self.limited().min_by_key(|limited| limited.remaining()))
    }

    /// The slots of `concurrency` that the request took, each with the index of its descriptor and its rule. Who knows a
    /// slot can release it: the client of the proxy must not see it.
    pub fn slots(&self) -> impl Iterator<Item = (usize, &'a Rule, Slot)> {
        let passes = self.code == Code::Ok && !self.shadowed;
        self.limits().filter_map(move |(descriptor, Limited { origin, limit, verdict, hits, .. })| {
            let (slot, rule) = (limit.slot()?, origin.rule()?);
            let took = passes && !verdict.over && matches!(hits, Hits::Take(1..));
            took.then_some((descriptor, rule, slot))
        })
    }

    /// Seconds after which a retry makes sense: the longest wait of the denied descriptors. `None` unless the overall
    /// code is OVER_LIMIT.
    pub fn retry_after_secs(&self) -> Option<u64> {
        let denied = self.limited().filter(|limited| limited.is_denied());
        let wait = denied.map(Limited::reset_secs).max();
        wait.filter(|_| self.code == Code::OverLimit)
    }

    /// Lengthens the waits of denied descriptors, all by this share of each, if the request is denied. A client that
    /// waits longer than necessary is admitted as well.
    pub fn lengthen_waits(&mut self, share: f64) {
        if self.code != Code::OverLimit {
            return;
        }
        for status in &mut self.statuses {
            if let Status::Limited(limited) = status
                && limited.is_denied()
            {
                let nanos = &mut limited.verdict.reset_nanos;
                *nanos = nanos.saturating_add((*nanos as f64 * share) as u64);
            }
        }
    }

    /// The first limit of a descriptor denies it for this long, because of an exception, or for as long as its key is banned.
    /// Other limits of its rule may deny it for longer: the one that says most is shown.
    pub fn deny_first_for(&mut self, plan: &Plan<'_>, descriptor: usize, nanos: u64) {
        let id = |origin: Origin<'_>| origin.rule().map(|rule| rule.id);
        let bans = self.bans().iter().filter(|ban| ban.descriptor == descriptor);
        let nanos = bans.map(|ban| ban.nanos_left).fold(nanos, u64::max);
        let (Some(Step::Check(first)), Some(Status::Limited(shown))) =
            (plan.steps.get(descriptor), self.statuses.get_mut(descriptor))
        else {
            return;
        };
        let wait = |limited: &mut Limited<'_>| {
            if id(limited.origin) == id(first.origin) {
                limited.verdict.reset_nanos = nanos;
            }
        };
        wait(shown);
        let not_shown = self.rare.iter_mut().flat_map(|rare| &mut rare.not_shown);
        for (_, limited) in not_shown.filter(|(of, _)| *of == descriptor) {
            wait(limited);
            if limited.says_more_than(shown) {
                std::mem::swap(shown, limited);
            }
        }
    }

    /// The descriptors with a verdict, in request order.
    fn limited(&self) -> impl DoubleEndedIterator<Item = &Limited<'a>> {
        self.statuses.iter().filter_map(|status| match status {
            Status::Limited(limited) => Some(limited),
            Status::NoLimit | Status::Replaced(_) | Status::Unlimited(_) => None,
        })
    }
}

impl Status<'_> {
    /// The rule that it is about, if there is one.
    pub fn rule(&self) -> Option<&Rule> {
        match *self {
            Self::Limited(Limited { origin, .. }) => origin.rule(),
            Self::Unlimited(rule) | Self::Replaced(rule) => Some(rule),
            Self::NoLimit => None,
        }
    }

    /// The check whose limit it shows, and the place of that in the plan. It is the status of this descriptor, by index.
    pub fn shown<'p, 'a>(&self, plan: &'p Plan<'a>, descriptor: usize) -> Option<(usize, &'p Check<'a>)> {
        let Self::Limited(limited) = self else { return None };
        let rule = |origin: Origin<'_>| origin.rule().map(|rule| rule.id);
        plan.places_of(descriptor).find_map(|place| match &plan.steps[place] {
            Step::Check(check) if rule(check.origin) == rule(limited.origin) => Some((place, check)),
            _ => None,
        })
    }

    /// The code of this descriptor. In rule shadow mode it is OK.
    #[inline]
    pub fn code(&self) -> Code {
        match self {
            Self::Limited(limited) if limited.is_denied() => Code::OverLimit,
            _ => Code::Ok,
        }
    }
}

impl Limited<'_> {
    /// Makes it denied for this long, or as long as it is already: its key is banned, so it counts as full.
    fn deny_for(&mut self, nanos: u64) {
        let Verdict { over, before, after, remaining, reset_nanos, .. } = &mut self.verdict;
        let hits = after.saturating_sub(*before);
        let before_max = self.limit.capacity().max(*before);
        // Where there is room, it is the time until all of it is back.
        let own_nanos = if *over { *reset_nanos } else { 0 };
        (*over, *before, *after) = (true, before_max, before_max.saturating_add(hits));
        (*remaining, *reset_nanos) = (0, nanos.max(own_nanos));
    }

    /// Takes what the bound on its worst cases says, which is asked by the same counter: denied by one is denied.
    fn bound_by(&mut self, bound: &Verdict) {
        let Verdict { over, remaining, reset_nanos, .. } = &mut self.verdict;
        *remaining = (*remaining).min(bound.remaining);
        if bound.over {
            let own_nanos = if *over { *reset_nanos } else { 0 };
            (*over, *reset_nanos) = (true, own_nanos.max(bound.reset_nanos));
        }
    }

    /// Whether it is shown instead of another limit of its descriptor: the one that denies for the longest time, else the
    /// one with the least remaining. Slots that do not deny are no hits, so they are not compared.
    fn says_more_than(&self, other: &Self) -> bool {
        let denies = |it: &Self| (it.is_denied(), it.verdict.over);
        match denies(self).cmp(&denies(other)) {
            Ordering::Equal if self.verdict.over => self.verdict.reset_nanos > other.verdict.reset_nanos,
            Ordering::Equal => {
                self.limit.algorithm() != Algorithm::Concurrency && self.remaining() < other.remaining()
            }
            more => more.is_gt(),
        }
    }

    /// The descriptor's code is OVER_LIMIT: its hits do not fit, and its rule is not in shadow mode.
    #[inline]
    pub fn is_denied(&self) -> bool {
        self.verdict.over && !self.shadow
    }

    /// Hits that would still pass.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.verdict.remaining
    }

    /// `duration_until_reset` in whole seconds, rounded up; at least 1 when denied.
    #[inline]
    pub fn reset_secs(&self) -> u64 {
        ceil_secs(self.verdict.reset_nanos).max(u64::from(self.verdict.over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND_NANOS;
    use crate::unit::{Unit, Window};

    /// A counter with this verdict. `requests` identifies it.
    fn counter(requests: u32, remaining: u64, over: bool, reset_secs: u64) -> Limited<'static> {
        let reset_nanos = reset_secs * SECOND_NANOS;
        Limited {
            origin: Origin::Override { window: Window::of(Unit::Hour) },
            limit: Limit::new(Algorithm::SlidingWindow, requests.into(), Unit::Hour.nanos()),
            hits: Hits::Take(1),
            verdict: Verdict { over, before: 0, after: 1, remaining, reset_nanos, is_counted: true },
            shadow: false,
            quota: false,
        }
    }

    fn decision(code: Code, limited: &[Limited<'static>]) -> Decision<'static> {
        let mut statuses = SmallVec::from_slice(&[Status::NoLimit]);
        statuses.extend(limited.iter().map(|limited| Status::Limited(*limited)));
        Decision { code, domain_known: true, statuses, ..Decision::empty() }
    }

    fn tightest(limited: &[Limited<'static>]) -> Option<u64> {
        decision(Code::Ok, limited).tightest().map(|limited| limited.limit.requests())
    }

    #[test]
    fn the_tightest_is_the_first_with_the_least_remaining() {
        assert_eq!(tightest(&[]), None);
        let counters = [counter(1, 5, false, 0), counter(2, 3, false, 0), counter(3, 3, false, 0)];
        assert_eq!(tightest(&counters), Some(2));
    }

    #[test]
    fn the_last_denied_one_is_tighter_than_any_other_but_quota_mode_and_shadow_mode_deny_nothing() {
        let over = |requests| counter(requests, 2, true, 9);
        assert_eq!(tightest(&[counter(1, 0, false, 0), over(2), over(3), counter(4, 0, false, 0)]), Some(3));
        let quota = Limited { quota: true, ..over(2) };
        let shadow = Limited { shadow: true, ..over(3) };
        assert_eq!(tightest(&[counter(1, 1, false, 0), quota, shadow]), Some(1));
        assert_eq!(tightest(&[counter(1, 2, false, 0), quota, shadow]), Some(1));
        assert_eq!(tightest(&[counter(1, 3, false, 0), shadow, quota]), Some(3), "they count as any other");
    }

    #[test]
    fn waits_of_denied_descriptors_are_lengthened_if_the_request_is_denied() {
        let limited = [counter(1, 0, true, 600), counter(1, 0, true, 60), counter(1, 9, false, 80)];
        let secs = |code, share| {
            let mut decision = decision(code, &limited);
            decision.lengthen_waits(share);
            decision.limited().map(Limited::reset_secs).collect::<Vec<_>>()
        };
        assert_eq!(secs(Code::OverLimit, 0.25), [750, 75, 80]);
        assert_eq!(secs(Code::OverLimit, 0.0), [600, 60, 80]);
        assert_eq!(secs(Code::Ok, 0.25), [600, 60, 80], "it does not wait");
        let mut never = decision(Code::OverLimit, &[counter(1, 0, true, u64::MAX / SECOND_NANOS)]);
        never.lengthen_waits(1.0);
        assert_eq!(never.retry_after_secs(), Some(u64::MAX / SECOND_NANOS + 1), "no wait is longer");
    }

    #[test]
    fn a_denied_request_waits_for_the_longest_of_those_that_deny_it() {
        let shadow = Limited { shadow: true, ..counter(1, 0, true, 90) };
        let limited = [counter(1, 0, true, 7), counter(1, 0, true, 5), counter(1, 9, false, 80), shadow];
        assert_eq!(decision(Code::OverLimit, &limited).retry_after_secs(), Some(7));
        assert_eq!(decision(Code::Ok, &limited).retry_after_secs(), None);
        let quota = Limited { quota: true, ..counter(1, 0, true, 0) };
        assert_eq!(decision(Code::OverLimit, &[quota]).retry_after_secs(), Some(1));
    }
}
