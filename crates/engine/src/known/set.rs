//! A set of entries: for readers ([`Set`]), and for the writer ([`Image`], [`PairImage`]).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use prefetch_index::prefetch_index;

use super::packed::{FLAGS, HAS_MORE, IS_KNOWN, More, Packed};
use crate::key::Key;
use crate::sync::{AtomicU16, AtomicU32, AtomicU64};

/// Entries of a set.
const SLOTS: usize = 4;

/// The marks of each slot of a set, in eight bits: what is known, whether the entry was used since the hand's last
/// visit, and for how many of the hand's rounds it stays without being used (0 to 7).
const MARK_BITS: usize = 8;
const MARK: u32 = (1 << MARK_BITS) - 1;
const WAS_USED: u32 = 1 << 3;
const ROUND: u32 = 1 << 4;
const ROUNDS_MAX: u32 = 7 * ROUND;
/// What a round adds for an entry that was used in it.
const ROUNDS_OF_USE: u32 = 2 * ROUND;
const USE: u32 = WAS_USED | ROUNDS_MAX;
/// An entry with this home is in the other set of the pair.
const HAS_BESIDE: u32 = 1 << 31;
/// An entry with this home may be in the overflow.
const HAS_OVERFLOW: u32 = 1 << 23;

/// Four entries on two cache lines. The first line has everything but the fields that few records have.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(super) struct Set {
    /// Odd while it is written.
    version: AtomicU32,
    /// The marks of each slot, [`HAS_BESIDE`] and [`HAS_OVERFLOW`]. Readers set bits of use, and a lost bit does no
    /// harm.
    marks: AtomicU32,
    highs: [AtomicU64; SLOTS],
    lows: [AtomicU16; SLOTS],
    requests: [AtomicU32; SLOTS],
    more: [[AtomicU64; 2]; SLOTS],
}

/// The contents of a set at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Image {
    slots: [CacheEntry; SLOTS],
    /// An entry with this home may be in the overflow.
    has_overflow: bool,
}

/// Where else an entry may be if it is not in its home.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elsewhere {
    pub(super) beside: bool,
    pub(super) overflow: bool,
}

/// The contents of both sets of a pair.
#[derive(Debug, Default)]
pub(super) struct PairImage(pub(super) [Image; 2]);

/// What is known of a key, and how often it was used. A free slot has one that is not known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CacheEntry {
    name: Name,
    pub(super) packed: Packed,
    used: u32,
}

/// What is kept of a key: 80 bits of its 128, which also determine its place. With a million known keys, the chance
/// that another key has the same 80 bits as one of them is 2^-60.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) high: u64,
    low: u16,
}

impl Name {
    #[inline]
    pub(super) fn of(Key(key): Key) -> Self {
        Self { high: (key >> 64) as u64, low: key as u16 }
    }

    /// Its home in a pair.
    #[inline]
    pub(super) fn home(self) -> usize {
        (self.high >> 63) as usize
    }
}

impl CacheEntry {
    /// An entry that was not used yet.
    pub(super) fn new(name: Name, packed: Packed) -> Self {
        Self { name, packed, used: 0 }
    }

    /// The name of its key.
    pub(super) fn name(&self) -> Name {
        self.name
    }

    /// How much it was used: 0 for least.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    fn is_known(&self) -> bool {
        self.packed.flags & IS_KNOWN != 0
    }

    /// Its use after the hand's visit.
    fn aged(&self) -> u32 {
        match self.used & WAS_USED {
            0 => self.used.saturating_sub(ROUND),
            _ => (self.used - WAS_USED + ROUNDS_OF_USE).min(ROUNDS_MAX),
        }
    }
}

impl Set {
    /// Prefetches its first cache line.
    #[inline]
    pub(super) fn fetch(&self) {
        prefetch_index(self.highs.as_slice(), 0);
    }

    /// What is known of a key. `Err`: it is not here.
    #[inline]
    pub(super) fn get(&self, name: Name) -> Result<Packed, Elsewhere> {
        // A reader that sees something of a later version here sees that version below: everything is written with
        // `Release`.
        let version = self.version.load(Acquire);
        let marks = self.marks.load(Acquire);
        let is_at = |&slot: &usize| {
            self.highs[slot].load(Acquire) == name.high
                && self.lows[slot].load(Acquire) == name.low
                && marks >> (slot * MARK_BITS) & IS_KNOWN != 0
        };
        let elsewhere = Elsewhere { beside: marks & HAS_BESIDE != 0, overflow: marks & HAS_OVERFLOW != 0 };
        let Some(slot) = (0..SLOTS).find(is_at) else { return Err(elsewhere) };
        let flags = marks >> (slot * MARK_BITS);
        let requests = self.requests[slot].load(Acquire);
        let more = if flags & HAS_MORE == 0 { More::default() } else { self.more(slot) };
        if version % 2 == 1 || self.version.load(Relaxed) != version {
            return Err(Elsewhere { beside: false, overflow: false });
        }
        if flags & WAS_USED == 0 {
            self.marks.fetch_or(WAS_USED << (slot * MARK_BITS), Relaxed);
        }
        Ok(Packed { flags, requests, more })
    }

