//! The answer: what the plan and the counters' verdicts come to.
//!
//! Everything that is told later (codes, remaining, reset times, headers, metadata, metrics) derives from the
//! [`Decision`], in one place.

use smallvec::SmallVec;

use crate::engine::limit::{Limit, Verdict};
use crate::engine::plan::{Check, Hits, Origin, Plan, Step};
use crate::engine::settle::settle;
use crate::engine::time::ceil_secs;

/// A code of `envoy.service.ratelimit.v3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Code {
    Ok = 1,
    OverLimit = 2,
}

/// The verdicts of a request's counters: one place a step of the plan, `Some` for every [`Step::Check`].
pub type Verdicts = SmallVec<[Option<Verdict>; 8]>;

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// The overall code that is told.
    pub code: Code,
    /// The overall code would have been OVER_LIMIT but for the process's shadow mode.
    pub shadowed: bool,
    /// The request's domain has rules.
    pub domain_known: bool,
    /// A status a descriptor, in request order.
    pub statuses: SmallVec<[Status<'a>; 8]>,
}

/// The answer to one descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Status<'a> {
    /// No limit applies (or it was replaced): OK and nothing else.
    NoLimit,
    /// OK, without a bound.
    Unlimited,
    /// A counter was asked.
    Limited(Limited<'a>),
}

/// The answer of a counter to one descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Limited<'a> {
    /// Where the limit comes from.
    pub origin: Origin<'a>,
    /// The limit.
    pub limit: Limit,
    /// What was asked.
    pub hits: Hits,
    /// What the counter said.
    pub verdict: Verdict,
    /// The rule's shadow mode.
    pub shadow: bool,
    /// The rule's quota mode, or the process's.
    pub quota: bool,
}

/// Concludes: plan and verdicts become the answer.
pub fn conclude<'a>(plan: &Plan<'a>, verdicts: &Verdicts) -> Decision<'a> {
    let verdict_of = |index: usize| verdicts.get(index).copied().flatten();
    let passes = settle(plan, |index| verdict_of(index).is_some_and(|verdict| verdict.over)).passes;
    let status = |(index, step): (usize, &Step<'a>)| match (step, verdict_of(index)) {
        (Step::Check(check), Some(verdict)) => Status::Limited(limited(check, verdict, plan.modes.quota)),
        (Step::Unlimited(_), _) => Status::Unlimited,
        _ => Status::NoLimit,
    };
    Decision {
        code: if passes || plan.modes.shadow { Code::Ok } else { Code::OverLimit },
        shadowed: !passes && plan.modes.shadow,
        domain_known: plan.domain_known,
        statuses: plan.steps.iter().enumerate().map(status).collect(),
    }
}

fn limited<'a>(check: &Check<'a>, verdict: Verdict, quota_mode: bool) -> Limited<'a> {
    Limited {
        origin: check.origin,
        limit: check.limit,
        hits: check.hits,
        verdict,
        shadow: check.shadow,
        quota: check.quota || quota_mode,
    }
}

impl Status<'_> {
    /// The code that is told for this descriptor. Rule shadow mode tells OK.
    pub fn code(&self) -> Code {
        match self {
            Self::Limited(limited) if limited.verdict.over && !limited.shadow => Code::OverLimit,
            _ => Code::Ok,
        }
    }
}

impl Limited<'_> {
    /// `limit_remaining`: hits that would still pass.
    pub fn remaining(&self) -> u32 {
        u32::try_from(self.verdict.remaining).unwrap_or(u32::MAX)
    }

    /// `duration_until_reset` in whole seconds, rounded up; at least 1 when denied.
    pub fn reset_secs(&self) -> u64 {
        ceil_secs(self.verdict.reset_nanos).max(u64::from(self.verdict.over))
    }
}
