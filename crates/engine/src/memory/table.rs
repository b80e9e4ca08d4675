//! A hash table in the order of its keys, so that it grows by a twelfth, in place, instead of doubling.
//!
//! Slots are in groups of sixteen, with their tags (a byte of the key each) in front. The home of a key is the group
//! key / 2^128 × homes, counted down from the last group. Keys are uniform (hashes under a secret), so homes are too,
//! and they descend as keys ascend. An entry is in its home, or in the first group below it that had a free slot;
//! every group in between is full. So:
//!
//! - Most keys are in the slot of their home that their own bits select. It is read together with the tags, so memory
//!   is waited for once: among many keys, that is most of the time of a decision. For any other key, sixteen tags are
//!   compared at once, and nearly always one slot is read.
//! - When groups are added, homes move up; when entries expire, there is room above. So growing and expiring are one
//!   pass, from the last group to the first, in cache order, in which entries only move up.
//! - There are no tombstones: a slot is a tag, a key and a state, nothing else.
//!
//! Growing by a twelfth keeps five sixths to nine tenths of the slots in use; doubling would waste half. It moves
//! about twelve entries for each new one. A table of more than a page reserves address space once and grows in it: the
//! system gives the memory page by page as it is used, and no old table has to be freed.

use std::mem;

use prefetch_index::{prefetch_index, prefetch_index_nta};

use crate::key::Key;
use crate::memory::SHARD_BYTES;

/// Slots of a group: as many as there are tags in a 128-bit number.
const GROUP: usize = 16;
/// The tag of a free slot.
const FREE: u8 = 0;
/// The least tag of a key.
const TAG_MIN: u8 = 2;
/// From this many groups on, the first group is no home: it takes the overflow of the homes above.
const GROUPS_WITH_TAIL: usize = 8;
/// Groups that a pass prefetches ahead.
const FETCHED_AHEAD: usize = 4;
/// A table of more bytes than this takes whole pages and gets room to grow in place.
const BYTES_EXACT: usize = PAGE_BYTES;
/// The size of a page of memory.
const PAGE_BYTES: usize = 4 << 10;
/// The room to grow in place: for the table of a full store, and for those that by chance get more.
const BYTES_WITH_ROOM: usize = SHARD_BYTES as usize / 8 * 9;

#[derive(Debug)]
pub(super) struct Table<S> {
    groups: Vec<Group<S>>,
    len: u32,
    /// Set by the owner: no state expires before this second. It is here because these four bytes would be padding
    /// otherwise.
    pub(super) earliest_secs: u32,
}

/// States that were removed from a table, to be dropped once the table is unlocked.
#[derive(Debug)]
pub(super) struct Removed<S> {
    states: Vec<S>,
    groups: Vec<Group<S>>,
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

    fn key(self) -> Key {
        Key(u128::from(self.high) << 64 | u128::from(self.low))
    }

    /// The home of the key among this many groups (out of range if there are none), by the key's high half; shards use
    /// the low half.
    fn home(self, groups: usize) -> usize {
        let from_last = ((u128::from(self.high) * homes(groups) as u128) >> 64) as usize;
        groups.wrapping_sub(1 + from_last)
    }

    /// Bits that neither the home nor the shard depends on much. Never 0, which is free, and never 1: a search for 1
    /// would also look at free slots (see `equal_bytes`), where keys that were taken out still stand.
    fn tag(self) -> u8 {
        (self.low as u8).max(TAG_MIN)
    }

    /// The slot of its home that the key takes if that is free.
    fn own_slot(self) -> usize {
        (self.low >> 8) as usize % GROUP
    }
}

impl<S> Group<S> {
    /// Marks the slots whose tag may be this one. The lowest mark is right.
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

    fn into_entries(self) -> impl Iterator<Item = Slot<S>> {
        self.slots.into_iter().zip(self.tags).filter(|&(_, tag)| tag != FREE).map(|(slot, _)| slot)
    }
}

