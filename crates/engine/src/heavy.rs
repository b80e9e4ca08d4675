//! The keys that are denied most, among more keys than can be counted one by one: a space-saving sketch.
//!
//! In: a key per denial, and a description of it. Out: keys with counts. A count is too high by at most its error; a
//! key that was denied more often than the smallest count in the sketch is in the sketch. (Metwally, Agrawal, El
//! Abbadi: "Efficient computation of frequent and top-k elements in data streams", 2005.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::key::Key;
use crate::keyed::KeyMap;

/// A key in the sketch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heavy<T> {
    /// The description of the key.
    pub about: T,
    /// Denials, at most.
    pub count: u64,
    /// How much too high the count may be.
    pub error: u64,
    number: u64,
}

/// The sketch.
#[derive(Debug)]
pub struct HeavyKeys<T> {
    capacity: usize,
    keys: KeyMap<Heavy<T>>,
    /// The same keys, the least count first; the number orders equal counts. A count here may be outdated: it is
    /// updated when its key becomes the first, because most denials are of keys that never do.
    least: BinaryHeap<Reverse<(u64, u64, Key)>>,
    next_number: u64,
}

impl<T> HeavyKeys<T> {
    /// A sketch of this many keys.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, keys: KeyMap::default(), least: BinaryHeap::new(), next_number: 0 }
    }

    /// Counts denials of a key, and returns its description. `about` is called only if the key is not in the sketch.
    pub fn add(&mut self, key: Key, denials: u64, about: impl FnOnce() -> T) -> &mut T {
        let number = self.next_number;
        self.next_number += 1;
        if !self.keys.contains_key(&key) {
            let error = self.make_room();
            self.keys.insert(key, Heavy { about: about(), count: error, error, number });
            self.least.push(Reverse((error, number, key)));
        }
        let heavy = self.keys.get_mut(&key).expect("it was there, or was just added");
        heavy.count = heavy.count.saturating_add(denials);
        heavy.number = number;
        &mut heavy.about
    }

    /// Removes the key with the least count if the sketch is full. Returns that count, or 0.
    fn make_room(&mut self) -> u64 {
        if self.keys.len() < self.capacity {
            return 0;
        }
        while let Some(mut first) = self.least.peek_mut() {
            let Reverse((count, number, key)) = *first;
            match self.keys.get(&key) {
                Some(heavy) if (heavy.count, heavy.number) != (count, number) => {
                    *first = Reverse((heavy.count, heavy.number, key));
                }
                _ => {
                    PeekMut::pop(first);
                    self.keys.remove(&key);
                    return count;
                }
            }
        }
        0
    }

    /// A key, if it is in the sketch.
    pub fn get(&self, key: Key) -> Option<&Heavy<T>> {
        self.keys.get(&key)
    }

    /// The keys, those with the greatest counts first.
    pub fn top(&self) -> impl Iterator<Item = &Heavy<T>> {
        self.keys_by_count().map(|(_, heavy)| heavy)
    }

    /// The keys with their descriptions, those with the greatest counts first.
    pub fn keys_by_count(&self) -> impl Iterator<Item = (Key, &Heavy<T>)> {
        let mut all: Vec<_> = self.keys.iter().map(|(key, heavy)| (*key, heavy)).collect();
        all.sort_unstable_by_key(|(_, heavy)| Reverse((heavy.count, heavy.number)));
        all.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn of_keys_that_count_the_same_the_last_one_comes_first() {
        let mut heavy = HeavyKeys::new(8);
        [1, 2, 2, 1].iter().for_each(|&key| _ = heavy.add(Key(key), 1, || ()));
        let keys = heavy.keys_by_count().map(|(key, _)| key);
        assert_eq!(keys.collect::<Vec<_>>(), [Key(1), Key(2)]);
    }

    proptest! {
        #[test]
        fn counts_are_too_high_by_at_most_their_errors(denials in prop::collection::vec(0_u128..40, 0..600)) {
            let mut heavy = HeavyKeys::new(8);
            let mut exact = std::collections::BTreeMap::new();
            for &key in &denials {
                heavy.add(Key(key << 64), 1, || key.to_string());
                *exact.entry(key.to_string()).or_insert(0_u64) += 1;
            }
            prop_assert_eq!([heavy.keys.len(), heavy.least.len()], [exact.len().min(8); 2]);
            for it in heavy.top() {
                let exact = exact[&it.about];
                prop_assert!(it.count >= exact && it.count - it.error <= exact);
            }
            let least = heavy.top().last().map_or(0, |it| it.count);
            for (name, exact) in exact {
                prop_assert!(exact <= least || heavy.top().any(|it| it.about == name));
            }
        }
    }
}
