//! A hash table that stays in the order of its keys, so that it grows by a twelfth instead of doubling.
//!
//! Slots come in groups of sixteen, their tags (a byte of the key each) in front. A key's home is the group key / 2^128
//! × homes, rounded down: keys are uniform (secret-keyed hashes), so homes are too, and they ascend with the keys. An
//! entry is in its home, or in the first group after it that had a free slot; every group in between is full. So
//!
//! - most keys are in the slot of their home that their own bits name: it is read side by side with the tags, and
//!   waiting for memory once is most of what a decision among many keys takes. For any other, sixteen tags are compared
//!   at once, and nearly always one slot is looked at;
//! - growing, shrinking and dropping what is over are one pass from front to back, in cache order;
//! - there are no tombstones: a slot is a tag, a key and a state, nothing else.
//!
//! Growing by a twelfth keeps nine tenths to five sixths of the slots in use, where doubling would waste half. It moves
//! about twelve entries for each new one.

use prefetch_index::prefetch_index;

use crate::engine::key::Key;

/// Slots of a group: as many as there are tags in a 128-bit number.
const GROUP: usize = 16;
/// The tag of a free slot.
const FREE: u8 = 0;
/// From this many groups on the last one is no home; it takes what the homes before it push on.
const GROUPS_WITH_TAIL: usize = 8;

#[derive(Debug)]
pub(super) struct Table<S> {
    groups: Box<[Group<S>]>,
    len: u32,
    /// The owner's note: no state's time is over before this second. Here because these four bytes would be padding
    /// otherwise.
    pub(super) earliest_secs: u32,
}

#[derive(Debug, Default)]
struct Group<S> {
    tags: [u8; GROUP],
    slots: [Slot<S>; GROUP],
}

#[derive(Debug, Default)]
struct Slot<S> {
    key: SlotKey,
    state: S,
}

/// A key without padding around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed(4))]
struct SlotKey {
    high: u64,
    low: u64,
}

impl SlotKey {
    fn new(Key(key): Key) -> Self {
        Self { high: (key >> 64) as u64, low: key as u64 }
    }

    /// The group that the key belongs to: by the high half of it (shards use the low half).
    fn home(self, homes: usize) -> usize {
        ((u128::from(self.high) * homes as u128) >> 64) as usize
    }

    /// Bits that neither the home nor the shard depends on much.
    fn tag(self) -> u8 {
        (self.low as u8).max(1)
    }

    /// The slot of its home that the key takes if that is free.
    fn own_slot(self) -> usize {
        (self.low >> 8) as usize % GROUP
    }
}

impl<S> Group<S> {
    /// Marks of the slots whose tag may be this one; the lowest is true.
    fn marks(&self, tag: u8) -> u128 {
        equal_bytes(u128::from_le_bytes(self.tags), tag)
    }

    fn first_free(&self) -> Option<usize> {
        let marks = self.marks(FREE);
        (marks != 0).then(|| marks.trailing_zeros() as usize / 8)
    }

    fn used(&self) -> usize {
        self.tags.iter().filter(|&&tag| tag != FREE).count()
    }
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { groups: Box::default(), len: 0, earliest_secs: u32::MAX }
    }
}

impl<S: Default> Table<S> {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The bytes that a table of this many groups takes.
    pub(super) const fn bytes_of(group_count: usize) -> usize {
        group_count * size_of::<Group<S>>()
    }

    pub(super) fn state(&self, slot: usize) -> &S {
        &self.groups[slot / GROUP].slots[slot % GROUP].state
    }

    pub(super) fn state_mut(&mut self, slot: usize) -> &mut S {
        &mut self.groups[slot / GROUP].slots[slot % GROUP].state
    }

    /// Begins to bring from memory what [`find`](Self::find) reads first.
    pub(super) fn fetch(&self, key: Key) {
        let key = SlotKey::new(key);
        let Some(group) = self.groups.get(key.home(homes(self.groups.len()))) else { return };
        let own = key.own_slot();
        prefetch_index(group.tags.as_slice(), own);
        prefetch_index(group.slots.as_slice(), own);
        // Where the slot reaches over the end of a cache line.
        prefetch_index(group.slots.as_slice(), own + 1);
    }

