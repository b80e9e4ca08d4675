//! Decides what is charged, once for the request, from the plan and from what every counter answers before anything
//! is charged. All or nothing; every store follows these functions.

use crate::limit::Algorithm;
use crate::plan::{Check, Hits, Plan, ReservationStep, Step};

/// What was decided for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The overall code, before the process's own shadow mode, is OK.
    pub passes: bool,
    /// Fixed windows that are not over themselves are not charged.
    stop_increment: bool,
    /// A descriptor is banned: nothing is charged but reported costs.
    is_banned: bool,
}

/// Decides for the request. `over` says whether the check of step i is over; it is called once for every
/// [`Step::Check`], in order.
///
/// The request passes unless a descriptor is over that is in neither shadow nor quota mode, or all quota-mode
/// descriptors are over (and there are some). A rule in both modes is a quota-mode descriptor that passed.
pub fn settle(plan: &Plan<'_>, mut over: impl FnMut(usize) -> bool) -> Settlement {
    let (mut denied, mut any_over, mut is_banned) = (false, false, false);
    let (mut quotas, mut quotas_over) = (0_usize, 0_usize);
    for (index, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Unlimited(_) => {}
            Step::Unmatched | Step::Replaced(_) => quotas += usize::from(plan.modes.quota),
            Step::Check(check) => {
                let over = over(index);
                let is_banning = over && !check.shadow && check.is_ban();
                is_banned |= is_banning;
                // A ban that denies nobody is no limit that is over.
                any_over |= over && (is_banning || !check.is_ban());
                let quota = plan.in_quota_mode(index, check);
                quotas += usize::from(quota);
                quotas_over += usize::from(quota && over && !check.shadow);
                denied |= over && !quota && !check.shadow;
            }
        }
    }
    Settlement {
        passes: !denied && (quotas == 0 || quotas_over < quotas),
        stop_increment: plan.modes.stop_increment_when_over && any_over,
        is_banned,
    }
}

/// Decides the request with the candidates of one rule in place of its limit. `over` says whether the check at a
/// place is over ([`Plan::checks`]).
///
/// Only the limit of this one rule is replaced: all other counters keep their verdicts. So the trials of two rules do
/// not affect each other.
pub fn settle_trial(plan: &Plan<'_>, rule: usize, mut over: impl FnMut(usize) -> bool) -> Settlement {
    let places = (plan.steps.len()..).zip(&plan.candidates);
    let mut on_trial = places.filter(|(_, candidate)| candidate.rule == rule).peekable();
    settle(plan, |step| {
        let instead = on_trial.next_if(|(_, candidate)| candidate.step == step);
        over(instead.map_or(step, |(place, _)| place))
    })
}

impl Settlement {
    /// A request that passes. It charges the same as a request of one check: if that check is not over the request
    /// passes, and if it is over, the check is charged the same in both cases.
    pub const PASSES: Self = Self { passes: true, stop_increment: false, is_banned: false };

    /// The hits that this check's counter is charged.
    ///
    /// - Fixed windows count every hit, as `envoyproxy/ratelimit` does (with `stop_increment_when_over`: as soon as
    ///   one descriptor is over, only the hits of those that are). But not the hits of a banned request.
    /// - A reported cost: all hits, whatever the answer, as they are already spent. Stores drop what a counter cannot
    ///   hold.
    /// - What a reservation holds is not charged: the check of its holds takes it. What only bounds worst cases charges nothing.
    /// - Everything else: all hits if the request passes and they fit, else nothing.
    #[inline]
    pub fn charged(&self, check: &Check<'_>, over: bool) -> u64 {
        let Hits::Take(hits) = check.hits else { return 0 };
        if matches!(check.reservation, ReservationStep::Hold | ReservationStep::Bound) {
            return 0;
        }
        if check.limit.algorithm() == Algorithm::FixedWindow {
            let stops = self.stop_increment && !over || self.is_banned;
            return if stops && !check.reported { 0 } else { hits };
        }
        if check.reported || self.passes && !over { hits } else { 0 }
    }
}
