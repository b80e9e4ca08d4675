//! Items that are found by their ids, and by the time at which they change next: a binary heap with an index.
//!
//! The items are in one list without gaps. `order` is the heap: the places of all items in that list, where an item changes no
//! later than the two below it. `places` is a hash table with open addressing: from an id to the item's place. A search
//! begins at the high bits of the id times a random odd number (multiply-shift hashing), so nobody can choose ids that make it long.
//! An item is found in O(1), and added, changed or removed in O(log n) steps.
//!
//! Memory, for each item: itself and 8 bytes for the heap, of which up to a fifth are free, and up to 11 bytes for the table.

use std::hash::{BuildHasher, RandomState};
use std::mem::size_of;
use std::num::NonZeroU64;
use std::sync::LazyLock;

use crate::limit::counter::grown_capacity;
use crate::time::Timestamp;

/// What ids are multiplied with.
static MULTIPLIER: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(()) | 1);

/// What the heap is about.
pub(super) trait Item: Copy {
    /// No two items have the same.
    fn id(&self) -> NonZeroU64;

    /// When it changes next.
    fn due(&self) -> Timestamp;
}

#[derive(Debug)]
struct Node<T> {
    item: T,
    /// Where the heap has it.
    rank: u32,
}

#[derive(Debug)]
pub(super) struct IndexedHeap<T> {
    nodes: Vec<Node<T>>,
    /// The heap: places of nodes.
    order: Vec<u32>,
    /// The table: places of nodes, counted from 1. 0: a free slot. At least a quarter of the slots are free, so each search ends.
    places: Box<[u32]>,
}

impl<T> Default for IndexedHeap<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), order: Vec::new(), places: Box::default() }
    }
}

impl<T: Item> IndexedHeap<T> {
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub(super) fn find(&self, id: NonZeroU64) -> Option<&T> {
        let (_, place) = self.search(id)?;
        Some(&self.nodes[place].item)
    }

    /// The item that changes next.
    pub(super) fn first(&self) -> Option<&T> {
        let &place = self.order.first()?;
        Some(&self.nodes[place as usize].item)
    }

    /// All items, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().map(|node| &node.item)
    }

    /// All items, in the order of their ids.
    pub(super) fn in_order(&self) -> impl Iterator<Item = &T> {
        let mut items: Vec<&T> = self.iter().collect();
        items.sort_unstable_by_key(|item| item.id());
        items.into_iter()
    }

    /// Adds an item, or puts it in the place of the one with its id.
    pub(super) fn put(&mut self, item: T) {
        if let Some((_, place)) = self.search(item.id()) {
            let node = &mut self.nodes[place];
            let was_due = std::mem::replace(&mut node.item, item).due();
            let rank = node.rank as usize;
            return if item.due() < was_due { self.rise(rank) } else { self.sink(rank) };
        }
        let (place, capacity) = (self.nodes.len(), grown_capacity(&self.nodes, 1));
        // By exactly as much as `growth_bytes` says: items from a file need no more room than before.
        self.nodes.reserve_exact(capacity - place);
        self.order.reserve_exact(capacity - place);
        self.nodes.push(Node { item, rank: place as u32 });
        self.order.push(place as u32);
        self.rise(place);
        if self.places.len() < table_len(capacity) {
            self.places = vec![0; table_len(capacity)].into();
            (0..self.nodes.len()).for_each(|place| self.index(place));
        } else {
            self.index(place);
        }
    }

    pub(super) fn remove(&mut self, id: NonZeroU64) {
        let Some((slot, place)) = self.search(id) else { return };
        self.free(slot);
        let last = self.nodes.len() - 1;
        if place != last {
            // The last node takes its place in the list.
            let (slot, _) = self.search(self.nodes[last].item.id()).expect("each item is in the table");
            self.places[slot] = place as u32 + 1;
            self.order[self.nodes[last].rank as usize] = place as u32;
        }
        let rank = self.nodes.swap_remove(place).rank as usize;
        // And the last of the heap that in the heap.
        self.order.swap_remove(rank);
        if rank < self.order.len() {
            self.note_rank(rank);
            self.rise(rank);
            self.sink(rank);
        }
    }

    /// Whether everything is where it should be.
    pub(super) fn is_right(&self) -> bool {
        let due = |rank: usize| self.nodes[self.order[rank] as usize].item.due();
        let is_found = |(place, node): (usize, &Node<T>)| {
            self.order.get(node.rank as usize) == Some(&(place as u32))
                && self.search(node.item.id()).is_some_and(|(_, found)| found == place)
        };
        (1..self.order.len()).all(|rank| due((rank - 1) / 2) <= due(rank))
            && self.nodes.iter().enumerate().all(is_found)
            && self.places.iter().filter(|place| **place > 0).count() == self.nodes.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        bytes_of::<T>(self.nodes.capacity())
    }

    /// The bytes that it needs more to add so many items.
    pub(super) fn growth_bytes(&self, more: usize) -> usize {
        bytes_of::<T>(grown_capacity(&self.nodes, more)) - self.heap_bytes()
    }

    /// The slot of this id in the table, and the place of its node.
    fn search(&self, id: NonZeroU64) -> Option<(usize, usize)> {
        let last = self.places.len().checked_sub(1)?;
        let mut slot = self.begin(id);
        loop {
            let place = (self.places[slot] as usize).checked_sub(1)?;
            if self.nodes[place].item.id() == id {
                return Some((slot, place));
            }
            slot = (slot + 1) & last;
        }
    }

    /// The slot where the search for this id begins, in a table that has any.
    fn begin(&self, id: NonZeroU64) -> usize {
        let product = id.get().wrapping_mul(*MULTIPLIER);
        (product >> (u64::BITS - self.places.len().trailing_zeros())) as usize
    }

    /// Gives a node that is not in the table a slot.
    fn index(&mut self, place: usize) {
        let last = self.places.len() - 1;
        let mut slot = self.begin(self.nodes[place].item.id());
        while self.places[slot] != 0 {
            slot = (slot + 1) & last;
        }
        self.places[slot] = place as u32 + 1;
    }

    /// Frees a slot. Later ones move up, so that no search ends too early.
    fn free(&mut self, mut free: usize) {
        let last = self.places.len() - 1;
        let mut slot = free;
        loop {
            slot = (slot + 1) & last;
            let Some(place) = (self.places[slot] as usize).checked_sub(1) else { break };
            let begin = self.begin(self.nodes[place].item.id());
            // The search for it passes the free slot.
            if slot.wrapping_sub(begin) & last >= slot.wrapping_sub(free) & last {
                self.places[free] = self.places[slot];
                free = slot;
            }
        }
        self.places[free] = 0;
    }

    fn due_at(&self, rank: usize) -> Option<Timestamp> {
        let &place = self.order.get(rank)?;
        Some(self.nodes[place as usize].item.due())
    }

    fn note_rank(&mut self, rank: usize) {
        self.nodes[self.order[rank] as usize].rank = rank as u32;
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.order.swap(one, other);
        self.note_rank(one);
        self.note_rank(other);
    }

    /// Moves an item up in the heap that may change sooner than those above it.
    fn rise(&mut self, mut rank: usize) {
        while rank > 0 && self.due_at(rank) < self.due_at((rank - 1) / 2) {
            self.swap(rank, (rank - 1) / 2);
            rank = (rank - 1) / 2;
        }
    }

    /// Moves an item down in the heap that may change later than those below it.
    fn sink(&mut self, mut rank: usize) {
        loop {
            let below = [2 * rank + 1, 2 * rank + 2].into_iter();
            let Some((due, next)) = below.filter_map(|below| Some((self.due_at(below)?, below))).min() else {
                return;
            };
            if self.due_at(rank) <= Some(due) {
                return;
            }
            self.swap(rank, next);
            rank = next;
        }
    }
}