    /// The slot of this key.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<usize> {
        let key = SlotKey::new(key);
        let home = key.home(homes(self.groups.len()));
        let (group, own) = (self.groups.get(home)?, key.own_slot());
        // Both are always read, so that neither waits for the other to come from memory.
        if (group.tags[own] == key.tag()) & (group.slots[own].key == key) {
            return Some(home * GROUP + own);
        }
        self.search(home, key)
    }

    /// The slot of a key that is not in its own.
    fn search(&self, home: usize, key: SlotKey) -> Option<usize> {
        for (index, group) in self.groups.iter().enumerate().skip(home) {
            let mut marks = group.marks(key.tag());
            while marks != 0 {
                let slot = marks.trailing_zeros() as usize / 8;
                if group.slots[slot].key == key {
                    return Some(index * GROUP + slot);
                }
                marks &= marks - 1;
            }
            if group.marks(FREE) != 0 {
                return None;
            }
        }
        None
    }

    /// `more` keys, whatever they are, can be inserted without growing. At most a group's worth can be asked for.
    pub(super) fn has_room(&self, more: usize) -> bool {
        let last_used = self.groups.last().map_or(GROUP, Group::used);
        self.len() + more <= entries_max(self.groups.len()) && last_used + more <= GROUP
    }

    /// The groups that the table has at least after it grew.
    pub(super) fn groups_grown_least(&self) -> usize {
        self.groups.len() + (self.groups.len() / 12).max(1)
    }

    /// The groups that the table needs for `more` keys, if it has no room for them.
    pub(super) fn groups_grown(&self, more: usize) -> usize {
        self.groups_from(self.groups_grown_least(), more)
    }

    /// Gives memory back when less than half of the slots are used.
    pub(super) fn shrink_if_sparse(&mut self) {
        if self.len() < self.groups.len() * GROUP / 2 {
            let groups = self.groups_shrunk();
            if groups < self.groups.len() {
                self.resize(groups);
            }
        }
    }

    /// The groups that are enough for what is there.
    fn groups_shrunk(&self) -> usize {
        if self.len == 0 { 0 } else { self.groups_from((self.len() + self.len() / 4).div_ceil(GROUP), 0) }
    }

    fn groups_from(&self, least: usize, more: usize) -> usize {
        (least..).find(|&groups| self.fits(groups, more)).unwrap_or(least)
    }

    /// All entries, and `more` to come, have a place among this many groups.
    fn fits(&self, group_count: usize, more: usize) -> bool {
        let mut wanted = vec![0; group_count];
        for slot in self.entries() {
            wanted[slot.key.home(homes(group_count))] += 1;
        }
        let pushed_on = |pushed: usize, wanted: &usize| (pushed + wanted).saturating_sub(GROUP);
        let (last, others) = wanted.split_last().unwrap_or((&0, &[]));
        let in_last = others.iter().fold(0, pushed_on) + last;
        in_last + more <= GROUP && self.len() + more <= entries_max(group_count)
    }

    /// Inserts a key that is not there, with a new state, and returns its slot. Grows by as little as it can where
    /// there is no [room](Self::has_room).
    pub(super) fn insert(&mut self, key: Key) -> usize {
        if !self.has_room(1) {
            self.resize(self.groups_from(self.groups.len() + 1, 1));
        }
        self.len += 1;
        self.put(Slot { key: SlotKey::new(key), state: S::default() })
    }

    /// Gives the table this many groups, among which all entries must fit.
    pub(super) fn resize(&mut self, group_count: usize) {
        let groups = (0..group_count).map(|_| Group::default()).collect();
        for group in std::mem::replace(&mut self.groups, groups) {
            self.put_all(group, |_| true);
        }
    }

    /// Drops what `keep` does not keep; the rest moves as close to its home as it can.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&S) -> bool) {
        for index in 0..self.groups.len() {
            let group = std::mem::take(&mut self.groups[index]);
            self.len -= self.put_all(group, &mut keep);
        }
    }

    /// Puts what is to be kept of a group; returns how many were not.
    fn put_all(&mut self, group: Group<S>, mut keep: impl FnMut(&S) -> bool) -> u32 {
        let mut dropped = 0;
        for (slot, _) in group.slots.into_iter().zip(group.tags).filter(|&(_, tag)| tag != FREE) {
            if keep(&slot.state) {
                self.put(slot);
            } else {
                dropped += 1;
            }
        }
        dropped
    }

    /// Puts an entry into its own slot, or else into the first free one from its home on.
    fn put(&mut self, entry: Slot<S>) -> usize {
        let (home, own) = (entry.key.home(homes(self.groups.len())), entry.key.own_slot());
        let (index, slot) = if self.groups[home].tags[own] == FREE {
            (home, own)
        } else {
            let free = |(index, group): (usize, &Group<S>)| Some((index, group.first_free()?));
            let mut from_home = self.groups.iter().enumerate().skip(home);
            from_home.find_map(free).expect("room was made: the last group has a free slot")
        };
        let group = &mut self.groups[index];
        group.tags[slot] = entry.key.tag();
        group.slots[slot] = entry;
        index * GROUP + slot
    }

    fn entries(&self) -> impl Iterator<Item = &Slot<S>> {
        let tags = self.groups.iter().flat_map(|group| group.tags);
        let slots = self.groups.iter().flat_map(|group| &group.slots);
        slots.zip(tags).filter(|&(_, tag)| tag != FREE).map(|(slot, _)| slot)
    }
}

/// The number of homes among this many groups.
fn homes(groups: usize) -> usize {
    if groups < GROUPS_WITH_TAIL { groups } else { groups - 1 }
}

/// The entries that this many groups hold at most: nine tenths.
fn entries_max(groups: usize) -> usize {
    groups * GROUP - groups * GROUP / 10
}

/// Marks with its highest bit each byte of `group` that equals `byte`. Above a byte that does, one that does not may
/// be marked too, so all marks but the lowest only say where to look.
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
            table.resize(table.groups_grown(1));
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
            table.shrink_if_sparse();
            same(&table, &model);
        }
        assert_eq!(table.group_count(), 0);
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
            let used = table.len() as f64 / (table.group_count() * GROUP) as f64;
            assert!(number < 1_000 || used > 0.8, "{used} at {number}");
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
