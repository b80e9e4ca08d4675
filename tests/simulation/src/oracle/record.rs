//! What the oracle knows: what clients asked and were answered, and what servers forgot.

use crate::world::{SECOND, Time};

/// What one descriptor of a request asked of a counter, and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The number of the request.
    pub request: usize,
    /// Which limit.
    pub limit: usize,
    /// Which counter.
    pub key: u64,
    /// After which resets: in another epoch it is another counter.
    pub epoch: u64,
    /// How many hits.
    pub hits: u64,
    /// When they were asked for.
    pub asked: Time,
    /// When that was answered, or nothing can happen any more.
    pub answered: Time,
    /// The N that the node had.
    pub requests: u32,
    /// And its W.
    pub window: Time,
    /// W of its rule. A record may say another. When a reload changes this, counters of records begin anew too.
    pub rule_window: Time,
    /// They were not asked for, but reported.
    pub is_reported: bool,
    /// An exception let everything pass.
    pub is_unlimited: bool,
    /// They were given back.
    pub is_refunded: bool,
    /// The client waited as long as it takes, and no other descriptor of the request is there.
    pub is_plain: bool,
    /// What was answered.
    pub outcome: Outcome,
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing, or an error: the hits may count or not.
    Unknown,
    /// The request passes.
    Admitted,
    /// The request does not pass. `over`: because of this counter.
    Denied {
        /// These hits do not fit.
        over: bool,
    },
}

impl Record {
    /// It surely counts.
    pub(super) fn counts(&self) -> bool {
        let charged = match self.outcome {
            Outcome::Unknown => false,
            Outcome::Admitted => true,
            Outcome::Denied { .. } => self.is_reported,
        };
        charged && self.hits > 0 && !self.is_refunded && !self.is_unlimited
    }

    /// It may count at a time. What is charged in one slot and denied in another goes back within a second, where
    /// nothing fails.
    pub(super) fn may_count_until(&self, is_calm: bool) -> Option<Time> {
        match self.outcome {
            Outcome::Denied { .. } if self.is_reported => Some(Time::MAX),
            Outcome::Denied { .. } if self.is_plain => None,
            Outcome::Denied { .. } if is_calm => Some(self.answered + SECOND),
            Outcome::Denied { .. } | Outcome::Unknown | Outcome::Admitted => Some(Time::MAX),
        }
    }

    /// How many hits may count.
    pub(super) fn hits_at_most(&self) -> u64 {
        if self.is_reported && self.outcome == Outcome::Unknown { 2 * self.hits } else { self.hits }
    }

    /// When it is charged at the latest. A node knows a server's clock no better than by what a call took there. A report
    /// without an answer is sent again, and joins the newest hits then.
    pub(super) fn charged_until(&self, timeout: Time) -> Time {
        match self.outcome {
            Outcome::Unknown if self.is_reported => Time::MAX,
            Outcome::Unknown => self.answered + timeout,
            Outcome::Admitted | Outcome::Denied { .. } => self.answered,
        }
    }
}

/// A server forgot what was written last.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// It forgot what was written from then on.
    pub since: Time,
    /// Nothing is forgotten that is written later.
    pub until: Time,
    /// It forgot hits that were admitted too. Otherwise only those whose clients had another answer.
    pub acknowledged: bool,
    /// Only one counter was forgotten: this one of this limit.
    pub of: Option<(usize, u64)>,
}