/// The slots of the table for so many items: a power of two of which they fill three quarters at most.
fn table_len(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { (capacity * 4).div_ceil(3).next_power_of_two() }
}

fn bytes_of<T>(capacity: usize) -> usize {
    capacity * (size_of::<Node<T>>() + size_of::<u32>()) + table_len(capacity) * size_of::<u32>()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    struct Call {
        id: NonZeroU64,
        due: u64,
    }

    impl Item for Call {
        fn id(&self) -> NonZeroU64 {
            self.id
        }

        fn due(&self) -> Timestamp {
            Timestamp::from_nanos(self.due)
        }
    }

    /// Numbers that look random: a permutation, so that none comes twice.
    fn hashed(number: u64) -> NonZeroU64 {
        let mixed = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        NonZeroU64::new((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)).expect("only 0 becomes 0")
    }

    #[test]
    fn it_finds_what_a_map_finds_and_the_first_change() {
        // Random ids, and neighbouring ones.
        let ids: [fn(u64) -> NonZeroU64; 2] = [hashed, |id| NonZeroU64::MIN.saturating_add(id)];
        for (id_of, times) in ids.into_iter().flat_map(|ids| [(ids, 1), (ids, 3), (ids, 1_000)]) {
            let (mut heap, mut map) = (IndexedHeap::default(), BTreeMap::new());
            for step in 0..3_000 {
                let random = hashed(step + 5_000 * times).get();
                let (id, due) = (id_of(random % 50), random / 64 % times);
                if random >> 40 & 1 == 0 {
                    heap.put(Call { id, due });
                    map.insert(id, due);
                } else {
                    heap.remove(id);
                    map.remove(&id);
                }
                assert!(heap.is_right(), "step {step} of {times} times");
                assert_eq!(heap.find(id).map(|call| call.due), map.get(&id).copied());
                let first = map.values().min().copied();
                assert_eq!(heap.first().map(|call| call.due), first);
                assert!(heap.in_order().map(|call| call.id).eq(map.keys().copied()));
                assert_eq!(heap.iter().count(), heap.len());
            }
        }
    }

    #[test]
    fn it_takes_as_many_bytes_as_it_said_and_at_most_a_hundred_for_an_item_of_56() {
        #[derive(Clone, Copy)]
        struct Large(NonZeroU64, [u64; 6]);
        impl Item for Large {
            fn id(&self) -> NonZeroU64 {
                self.0
            }

            fn due(&self) -> Timestamp {
                Timestamp::from_nanos(self.1[0])
            }
        }
        let mut heap = IndexedHeap::default();
        for number in 0..10_000 {
            let expected = heap.heap_bytes() + heap.growth_bytes(1);
            heap.put(Large(hashed(number), [number; 6]));
            let lists = heap.nodes.capacity() * size_of::<Node<Large>>() + heap.order.capacity() * 4;
            assert_eq!((heap.heap_bytes(), lists + heap.places.len() * 4), (expected, expected));
            assert!(number < 8 || heap.heap_bytes() <= heap.len() * 100, "{} items", heap.len());
        }
    }
}
