//! Tables by counter. A [`Key`] is a hash under a secret already: half of it serves as it is, the half that says in which
//! part of a memory it lies is another.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::key::Key;

/// A table whose keys nobody can choose.
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
