//! A hash table that keeps its entries in the order of their keys, so that it grows by a twelfth instead of doubling.
//!
//! An entry's home is key / 2^128 × homes, rounded down: keys are uniform (secret-keyed hashes), so homes are too, and
//! they ascend with the keys. Entries stand in ascending order, each at its home or as close after it as those before
//! it allow, without a gap in between. So
//!
//! - growing, shrinking and dropping what is over are one pass from front to back, in cache order;
//! - there are no tombstones: a slot is a tag of one byte, the key and the state;
//! - a search compares sixteen tags from the home on at once, and nearly always looks at one slot only. That matters
//!   more than it seems: no branch depends on how far the entry was pushed, so the processor runs ahead into the next
//!   decision while this one's slot is still on its way from memory.
//!
//! Growing by a twelfth keeps nine tenths to five sixths of the slots in use, where doubling would waste half. It moves
//! about twelve entries for each new one.

use crate::engine::key::Key;

/// Slots that a table grows by at least.
const SLOTS_STEP: usize = 4;
/// Tags that are compared at once.
const GROUP: usize = 16;
/// The tag of a free slot.
const FREE: u8 = 0;

#[derive(Debug)]
pub(super) struct Table<S> {
    /// A byte of each slot's key, never [`FREE`]; and [`GROUP`] free ones behind, so that every group is whole.
    tags: Box<[u8]>,
    /// The slots; the last few are no one's home, they take what the last homes push on.
    slots: Box<[Slot<S>]>,
    len: u32,
    /// The owner's note: no state's time is over before this second. Here because these four bytes would be padding
    /// otherwise, and a shard would take two cache lines.
    pub(super) earliest_secs: u32,
}

#[derive(Debug, Default)]
struct Slot<S> {
    key: SlotKey,
    state: S,
}

/// A key without padding around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
struct SlotKey {
    high: u64,
    low: u64,
}

impl SlotKey {
    fn new(Key(key): Key) -> Self {
        Self { high: (key >> 64) as u64, low: key as u64 }
    }

    fn home(self, homes: usize) -> usize {
        ((u128::from(self.high) * homes as u128) >> 64) as usize
    }

    /// Bits that neither the home nor the shard depends on much.
    fn tag(self) -> u8 {
        (self.low as u8).max(1)
    }
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { tags: Box::default(), slots: Box::default(), len: 0, earliest_secs: u32::MAX }
    }
}

impl<S: Default> Table<S> {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// The bytes that a table of this many slots takes.
    pub(super) const fn bytes_of(slot_count: usize) -> usize {
        if slot_count == 0 { 0 } else { slot_count * (size_of::<Slot<S>>() + 1) + GROUP }
    }

    pub(super) fn state(&self, slot: usize) -> &S {
        &self.slots[slot].state
    }

    pub(super) fn state_mut(&mut self, slot: usize) -> &mut S {
        &mut self.slots[slot].state
    }

    /// The slot of this key.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<usize> {
        let key = SlotKey::new(key);
        let mut place = key.home(homes(self.slots.len()));
        loop {
            let group = u128::from_le_bytes(*self.tags.get(place..)?.first_chunk::<GROUP>()?);
            let mut equal = equal_bytes(group, key.tag());
            while equal != 0 {
                let slot = place + equal.trailing_zeros() as usize / 8;
                if self.slots.get(slot).is_some_and(|entry| entry.key == key) {
                    return Some(slot);
                }
                equal &= equal - 1;
            }
            if equal_bytes(group, FREE) != 0 {
                return None;
            }
            place += GROUP;
        }
    }

    /// `more` keys can be inserted without growing.
    pub(super) fn has_room(&self, more: usize) -> bool {
        let slots = self.slots.len();
        let tail_free = || self.tags[slots - more..slots].iter().all(|&tag| tag == FREE);
        self.len() + more <= slots - slots.div_ceil(10) && tail_free()
    }

    /// The slots that the table has at least after it grew.
    pub(super) fn slots_grown_least(&self) -> usize {
        self.slots.len() + (self.slots.len() / 12).max(SLOTS_STEP)
    }

    /// The slots that the table needs for `more` keys, if it has no room for them.
    pub(super) fn slots_grown(&self, more: usize) -> usize {
        self.slots_from(self.slots_grown_least(), more)
    }

    /// The slots that are enough for what is there.
    pub(super) fn slots_shrunk(&self) -> usize {
        if self.len == 0 { 0 } else { self.slots_from(self.len() + self.len() / 4 + SLOTS_STEP, 0) }
    }

    fn slots_from(&self, least: usize, more: usize) -> usize {
        (least..).step_by(SLOTS_STEP).find(|&slots| self.fits(slots, more)).unwrap_or(least)
    }

    /// All entries, and `more` to come, have a place among this many slots.
    fn fits(&self, slot_count: usize, more: usize) -> bool {
        let homes = homes(slot_count);
        let end = self.entries().fold(0, |next, slot| slot.key.home(homes).max(next) + 1);
        end + more <= slot_count && self.len() + more <= slot_count - slot_count.div_ceil(10)
    }

    /// Inserts a key that is not there, with a new state, and returns its slot. Needs [`has_room`](Self::has_room).
    pub(super) fn insert(&mut self, key: Key) -> usize {
        let key = SlotKey::new(key);
        let home = key.home(homes(self.slots.len()));
        let is_after = |&slot: &usize| self.tags[slot] == FREE || self.slots[slot].key > key;
        let slot =
            (home..self.slots.len()).find(is_after).expect("the caller made room: the last slot is free");
        let free = self.tags[slot..].iter().position(|&tag| tag == FREE).map_or(slot, |pushed| slot + pushed);
        self.slots[slot..=free].rotate_right(1);
        self.tags[slot..=free].rotate_right(1);
        self.slots[slot].key = key;
        self.tags[slot] = key.tag();
        self.len += 1;
        slot
    }

    /// Gives the table this many slots, among which all entries must fit.
    pub(super) fn resize(&mut self, slot_count: usize) {
        let slots = (0..slot_count).map(|_| Slot::default()).collect();
        let tags =
            if slot_count == 0 { Box::default() } else { vec![FREE; slot_count + GROUP].into_boxed_slice() };
        let new = Self { tags, slots, len: self.len, earliest_secs: self.earliest_secs };
        let old = std::mem::replace(self, new);
        let homes = homes(slot_count);
        let mut next = 0;
        for (entry, _) in old.slots.into_iter().zip(&old.tags).filter(|&(_, &tag)| tag != FREE) {
            next = self.put(entry, homes, next);
        }
    }

    /// Drops what `keep` does not keep; the rest moves as close to its home as it can.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&S) -> bool) {
        let homes = homes(self.slots.len());
        let mut next = 0;
        for index in 0..self.slots.len() {
            if std::mem::replace(&mut self.tags[index], FREE) == FREE {
                continue;
            }
            let entry = std::mem::take(&mut self.slots[index]);
            if keep(&entry.state) {
                next = self.put(entry, homes, next);
            } else {
                self.len -= 1;
            }
        }
    }

    /// Puts an entry at its home or at `next`, whichever is later; returns the slot after it.
    fn put(&mut self, entry: Slot<S>, homes: usize, next: usize) -> usize {
        let place = entry.key.home(homes).max(next);
        self.tags[place] = entry.key.tag();
        self.slots[place] = entry;
        place + 1
    }

    fn entries(&self) -> impl Iterator<Item = &Slot<S>> {
        self.slots.iter().zip(&self.tags).filter(|&(_, &tag)| tag != FREE).map(|(slot, _)| slot)
    }
}

