//! Denials that a node remembers: it asks Redis again after a while.
//!
//! In: what was asked of a counter. Out: the first denial without a question to Redis that no answer of Redis explains which the
//! node had before, for the same class of importance. Of leased counters that answer is not old: other nodes give back what they do
//! not spend.

use super::{LATE, Outcome, Record, Rules};
use crate::scenario::LimitSpec;
use crate::world::{MICRO, Time};

/// A node remembers a denial of a leased counter for so many lease times.
pub(super) const LEASE_TIMES: Time = 10;

/// A denial that was remembered for too long, or was one of another class.
pub(super) fn too_long(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record]) -> Option<String> {
    let remembers_classes = rules.remembers_denials && limit.shape.classes.is_some();
    if !limit.is_leased && !remembers_classes {
        return None;
    }
    let lasts = if limit.is_leased { LEASE_TIMES * rules.lease_time + LATE } else { Time::MAX };
    let is_remembered = |it: &Record| it.is_over() && it.answered == it.asked && !rules.is_alone(limit, it);
    own.iter().enumerate().filter(|(_, it)| is_remembered(it)).find_map(|(place, it)| {
        // A client may have gone away that had an answer.
        let explains = |other: &Record| {
            let is_lately = other.answered.saturating_add(lasts) >= it.asked;
            let is_of_node = other.node == it.node && other.share == it.share;
            is_lately && is_of_node && other.answered > other.asked && other.outcome != Outcome::Admitted
        };
        (!own[..place].iter().rev().any(explains)).then(|| {
            format!(
                "request {} was denied at {} us, though its node had no such answer lately",
                it.request,
                it.asked / MICRO
            )
        })
    })
}
