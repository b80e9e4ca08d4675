//! Counters as bytes: copied out of a store, to be written to a file, and restored into another.
//!
//! In: a store. Out: for each shard its counters, one after the other, each as its key and its state. And back: bytes
//! that anybody may have changed in between, so every counter is checked. The program decides how the bytes are
//! framed in a file, and whether the file can be trusted.

use crate::key::Key;
use crate::limit::{Algorithm, Counter};
use crate::memory::MemoryStore;
use crate::memory::budget::Budget;
use crate::memory::encoded::{Encoded, ImportError, encode};
use crate::memory::kind::{CHUNK_SHARDS, KindShards};
use crate::memory::shard::{Shard, ShardOps as _};
use crate::memory::table::Table;
use crate::time::Timestamp;

/// The position of a walk through all counters: see [`MemoryStore::export`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportPlace {
    kind: usize,
    shard: usize,
}

/// The result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The algorithm of these counters.
    pub algorithm: Algorithm,
    /// Their number; at least one.
    pub counters: u32,
}

impl MemoryStore {
    /// Appends to `out` the counters of the next shard that has any, and moves `place` behind it. `None` after the
    /// last shard. Leaves out counters that have expired at `now`. Decisions wait at most for the copy of one shard:
    /// tens of microseconds, unless a counter has a long log.
    pub fn export(&self, place: &mut ExportPlace, now: Timestamp, out: &mut Vec<u8>) -> Option<Exported> {
        let kinds = self.kinds.all();
        let shards = self.kinds.chunk_count * CHUNK_SHARDS;
        while let (Some(kind), Some(&algorithm)) = (kinds.get(place.kind), Algorithm::ALL.get(place.kind)) {
            while place.shard < shards {
                let counters = kind.export(place.shard, now, out);
                place.shard += 1;
                if counters > 0 {
                    return Some(Exported { algorithm, counters });
                }
            }
            *place = ExportPlace { kind: place.kind + 1, shard: 0 };
        }
        None
    }

    /// Restores counters that [`export`](Self::export) has copied. Some may have been restored when this fails: then
    /// the store must not be used.
    ///
    /// # Errors
    /// When the bytes are no counters, or there is no room for them.
    pub fn import(&self, encoded: &Encoded<'_>) -> Result<(), ImportError> {
        self.kinds.of(encoded.algorithm).import(encoded, &self.budget)
    }
}

impl<S: Counter> Table<S> {
    /// Appends every counter that has not expired at `now`, and returns how many.
    pub(super) fn export(&self, now: Timestamp, out: &mut Vec<u8>) -> u32 {
        let live = self.entries().filter(|(_, state)| state.expires_at() > now);
        live.map(|(key, state)| encode(key, state, out)).count() as u32
    }
}

impl<S: Counter> KindShards<S> {
    /// Restores counters, as [`MemoryStore::import`] does.
    pub(super) fn take_all(&self, encoded: &Encoded<'_>, budget: &Budget) -> Result<(), ImportError> {
        encoded.each(|key, state: S| {
            let (mut shard, due) = self.lock(key);
            shard.take(key, state, budget)?;
            due.note(shard.earliest_secs());
            Ok(())
        })
    }
}

impl<S: Counter> Shard<S> {
    /// Adds a counter that is not there yet.
    fn take(&mut self, key: Key, state: S, budget: &Budget) -> Result<(), ImportError> {
        if self.has(key) {
            return Err(ImportError::Damaged { counter: 0, what: "its key is there twice" });
        }
        if self.put(key, state, budget) { Ok(()) } else { Err(ImportError::Full) }
    }
}