/// The number of homes among this many slots.
fn homes(slots: usize) -> usize {
    slots - (slots / 16).min(8)
}

/// Marks with its highest bit each byte of `group` that equals `byte`. Above a byte that does, one that does not may
/// be marked too, so a mark only says where to look.
fn equal_bytes(group: u128, byte: u8) -> u128 {
    const ONES: u128 = u128::MAX / 255;
    let zero_where_equal = group ^ (ONES * u128::from(byte));
    zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & (ONES << 7)
}

#[cfg(test)]
mod tests {
    use std::array;
    use std::collections::BTreeMap;

    use super::*;

    fn key(number: u64) -> Key {
        Key(u128::from(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 64 | u128::from(number))
    }

    fn make_room(table: &mut Table<u64>) {
        if !table.has_room(1) {
            table.resize(table.slots_grown(1));
        }
    }

    fn same(table: &Table<u64>, model: &BTreeMap<u64, u64>) {
        assert_eq!(table.len(), model.len());
        assert_eq!(table.entries().count(), model.len());
        for (&number, &state) in model {
            let slot = table.find(key(number)).expect("it was inserted");
            assert_eq!(*table.state(slot), state);
        }
        assert_eq!(table.find(key(u64::MAX)), None);
    }

    #[test]
    fn it_is_a_map() {
        let (mut table, mut model) = (Table::<u64>::default(), BTreeMap::new());
        for number in 0..3_000 {
            make_room(&mut table);
            let slot = table.insert(key(number));
            *table.state_mut(slot) = number % 7;
            model.insert(number, number % 7);
            if number % 97 == 0 {
                same(&table, &model);
            }
        }
        for gone in 0..7 {
            table.retain(|&state| state != gone);
            model.retain(|_, state| *state != gone);
            same(&table, &model);
            table.resize(table.slots_shrunk());
            same(&table, &model);
        }
        assert_eq!(table.slot_count(), 0);
    }

    /// Keys that all have one home: what nobody can aim at still works.
    #[test]
    fn it_is_a_map_even_for_keys_of_one_home() {
        let mut table = Table::<u64>::default();
        for number in 0..200_u64 {
            let key = Key(u128::from(number));
            make_room(&mut table);
            assert_eq!(table.find(key), None);
            table.insert(key);
        }
        assert!((0..200).all(|number| table.find(Key(number)).is_some()));
    }

    #[test]
    fn slots_are_used_well() {
        let mut table = Table::<u64>::default();
        for number in 0..2_000 {
            make_room(&mut table);
            table.insert(key(number));
            let used = table.len() as f64 / table.slot_count() as f64;
            assert!(number < 200 || used > 0.8, "{used} at {number}");
        }
    }

    #[test]
    fn equal_bytes_are_marked_and_the_lowest_mark_is_true() {
        let bytes: [u8; GROUP] = array::from_fn(|index| [3, 0, 1, 3, 255, 2][index % 6]);
        let group = u128::from_le_bytes(bytes);
        for byte in 0..=255 {
            let marks = equal_bytes(group, byte);
            let first = bytes.iter().position(|&other| other == byte);
            assert_eq!((marks != 0).then(|| marks.trailing_zeros() as usize / 8), first);
            let all_marked = |index: usize| bytes[index] != byte || marks >> (8 * index + 7) & 1 == 1;
            assert!((0..GROUP).all(all_marked));
        }
    }
}
