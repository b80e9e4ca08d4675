//! Explanations: each has to say what an answer might have said, and charges nothing.
//!
//! In: what explanations said of counters, as if they had been asked, and the records of all counters. Out: the first that says there
//! is room where there surely was none, or none where there surely was some, or less than was left.

use tidegate_engine::rules::StoreFailure;

use super::starved::Counted;
use super::{Counter, Outcome, Record, Release, Rules, early, holds, room, slots};

/// An explanation that is wrong.
pub fn wrong_explanations(
    rules: &Rules<'_>,
    counters: &[Counter],
    asked: (&[Record], &[Release]),
    explained: &[Record],
) -> Option<String> {
    explained.iter().find_map(|it| {
        let (limit, named) = (&rules.limits[it.limit], |found: String| {
            format!("an explanation of limit {}, key {}: {found}", it.limit, it.key)
        });
        // What the same request asks of the key counts for it, or not.
        let is_with = |other: &&Record| {
            !std::ptr::eq(*other, it)
                && (other.node, other.asked) == (it.node, it.asked)
                && other.is_of_key(it)
        };
        let unknown = |other: &Record| Record { outcome: Outcome::Unknown, ..*other };
        let others: Vec<Record> = explained.iter().filter(is_with).map(unknown).collect();
        let found = match limit.shape.reserve {
            _ if limit.is_slots() => slots::wrong_explanation(rules, asked, (it, &others)),
            Some(_) => holds::wrong_explanation(rules, asked.0, (it, &others)),
            None => wrong(rules, &Counter::of(counters, it), (it, &others)),
        };
        found.map(named)
    })
}

fn wrong(rules: &Rules<'_>, counter: &Counter, (it, others): (&Record, &[Record])) -> Option<String> {
    let (limit, asked) = (&rules.limit_of(it), std::slice::from_ref(it));
    let strict = &Rules { losses: rules.losses_of(limit, asked), ..*rules };
    let there = counter.there(rules, limit);
    let is_early = || match limit.failure {
        // Nobody knows which hits that nodes admitted alone were at Redis by then.
        StoreFailure::Local => None,
        _ => early::too_early(rules, limit, asked, &there),
    };
    let place = counter.own.partition_point(|other| other.asked < it.asked);
    let mut with = counter.clone();
    with.own.splice(place..place, asked.iter().chain(others).copied());
    let counted = Counted::of(rules, limit, &with);
    let leaves_too_little = || if limit.is_leased { None } else { counted.leaves_too_little(place) };
    room::on_top(strict, limit, asked, &there)
        .or_else(|| room::in_spite(limit, asked))
        .or_else(is_early)
        .or_else(|| counted.denied_with_room(place))
        .or_else(leaves_too_little)
}
