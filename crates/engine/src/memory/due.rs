//! When a sweep has to look at some shards again: kept beside them, so that shards with nothing to forget are not even
//! locked.

use std::sync::atomic::Ordering::Relaxed;

use crate::sync::AtomicU32;
use crate::time::{SECOND_NANOS, Timestamp};

/// No counter of these shards is over before this second.
///
/// A shard's counters are noted under its lock. A sweep calls [`clear`](Self::clear) first, and then notes what each
/// shard still holds, under its lock too. So a counter that comes meanwhile is never missed: either the sweep finds it
/// in its shard, or it was noted after the clearing.
#[derive(Debug)]
pub(super) struct Due(AtomicU32);

impl Default for Due {
    fn default() -> Self {
        Self(AtomicU32::new(u32::MAX))
    }
}

impl Due {
    /// Notes that something is over at this second.
    pub(super) fn note(&self, secs: u32) {
        if secs < self.0.load(Relaxed) {
            self.0.fetch_min(secs, Relaxed);
        }
    }

    /// Whether something may be over at `now`.
    pub(super) fn has_come(&self, now: Timestamp) -> bool {
        self.0.load(Relaxed) <= whole_seconds(now)
    }

    /// Forgets what was noted.
    pub(super) fn clear(&self) {
        self.0.store(u32::MAX, Relaxed);
    }
}

/// Whole seconds, rounded down.
pub(super) fn whole_seconds(time: Timestamp) -> u32 {
    u32::try_from(time.as_nanos() / SECOND_NANOS).unwrap_or(u32::MAX)
}
