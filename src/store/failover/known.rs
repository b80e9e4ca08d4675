//! What this node can answer without asking Redis: hits that it holds a lease for, and what it remembers as over.
//!
//! In: a plan. Out: the verdicts at once, if every counter of the plan is known; else nothing, and no hit is spent.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use smallvec::{SmallVec, smallvec};

use super::{SharedStore, SharedVerdicts, checks};
use crate::clock::{monotonic, since_boot};
use crate::engine::decision::Verdicts;
use crate::engine::plan::{Check, Plan};

/// A moment by both clocks: what is over ends by the one, leases end by the other.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    monotonic: Instant,
    since_boot: Duration,
}

impl Moment {
    /// Now.
    pub fn now() -> Self {
        Self { monotonic: monotonic(), since_boot: since_boot() }
    }
}

impl SharedStore {
    /// Whether there may be anything that this node knows.
    pub fn remembers(&self) -> bool {
        self.options.over_bytes > 0 || self.leases.taken.load(Relaxed) > 0
    }

    /// The verdicts of a request all of whose counters this node knows.
    pub fn apply_known(&self, plan: &Plan<'_>, now: Moment) -> Option<SharedVerdicts> {
        let mut all = checks(plan);
        match (all.next(), all.next()) {
            (Some((index, check)), None) => self.know_one(plan, index, check, now),
            _ => self.know_all(plan, now),
        }
    }

    /// The same for a request that asks one counter: nothing has to be settled.
    fn know_one(
        &self,
        plan: &Plan<'_>,
        index: usize,
        check: &Check<'_>,
        now: Moment,
    ) -> Option<SharedVerdicts> {
        let leased = if self.is_leased(check) { self.leases.spend(check, now.since_boot) } else { None };
        let mut remembered = SmallVec::new();
        let verdict = leased.or_else(|| {
            remembered.push(index);
            self.over.answer(check, now.monotonic)
        })?;
        let mut verdicts: Verdicts = smallvec![None; plan.steps.len()];
        verdicts[index] = Some(verdict);
        Some(SharedVerdicts { verdicts, remembered })
    }

    fn know_all(&self, plan: &Plan<'_>, now: Moment) -> Option<SharedVerdicts> {
        let leased = |check| self.is_leased(check) && self.leases.has(check, now.since_boot);
        if !checks(plan).all(|(_, check)| self.over.knows(check, now.monotonic) || leased(check)) {
            return None;
        }
        let mut verdicts: Verdicts = smallvec![None; plan.steps.len()];
        let held = self.hold(plan, now.since_boot, &mut verdicts);
        let remembered = self.remember(plan, now.monotonic, &mut verdicts);
        if checks(plan).any(|(index, _)| verdicts[index].is_none()) {
            // Another worker was faster. What was held goes back to its leases.
            return None;
        }
        held.settle(plan, &mut verdicts);
        Some(SharedVerdicts { verdicts, remembered })
    }
}
