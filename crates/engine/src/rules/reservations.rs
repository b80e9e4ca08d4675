//! Reservations: what a request that reserves, or commits what it reserved, asks of rules with `reserve`.
//!
//! In: the check of a rule's limit, that of its holds, and a request. Out: both checks, made to hold hits, to end a hold and
//! charge its cost, or to look at what others hold; and a third one where a hold need not be the worst case.

use crate::key::Key;
use crate::limit::{HoldTerms, Limit, Slot};
use crate::plan::{Check, Hits, Plan, ReservationStep, Step};
use crate::request::{Entry, Request, Reservation};
use crate::rule::Rule;

/// Whether a reservation has to say what its call may cost at most: it meets a rule with `reserve` and without `hold`.
pub(super) fn needs_amount(plan: &Plan<'_>) -> bool {
    plan.holds().any(|(.., check)| check.origin.rule().is_none_or(|rule| rule.held_costs.is_none()))
}

/// Makes the checks of a limit and of its holds those of this request's reservation. Without one, the holds only look.
/// Returns the check that bounds the worst cases, if there is one: it comes before that of the holds.
pub(super) fn reserve<'p>(
    request: &Request<'_>,
    rule: &Rule,
    entries: &[Entry<'_>],
    mut limited: Option<&mut Check<'p>>,
    holds: &mut Check<'p>,
) -> Option<Check<'p>> {
    (holds.hits, holds.reported) = (Hits::Take(0), false);
    let Some(reservation) = request.reservation() else {
        return bound(limited.as_deref()?, holds, None);
    };
    let (hits, worst) = hits_of(reservation, rule, entries);
    holds.limit =
        limit_of(&holds.limit, reservation.ttl_nanos, worst).for_slot(rule.new_slot(Some(reservation.id)));
    let step = match reservation.is_commit {
        true => {
            holds.limit = holds.limit.ending_hold();
            (holds.hits, holds.reported) = (Hits::Take(hits.saturating_add(1)), true);
            ReservationStep::Commit
        }
        false => {
            holds.hits = Hits::Take(hits);
            ReservationStep::Hold
        }
    };
    if let Some(limited) = &mut limited {
        (limited.hits, limited.reported, limited.reservation) =
            (Hits::Take(hits), reservation.is_commit, step);
    }
    bound(limited.as_deref()?, holds, Some(worst))
}

/// The hits that a reservation holds, and the most that its call may cost; of a commit its cost. Where a hold is its own worst
/// case, that is 0.
fn hits_of(reservation: &Reservation<'_>, rule: &Rule, entries: &[Entry<'_>]) -> (u64, u32) {
    match &rule.held_costs {
        Some(costs) if !reservation.is_commit => {
            let worst = u32::try_from(reservation.hits).unwrap_or(u32::MAX).min(costs.said().max);
            (costs.hold(rule.learning_key(entries), worst).into(), worst)
        }
        _ => (reservation.hits, 0),
    }
}

/// The limit of holds that last no longer than the request says, of a call that costs no more than `worst`.
fn limit_of(holds: &Limit, ttl_nanos: Option<u64>, worst: u32) -> Limit {
    let Some(terms) = holds.hold_terms() else { return *holds };
    let ttl_nanos = ttl_nanos.map_or(terms.ttl_nanos, |ttl| terms.ttl_nanos.min(ttl));
    let own = HoldTerms { ttl_nanos, worst, ..terms };
    // To make a limit takes divisions, and most have the terms of their rule.
    if own == terms { *holds } else { Limit::holds(&own) }
}

/// The check that bounds the worst cases of a limit, if its holds need not be that: it asks for the hits of the request, or the
/// worst case of its call.
fn bound<'p>(limited: &Check<'p>, holds: &Check<'p>, worst: Option<u32>) -> Option<Check<'p>> {
    let terms = holds.limit.hold_terms().filter(|terms| terms.worst > 0)?;
    let Hits::Take(hits) = limited.hits else { return None };
    let hits = Hits::Take(worst.map_or(hits, u64::from));
    let limit = limited.limit.with_share(terms.share);
    (!limited.reported).then_some(Check { limit, hits, reservation: ReservationStep::Bound, ..*limited })
}

/// Leaves out what a reservation or its commit does not mean: a commit charges only limits with holds, and others what a
/// descriptor reports to them; and a counter that several descriptors name is held and charged once.
pub(super) fn keep_own(request: &Request<'_>, plan: &mut Plan<'_>) {
    let Some(reservation) = request.reservation() else { return };
    for place in plan.descriptors()..plan.steps.len() {
        let Some(hold) = held(&plan.steps[place]) else { continue };
        let is_held = plan.steps[plan.descriptors()..place].iter().any(|before| held(before) == Some(hold));
        if !is_held {
            continue;
        }
        // It says nothing more, in quota mode too.
        let descriptor = plan.descriptor_of(place);
        for place in [Some(place), Some(descriptor), plan.bound_of(descriptor)].into_iter().flatten() {
            if let Some(rule) = plan.steps[place].rule() {
                plan.steps[place] = Step::Unlimited(rule);
            }
        }
    }
    if !reservation.is_commit {
        return;
    }
    for place in 0..plan.steps.len() {
        // Both checks of a limit with holds are reported.
        if !matches!(&plan.steps[place], Step::Check(check) if check.reported) {
            plan.steps[place] = Step::Unmatched;
        }
    }
}

/// The hold that a step is about: its counter, and its name.
fn held(step: &Step<'_>) -> Option<(Key, Slot)> {
    match step {
        Step::Check(check) if check.limit.hold_terms().is_some() && check.hits != Hits::Take(0) => {
            let slot = check.limit.slot()?;
            Some((check.key, Slot { number: 0, ..slot }))
        }
        _ => None,
    }
}
