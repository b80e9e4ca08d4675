//! A hash table that keeps its entries in the order of their keys, so that it grows by a tenth instead of doubling.
//!
//! An entry's home is key / 2^128 × homes, rounded down: keys are uniform (secret-keyed hashes), so homes are too, and
//! they ascend with the keys. Entries stand in ascending order, each at its home or as close after it as those before
//! it allow, without a gap in between. So
//!
//! - a search starts at the home and ends at the first greater key or empty slot: three or four entries side by side;
//! - growing, shrinking and dropping what is over are one pass from front to back, in cache order;
//! - there is no tombstone and no control byte: a slot is key and state, nothing else.
//!
//! Growing by a tenth keeps seven eighths to four fifths of the slots in use, where doubling would waste half. It
//! moves about ten entries for each new one.

use crate::engine::key::Key;

/// Slots that a table has at least, and grows by at least.
const SLOTS_STEP: usize = 4;

#[derive(Debug)]
pub(super) struct Table<S> {
    /// The slots; the last few are no one's home, they take what the last homes push on.
    slots: Vec<Slot<S>>,
    len: usize,
}

#[derive(Debug, Default)]
struct Slot<S> {
    key: SlotKey,
    state: S,
}

/// A key without padding around it. Zero is no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
struct SlotKey {
    high: u64,
    low: u64,
}

impl SlotKey {
    const NONE: Self = Self { high: 0, low: 0 };

    fn new(Key(key): Key) -> Self {
        let key = if key == 0 { u128::MAX } else { key };
        Self { high: (key >> 64) as u64, low: key as u64 }
    }

    fn home(self, homes: usize) -> usize {
        ((u128::from(self.high) * homes as u128) >> 64) as usize
    }
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { slots: Vec::new(), len: 0 }
    }
}

impl<S: Default> Table<S> {
    /// The bytes of one slot.
    pub(super) const SLOT_BYTES: usize = size_of::<Slot<S>>();

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// The slot of this key.
    pub(super) fn find(&self, key: Key) -> Option<usize> {
        self.search(SlotKey::new(key)).ok()
    }

    pub(super) fn state(&self, slot: usize) -> &S {
        &self.slots[slot].state
    }

    pub(super) fn state_mut(&mut self, slot: usize) -> &mut S {
        &mut self.slots[slot].state
    }

    /// The slot of this key, else the slot that it belongs to.
    fn search(&self, key: SlotKey) -> Result<usize, usize> {
        let home = key.home(homes(self.slots.len()));
        let rest = self.slots.get(home..).unwrap_or_default();
        for (offset, slot) in rest.iter().enumerate() {
            if slot.key == key {
                return Ok(home + offset);
            }
            if slot.key == SlotKey::NONE || slot.key > key {
                return Err(home + offset);
            }
        }
        Err(self.slots.len())
    }

    /// `more` keys can be inserted without growing.
    pub(super) fn has_room(&self, more: usize) -> bool {
        let slots = self.slots.len();
        let tail_free = || self.slots[slots - more..].iter().all(|slot| slot.key == SlotKey::NONE);
        self.len + more <= slots - slots / 8 - usize::from(slots > 0) && tail_free()
    }

    /// The slots that the table needs for `more` keys, if it has no room for them.
    pub(super) fn slots_grown(&self, more: usize) -> usize {
        let slots = self.slots.len();
        self.slots_from(slots + (slots / 10).max(SLOTS_STEP), more)
    }

    /// The slots that are enough for what is there.
    pub(super) fn slots_shrunk(&self) -> usize {
        if self.len == 0 { 0 } else { self.slots_from(self.len + self.len / 4 + SLOTS_STEP, 0) }
    }

    fn slots_from(&self, least: usize, more: usize) -> usize {
        (least..).step_by(SLOTS_STEP).find(|&slots| self.fits(slots, more)).unwrap_or(least)
    }

    /// Inserts a key that is not there, with a new state, and returns its slot. Needs [`has_room`](Self::has_room).
    pub(super) fn insert(&mut self, key: Key) -> usize {
        let key = SlotKey::new(key);
        let slot = match self.search(key) {
            Ok(slot) | Err(slot) => slot,
        };
        let free = self.slots.iter().skip(slot).position(|slot| slot.key == SlotKey::NONE);
        let free = slot + free.expect("the caller made room: the last slot is free");
        self.slots[slot..=free].rotate_right(1);
        self.slots[slot].key = key;
        self.len += 1;
        slot
    }

    /// All entries, and `more` to come, have a place among this many slots.
    pub(super) fn fits(&self, slot_count: usize, more: usize) -> bool {
        let homes = homes(slot_count);
        let keys = self.slots.iter().map(|slot| slot.key).filter(|&key| key != SlotKey::NONE);
        keys.fold(0, |next, key| key.home(homes).max(next) + 1) + more <= slot_count
    }

    /// Gives the table this many slots, among which all entries must [fit](Self::fits).
    pub(super) fn resize(&mut self, slot_count: usize) {
        let mut slots = Vec::new();
        slots.reserve_exact(slot_count);
        slots.resize_with(slot_count, Slot::default);
        let homes = homes(slot_count);
        let mut next = 0;
        let old = std::mem::replace(&mut self.slots, slots);
        for entry in old.into_iter().filter(|entry| entry.key != SlotKey::NONE) {
            let place = entry.key.home(homes).max(next);
            self.slots[place] = entry;
            next = place + 1;
        }
    }

    /// Drops what `keep` does not keep; the rest moves as close to its home as it can.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&S) -> bool) {
        let homes = homes(self.slots.len());
        let mut next = 0;
        for index in 0..self.slots.len() {
            if self.slots[index].key == SlotKey::NONE {
                continue;
            }
            let entry = std::mem::take(&mut self.slots[index]);
            if !keep(&entry.state) {
                self.len -= 1;
                continue;
            }
            let place = entry.key.home(homes).max(next);
            self.slots[place] = entry;
            next = place + 1;
        }
    }

    /// All states.
    pub(super) fn states(&self) -> impl Iterator<Item = &S> {
        self.slots.iter().filter(|slot| slot.key != SlotKey::NONE).map(|slot| &slot.state)
    }
}

/// The number of homes among this many slots.
fn homes(slots: usize) -> usize {
    slots - (slots / 16).min(8)
}