    fn more(&self, slot: usize) -> More {
        self.more[slot].each_ref().map(|word| word.load(Acquire))
    }

    /// Its contents, for the writer.
    pub(super) fn read(&self) -> Image {
        let marks = self.marks.load(Relaxed);
        let slots = std::array::from_fn(|slot| {
            let mark = marks >> (slot * MARK_BITS) & MARK;
            let name = Name { high: self.highs[slot].load(Relaxed), low: self.lows[slot].load(Relaxed) };
            let requests = self.requests[slot].load(Relaxed);
            let packed = Packed { flags: mark & FLAGS, requests, more: self.more(slot) };
            CacheEntry { name, packed, used: mark & USE }
        });
        Image { slots, has_overflow: marks & HAS_OVERFLOW != 0 }
    }

    /// Sets its contents. One thread at a time.
    fn write(&self, image: &Image, has_beside: bool) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        self.marks.store(image.marks(has_beside), Release);
        for (slot, CacheEntry { name, packed, .. }) in image.slots.iter().enumerate() {
            self.highs[slot].store(name.high, Release);
            self.lows[slot].store(name.low, Release);
            self.requests[slot].store(packed.requests, Release);
            self.more[slot].iter().zip(packed.more).for_each(|(word, to)| word.store(to, Release));
        }
        self.version.store(version.wrapping_add(2), Release);
    }
}

impl Image {
    fn marks(&self, has_beside: bool) -> u32 {
        let of_slots = self.slots.iter().enumerate();
        let marks = of_slots.map(|(slot, entry)| (entry.packed.flags | entry.used) << (slot * MARK_BITS));
        let beside = if has_beside { HAS_BESIDE } else { 0 };
        let overflow = if self.has_overflow { HAS_OVERFLOW } else { 0 };
        marks.fold(beside | overflow, |all, mark| all | mark)
    }

    fn entries(&self) -> impl Iterator<Item = CacheEntry> {
        self.slots.into_iter().filter(CacheEntry::is_known)
    }

    fn free(&self) -> Option<usize> {
        self.slots.iter().position(|entry| !entry.is_known())
    }

    fn find(&mut self, name: Name) -> Option<&mut CacheEntry> {
        self.slots.iter_mut().find(|entry| entry.is_known() && entry.name == name)
    }
}

impl PairImage {
    pub(super) fn entries(&self) -> impl Iterator<Item = CacheEntry> {
        self.0.iter().flat_map(Image::entries)
    }

    /// A visit of the hand: an entry that was used since its last visit counts as more used from now on, all others
    /// as less. Removes those that cannot count as less, and returns how many. The overflow is empty by then.
    pub(super) fn age(&mut self) -> usize {
        self.overflows_no_more();
        let mut unused = 0;
        for entry in self.0.iter_mut().flat_map(|image| &mut image.slots).filter(|entry| entry.is_known()) {
            if entry.used == 0 {
                *entry = CacheEntry::default();
                unused += 1;
            } else {
                entry.used = entry.aged();
            }
        }
        unused
    }

    /// The entry of a key.
    pub(super) fn find(&mut self, name: Name) -> Option<&mut CacheEntry> {
        self.0.iter_mut().find_map(|image| image.find(name))
    }

    /// Adds an entry to a free slot of its home or, if that is full, of the other set. Returns it if both are full.
    pub(super) fn put(&mut self, entry: CacheEntry) -> Result<(), CacheEntry> {
        let home = entry.name.home();
        let free = [home, 1 - home].into_iter().find_map(|set| Some((set, self.0[set].free()?)));
        free.map(|(set, slot)| self.0[set].slots[slot] = entry).ok_or(entry)
    }

    /// Puts an entry into the slot of the least used one.
    pub(super) fn put_instead(&mut self, entry: CacheEntry) {
        let slots = self.0.iter_mut().flat_map(|image| &mut image.slots);
        *slots.min_by_key(|slot| slot.used).expect("there are slots") = entry;
    }

    /// Whether an entry with this home may be in the overflow.
    pub(super) fn has_overflow(&self, home: usize) -> bool {
        self.0[home].has_overflow
    }

    /// Notes that one may be.
    pub(super) fn overflows(&mut self, home: usize) {
        self.0[home].has_overflow = true;
    }

    /// The overflow has no entry of this pair any more.
    pub(super) fn overflows_no_more(&mut self) {
        self.0.iter_mut().for_each(|image| image.has_overflow = false);
    }

    /// Sets the contents of both sets of a pair. One thread at a time.
    pub(super) fn write(&self, sets: &[Set; 2]) {
        for (home, set) in sets.iter().enumerate() {
            let has_beside = self.0[1 - home].entries().any(|entry| entry.name.home() == home);
            set.write(&self.0[home], has_beside);
        }
    }
}