impl<S> Default for Removed<S> {
    fn default() -> Self {
        Self { states: Vec::new(), groups: Vec::new() }
    }
}

impl<S> Removed<S> {
    /// Drops everything, and keeps room for more states.
    pub(super) fn clear(&mut self) {
        self.states.clear();
        self.groups = Vec::new();
    }
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { groups: Vec::new(), len: 0, earliest_secs: u32::MAX }
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
        let bytes = group_count * size_of::<Group<S>>();
        if bytes <= BYTES_EXACT { bytes } else { bytes.next_multiple_of(PAGE_BYTES) }
    }

    pub(super) fn state(&self, slot: usize) -> &S {
        &self.groups[slot / GROUP].slots[slot % GROUP].state
    }

    pub(super) fn state_mut(&mut self, slot: usize) -> &mut S {
        &mut self.groups[slot / GROUP].slots[slot % GROUP].state
    }

    /// Prefetches what [`find`](Self::find) reads first.
    pub(super) fn fetch(&self, key: Key) {
        let key = SlotKey::new(key);
        let Some(group) = self.groups.get(key.home(self.groups.len())) else { return };
        let own = key.own_slot();
        prefetch_index(group.tags.as_slice(), own);
        prefetch_index(group.slots.as_slice(), own);
        // The slot may reach over the end of a cache line.
        prefetch_index(group.slots.as_slice(), own + 1);
    }

    /// The slot of this key.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<usize> {
        let key = SlotKey::new(key);
        let home = key.home(self.groups.len());
        let (group, own) = (self.groups.get(home)?, key.own_slot());
        // Both are always read, so that the two memory accesses overlap.
        if (group.tags[own] == key.tag()) & (group.slots[own].key == key) {
            return Some(home * GROUP + own);
        }
        self.search(home, key)
    }

    /// The slot of a key that is not in its own slot.
    fn search(&self, home: usize, key: SlotKey) -> Option<usize> {
        for (index, group) in self.groups[..=home].iter().enumerate().rev() {
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

    /// Any `more` keys can be inserted without growing; at most as many as a group has slots.
    pub(super) fn has_room(&self, more: usize) -> bool {
        let tail_used = self.groups.first().map_or(GROUP, Group::used);
        self.len() + more <= entries_max(self.groups.len()) && tail_used + more <= GROUP
    }

    /// The number of groups after growing.
    pub(super) fn groups_grown(&self) -> usize {
        self.groups.len() + (self.groups.len() / 12).max(1)
    }

    /// Grows the table to this many groups.
    pub(super) fn grow(&mut self, group_count: usize) {
        let before = self.groups.len();
        if group_count > self.groups.capacity() {
            self.groups.reserve_exact(Self::groups_with_room(group_count) - before);
        }
        self.groups.resize_with(group_count, Group::default);
        for index in (0..before).rev() {
            self.fetch_group(index.wrapping_sub(FETCHED_AHEAD));
            self.raise(index);
        }
        debug_assert_eq!(self.invariants(), Ok(()));
    }

    /// The number of groups that a table of this many reserves room for.
    fn groups_with_room(group_count: usize) -> usize {
        if Self::bytes_of(group_count) <= BYTES_EXACT {
            return group_count;
        }
        let usual = BYTES_WITH_ROOM / size_of::<Group<S>>();
        if group_count <= usual { usual } else { group_count + group_count / 8 }
    }

    /// Shrinks the table when less than half of the slots are used.
    pub(super) fn shrink_if_sparse(&mut self, removed: &mut Removed<S>) {
        if self.len() < self.groups.len() * GROUP / 2 {
            let least = (self.len() + self.len() / 4).div_ceil(GROUP);
            let groups = (least..self.groups.len()).find(|&groups| self.fits(groups));
            groups.into_iter().for_each(|groups| self.shrink(groups, removed));
        }
    }

    /// All entries fit among this many groups.
    fn fits(&self, group_count: usize) -> bool {
        let mut wanted = vec![0; group_count];
        self.used_slots().for_each(|slot| wanted[slot.key.home(group_count)] += 1);
        let pushed_down = |pushed: usize, wanted: &usize| (pushed + wanted).saturating_sub(GROUP);
        wanted.iter().rev().fold(0, pushed_down) == 0
    }

    /// Shrinks the table to this many groups, among which all entries must fit.
    fn shrink(&mut self, group_count: usize, removed: &mut Removed<S>) {
        let mut fewer = Vec::with_capacity(Self::groups_with_room(group_count));
        fewer.resize_with(group_count, Group::default);
        removed.groups = mem::replace(&mut self.groups, fewer);
        for group in &mut removed.groups {
            mem::take(group).into_entries().for_each(|entry| _ = self.put(entry));
        }
        debug_assert_eq!(self.invariants(), Ok(()));
    }

    /// Inserts a key that is not there, with a new state, and returns its slot. Grows by as little as possible when
    /// there is no [room](Self::has_room).
    pub(super) fn insert(&mut self, key: Key) -> usize {
        while !self.has_room(1) {
            self.grow(self.groups.len() + 1);
        }
        self.len += 1;
        let slot = self.put(Slot { key: SlotKey::new(key), state: S::default() });
        debug_assert_eq!(self.find(key), Some(slot), "a key that was inserted is found");
        slot
    }

    /// Removes the entries that `keep` does not keep; the others move as close to their homes as they can.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&S) -> bool, removed: &mut Removed<S>) {
        for index in (0..self.groups.len()).rev() {
            self.fetch_group(index.wrapping_sub(FETCHED_AHEAD));
            self.retain_in(index, &mut keep, removed);
            self.raise(index);
        }
        debug_assert_eq!(self.invariants(), Ok(()));
    }

    /// Prefetches a group, if it exists. Bypasses the shared caches, because a pass reads it once.
    fn fetch_group(&self, index: usize) {
        if let Some(group) = self.groups.get(index) {
            prefetch_index_nta(group.tags.as_slice(), 0);
            (0..GROUP).for_each(|slot| prefetch_index_nta(group.slots.as_slice(), slot));
        }
    }

    /// Removes from a group the entries that `keep` does not keep.
    fn retain_in(&mut self, index: usize, mut keep: impl FnMut(&S) -> bool, removed: &mut Removed<S>) {
        let group = &mut self.groups[index];
        for (tag, slot) in group.tags.iter_mut().zip(&mut group.slots) {
            if *tag == FREE || keep(&slot.state) {
                continue;
            }
            *tag = FREE;
            self.len -= 1;
            if mem::needs_drop::<S>() {
                removed.states.push(mem::take(&mut slot.state));
            }
        }
    }

    /// Moves the entries of a group to better places: their own slots, or groups closer to their homes. Those of all
    /// groups above must have been moved.
    fn raise(&mut self, index: usize) {
        for slot in 0..GROUP {
            if self.groups[index].tags[slot] == FREE {
                continue;
            }
            if let Some(place) = self.free_place(self.groups[index].slots[slot].key, index + 1) {
                let entry = mem::take(&mut self.groups[index].slots[slot]);
                self.groups[index].tags[slot] = FREE;
                self.put_at(place, entry);
            }
        }
    }

    /// Puts an entry into its own slot, or else into the first free one from its home down.
    fn put(&mut self, entry: Slot<S>) -> usize {
        let place = self.free_place(entry.key, 0).expect("room was made: the first group has a free slot");
        self.put_at(place, entry)
    }

    fn put_at(&mut self, (index, slot): (usize, usize), entry: Slot<S>) -> usize {
        let group = &mut self.groups[index];
        group.tags[slot] = entry.key.tag();
        group.slots[slot] = entry;
        index * GROUP + slot
    }

    /// The best free place for this key: its own slot, or else the first from its home down to the group `lowest`.
    fn free_place(&self, key: SlotKey, lowest: usize) -> Option<(usize, usize)> {
        let (home, own) = (key.home(self.groups.len()), key.own_slot());
        if self.groups[home].tags[own] == FREE {
            return Some((home, own));
        }
        (lowest..=home).rev().find_map(|index| Some((index, self.groups[index].first_free()?)))
    }

    pub(super) fn states(&self) -> impl Iterator<Item = &S> {
        self.used_slots().map(|slot| &slot.state)
    }

    /// All keys with their states.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Key, &S)> {
        self.used_slots().map(|slot| (slot.key.key(), &slot.state))
    }

    /// What is wrong with the table, if anything is: every entry is where a search for its key looks.
    fn invariants(&self) -> Result<(), &'static str> {
        let mut entries = 0;
        for (index, group) in self.groups.iter().enumerate() {
            for (slot, tag) in group.slots.iter().zip(group.tags).filter(|&(_, tag)| tag != FREE) {
                let home = slot.key.home(self.groups.len());
                if tag != slot.key.tag() {
                    return Err("a tag is another key's");
                }
                if home < index {
                    return Err("an entry is above its home");
                }
                if self.groups[index + 1..=home].iter().any(|group| group.marks(FREE) != 0) {
                    return Err("there is a free slot between an entry and its home");
                }
                entries += 1;
            }
        }
        if entries == self.len() { Ok(()) } else { Err("the number of entries is wrong") }
    }

    fn used_slots(&self) -> impl Iterator<Item = &Slot<S>> {
        let slots = self.groups.iter().flat_map(|group| group.slots.iter().zip(group.tags));
        slots.filter(|&(_, tag)| tag != FREE).map(|(slot, _)| slot)
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

/// Marks each byte of `group` that equals `byte`, by its highest bit. Above an equal byte, another one may be marked
/// too, so all marks but the lowest only say where to look.
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
            table.grow(table.groups_grown());
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

    /// Otherwise its state would be charged in a slot that the next insert takes, and its hits would be lost.
    #[test]
    fn a_key_that_was_taken_out_is_not_found_in_its_free_slot() {
        for low_byte in 0..=3 {
            let [stays, goes] = [0, 1 << 16].map(|more| Key(low_byte | more));
            let (mut table, mut removed) = (Table::<u64>::default(), Removed::default());
            for (state, key) in [(1, stays), (2, goes)] {
                make_room(&mut table);
                let slot = table.insert(key);
                *table.state_mut(slot) = state;
            }
            table.retain(|state| *state == 1, &mut removed);
            assert_eq!((table.find(stays).is_some(), table.find(goes)), (true, None), "{low_byte}");
        }
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
            table.retain(|&state| state != gone, &mut Removed::default());
            model.retain(|_, state| *state != gone);
            same(&table, &model);
            table.shrink_if_sparse(&mut Removed::default());
            same(&table, &model);
        }
        assert_eq!(table.group_count(), 0);
    }

    #[test]
    fn it_is_a_map_while_entries_come_and_go() {
        let (mut table, mut model) = (Table::<u64>::default(), BTreeMap::new());
        for round in 0..200_u64 {
            for number in round * 1_000..round * 1_000 + round % 17 * 20 {
                make_room(&mut table);
                let slot = table.insert(key(number));
                *table.state_mut(slot) = round + number % 40;
                model.insert(number, round + number % 40);
            }
            table.retain(|&until| until > round, &mut Removed::default());
            model.retain(|_, until| *until > round);
            table.shrink_if_sparse(&mut Removed::default());
            same(&table, &model);
        }
    }

    #[test]
    fn a_table_of_more_than_a_page_grows_where_it_is() {
        let mut table = Table::<u64>::default();
        let mut places: Vec<_> = (0..3_000)
            .filter_map(|number| {
                make_room(&mut table);
                table.insert(key(number));
                let large = Table::<u64>::bytes_of(table.group_count()) > PAGE_BYTES;
                large.then_some(table.groups.as_ptr())
            })
            .collect();
        assert!(places.len() > 2_000);
        places.dedup();
        assert_eq!(places.len(), 1);
    }

    /// Keys that all have one home. Nobody can choose such keys, but the table works with them.
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
