//! What is charged: decided once for the whole request, from the plan and from what every counter says before
//! anything is charged. All or nothing; every store follows these functions.

use crate::limit::Algorithm;
use crate::plan::{Check, Hits, Plan, Step};

/// What was decided for a whole request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The overall code, before the process's own shadow mode, is OK.
    pub passes: bool,
    /// Fixed windows that are not over themselves are not charged.
    stop_increment: bool,
}

/// Decides for the request, given what the counter of step i says (asked once for every [`Step::Check`], in order).
///
/// The request passes unless a descriptor is over that is in neither shadow nor quota mode, or there are quota-mode
/// descriptors and all of them are over. A rule in both modes is a quota-mode descriptor that passed.
pub fn settle(plan: &Plan<'_>, mut over: impl FnMut(usize) -> bool) -> Settlement {
    let (mut denied, mut any_over, mut quotas, mut quotas_over) = (false, false, 0_usize, 0_usize);
    for (index, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Unlimited(_) => {}
            Step::Unmatched | Step::Replaced(_) => quotas += usize::from(plan.modes.quota),
            Step::Check(check) => {
                let over = over(index);
                any_over |= over;
                let quota = check.quota || plan.modes.quota;
                quotas += usize::from(quota);
                quotas_over += usize::from(quota && over && !check.shadow);
                denied |= over && !quota && !check.shadow;
            }
        }
    }
    Settlement {
        passes: !denied && (quotas == 0 || quotas_over < quotas),
        stop_increment: plan.modes.stop_increment_when_over && any_over,
    }
}

impl Settlement {
    /// A request that passes. What it charges is also what a request of one check alone charges: if that check is
    /// not over the request passes, and if it is, the check is charged the same either way.
    pub const PASSES: Self = Self { passes: true, stop_increment: false };

    /// The hits that this check's counter is charged.
    ///
    /// - Fixed windows count every hit, as `envoyproxy/ratelimit` does (or, when told to stop, only the hits of
    ///   descriptors that are over as soon as one is).
    /// - A cost that is reported after the fact: all hits, whatever the answer, because they are spent already. What a
    ///   counter cannot hold of them is its store's business.
    /// - Everything else: all hits if the request passes and they fit, else nothing.
    #[inline]
    pub fn charged(&self, check: &Check<'_>, over: bool) -> u64 {
        let Hits::Take(hits) = check.hits else { return 0 };
        if check.limit.algorithm() == Algorithm::FixedWindow {
            return if self.stop_increment && !over { 0 } else { hits };
        }
        if check.reported || self.passes && !over { hits } else { 0 }
    }
}
