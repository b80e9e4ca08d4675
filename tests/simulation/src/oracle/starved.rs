//! Denials for which there was no reason.
//!
//! In: the records of all counters. Out: the first that was denied hits for which there was room, whatever may have counted.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::{LATE, Outcome, Record, Rules, each_counter};
use crate::scenario::LimitSpec;
use crate::world::{MICRO, Time};

impl Rules<'_> {
    /// Whether every denial by this limit can be explained from outside.
    fn explains(&self, limit: &LimitSpec) -> bool {
        // A log has N times at most: what is reported beyond them moves the newest one. What is reported while Redis
        // is away fills a bucket later.
        let moves_times = limit.is_reported && (limit.algorithm == Algorithm::SlidingLog || !self.is_calm);
        !self.denies_cold
            && limit.failure == StoreFailure::Error
            && !moves_times
            && !limit.is_leased
            && !limit.is_shadow
            && limit.excepted.is_none()
            && limit.recorded.is_none()
            && limit.requests[0] == limit.requests[1]
    }
}

/// A denial though there was room for the hits, whatever may have counted.
pub fn starved(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    each_counter(records, |number, own| {
        let limit = &rules.limits[number];
        let is_judged = rules.explains(limit);
        let denied = own.iter().filter(|it| it.is_plain && it.outcome == Outcome::Denied { over: true });
        denied.filter(|_| is_judged).find_map(|it| {
            let others = own.iter().filter(|other| other.request != it.request && other.asked <= it.answered);
            let others = others.filter(|other| {
                other.may_count_until(rules.is_calm).is_some_and(|until| until >= it.asked)
            });
            let (most, wanted) = (u64::from(it.requests), it.hits.max(1));
            let there = match limit.algorithm {
                Algorithm::SlidingLog | Algorithm::SlidingWindow => {
                    // A bucket counts as a whole, and is a sixtieth of the window at most.
                    let since = it.asked.saturating_sub(it.window + it.window / 60 + LATE);
                    let others = others.filter(|other| other.charged_until(rules.timeout) >= since);
                    others.map(Record::hits_at_most).sum()
                }
                // What is there is rounded up.
                Algorithm::TokenBucket | Algorithm::LeakyBucket => 1 + level(rules, limit, others, it),
                Algorithm::FixedWindow | Algorithm::SlidingWindowWeighted => return None,
            };
            (there + wanted <= most).then(|| {
                format!(
                    "request {} was denied {wanted} hits at {} us, though at most {there} of {most} were there",
                    it.request,
                    it.answered / MICRO
                )
            })
        })
    })
}

/// The most that may be in a bucket when this one is asked for.
fn level<'r>(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    others: impl Iterator<Item = &'r Record>,
    it: &Record,
) -> u64 {
    let charged = |other: &Record| other.charged_until(rules.timeout).min(it.asked);
    let mut others: Vec<_> = others.map(|other| (charged(other), other.hits_at_most())).collect();
    others.sort_unstable();
    let (mut level, mut since) = (0.0_f64, 0);
    let drained = |elapsed: Time| elapsed as f64 * f64::from(limit.requests[0]) / it.window as f64;
    for (at, hits) in others {
        level = (level - drained(at - since)).max(0.0) + hits as f64;
        since = at;
    }
    (level - drained(it.asked - since)).max(0.0).ceil() as u64
}
