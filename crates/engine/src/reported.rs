//! Hits of reported costs that did not fit: how many were charged beyond their limits, and how many were dropped.
//!
//! In: checks that were settled, what was charged. Out: two totals, for metrics.

use std::sync::atomic::Ordering::Relaxed;

use crate::plan::{Check, Hits};
use crate::sync::AtomicU64;

/// Hits of reported costs that did not fit, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedTotal {
    /// Charged beyond a limit.
    pub beyond: u64,
    /// Not charged, because a counter or the store cannot hold as many.
    pub dropped: u64,
}

/// The totals as they are counted.
#[derive(Debug, Default)]
pub struct Reported {
    beyond: AtomicU64,
    dropped: AtomicU64,
}

impl Reported {
    /// Counts a check that is over: `left` hits would have fitted, and `charged` were charged.
    pub fn count(&self, check: &Check<'_>, left: u64, charged: u64) {
        if let (Hits::Take(hits), true) = (check.hits, check.reported) {
            self.beyond.fetch_add(charged.saturating_sub(left), Relaxed);
            self.dropped.fetch_add(hits.saturating_sub(charged), Relaxed);
        }
    }

    /// What was counted since the start.
    pub fn total(&self) -> ReportedTotal {
        ReportedTotal { beyond: self.beyond.load(Relaxed), dropped: self.dropped.load(Relaxed) }
    }
}
