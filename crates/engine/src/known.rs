//! The cache of records: for each key its record, or that it has none. A batch prefetches it.
//!
//! - **Place.** A set holds four entries on two cache lines of its own; two neighbouring sets are a pair. An entry is
//!   in its home set, or, if that was full, in the other set of the pair, or, if both were full, in a small map with
//!   a lock.
//! - **Growing.** There is about one set for each entry, so few sets are full. Growing adds one pair, and moves to it
//!   the entries of one other pair that belong there (linear hashing: Litwin, 1980). No insertion moves more than
//!   that.
//! - **Reading** takes no lock, except for the few keys in that map. A set has a version, odd while it is written; an
//!   entry counts if the version was the same and even before and after (a seqlock: Boehm, "Can seqlocks get along
//!   with programming language memory models?", 2012). A key whose set is being written is not found for a moment.
//!   That is allowed: the caller goes to the store, as for a key that was evicted. `tests/weak_memory.rs` tries what
//!   any processor may do with these loads and stores.
//! - **Writing** is for one thread at a time.
//! - **When it is full**, a hand goes from pair to pair, ages the entries that were not used since its last visit,
//!   and evicts those of the greatest age, all of the first pair that has any (generalised CLOCK: Smith, 1978). So
//!   keys that come once evict one another.
//! - **The map is only for growing.** The hand does not reach it, so entries there would never age. Once the cache is
//!   full, they are moved to their pairs, and an entry whose pair is full replaces the least used one there.

mod packed;
mod set;

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::fast::FixedState;

use self::packed::{Packed, pack, unpack};
use self::set::{CacheEntry, Elsewhere, Name, PairImage, Set};
use crate::key::Key;
use crate::overlay::Record;
use crate::sync::{AtomicU32, Mutex};

/// Sets that are allocated together, or as many as are ever used: 64 KiB, less what an allocator needs to align them.
const CHUNK_SETS: usize = 510;
/// Sets of a pair.
const PAIR: usize = 2;
/// The most entries: about 128 GiB of them.
const ENTRIES_MAX: usize = 1 << 30;
/// Pairs that the hand visits for one insertion.
const HAND_PAIRS: usize = 64;
/// Pairs that are emptied before others may write.
const CLEARED_AT_ONCE: usize = 256;

/// The cache of records.
#[derive(Debug)]
pub struct RecordCache {
    /// Neighbouring sets, allocated when the first of them is used.
    chunks: Box<[OnceLock<Box<[Set]>>]>,
    /// How many pairs are in use: those before this one. It needs no order: a reader that sees an old number looks in
    /// a complete set, and finds less.
    pairs: AtomicU32,
    entries_max: usize,
    /// Entries whose pairs were full when they were added: about one of a thousand. Empty once the cache has been
    /// full.
    overflow: Mutex<Overflow>,
    writing: Mutex<Writing>,
}

/// Names are hashes already, so nobody can choose their places. A fixed hash makes runs of the simulation equal.
type Overflow = HashMap<Name, Packed, FixedState>;

/// What only writers need.
#[derive(Debug, Default)]
struct Writing {
    len: usize,
    /// The pair at which the hand stands.
    hand: usize,
    /// Nothing is added to the overflow any more.
    has_been_full: bool,
}

impl RecordCache {
    /// Memory for an entry: there is about a set for each.
    pub const BYTES_OF_ENTRY: usize = size_of::<Set>();

    /// Room for this many keys (1 to 2^30). It allocates memory as keys are added: about 128 bytes each.
    pub fn new(entries_max: usize) -> Self {
        let entries_max = entries_max.clamp(1, ENTRIES_MAX);
        let sets = entries_max.next_multiple_of(PAIR);
        let chunks = (0..sets.div_ceil(CHUNK_SETS)).map(|_| OnceLock::new()).collect();
        let (overflow, writing) = Default::default();
        Self { chunks, pairs: AtomicU32::new(1), entries_max, overflow, writing }
    }

