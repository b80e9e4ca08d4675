//! A value for each key, as long as there are not too many keys; beyond it, for a sample of the keys.
//!
//! In: keys. Out: their values. Keys are hashes, so those whose low bits are zero are a fair sample. When there are too many
//! keys, one more bit has to be zero, and the others are forgotten. Whether a key is in the sample does not depend on when
//! it came or what it did.

use tidegate_engine::key::Key;
use tidegate_engine::keyed::KeyMap;

#[derive(Debug)]
pub(super) struct Sample<V> {
    max: usize,
    keys: KeyMap<V>,
    /// How many low bits of a key have to be zero.
    bits: u32,
}

impl<V: Default> Sample<V> {
    /// A sample of at most so many keys.
    pub(super) fn new(max: usize) -> Self {
        Self { max, keys: KeyMap::default(), bits: 0 }
    }

    /// The value of a key; `None`: it is not in the sample.
    #[inline]
    pub(super) fn get(&mut self, key: Key) -> Option<&mut V> {
        if !self.has_room_for(key) && !self.keys.contains_key(&key) {
            self.thin_out();
        }
        let is_in = key.0.trailing_zeros() >= self.bits;
        is_in.then(|| self.keys.entry(key).or_default())
    }

    /// The values in the sample.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.keys.values()
    }

    /// How many keys each key here stands for.
    pub(super) fn weight(&self) -> u64 {
        1 << self.bits
    }

    #[inline]
    fn has_room_for(&self, key: Key) -> bool {
        self.keys.len() < self.max || key.0.trailing_zeros() < self.bits
    }

    /// Halves the sample until there is room.
    fn thin_out(&mut self) {
        while self.keys.len() >= self.max && self.bits < 63 {
            self.bits += 1;
            let bits = self.bits;
            self.keys.retain(|key, _| key.0.trailing_zeros() >= bits);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    #[test]
    fn a_sample_is_exact_while_keys_are_few_and_fair_beyond() {
        let state = RandomState::new();
        let key = |number: u64| Key(u128::from(state.hash_one(number)));
        let mut sample = Sample::<u64>::new(1_000);
        for round in 1..=3 {
            for number in 0..1_000 {
                *sample.get(key(number)).expect("few keys") += 1;
            }
            assert_eq!((sample.values().sum::<u64>(), sample.weight()), (1_000 * round, 1));
        }
        for number in 0..40_000 {
            if let Some(value) = sample.get(key(number)) {
                *value = number;
            }
        }
        let (kept, weight) = (sample.values().count() as u64, sample.weight());
        assert!(kept <= 1_000 && (kept * weight).abs_diff(40_000) < 10_000, "{kept} × {weight}");
        let odd = sample.values().filter(|value| *value % 2 == 1).count() as u64;
        assert!((odd * weight).abs_diff(20_000) < 6_000, "six standard deviations: {odd} × {weight}");
    }
}
