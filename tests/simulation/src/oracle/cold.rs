//! Counters that are cold: with COLD_START=deny what may have been lost counts as full until it would be over.
//!
//! In: losses, and how nodes are set. Out: which losses may let hits pass once more, and which denials need no other cause.

use tidegate_engine::limit::Algorithm;

use super::{LATE, Loss, Record, Rules};
use crate::scenario::{LimitSpec, empties_in};
use crate::world::{SECOND, Time};

/// A node knows of no losses before it has read the resets of a new server, which has none.
const STARTS: Time = SECOND;

impl Rules<'_> {
    /// Losses by which this counter may have admitted hits once more.
    pub(super) fn losses_of(&self, limit: &LimitSpec, own: &[Record]) -> &[Loss] {
        // A larger bucket may be more than a server denies for.
        let is_usual = own.iter().all(|it| it.room.is_none());
        let counts_as_full =
            self.knows_losses && is_usual && own.first().is_some_and(|it| self.denies_cold(limit, it));
        if counts_as_full { &[] } else { self.losses }
    }

    /// Whether what was lost of this counter counts as full. A budget would be full for a day: it starts at zero.
    pub(super) fn denies_cold(&self, limit: &LimitSpec, it: &Record) -> bool {
        limit.algorithm != Algorithm::Calendar
            && self.cold_max.is_some_and(|max| limit.empties_in(it.window) <= max)
    }

    /// A counter is cold: what a server has lost counts as full for a window, and as long as leases last.
    pub(super) fn is_cold(&self, limit: &LimitSpec, it: &Record) -> bool {
        let window = it.window.min(it.rule_window);
        let for_sure = limit.empties_in(window).min(limit.empties_by(window, it.requests));
        let since = it.asked.saturating_sub(for_sure);
        let lost = |loss: &Loss| loss.until >= since && loss.until <= it.answered;
        self.denies_cold(limit, it) && (self.has_redis && since == 0 || self.losses.iter().any(lost))
    }

    /// The same, for as long as a node may take to notice.
    pub(super) fn may_be_cold(&self, limit: &LimitSpec, it: &Record) -> bool {
        let window = it.rule_window.max(it.window);
        // A record may have a larger `burst` than its rule.
        let own = empties_in(window, it.requests, it.room(limit));
        let empties = limit.empties_in(window).max(limit.empties_by(window, it.requests)).max(own);
        let for_long = empties.saturating_add(self.lease_time + LATE + self.lag);
        let since =
            if self.knows_late { 0 } else { it.asked.saturating_sub(for_long.saturating_add(SECOND)) };
        let lost = |loss: &Loss| loss.until >= since && loss.until <= it.answered;
        self.denies_cold(limit, it)
            && (self.has_redis && since <= STARTS
                || self.losses.iter().any(lost)
                || self.troubles.touch(since, it.answered))
    }
}
