//! Counters of the engine for requests that come in the order of time.
//!
//! In: the time of each request. Out: the store, in which expired counters are forgotten now and then, so that a long log
//! takes no more memory than the windows of its limits.

use tidegate_engine::Timestamp;
use tidegate_engine::memory::{MemoryOptions, MemoryStore, StoreFull};
use tidegate_engine::time::SECOND_NANOS;

/// The most memory of counters, in bytes. A replay that needs more says so.
const COUNTER_BYTES_MAX: u64 = 1 << 30;

/// After so many decisions, counters that have expired are forgotten.
const SWEEP_INTERVAL: u32 = 8_192;

/// Counters.
pub(super) struct Counters {
    store: MemoryStore,
    since_sweep: u32,
    swept: Timestamp,
}

impl Counters {
    pub(super) fn new() -> Self {
        let options = MemoryOptions::new(COUNTER_BYTES_MAX).full(StoreFull::Allow);
        Self { store: MemoryStore::new(options), since_sweep: 0, swept: Timestamp::default() }
    }

    /// The counters at this time, which is never earlier than the time before: no request needs what has expired.
    #[inline]
    pub(super) fn at(&mut self, at: Timestamp) -> &MemoryStore {
        self.since_sweep += 1;
        if self.since_sweep >= SWEEP_INTERVAL && at.nanos_since(self.swept) >= SECOND_NANOS {
            (self.since_sweep, self.swept) = (0, at);
            while !self.store.sweep(at).round_done {}
        }
        &self.store
    }

    /// Decisions that counted nothing because there was no memory for more counters.
    pub(super) fn uncounted(&self) -> u64 {
        self.store.full_total().allow
    }
}
