//! Counters of the engine for requests that come in the order of time.
//!
//! In: the time of each request. Out: the store, in which expired counters are forgotten now and then, so that a long
//! log takes no more memory than the windows of its limits need.

use tidegate_engine::Timestamp;
use tidegate_engine::key::Key;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::{MemoryOptions, MemoryStore, StoreFull};
use tidegate_engine::time::SECOND_NANOS;

/// The most memory of counters, in bytes. A replay that needs more reports it.
const COUNTER_BYTES_MAX: u64 = 1 << 30;

/// Expired counters are forgotten at most once in so many decisions.
const SWEEP_INTERVAL_MIN: u64 = 1 << 16;

/// A sweep visits all counters. The next one comes after as many decisions as there are counters, divided by this: so
/// each decision pays for this many visits.
const COUNTERS_A_DECISION: u64 = 4;

pub(super) struct Counters {
    store: MemoryStore,
    /// Decisions until the next sweep.
    until_sweep: u64,
    swept: Timestamp,
}

impl Counters {
    pub(super) fn new() -> Self {
        let options = MemoryOptions::new(COUNTER_BYTES_MAX).full(StoreFull::Allow);
        Self {
            store: MemoryStore::new(options),
            until_sweep: SWEEP_INTERVAL_MIN,
            swept: Timestamp::default(),
        }
    }

    /// The counters at this time, which is never earlier than the time before: no request needs what has expired.
    #[inline]
    pub(super) fn at(&mut self, at: Timestamp) -> &MemoryStore {
        self.until_sweep = self.until_sweep.saturating_sub(1);
        if self.until_sweep == 0 && at.nanos_since(self.swept) >= SECOND_NANOS {
            self.sweep(at);
        }
        &self.store
    }

    /// Prefetches these counters, while something else is done.
    pub(super) fn fetch(&self, counters: impl Iterator<Item = (Algorithm, Key)> + Clone) {
        self.store.fetch_counters(counters);
    }

    #[cold]
    fn sweep(&mut self, at: Timestamp) {
        while !self.store.sweep(at).round_done {}
        self.swept = at;
        self.until_sweep = (self.store.counters() / COUNTERS_A_DECISION).max(SWEEP_INTERVAL_MIN);
    }

    /// Decisions that counted nothing because there was no memory for more counters.
    pub(super) fn uncounted(&self) -> u64 {
        self.store.full_total().allow
    }
}
