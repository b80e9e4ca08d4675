//! What this node can answer without asking Redis: from its leases, and from the deny cache.
//!
//! In: a plan. Out: the verdicts, if the node knows all counters of the plan. Otherwise no verdict counts, and no
//! hit is spent.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::strikes::is_spared;
use super::{Applied, SharedStore, checks};
use crate::runtime::Runtime;
use tidegate_engine::plan::{Check, Plan};

/// A moment by both clocks: entries of the deny cache end by one, leases by the other.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    monotonic: Instant,
    since_boot: Duration,
}

impl<R: Runtime> SharedStore<R> {
    /// The moment of a reading of the monotonic clock just now.
    pub fn moment(&self, monotonic: Instant) -> Moment {
        Moment { monotonic, since_boot: self.runtime.since_boot() }
    }

    /// Whether the node can answer for any counter.
    pub fn remembers(&self) -> bool {
        self.options.deny_cache_bytes > 0 || self.leases.taken.load(Relaxed) > 0
    }

    /// Whether this node can answer for all counters of a request. It never can with a candidate. Fills `applied` in
    /// place to avoid a large move.
    pub fn apply_known(&self, plan: &Plan<'_>, now: Moment, applied: &mut Applied) -> bool {
        applied.remembered.clear();
        applied.verdicts.clear();
        applied.verdicts.resize(plan.places(), None);
        if !plan.candidates.is_empty() {
            return false;
        }
        let mut all = checks(plan);
        match (all.next(), all.next()) {
            (Some((index, check)), None) => self.know_one(index, check, now, applied),
            _ => self.know_all(plan, now, applied),
        }
    }

    /// Like [`know_all`](Self::know_all), for a request of one counter: nothing has to be settled. Without it a call that a
    /// lease answers takes 7 % more instructions (`tests/instructions/run`).
    fn know_one(&self, index: usize, check: &Check<'_>, now: Moment, applied: &mut Applied) -> bool {
        let Applied { verdicts, remembered } = applied;
        verdicts[index] = if self.is_leased(check) { self.leases.spend(check, now.since_boot) } else { None };
        if verdicts[index].is_none() {
            verdicts[index] = self.deny_cache.answer(check, now.monotonic);
            remembered.push(index);
        }
        verdicts[index].is_some()
    }

    fn know_all(&self, plan: &Plan<'_>, now: Moment, applied: &mut Applied) -> bool {
        let leased = |check| self.is_leased(check) && self.leases.has(check, now.since_boot);
        let knows = |check: &Check<'_>| self.deny_cache.knows(check, now.monotonic);
        if !checks(plan).all(|(place, check)| knows(check) || leased(check) || is_spared(plan, place, knows))
        {
            return false;
        }
        let Applied { verdicts, remembered } = applied;
        let held = self.hold(plan, now.since_boot, verdicts);
        *remembered = self.remember(plan, now.monotonic, verdicts);
        if checks(plan).any(|(index, _)| verdicts[index].is_none()) {
            // Another worker was faster. The held hits go back to their leases.
            return false;
        }
        held.settle(plan, verdicts);
        true
    }
}