    /// Prefetches what [`get`](Self::get) reads.
    #[inline]
    pub fn fetch(&self, key: Key) {
        let (pair, home) = place(Name::of(key), self.pairs());
        if let Some(sets) = self.made(pair) {
            sets[home].fetch();
        }
    }

    /// The record of a key, or that it has none (`Some(None)`). `None`: not known.
    #[inline(always)] // What it returns is large: as a call of its own it goes through memory, 5 ns.
    pub fn get(&self, key: Key) -> Option<Option<Record>> {
        let name = Name::of(key);
        let (pair, home) = place(name, self.pairs());
        let sets = self.made(pair)?;
        match sets[home].get(name) {
            Ok(packed) => Some(unpack(packed)),
            Err(Elsewhere { beside: false, overflow: false }) => None,
            Err(elsewhere) => self.get_elsewhere(elsewhere, &sets[1 - home], name),
        }
    }

    #[cold]
    fn get_elsewhere(&self, may_be: Elsewhere, beside: &Set, name: Name) -> Option<Option<Record>> {
        let in_overflow = || may_be.overflow.then(|| self.overflow.lock().get(&name).copied()).flatten();
        may_be.beside.then(|| beside.get(name).ok()).flatten().or_else(in_overflow).map(unpack)
    }

    /// Adds or replaces what is known of a key.
    pub fn insert(&self, key: Key, record: Option<Record>) {
        let (mut writing, name, packed) = (self.writing.lock(), Name::of(key), pack(record));
        let (pair, home) = place(name, self.pairs());
        let mut image = self.read(pair);
        if let Some(known) = image.find(name) {
            known.packed = packed;
            return self.write(pair, &image);
        }
        if image.has_overflow(home)
            && let Some(known) = self.overflow.lock().get_mut(&name)
        {
            *known = packed;
            return;
        }
        match image.put(CacheEntry::new(name, packed)) {
            Ok(()) => writing.len += 1,
            Err(entry) if !writing.has_been_full => {
                self.overflow.lock().insert(name, entry.packed);
                image.overflows(home);
                writing.len += 1;
            }
            Err(entry) => image.put_instead(entry),
        }
        self.write(pair, &image);
        if writing.len > self.entries_max {
            if !writing.has_been_full {
                self.empty_overflow(&mut writing);
            }
            self.push_out(&mut writing);
        }
        if writing.len > self.pairs() * PAIR {
            self.add_pair();
        }
    }

    /// Forgets a key.
    pub fn remove(&self, key: Key) {
        let (mut writing, name) = (self.writing.lock(), Name::of(key));
        let (pair, home) = place(name, self.pairs());
        self.take_out(pair, name, &mut writing);
        if self.read(pair).has_overflow(home) && self.overflow.lock().remove(&name).is_some() {
            writing.len -= 1;
        }
    }

    /// Forgets all present keys. Others may be added meanwhile.
    pub fn clear(&self) {
        let mut pair = 0;
        loop {
            let mut writing = self.writing.lock();
            // Growing moves entries to pairs behind all others, so none is missed.
            let end = self.pairs().min(pair + CLEARED_AT_ONCE);
            if pair == end {
                writing.has_been_full = false;
                return;
            }
            // Pairs that are cleared here may have got some since the step before.
            writing.len -= self.overflow.lock().drain().count();
            while pair < end {
                writing.len -= self.read(pair).entries().count();
                self.write(pair, &PairImage::default());
                pair += 1;
            }
        }
    }

    /// How many keys are known.
    pub fn len(&self) -> usize {
        self.writing.lock().len
    }

