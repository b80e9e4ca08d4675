//! All counters of one algorithm, in shards, which are allocated in chunks when the first of a chunk is used. And all
//! algorithms together.

use std::sync::OnceLock;

use prefetch_index::prefetch_index;

use crate::key::Key;
use crate::limit::{Algorithm, Counter, with_algorithms};
use crate::memory::budget::Budget;
use crate::memory::due::Due;
use crate::memory::encoded::{Encoded, ImportError};
use crate::memory::shard::{Shard, ShardOps};
use crate::memory::table::Removed;
use crate::plan::Check;
use crate::sync::{MappedMutexGuard, Mutex, MutexGuard};
use crate::time::Timestamp;

/// Shards that are allocated together and swept together. A sweep visits this many without yielding to decisions. A
/// chunk is small enough (4 KiB) that the request that has to allocate it waits a microsecond.
pub(super) const CHUNK_SHARDS: usize = 64;

macro_rules! define {
    ($( $(#[$attribute:meta])* $variant:ident: $module:ident, )+) => {
        /// All counters, by algorithm.
        #[derive(Debug)]
        pub(super) struct Kinds {
            /// Chunks of each kind.
            pub(super) chunk_count: usize,
            $( pub(super) $module: KindShards<crate::limit::$module::$variant>, )+
        }

        impl Kinds {
            pub(super) fn new(chunk_count: usize) -> Self {
                Self { chunk_count, $( $module: KindShards::new(chunk_count), )+ }
            }

            /// In the order of the algorithms' numbers.
            pub(super) fn all(&self) -> [&dyn AnyKind; Algorithm::ALL.len()] {
                [$( &self.$module, )+]
            }

            /// The counters of this algorithm.
            pub(super) fn of(&self, algorithm: Algorithm) -> &dyn AnyKind {
                match algorithm {
                    $( Algorithm::$variant => &self.$module, )+
                }
            }

            /// Prefetches the shard of this key.
            #[inline]
            pub(super) fn fetch_shard(&self, algorithm: Algorithm, key: Key) {
                match algorithm {
                    $( Algorithm::$variant => self.$module.fetch_shard(key), )+
                }
            }

            /// Prefetches what the shard holds for this key, unless another thread has locked it.
            #[inline]
            pub(super) fn fetch_counter(&self, algorithm: Algorithm, key: Key) {
                match algorithm {
                    $( Algorithm::$variant => self.$module.fetch_counter(key), )+
                }
            }
        }
    };
}

with_algorithms!(define);

/// A lock's place in the order in which locks are taken: kind, shard.
pub(super) type LockOrder = (u8, usize);

/// A locked shard of any kind.
pub(super) type Guard<'a> = MappedMutexGuard<'a, dyn ShardOps + 'a>;

impl Kinds {
    /// The lock that holds the counter of this check.
    pub(super) fn place(&self, check: &Check<'_>) -> LockOrder {
        (check.limit.algorithm().number(), shard_of(check.key, self.chunk_count))
    }

    pub(super) fn lock(&self, (kind, shard): LockOrder) -> (Guard<'_>, &Due) {
        self.of(Algorithm::ALL[usize::from(kind)]).lock_any(shard)
    }
}

/// A [`KindShards`] of any algorithm.
pub(super) trait AnyKind {
    /// The shard, locked, and where to note when its counters expire.
    fn lock_any(&self, shard: usize) -> (Guard<'_>, &Due);

    /// Whether a counter of this chunk may have expired at `now`.
    fn is_due(&self, chunk: usize, now: Timestamp) -> bool;

    /// Forgets what has expired at `now` in this chunk, if that is due. Returns how many counters.
    fn sweep(&self, chunk: usize, now: Timestamp, budget: &Budget) -> u64;

    /// Appends the counters of this shard that have not expired at `now`, and returns how many.
    fn export(&self, shard: usize, now: Timestamp, out: &mut Vec<u8>) -> u32;

    /// Takes counters that were exported.
    fn import(&self, encoded: &Encoded<'_>, budget: &Budget) -> Result<(), ImportError>;

    fn counters(&self) -> u64;

    fn bytes(&self) -> u64;
}

#[derive(Debug)]
pub(super) struct KindShards<S> {
    chunks: Box<[Chunk<S>]>,
    /// One for each chunk. Not in `chunks`, because decisions read those all the time, and new counters write here.
    due: Box<[Due]>,
}

/// Neighbouring shards, allocated when the first of them is used.
type Chunk<S> = OnceLock<Box<[Padded<S>]>>;

/// A shard on a cache line of its own: lock, table and byte counts take 64 bytes.
#[derive(Debug)]
#[repr(align(64))]
struct Padded<S> {
    shard: Mutex<Shard<S>>,
}

impl<S: Counter> KindShards<S> {
    pub(super) fn new(chunk_count: usize) -> Self {
        let chunks = (0..chunk_count).map(|_| OnceLock::new()).collect();
        Self { chunks, due: (0..chunk_count).map(|_| Due::default()).collect() }
    }

    #[inline]
    pub(super) fn lock(&self, key: Key) -> (MutexGuard<'_, Shard<S>>, &Due) {
        self.lock_shard(shard_of(key, self.chunks.len()))
    }

    /// The shards of two keys, locked in ascending order, as all shards are. `None`: both are in one shard.
    #[inline]
    pub(super) fn lock_two(&self, keys: [Key; 2]) -> Option<[MutexGuard<'_, Shard<S>>; 2]> {
        let [first, second] = keys.map(|key| shard_of(key, self.chunks.len()));
        let (lower, _) = self.lock_shard(first.min(second));
        let (upper, _) = (first != second).then(|| self.lock_shard(first.max(second)))?;
        Some(if first < second { [lower, upper] } else { [upper, lower] })
    }

    #[inline]
    fn lock_shard(&self, index: usize) -> (MutexGuard<'_, Shard<S>>, &Due) {
        let (chunk, index) = (index / CHUNK_SHARDS, index % CHUNK_SHARDS);
        let shards = self.chunks[chunk].get_or_init(Self::make_chunk);
        (shards[index].shard.lock(), &self.due[chunk])
    }

    #[cold]
    fn make_chunk() -> Box<[Padded<S>]> {
        (0..CHUNK_SHARDS).map(|_| Padded { shard: Mutex::new(Shard::default()) }).collect()
    }

    /// The shards of a chunk; none if it is not allocated yet.
    fn made(&self, chunk: usize) -> &[Padded<S>] {
        self.chunks[chunk].get().map_or(&[], |shards| shards)
    }

    fn all_made(&self) -> impl Iterator<Item = &Padded<S>> {
        (0..self.chunks.len()).flat_map(|chunk| self.made(chunk))
    }

    /// The chunk of this key's shard (empty if it is not allocated yet), and the shard's place there.
    fn made_shard(&self, key: Key) -> (&[Padded<S>], usize) {
        let shard = shard_of(key, self.chunks.len());
        (self.made(shard / CHUNK_SHARDS), shard % CHUNK_SHARDS)
    }

    #[inline]
    fn fetch_shard(&self, key: Key) {
        let (shards, index) = self.made_shard(key);
        prefetch_index(shards, index);
    }

    #[inline]
    fn fetch_counter(&self, key: Key) {
        let (shards, index) = self.made_shard(key);
        if let Some(shard) = shards.get(index).and_then(|padded| padded.shard.try_lock()) {
            shard.fetch(key);
        }
    }
}

impl<S: Counter> AnyKind for KindShards<S> {
    fn lock_any(&self, shard: usize) -> (Guard<'_>, &Due) {
        let (shard, due) = self.lock_shard(shard);
        (MutexGuard::map(shard, |shard| shard as &mut dyn ShardOps), due)
    }

    fn is_due(&self, chunk: usize, now: Timestamp) -> bool {
        self.due[chunk].has_come(now)
    }

    fn sweep(&self, chunk: usize, now: Timestamp, budget: &Budget) -> u64 {
        if !self.is_due(chunk, now) {
            return 0;
        }
        let due = &self.due[chunk];
        due.clear();
        let mut removed = Removed::default();
        let sweep = |padded: &Padded<S>| {
            let mut shard = padded.shard.lock();
            let (forgotten, surplus) = shard.sweep(now, &mut removed);
            due.note(shard.earliest_secs());
            drop(shard);
            removed.clear();
            budget.give_back(surplus);
            forgotten
        };
        self.made(chunk).iter().map(sweep).sum()
    }

    fn export(&self, shard: usize, now: Timestamp, out: &mut Vec<u8>) -> u32 {
        let made = self.made(shard / CHUNK_SHARDS).get(shard % CHUNK_SHARDS);
        made.map_or(0, |padded| padded.shard.lock().export(now, out))
    }

    fn import(&self, encoded: &Encoded<'_>, budget: &Budget) -> Result<(), ImportError> {
        self.take_all(encoded, budget)
    }

    fn counters(&self) -> u64 {
        self.all_made().map(|padded| padded.shard.lock().counters()).sum()
    }

    fn bytes(&self) -> u64 {
        self.all_made().map(|padded| padded.shard.lock().bytes()).sum()
    }
}

/// The shard of this key among this many chunks: by the low half of the key (tables use the high half).
fn shard_of(key: Key, chunk_count: usize) -> usize {
    ((u128::from(key.0 as u64) * (chunk_count * CHUNK_SHARDS) as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::sliding_window::SlidingWindow;

    #[test]
    fn a_shard_leaves_a_cache_line_room_for_its_lock() {
        assert!(size_of::<Shard<SlidingWindow>>() + size_of::<u64>() <= align_of::<Padded<SlidingWindow>>());
    }
}
