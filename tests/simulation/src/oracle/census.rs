//! How much of what was answered is judged.

use tidegate_engine::rules::StoreFailure;

use super::bans::census_of_bans;
use super::holds::census_of_holds;
use super::slots::census_of_slots;
use super::{Counter, Outcome, Record, Release, Rules, before};
use crate::scenario::LimitSpec;

/// How many answers there were, and how many of them are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All of them.
    pub answered: u64,
    /// Those that have to be right: it would have been a fault to admit them more, or to deny them; or they were denied for a
    /// cause that is seen.
    pub judged: u64,
}

impl Tally {
    /// Counts so many answers, which have to be right or not.
    pub(super) fn count(&mut self, answers: u64, is_judged: bool) {
        self.answered += answers;
        self.judged += if is_judged { answers } else { 0 };
    }

    /// Adds those of another run.
    fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.judged += other.judged;
    }

    /// The share that was judged, in percent.
    pub fn percent(&self) -> u64 {
        100 * self.judged / self.answered.max(1)
    }
}

/// Descriptors of requests that had an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// All of them.
    pub all: Tally,
    /// Those with classes of importance.
    pub of_classes: Tally,
    /// Those with slots.
    pub of_slots: Tally,
    /// Denials by bans.
    pub of_bans: Tally,
    /// Reservations.
    pub of_holds: Tally,
}

impl Census {
    /// Adds those of another run.
    pub fn add(&mut self, other: Self) {
        self.all.add(other.all);
        self.of_classes.add(other.of_classes);
        self.of_slots.add(other.of_slots);
        self.of_bans.add(other.of_bans);
        self.of_holds.add(other.of_holds);
    }
}

/// How many of these are judged. `counters`: those of the records.
pub fn census(rules: &Rules<'_>, counters: &[Counter], records: &[Record], releases: &[Release]) -> Census {
    let mut census = Census::default();
    // What is judged only because nodes know of losses is left out.
    let rules = &Rules { knows_losses: false, ..*rules };
    for Counter { own, counting, .. } in counters {
        let limit = &rules.limit_of(&own[0]);
        for it in own {
            let is_judged = match it.outcome {
                Outcome::Unknown => continue,
                Outcome::Admitted => rules.judges(limit, it),
                Outcome::Denied { over: true } => {
                    rules.explains(limit, it) || has_cause(rules, limit, counting, it)
                }
                // Another counter of the request denied it: that is judged.
                Outcome::Denied { over: false } => true,
            };
            census.all.count(1, is_judged);
            if limit.shape.classes.is_some() {
                census.of_classes.count(1, is_judged);
            }
        }
    }
    census.of_bans = census_of_bans(rules, records);
    census.of_slots = census_of_slots(rules, records, releases);
    census.of_holds = census_of_holds(rules, records);
    census.all.add(census.of_slots);
    census.all.add(census.of_holds);
    census
}

/// Whether a denial has a cause that is seen: what was surely there left no room, the counter is cold, or the node had no answer
/// and its rule denies then.
fn has_cause(rules: &Rules<'_>, limit: &LimitSpec, counting: &[Record], it: &Record) -> bool {
    let is_full = || {
        let before = before(rules, limit, counting, it);
        before.is_some_and(|before| before + it.hits.max(1) > it.capacity(limit))
    };
    let is_refused = limit.failure == StoreFailure::Deny && rules.is_alone(limit, it);
    it.requests == 0 || is_refused || rules.is_cold(limit, it) || is_full()
}