    /// Whether no key is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn pairs(&self) -> usize {
        self.pairs.load(Relaxed) as usize
    }

    /// The sets of a pair. `None`: they are not allocated yet.
    #[inline]
    fn made(&self, pair: usize) -> Option<&[Set; PAIR]> {
        let sets = self.chunks[pair * PAIR / CHUNK_SETS].get()?;
        sets[pair * PAIR % CHUNK_SETS..].first_chunk()
    }

    fn read(&self, pair: usize) -> PairImage {
        self.made(pair).map(|sets| PairImage(sets.each_ref().map(Set::read))).unwrap_or_default()
    }

    fn write(&self, pair: usize, image: &PairImage) {
        let chunk = pair * PAIR / CHUNK_SETS;
        let sets = CHUNK_SETS.min(self.entries_max.next_multiple_of(PAIR) - chunk * CHUNK_SETS);
        self.chunks[chunk].get_or_init(|| (0..sets).map(|_| Set::default()).collect());
        image.write(self.made(pair).expect("the chunk is made, and its sets are in pairs"));
    }

    fn take_out(&self, pair: usize, name: Name, writing: &mut Writing) {
        let mut image = self.read(pair);
        if let Some(known) = image.find(name) {
            *known = CacheEntry::default();
            writing.len -= 1;
            self.write(pair, &image);
        }
    }

    /// Adds a pair. Only entries of one other pair have another place then.
    fn add_pair(&self) {
        let new = self.pairs();
        if new >= self.entries_max.div_ceil(PAIR) {
            return;
        }
        let from = new - (1 << new.ilog2());
        let before = self.read(from);
        let mut moving: Vec<CacheEntry> = before.entries().collect();
        let mut overflow = self.overflow.lock();
        if before.has_overflow(0) || before.has_overflow(1) {
            let of_pair = overflow.extract_if(|name, _| place(*name, new).0 == from);
            moving.extend(of_pair.map(|(name, packed)| CacheEntry::new(name, packed)));
        }
        let (mut stay, mut go) = (PairImage::default(), PairImage::default());
        for entry in moving {
            let (pair, home) = place(entry.name(), new + 1);
            let image = if pair == from { &mut stay } else { &mut go };
            if let Err(entry) = image.put(entry) {
                image.overflows(home);
                overflow.insert(entry.name(), entry.packed);
            }
        }
        self.write(new, &go);
        self.pairs.store(new as u32 + 1, Relaxed);
        self.write(from, &stay);
    }

    /// Moves the overflow to its pairs, where its entries replace the least used ones, and closes it.
    fn empty_overflow(&self, writing: &mut Writing) {
        writing.has_been_full = true;
        let overflow = std::mem::take(&mut *self.overflow.lock());
        writing.len -= overflow.len();
        for (name, packed) in overflow {
            let (pair, _) = place(name, self.pairs());
            let mut image = self.read(pair);
            image.overflows_no_more();
            match image.put(CacheEntry::new(name, packed)) {
                Ok(()) => writing.len += 1,
                Err(entry) => image.put_instead(entry),
            }
            self.write(pair, &image);
        }
    }

    /// Evicts entries that were not used lately: all of the first pair that has any, else one of the least used.
    fn push_out(&self, writing: &mut Writing) {
        let pairs = self.pairs();
        let mut least_used = None;
        for _ in 0..HAND_PAIRS {
            let pair = writing.hand % pairs;
            writing.hand = pair + 1;
            let mut image = self.read(pair);
            let unused = image.age();
            writing.len -= unused;
            self.write(pair, &image);
            if unused > 0 {
                return;
            }
            let of_pair = image.entries().map(|entry| (pair, entry));
            least_used = least_used.into_iter().chain(of_pair).min_by_key(|(_, entry)| entry.used());
        }
        if let Some((pair, entry)) = least_used {
            self.take_out(pair, entry.name(), writing);
        }
    }
}

/// The pair of a key among this many, and its home in it.
#[inline]
fn place(name: Name, pairs: usize) -> (usize, usize) {
    let mask = pairs.next_power_of_two() - 1;
    let index = name.high as usize & mask;
    let pair = if index < pairs { index } else { index & (mask >> 1) };
    (pair, name.home())
}
