//! When a sweep has to visit some shards again. Shards without expired counters are then not even locked.

use std::sync::atomic::Ordering::Relaxed;

use crate::sync::AtomicU32;
use crate::time::{SECOND_NANOS, Timestamp};

/// No counter of these shards expires before this second.
///
/// A shard's counters are noted under its lock. A sweep calls [`clear`](Self::clear) first, and then notes the
/// remaining counters of each shard, under its lock too. So a counter that is added meanwhile is never missed: either
/// the sweep finds it in its shard, or it was noted after the clearing.
#[derive(Debug)]
pub(super) struct Due(AtomicU32);

impl Default for Due {
    fn default() -> Self {
        Self(AtomicU32::new(u32::MAX))
    }
}

impl Due {
    /// Notes that a counter expires in this second.
    pub(super) fn note(&self, secs: u32) {
        if secs < self.0.load(Relaxed) {
            self.0.fetch_min(secs, Relaxed);
        }
    }

    /// Whether a counter may have expired at `now`.
    pub(super) fn has_come(&self, now: Timestamp) -> bool {
        self.0.load(Relaxed) <= whole_seconds(now)
    }

    /// Resets to the end of time.
    pub(super) fn clear(&self) {
        self.0.store(u32::MAX, Relaxed);
    }
}

/// Whole seconds, rounded down.
pub(super) fn whole_seconds(time: Timestamp) -> u32 {
    u32::try_from(time.as_nanos() / SECOND_NANOS).unwrap_or(u32::MAX)
}
