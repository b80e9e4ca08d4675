//! What may not happen, judged from outside: when clients asked, when they were answered, and what.
//!
//! A hit counts at some moment between its question and its answer. So the hits of a window are those whose question and
//! answer are both within it: whatever the moments were, there were as many.
//!
//! - Strict algorithms: never more than N in any window of W, N being the largest that was in force.
//! - Buckets: never more than `burst` and what drains meanwhile.
//! - Fixed windows: never more than N in an aligned window.
//! - Hits that were reported are charged whether they fit or not, but nothing is admitted on top of N. A report without an
//!   answer is sent again, and may count twice.
//! - What a server forgets may be admitted once more, and no more than that: all that it was asked before FLUSHALL, or
//!   what a replica lacked that takes over.
//! - `local`: every node may admit N alone while Redis is away, and again when it was restarted.
//! - A request that gives hits back takes what it was admitted out of every window. When a counter begins anew, all that was
//!   admitted before may be admitted once more.
//! - An exception is another N. While one lets everything pass, what is admitted beside it still fits into N.
//! - Nobody is denied hits for which there is room, whatever may have counted. What fails may leave hits that count
//!   longer than they should, but those of a call without an answer are done before its deadline or never.

mod record;
mod starved;

use std::collections::BTreeMap;

use smallvec::SmallVec;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use crate::redis::server::EPOCH_MICROS;
use crate::scenario::LimitSpec;
use crate::world::{MICRO, SECOND, Time};
pub use record::{Loss, Outcome, Record};
pub use starved::starved;

/// A message, and what a server takes.
const LATE: Time = SECOND / 100;

/// What all limits are judged with.
#[derive(Clone, Copy)]
pub struct Rules<'s> {
    /// The limits.
    pub limits: &'s [LimitSpec],
    /// How often a node was started: each time with no hits of its own.
    pub starts: u64,
    /// What servers forgot.
    pub losses: &'s [Loss],
    /// For so long after that hits may be spent that were leased before.
    pub lease_time: Time,
    /// How long a call waits for its answer at most.
    pub timeout: Time,
    /// Nothing fails, and no message is slow.
    pub is_calm: bool,
    /// Whatever servers may have lost counts as full: no denial is judged.
    pub denies_cold: bool,
}

impl Rules<'_> {
    /// How long after a loss hits are spent that were leased before.
    fn leased_for(&self, limit: &LimitSpec) -> Time {
        if limit.is_leased { self.lease_time + LATE } else { 0 }
    }
}

/// More than may be, in a window.
pub fn too_much(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    each_counter(records, |number, own| {
        let limit = &rules.limits[number];
        if limit.is_shadow {
            return None;
        }
        let counting: Vec<Record> = own.iter().copied().filter(Record::counts).collect();
        let is_own =
            |loss: &&Loss| loss.of.is_none_or(|of| own.first().is_some_and(|it| of == (number, it.key)));
        let losses: Vec<Loss> = rules.losses.iter().filter(is_own).copied().collect();
        let rules = &Rules { losses: &losses, ..*rules };
        let found = in_windows(rules, limit, &counting).or_else(|| on_top(rules, limit, &counting));
        found.or_else(|| in_spite(&counting))
    })
}

/// What a judge finds in the records of a counter, by the time at which they were asked.
fn each_counter(records: &[Record], judge: impl Fn(usize, &[Record]) -> Option<String>) -> Option<String> {
    let mut counters: BTreeMap<(usize, u64, u64, [Time; 2]), Vec<Record>> = BTreeMap::new();
    for it in records {
        let counter = (it.limit, it.key, it.epoch, [it.window, it.rule_window]);
        counters.entry(counter).or_default().push(*it);
    }
    counters.into_iter().find_map(|((limit, key, ..), mut own)| {
        own.sort_by_key(|it| it.asked);
        judge(limit, &own).map(|found| format!("limit {limit}, key {key}: {found}"))
    })
}

/// How many nodes, each as often as it was started, may admit N alone.
fn alone(rules: &Rules<'_>, limit: &LimitSpec) -> u64 {
    if limit.failure == StoreFailure::Local { rules.starts } else { 0 }
}

