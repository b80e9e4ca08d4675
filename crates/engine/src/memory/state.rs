//! Counters as bytes: copied out of a store, to be written to a file, and taken into another.
//!
//! In: a store. Out: for each shard its counters, one after the other, each as its key and its state. And back: bytes
//! that anybody may have changed in between, so every counter is checked. What frames the bytes in a file, and whether
//! the file is to be believed, is the program's concern.

use std::fmt;

use crate::key::Key;
use crate::limit::{Algorithm, Append as _, Counter, Damage, Reader, with_algorithms};
use crate::memory::MemoryStore;
use crate::memory::budget::Budget;
use crate::memory::kind::{CHUNK_SHARDS, Kind};
use crate::memory::shard::{Shard, ShardOps as _};
use crate::memory::table::Table;
use crate::time::Timestamp;

/// How far a walk through all counters has come: see [`MemoryStore::export`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportPlace {
    kind: usize,
    shard: usize,
}

/// What one step of a walk has copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// The algorithm of these counters.
    pub algorithm: Algorithm,
    /// How many they are; at least one.
    pub counters: u32,
}

/// Counters of one algorithm, as bytes.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'b> {
    /// Their algorithm.
    pub algorithm: Algorithm,
    /// How many they are.
    pub counters: u32,
    /// One after the other.
    pub bytes: &'b [u8],
    /// When they were copied, or later: no counter may have seen a later time.
    pub copied_at: Timestamp,
}

/// Why counters were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportError {
    /// No store has ever written these bytes.
    Damaged {
        /// The counter among those of this step, from 0.
        counter: u32,
        /// What is wrong.
        what: &'static str,
    },
    /// There is no room for all of them.
    Full,
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { counter, what } => write!(f, "counter {counter}: {what}"),
            Self::Full => f.write_str("there is no room for all counters"),
        }
    }
}

impl std::error::Error for ImportError {}

impl MemoryStore {
    /// Appends to `out` the counters of the next shard that holds any, and moves `place` behind it. `None` after the
    /// last shard. Leaves out counters that have expired at `now`. Decisions wait for the copy of one shard at most:
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

    /// Takes counters that [`export`](Self::export) has copied. Some may have been taken when this fails: the store is
    /// of no use then.
    ///
    /// # Errors
    /// When the bytes are no counters, or there is no room for them.
    pub fn import(&self, encoded: &Encoded<'_>) -> Result<(), ImportError> {
        self.kinds.of(encoded.algorithm).import(encoded, &self.budget)
    }
}

impl Encoded<'_> {
    /// Checks what can be checked without a store.
    ///
    /// # Errors
    /// When the bytes are no counters.
    pub fn verify(&self) -> Result<(), ImportError> {
        macro_rules! verify {
            ($( $(#[$attribute:meta])* $variant:ident: $module:ident, )+) => {
                match self.algorithm {
                    $( Algorithm::$variant => {
                        self.each(|_, _: crate::limit::$module::$variant| Ok(()))
                    } )+
                }
            };
        }
        with_algorithms!(verify)
    }

    /// Calls `take` with every counter.
    pub(super) fn each<S: Counter>(
        &self,
        mut take: impl FnMut(Key, S) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let mut bytes = Reader::new(self.bytes);
        for counter in 0..self.counters {
            let damaged = |what| ImportError::Damaged { counter, what };
            let (key, state) = decode(&mut bytes, self.copied_at).map_err(damaged)?;
            take(key, state).map_err(|error| match error {
                ImportError::Damaged { what, .. } => damaged(what),
                ImportError::Full => ImportError::Full,
            })?;
        }
        let behind = ImportError::Damaged { counter: self.counters, what: "bytes follow the last counter" };
        if bytes.is_empty() { Ok(()) } else { Err(behind) }
    }
}

/// Appends a counter.
fn encode<S: Counter>(key: Key, state: &S, out: &mut Vec<u8>) {
    out.u128(key.0);
    state.encode(out);
}

/// Reads a counter that was copied at `copied_at`.
fn decode<S: Counter>(bytes: &mut Reader<'_>, copied_at: Timestamp) -> Result<(Key, S), Damage> {
    let (key, state) = (Key(bytes.u128()?), S::decode(bytes)?);
    if state.latest() > copied_at {
        return Err("its latest time is later than the copy");
    }
    if state.expires_at() <= state.latest() {
        return Err("it had expired when it was last used");
    }
    Ok((key, state))
}

impl<S: Counter> Table<S> {
    /// Appends every counter that has not expired at `now`, and returns how many.
    pub(super) fn export(&self, now: Timestamp, out: &mut Vec<u8>) -> u32 {
        let live = self.entries().filter(|(_, state)| state.expires_at() > now);
        live.map(|(key, state)| encode(key, state, out)).count() as u32
    }
}

impl<S: Counter> Kind<S> {
    /// Takes counters, as [`MemoryStore::import`] does.
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
    /// Takes a counter that is not there yet.
    fn take(&mut self, key: Key, state: S, budget: &Budget) -> Result<(), ImportError> {
        if self.has(key) {
            return Err(ImportError::Damaged { counter: 0, what: "its key is there twice" });
        }
        if self.put(key, state, budget) { Ok(()) } else { Err(ImportError::Full) }
    }
}
