//! Denials that a node remembers: it asks Redis again after a while.
//!
//! In: what was asked of a counter. Out: the first denial without a question to Redis that no answer of Redis explains which the
//! node had lately. Only of leased counters that time is bounded: other nodes give back what they do not spend.

use super::{LATE, Outcome, Record, Rules};
use crate::scenario::LimitSpec;
use crate::world::{MICRO, Time};

/// A node remembers a denial of a leased counter for so many lease times.
const LEASE_TIMES: Time = 10;

/// A denial of a leased counter that was remembered for too long.
pub(super) fn too_long(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record]) -> Option<String> {
    if !limit.is_leased {
        return None;
    }
    let lasts = LEASE_TIMES * rules.lease_time + LATE;
    let is_remembered = |it: &Record| {
        let is_over = it.outcome == Outcome::Denied { over: true } && it.requests > 0;
        is_over && it.answered == it.asked && !rules.is_alone(limit, it)
    };
    own.iter().enumerate().filter(|(_, it)| is_remembered(it)).find_map(|(place, it)| {
        // A client may have gone away that had an answer.
        let explains = |other: &Record| {
            let is_lately = other.node == it.node && other.answered + lasts >= it.asked;
            is_lately && other.answered > other.asked && other.outcome != Outcome::Admitted
        };
        (!own[..place].iter().rev().any(explains)).then(|| {
            format!(
                "request {} was denied at {} us, though its node had no such answer for long",
                it.request,
                it.asked / MICRO
            )
        })
    })
}
