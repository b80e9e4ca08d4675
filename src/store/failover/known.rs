//! What this node can answer without asking Redis: hits that it holds a lease for, and what it remembers as over.
//!
//! In: a plan. Out: the verdicts at once, if every counter of the plan is known; else nothing, and nothing has changed.

use std::sync::atomic::Ordering::Relaxed;

use smallvec::smallvec;

use super::{SharedStore, SharedVerdicts, checks};
use crate::clock::{monotonic, since_boot};
use crate::engine::decision::Verdicts;
use crate::engine::plan::Plan;

impl SharedStore {
    /// Whether there may be anything that this node knows.
    pub fn remembers(&self) -> bool {
        self.options.over_bytes > 0 || self.leases.taken.load(Relaxed) > 0
    }

    /// The verdicts of a request all of whose counters this node knows.
    pub fn apply_known(&self, plan: &Plan<'_>) -> Option<SharedVerdicts> {
        let (now, leases_from) = (monotonic(), since_boot());
        let leased = |check| self.is_leased(check) && self.leases.has(check, leases_from);
        if !checks(plan).all(|(_, check)| self.over.knows(check, now) || leased(check)) {
            return None;
        }
        let mut verdicts: Verdicts = smallvec![None; plan.steps.len()];
        let held = self.hold(plan, leases_from, &mut verdicts);
        let remembered = self.remember(plan, now, &mut verdicts);
        if checks(plan).any(|(index, _)| verdicts[index].is_none()) {
            // Another worker was faster. What was held goes back to its leases.
            return None;
        }
        held.settle(plan, &mut verdicts);
        Some(SharedVerdicts { verdicts, remembered })
    }
}
