//! All counters of one algorithm: an array of shards, made when the first of them is asked for. And all algorithms.

use std::ops::Range;
use std::sync::OnceLock;

use prefetch_index::prefetch_index;

use crate::engine::key::Key;
use crate::engine::limit::{
    Algorithm, Counter, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, SlidingWindowWeighted,
    TokenBucket,
};
use crate::engine::plan::Check;
use crate::engine::time::Timestamp;
use crate::store::memory::budget::Budget;
use crate::store::memory::shard::{Shard, ShardOps};
use crate::store::memory::table::Removed;
use crate::store::sync::{MappedMutexGuard, Mutex, MutexGuard};

/// All counters, by algorithm.
#[derive(Debug)]
pub(super) struct Kinds {
    /// Shards of each kind.
    pub(super) shard_count: usize,
    pub(super) sliding_log: Kind<SlidingLog>,
    pub(super) sliding_window: Kind<SlidingWindow>,
    pub(super) weighted: Kind<SlidingWindowWeighted>,
    pub(super) fixed_window: Kind<FixedWindow>,
    pub(super) token_bucket: Kind<TokenBucket>,
    pub(super) leaky_bucket: Kind<LeakyBucket>,
}

/// A lock's place in the order in which locks are taken: kind, shard.
pub(super) type Place = (u8, usize);

/// A locked shard of any kind.
pub(super) type Guard<'a> = MappedMutexGuard<'a, dyn ShardOps + 'a>;

impl Kinds {
    pub(super) fn new(shard_count: usize) -> Self {
        Self {
            shard_count,
            sliding_log: Kind::new(shard_count),
            sliding_window: Kind::new(shard_count),
            weighted: Kind::new(shard_count),
            fixed_window: Kind::new(shard_count),
            token_bucket: Kind::new(shard_count),
            leaky_bucket: Kind::new(shard_count),
        }
    }

    pub(super) fn all(&self) -> [&dyn AnyKind; 6] {
        [
            &self.sliding_log,
            &self.sliding_window,
            &self.weighted,
            &self.fixed_window,
            &self.token_bucket,
            &self.leaky_bucket,
        ]
    }

    pub(super) fn of(&self, algorithm: Algorithm) -> &dyn AnyKind {
        self.all()[usize::from(number(algorithm))]
    }

    /// Which lock holds the counter of this check.
    pub(super) fn place(&self, check: &Check<'_>) -> Place {
        (number(check.limit.algorithm()), shard_of(check.key, self.shard_count))
    }

    pub(super) fn lock(&self, (kind, shard): Place) -> Guard<'_> {
        self.all()[usize::from(kind)].lock_any(shard)
    }
}

/// Where an algorithm stands among all of them.
fn number(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::SlidingLog => 0,
        Algorithm::SlidingWindow => 1,
        Algorithm::SlidingWindowWeighted => 2,
        Algorithm::FixedWindow => 3,
        Algorithm::TokenBucket => 4,
        Algorithm::LeakyBucket => 5,
    }
}

/// A [`Kind`], whatever its algorithm.
pub(super) trait AnyKind {
    /// Makes the shards, if they are not there.
    fn prepare(&self);

    fn lock_any(&self, shard: usize) -> Guard<'_>;

    /// Begins to bring the shard of this key from memory.
    fn fetch_shard(&self, key: Key);

    /// Begins to bring what the shard has of this key from memory, unless somebody else is busy with the shard.
    fn fetch_counter(&self, key: Key);

    /// Forgets what is over at `now` in these shards; returns how many counters.
    fn sweep(&self, shards: Range<usize>, now: Timestamp, budget: &Budget) -> u64;

    fn counters(&self) -> u64;

    fn bytes(&self) -> u64;
}

#[derive(Debug)]
pub(super) struct Kind<S> {
    shard_count: usize,
    shards: OnceLock<Box<[Padded<S>]>>,
}

/// A shard on a cache line of its own: lock, table and accounts are 64 bytes.
#[derive(Debug)]
#[repr(align(64))]
struct Padded<S> {
    shard: Mutex<Shard<S>>,
}

impl<S: Counter> Kind<S> {
    pub(super) fn new(shard_count: usize) -> Self {
        Self { shard_count, shards: OnceLock::new() }
    }

    pub(super) fn lock(&self, key: Key) -> MutexGuard<'_, Shard<S>> {
        self.lock_shard(shard_of(key, self.shard_count))
    }

    fn lock_shard(&self, index: usize) -> MutexGuard<'_, Shard<S>> {
        self.shards()[index].shard.lock()
    }

    fn shards(&self) -> &[Padded<S>] {
        self.shards.get_or_init(|| {
            (0..self.shard_count).map(|_| Padded { shard: Mutex::new(Shard::default()) }).collect()
        })
    }

    fn made(&self) -> &[Padded<S>] {
        self.shards.get().map_or(&[], |shards| shards)
    }
}

impl<S: Counter> AnyKind for Kind<S> {
    fn prepare(&self) {
        self.shards();
    }

    fn lock_any(&self, shard: usize) -> Guard<'_> {
        MutexGuard::map(self.lock_shard(shard), |shard| shard as &mut dyn ShardOps)
    }

    fn fetch_shard(&self, key: Key) {
        prefetch_index(self.made(), shard_of(key, self.shard_count));
    }

    fn fetch_counter(&self, key: Key) {
        let padded = self.made().get(shard_of(key, self.shard_count));
        if let Some(shard) = padded.and_then(|padded| padded.shard.try_lock()) {
            shard.fetch(key);
        }
    }

    fn sweep(&self, range: Range<usize>, now: Timestamp, budget: &Budget) -> u64 {
        let shards = self.made().get(range).unwrap_or_default();
        let mut removed = Removed::default();
        let sweep = |padded: &Padded<S>| {
            let (forgotten, surplus) = padded.shard.lock().sweep(now, &mut removed);
            removed.clear();
            budget.give_back(surplus);
            forgotten
        };
        shards.iter().map(sweep).sum()
    }

    fn counters(&self) -> u64 {
        self.made().iter().map(|padded| padded.shard.lock().counters()).sum()
    }

    fn bytes(&self) -> u64 {
        self.made().iter().map(|padded| padded.shard.lock().bytes()).sum()
    }
}

/// The shard of this key: by the low half of it (tables use the high half).
fn shard_of(key: Key, shard_count: usize) -> usize {
    ((u128::from(key.0 as u64) * shard_count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_leaves_a_cache_line_room_for_its_lock() {
        assert!(size_of::<Shard<SlidingWindow>>() + size_of::<u64>() <= align_of::<Padded<SlidingWindow>>());
    }
}
