//! How much a reservation holds where the rule says `hold`: a percentile of what calls have cost, as commits said.
//!
//! Costs are counted in buckets of an eighth of a power of two: what is held is at most an eighth more than the percentile. When
//! a counter has seen a few thousand, all buckets are halved, so old costs are forgotten. No promise depends on what is learnt:
//! it is bounded by `max`, each node learns by itself, and a restart begins again.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::quality::FixedState;
use hashbrown::HashMap;

use crate::key::Key;
use crate::limit::Found;
use crate::sync::{AtomicU64, Mutex};

/// A percentile is known after this many commits.
const ENOUGH: u32 = 20;
/// At this many, all buckets are halved.
const MANY: u32 = 4_000;
/// Counters of all rules that learn by themselves, half a kilobyte each. Of all others, the costs of the rule are used.
pub const COUNTERS_MAX: usize = 10_000;
/// Buckets: each cost below 16 has one, then there are 8 for each power of two.
const BUCKETS: usize = 239;

crate::named! {
    /// Whose costs a hold is learnt from. Names are those of rule files.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum CostsOf {
        /// Those of all counters of the rule.
        #[default]
        Rule = "rule",
        /// Those of the counter itself.
        Counter = "counter",
    }
}

/// `hold` of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct HoldSize {
    pub percentile: u32,
    pub of: CostsOf,
    pub initial: u32,
    pub max: u32,
}

/// As rules write it, without `max`, which is one of the terms of the holds.
impl fmt::Display for HoldSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { percentile, of, initial, .. } = self;
        write!(out, "percentile: {percentile}, of: {}, initial: {initial}", of.name())
    }
}

/// `hold` of a rule, and what was learnt. Clones learn together.
#[derive(Clone, Debug)]
pub struct HeldCosts {
    said: HoldSize,
    /// How many of its counters learn by themselves.
    counters_max: usize,
    learnt: Arc<Learnt>,
}

#[derive(Debug, Default)]
struct Learnt {
    of_rule: Mutex<Costs>,
    of_counters: Mutex<HashMap<Key, Box<Costs>, FixedState>>,
    above_hold: AtomicU64,
    above_max: AtomicU64,
}

/// What was learnt, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldCostsTotal {
    /// What is held now of a counter that has learnt nothing by itself.
    pub hold: u32,
    /// Commits of a cost above what was held at that time.
    pub above_hold: u64,
    /// Commits of a cost above `max`: what they cost beyond it may be beyond the limit and its overdraft.
    pub above_max: u64,
}

impl HeldCosts {
    /// With what a rule says.
    pub fn new(said: HoldSize) -> Self {
        Self { said, counters_max: COUNTERS_MAX, learnt: Arc::default() }
    }

    /// Gives each of these rules an equal part of the counters that may learn by themselves.
    pub(crate) fn share_counters<'a>(rules: impl Iterator<Item = &'a mut Self>) {
        let learning: Vec<_> = rules.filter(|costs| costs.said.of == CostsOf::Counter).collect();
        let each = COUNTERS_MAX / learning.len().max(1);
        learning.into_iter().for_each(|costs| costs.counters_max = each);
    }

    /// What the rule says.
    pub fn said(&self) -> HoldSize {
        self.said
    }

    /// How much to hold for a call of this counter that costs no more than `worst`.
    pub fn hold(&self, key: Key, worst: u32) -> u32 {
        self.learnt_hold(key).min(worst)
    }

    fn learnt_hold(&self, key: Key) -> u32 {
        let own = || self.learnt.of_counters.lock().get_mut(&key)?.percentile(self.said.percentile);
        let own = if self.said.of == CostsOf::Counter { own() } else { None };
        own.map_or_else(|| self.hold_of_rule(), |hold| hold.min(self.said.max))
    }

    fn hold_of_rule(&self) -> u32 {
        let learnt = self.learnt.of_rule.lock().percentile(self.said.percentile);
        learnt.unwrap_or(self.said.initial).min(self.said.max)
    }

    /// Learns from a commit of this counter, given what it found: each call once. A cost of 0 is that of a call which did not
    /// happen.
    pub fn learn(&self, key: Key, cost: u64, found: Found) {
        if cost == 0 || !matches!(found, Found::Open | Found::Expired(_)) {
            return;
        }
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        if cost > self.learnt_hold(key) {
            self.learnt.above_hold.fetch_add(1, Relaxed);
        }
        if cost > self.said.max {
            self.learnt.above_max.fetch_add(1, Relaxed);
        }
        self.learnt.of_rule.lock().count(cost);
        if self.said.of == CostsOf::Counter {
            let mut counters = self.learnt.of_counters.lock();
            if counters.len() < self.counters_max || counters.contains_key(&key) {
                counters.entry(key).or_default().count(cost);
            }
        }
    }

    /// What was learnt.
    pub fn total(&self) -> HeldCostsTotal {
        HeldCostsTotal {
            hold: self.hold_of_rule(),
            above_hold: self.learnt.above_hold.load(Relaxed),
            above_max: self.learnt.above_max.load(Relaxed),
        }
    }

    /// Continues with what the same rule learnt before a reload.
    pub(crate) fn go_on_from(&mut self, before: &Self) {
        self.learnt = Arc::clone(&before.learnt);
    }
}

/// Costs that were seen.
#[derive(Debug)]
struct Costs {
    buckets: [u16; BUCKETS],
    seen: u32,
    /// The last percentile that was asked for, until another cost is seen.
    known: Option<(u32, u32)>,
}

impl Default for Costs {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], seen: 0, known: None }
    }
}

impl Costs {
    fn count(&mut self, cost: u32) {
        self.known = None;
        if self.seen == MANY {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
            self.seen = self.buckets.iter().map(|&count| u32::from(count)).sum();
        }
        self.buckets[bucket_of(cost)] += 1;
        self.seen += 1;
    }

    /// A number that so many of a hundred costs did not exceed. `None`: too few were seen.
    fn percentile(&mut self, percentile: u32) -> Option<u32> {
        if self.seen < ENOUGH {
            return None;
        }
        if let Some((_, cost)) = self.known.filter(|known| known.0 == percentile) {
            return Some(cost);
        }
        let wanted = (self.seen * percentile).div_ceil(100);
        let mut below = 0;
        let bucket = self.buckets.iter().position(|&count| {
            below += u32::from(count);
            below >= wanted
        });
        let cost = most_of(bucket.unwrap_or(BUCKETS - 1));
        self.known = Some((percentile, cost));
        Some(cost)
    }
}

/// The bucket of a cost of 1 or more.
fn bucket_of(cost: u32) -> usize {
    let cost = cost.max(1);
    let octave = cost.ilog2().max(3) - 3;
    ((octave * 8) + (cost >> octave)) as usize - 1
}

/// The greatest cost of a bucket.
fn most_of(bucket: usize) -> u32 {
    let octave = ((bucket + 1) / 8).saturating_sub(1) as u32;
    let eighths = bucket as u64 + 1 - u64::from(octave) * 8;
    u32::try_from(((eighths + 1) << octave) - 1).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_an_eighth_wide_and_hold_each_cost_once() {
        for cost in (1..5_000).chain([u32::MAX / 2, u32::MAX - 1, u32::MAX]) {
            let bucket = bucket_of(cost);
            assert!(most_of(bucket) >= cost, "{cost}");
            assert!(bucket == 0 || most_of(bucket - 1) < cost, "{cost}");
            assert!(u64::from(most_of(bucket)) * 8 <= u64::from(cost) * 9, "{cost}");
        }
        assert_eq!(bucket_of(u32::MAX), BUCKETS - 1);
    }
}
