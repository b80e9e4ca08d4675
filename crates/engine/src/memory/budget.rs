//! The bytes that all shards together may take, as one number.
//!
//! Shards take a little in advance, so that cores do not pass this cache line around at every new bucket.

use std::sync::atomic::Ordering::Relaxed;

use crate::sync::AtomicU64;

#[derive(Debug)]
pub(super) struct Budget {
    taken: AtomicU64,
    max: u64,
}

impl Budget {
    pub(super) fn new(max: u64) -> Self {
        Self { taken: AtomicU64::new(0), max }
    }

    /// Takes these bytes if as many are left.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let fits = |taken: u64| taken.checked_add(bytes).filter(|&after| after <= self.max);
        self.taken.fetch_update(Relaxed, Relaxed, fits).is_ok()
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Relaxed);
    }
}
