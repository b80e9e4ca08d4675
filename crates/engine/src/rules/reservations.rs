//! Reservations: what a request that reserves, or commits what it reserved, asks of rules with `reserve`.
//!
//! In: the check of a rule's limit, that of its holds, and a request. Out: both checks, made to hold hits, to end a hold and
//! charge its cost, or to look at what others hold.

use crate::key::Key;
use crate::limit::{HoldTerms, Limit, Slot};
use crate::plan::{Check, Hits, Plan, ReservationStep, Step};
use crate::request::Request;
use crate::rule::Rule;

/// Makes the checks of a limit and of its holds those of this request's reservation. Without one, the holds only look.
pub(super) fn reserve(
    request: &Request<'_>,
    rule: &Rule,
    limited: Option<&mut Check<'_>>,
    holds: &mut Check<'_>,
) {
    (holds.hits, holds.reported) = (Hits::Take(0), false);
    let Some(reservation) = request.reservation() else { return };
    let hits = reservation.hits;
    holds.limit = limit_of(&holds.limit, reservation.ttl_nanos).for_slot(rule.new_slot(Some(reservation.id)));
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
    if let Some(limited) = limited {
        (limited.hits, limited.reported, limited.reservation) =
            (Hits::Take(hits), reservation.is_commit, step);
    }
}

/// The limit of holds that last no longer than the request says.
fn limit_of(holds: &Limit, ttl_nanos: Option<u64>) -> Limit {
    let terms = holds.hold_terms().zip(ttl_nanos);
    terms.map_or(*holds, |(terms, ttl)| {
        Limit::holds(&HoldTerms { ttl_nanos: terms.ttl_nanos.min(ttl), ..terms })
    })
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
        for place in [place, plan.descriptor_of(place)] {
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
