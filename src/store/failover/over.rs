//! What Redis called over, remembered until the time at which Redis said that capacity comes back.
//!
//! In: verdicts of Redis. Out: the same verdict to requests for at least as many hits under the same N. Bounded in
//! bytes; where there is no room nothing is remembered, and Redis is asked.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::key::Key;
use crate::engine::limit::Verdict;
use crate::engine::plan::{Check, Hits};

/// Parts of the memory, each behind a lock of its own.
const SHARDS: usize = 64;
/// What one entry takes, with the table around it.
const ENTRY_BYTES: usize = 160;

/// A counter that is over.
#[derive(Clone, Copy, Debug)]
struct Over {
    requests: u32,
    burst: u32,
    /// To so many hits or more.
    hits: u64,
    until: Instant,
    /// Redis is asked again from here on, though it may say the same.
    asked_again: Instant,
    remaining: u64,
}

/// All that is remembered.
#[derive(Debug, Default)]
pub(super) struct OverMemory {
    shards: Vec<Mutex<HashMap<Key, Over>>>,
    shard_entries_max: usize,
    /// Questions that were answered from here.
    pub(super) answered: AtomicU64,
}

impl OverMemory {
    /// A memory of at most `bytes`; of 0, none.
    pub(super) fn new(bytes: usize) -> Self {
        if bytes == 0 {
            return Self::default();
        }
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, shard_entries_max: (bytes / ENTRY_BYTES / SHARDS).max(1), answered: AtomicU64::new(0) }
    }

    fn shard(&self, key: Key) -> Option<&Mutex<HashMap<Key, Over>>> {
        self.shards.get(key.0 as usize % SHARDS)
    }

    /// The verdict, if the counter is known to be over at `now`.
    pub(super) fn answer(&self, check: &Check<'_>, now: Instant) -> Option<Verdict> {
        let Hits::Take(hits) = check.hits else { return None };
        let over = *self.shard(check.key)?.lock().get(&check.key)?;
        let limit = &check.limit;
        let same = (over.requests, over.burst) == (limit.requests(), limit.burst());
        if !same || hits.max(1) < over.hits || over.asked_again <= now || check.reported {
            return None;
        }
        self.answered.fetch_add(1, Relaxed);
        let before = u64::from(limit.burst());
        let reset_nanos = u64::try_from((over.until - now).as_nanos()).unwrap_or(u64::MAX);
        Some(Verdict {
            over: true,
            before,
            after: before.saturating_add(hits),
            remaining: over.remaining,
            reset_nanos,
        })
    }

    /// Notes what Redis said when it was asked at `asked`: capacity comes back no earlier than it said, unless somebody
    /// gives hits back. Redis is asked again when `patience` is over.
    pub(super) fn learn(&self, check: &Check<'_>, verdict: &Verdict, asked: Instant, patience: Duration) {
        let (Some(shard), Hits::Take(hits), true) = (self.shard(check.key), check.hits, verdict.over) else {
            return;
        };
        let Some(until) = asked.checked_add(Duration::from_nanos(verdict.reset_nanos)) else { return };
        let (requests, burst) = (check.limit.requests(), check.limit.burst());
        let asked_again = asked.checked_add(patience).map_or(until, |again| again.min(until));
        let (hits, remaining) = (hits.max(1), verdict.remaining);
        let over = Over { requests, burst, hits, until, asked_again, remaining };
        let mut shard = shard.lock();
        if shard.len() >= self.shard_entries_max && !shard.contains_key(&check.key) {
            shard.retain(|_, over| over.asked_again > asked);
            if shard.len() >= self.shard_entries_max {
                return;
            }
        }
        shard.insert(check.key, over);
    }

    /// Forgets one counter: it was given hits back.
    pub(super) fn forget(&self, key: Key) {
        if let Some(shard) = self.shard(key) {
            shard.lock().remove(&key);
        }
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }

    /// Counters that are remembered.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}
