//! The calls that a request names, where a rule with `concurrency` counts them.
//!
//! In: a request and its plan. Out: one slot for each call of the plan, or what is wrong with the id of one.

use std::error::Error;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::key::Key;
use crate::limit::Slot;
use crate::plan::{Check, Hits, Plan, Step};
use crate::request::{ID_BYTES_MAX, Request};

/// A text that is no id of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadCallId {
    descriptor: usize,
    /// The key of the entry.
    key: Arc<str>,
    what: String,
}

impl fmt::Display for BadCallId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "descriptor {}: {}: {}", self.descriptor, self.key, self.what)
    }
}

impl Error for BadCallId {}

/// Checks the ids by which a request takes, releases or renews slots.
/// Fails for the first that is too long or has a control character: it would be no fault of the counter, so the
/// request has to be refused before anything is counted.
pub(super) fn check_ids(request: &Request<'_>, plan: &Plan<'_>) -> Result<(), BadCallId> {
    for ((place, step), asked) in plan.steps.iter().enumerate().zip(plan.descriptors_of(request)) {
        let Step::Check(check) = step else { continue };
        let Some(rule) = check.origin.rule().filter(|rule| rule.call_id.is_some()) else { continue };
        if check.limit.slot().is_none() && !asked.options.renews {
            continue;
        }
        let id = rule.trailing(asked.entries).unwrap_or_default();
        let is_no_token = asked.options.renews && Slot::from_token(id).is_none();
        let what = if id.len() > ID_BYTES_MAX {
            format!("an id of {} bytes is too long (at most {ID_BYTES_MAX})", id.len())
        } else if id.contains(char::is_control) {
            "an id with a control character (expected none)".to_owned()
        } else if is_no_token {
            "the slot to renew is not named by its token (expected 32 hexadecimal digits)".to_owned()
        } else {
            continue;
        };
        let descriptor = plan.descriptor_of(place);
        return Err(BadCallId { descriptor, key: rule.call_id.clone().unwrap_or_default(), what });
    }
    Ok(())
}

/// Makes those checks that would take the slot of an earlier one ask for nothing: a call holds one slot of a counter,
/// however many descriptors of its request name it.
pub(super) fn take_once(plan: &mut Plan<'_>) {
    for place in 1..plan.steps.len() {
        let Some(slot) = taken(&plan.steps[place]) else { continue };
        let is_taken = plan.steps[..place].iter().any(|before| taken(before) == Some(slot));
        if let Step::Check(check) = &mut plan.steps[place]
            && is_taken
        {
            check.hits = Hits::Take(0);
        }
    }
}

/// The slot that a step takes: its counter, and its call.
fn taken(step: &Step<'_>) -> Option<(Key, NonZeroU64)> {
    match step {
        Step::Check(Check { key, limit, hits: Hits::Take(1), .. }) => Some((*key, limit.slot()?.id)),
        _ => None,
    }
}
