//! All counters of one algorithm: an array of shards, made when the first of them is asked for.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

use crate::engine::key::Key;
use crate::engine::limit::Counter;
use crate::engine::time::Timestamp;
use crate::store::memory::budget::Budget;
use crate::store::memory::shard::Shard;

#[derive(Debug)]
pub(super) struct Kind<S> {
    shard_count: usize,
    shards: OnceLock<Box<[Padded<S>]>>,
}

/// A shard on cache lines of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Padded<S> {
    shard: Mutex<Shard<S>>,
    /// No counter's time is over before this, in nanoseconds. Read without the lock.
    earliest: AtomicU64,
}

impl<S: Counter> Kind<S> {
    pub(super) fn new(shard_count: usize) -> Self {
        Self { shard_count, shards: OnceLock::new() }
    }

    pub(super) fn shard_count(&self) -> usize {
        self.shard_count
    }

    /// The shard of this key: by the low half of it (tables use the high half).
    pub(super) fn shard_of(&self, key: Key) -> usize {
        ((u128::from(key.0 as u64) * self.shard_count as u128) >> 64) as usize
    }

    pub(super) fn lock(&self, key: Key) -> MutexGuard<'_, Shard<S>> {
        self.lock_shard(self.shard_of(key))
    }

    pub(super) fn lock_shard(&self, index: usize) -> MutexGuard<'_, Shard<S>> {
        self.shards.get_or_init(|| self.make())[index].shard.lock()
    }

    fn make(&self) -> Box<[Padded<S>]> {
        let make = |_| Padded { shard: Mutex::new(Shard::default()), earliest: AtomicU64::new(0) };
        (0..self.shard_count).map(make).collect()
    }

    fn made(&self) -> &[Padded<S>] {
        self.shards.get().map_or(&[], |shards| shards)
    }

    /// Forgets what is over at `now` in these shards; returns how many counters.
    pub(super) fn sweep(&self, range: Range<usize>, now: Timestamp, budget: &Budget) -> u64 {
        let due = |padded: &&Padded<S>| padded.earliest.load(Relaxed) <= now.as_nanos();
        let shards = self.made().get(range).unwrap_or_default();
        shards.iter().filter(due).map(|padded| padded.shard.lock().sweep(now, budget)).sum()
    }

    pub(super) fn counters(&self) -> u64 {
        self.made().iter().map(|padded| padded.shard.lock().counters()).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.made().iter().map(|padded| padded.shard.lock().bytes()).sum()
    }
}
