//! Hash tables by counter key. A [`Key`] is already a hash under a secret, so its high half serves as the hash. Shards
//! are chosen by the low half.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::key::Key;

/// A table by key. Clients cannot choose keys, so it needs no hash of its own.
pub type KeyMap<V> = HashMap<Key, V, BuildHasherDefault<HighHalf>>;

/// "Hashes" a key to its high half.
#[derive(Clone, Copy, Debug, Default)]
pub struct HighHalf(u64);

impl Hasher for HighHalf {
    #[inline]
    fn write_u128(&mut self, key: u128) {
        self.0 = (key >> 64) as u64;
    }

    #[inline]
    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "a key is one number");
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
