//! Explanations: each has to say what an answer might have said, and charges nothing.
//!
//! In: what explanations said of counters, as if they had been asked, and the records of all counters. Out: the first that says there
//! is room where there surely was none, or none where there surely was some, or less than was left.

use tidegate_engine::rules::StoreFailure;

use super::starved::Counted;
use super::{Counter, Record, Release, Rules, early, holds, room, slots};

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
        if limit.is_slots() {
            return slots::wrong_explanation(rules, asked, it).map(named);
        }
        if limit.shape.reserve.is_some() {
            return holds::wrong_explanation(rules, asked.0, it).map(named);
        }
        let nobody = Counter { limit: it.limit, key: it.key, own: Vec::new(), counting: Vec::new() };
        let is_asked = |counter: &&Counter| counter.own.first().is_some_and(|own| own.is_of_counter(it));
        let counter = counters.iter().find(is_asked).unwrap_or(&nobody);
        wrong(rules, counter, it).map(named)
    })
}

fn wrong(rules: &Rules<'_>, counter: &Counter, it: &Record) -> Option<String> {
    let (limit, asked) = (&rules.limit_of(it), std::slice::from_ref(it));
    let strict = &Rules { losses: rules.losses_of(limit, asked), ..*rules };
    let there = counter.there(rules, limit);
    let is_early = || match limit.failure {
        // Nobody knows which hits that nodes admitted alone were at Redis by then.
        StoreFailure::Local => None,
        _ => early::too_early(rules, limit, asked, &there),
    };
    let place = counter.own.partition_point(|other| other.asked < it.asked);
    let mut own = counter.own.clone();
    own.insert(place, *it);
    let counted = Counted::new(rules, limit, (&own, &counter.counting));
    let leaves_too_little = || if limit.is_leased { None } else { counted.leaves_too_little(place) };
    room::on_top(strict, limit, asked, &there)
        .or_else(|| room::in_spite(limit, asked))
        .or_else(is_early)
        .or_else(|| counted.denied_with_room(place))
        .or_else(leaves_too_little)
}