/// Hits of a window that servers may have forgotten: of each loss its sum, as they are added one after the other.
struct Forgotten<'r> {
    losses: SmallVec<[(&'r Loss, u64); 4]>,
    /// Those of a lease are spent until its end.
    later: Time,
}

impl<'r> Forgotten<'r> {
    fn none(rules: &Rules<'r>, limit: &LimitSpec) -> Self {
        let losses = rules.losses.iter().filter(|loss| loss.acknowledged).map(|loss| (loss, 0));
        Self { losses: losses.collect(), later: rules.leased_for(limit) }
    }

    fn add(&mut self, it: &Record) {
        for (loss, hits) in &mut self.losses {
            let is_in = it.answered >= loss.since && it.asked <= loss.until + self.later;
            *hits += if is_in { it.hits } else { 0 };
        }
    }

    /// How many these are, at most so many each time.
    fn hits(&self, most: u64) -> u64 {
        self.losses.iter().map(|&(_, hits)| most.min(hits)).sum()
    }
}

/// A window that holds too much.
fn in_windows(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record]) -> Option<String> {
    // What was reported may be beyond N: only what is admitted on top of it is judged.
    if limit.is_reported || limit.failure == StoreFailure::Allow {
        return None;
    }
    let window = own.first()?.window;
    let places = own.iter().enumerate();
    let mut windows = places.map(|(place, first)| (first.asked, &own[place..]));
    match limit.algorithm {
        Algorithm::SlidingLog | Algorithm::SlidingWindow => {
            windows.find_map(|(from, own)| too_many_until(rules, limit, own, (from, from + window)))
        }
        Algorithm::FixedWindow => windows.find_map(|(from, own)| {
            let end = from + window - (EPOCH_MICROS * MICRO + from) % window;
            too_many_until(rules, limit, own, (from, end))
        }),
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            windows.find_map(|(from, own)| too_fast(rules, limit, own, from))
        }
        Algorithm::SlidingWindowWeighted => None,
    }
}

/// More than N of these hits, which were asked in this order, that surely counted in a window.
fn too_many_until(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    own: &[Record],
    (from, end): (Time, Time),
) -> Option<String> {
    let within = own.iter().take_while(|it| it.asked < end).filter(|it| it.answered < end);
    // The last of these that was charged fitted into its own N together with all others.
    let n = within.clone().map(|it| u64::from(it.requests)).max()?;
    let most = n * (1 + alone(rules, limit));
    let hits: u64 = within.clone().map(|it| it.hits).sum();
    if hits <= most {
        return None;
    }
    let mut forgotten = Forgotten::none(rules, limit);
    within.for_each(|it| forgotten.add(it));
    let max = most + forgotten.hits(most);
    (hits > max).then(|| told(hits, max, from, end - from))
}

/// More of these hits than a bucket holds, and lets through meanwhile.
fn too_fast(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record], from: Time) -> Option<String> {
    let mut later: Vec<_> = own.iter().collect();
    later.sort_by_key(|it| it.answered);
    let (mut hits, mut forgotten) = (0, Forgotten::none(rules, limit));
    later.iter().find_map(|it| {
        hits += it.hits;
        forgotten.add(it);
        let elapsed = it.answered - from;
        let drained = limit.most() * elapsed / it.window + 1;
        let most = (limit.most() + drained) * (1 + alone(rules, limit));
        if hits <= most {
            return None;
        }
        let max = most + forgotten.hits(most);
        (hits > max).then(|| told(hits, max, from, elapsed))
    })
}

fn told(hits: u64, max: u64, from: Time, lasts: Time) -> String {
    format!("{hits} hits where at most {max} may be, in the {} us from {} us", lasts / MICRO, from / MICRO)
}

/// Something that was admitted where nothing may pass.
fn in_spite(own: &[Record]) -> Option<String> {
    let admitted = own.iter().find(|it| it.requests == 0 && !it.is_reported)?;
    Some(format!("request {} was admitted {} hits of none", admitted.request, admitted.hits))
}

/// Something that was admitted although what was surely there before left no room.
fn on_top(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record]) -> Option<String> {
    // A node that decides alone knows of nobody else's hits.
    let may_be_alone = matches!(limit.failure, StoreFailure::Allow | StoreFailure::Local);
    if !limit.algorithm.is_strict() || may_be_alone {
        return None;
    }
    own.iter().enumerate().filter(|(_, it)| !it.is_reported).find_map(|(place, it)| {
        let since = it.answered.saturating_sub(it.window);
        let first = own.partition_point(|other| other.asked <= since).min(place);
        let before = own[first..place].iter().filter(|other| other.answered < it.asked);
        let before: u64 = before.map(|other| other.hits).sum();
        // A lease was taken before others admitted what it is judged beside, by a larger N perhaps.
        let max = if limit.is_leased { limit.most() } else { u64::from(it.requests) };
        let later = rules.leased_for(limit);
        let forgot = rules.losses.iter().any(|loss| loss.since <= it.answered && loss.until + later >= since);
        (!forgot && before + it.hits > max).then(|| {
            format!(
                "request {} was admitted {} hits at {} us, though {before} of {max} were there",
                it.request,
                it.hits,
                it.answered / MICRO
            )
        })
    })
}

#[cfg(test)]
mod tests;
