//! How much of what was answered is judged.

use super::bans::census_of_bans;
use super::holds::census_of_holds;
use super::slots::census_of_slots;
use super::{Counter, Outcome, Record, Release, Rules, before};
use crate::scenario::LimitSpec;
use tidegate_engine::rules::StoreFailure;

/// Descriptors of requests that had an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// All of them.
    pub answered: u64,
    /// Those whose answer has to be right: it would have been a fault to admit them more, or to deny them; or they were
    /// denied for a cause that is seen.
    pub judged: u64,
    /// The same two numbers of those with classes of importance.
    pub of_classes: [u64; 2],
    /// And of those with slots.
    pub of_slots: [u64; 2],
    /// And of denials by bans.
    pub of_bans: [u64; 2],
    /// And of reservations.
    pub of_holds: [u64; 2],
}

impl Census {
    /// Adds those of another run.
    pub fn add(&mut self, other: Self) {
        self.answered += other.answered;
        self.judged += other.judged;
        self.of_slots.iter_mut().zip(other.of_slots).for_each(|(sum, more)| *sum += more);
        self.of_holds.iter_mut().zip(other.of_holds).for_each(|(sum, more)| *sum += more);
        self.of_bans.iter_mut().zip(other.of_bans).for_each(|(sum, more)| *sum += more);
        self.of_classes.iter_mut().zip(other.of_classes).for_each(|(sum, more)| *sum += more);
    }

    /// The share that was judged, in percent.
    pub fn percent(&self) -> u64 {
        100 * self.judged / self.answered.max(1)
    }
}

/// How many of these are judged. `counters`: those of the records.
pub fn census(rules: &Rules<'_>, counters: &[Counter], records: &[Record], releases: &[Release]) -> Census {
    let mut census = Census::default();
    // What is judged only because nodes know of losses is left out.
    let rules = &Rules { knows_losses: false, ..*rules };
    for Counter { limit, own, counting, .. } in counters {
        let limit = &rules.limits[*limit];
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
            census.answered += 1;
            census.judged += u64::from(is_judged);
            if limit.shape.classes.is_some() {
                census.of_classes[0] += 1;
                census.of_classes[1] += u64::from(is_judged);
            }
        }
    }
    census.of_bans = census_of_bans(rules, records);
    census.of_slots = census_of_slots(rules, records, releases);
    census.of_holds = census_of_holds(rules, records);
    for [answered, judged] in [census.of_slots, census.of_holds] {
        census.answered += answered;
        census.judged += judged;
    }
    census
}

/// Whether a denial has a cause that is seen: what was surely there left no room, the counter is cold, or the node had no answer
/// and its rule denies then.
fn has_cause(rules: &Rules<'_>, limit: &LimitSpec, counting: &[Record], it: &Record) -> bool {
    let is_full = || {
        let before = before(rules, limit, counting, it);
        before.is_some_and(|before| before + it.hits.max(1) > limit.capacity(it.requests, it.share))
    };
    let is_refused = limit.failure == StoreFailure::Deny && rules.is_alone(limit, it);
    it.requests == 0 || is_refused || rules.is_cold(limit, it) || is_full()
}
