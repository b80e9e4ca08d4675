//! Counter keys: which counter a hit belongs to, as 128 bits.
//!
//! A counter is domain, path, values, algorithm, window and granularity. The constant part (all but the values) is
//! hashed once, when rules load, into a [`KeySeed`]; the values of a request are hashed under that seed. What is
//! hashed is injective (every part is length-prefixed), the hash is SipHash-1-3 with 128 bits under a secret of the
//! process: nobody outside can aim at a collision or at a shard, and among a billion counters a chance collision has
//! a probability of about 10^-21.

use std::hash::Hasher;

use siphasher::sip128::{Hash128, Hasher128, SipHasher13};
use smallvec::SmallVec;

/// The secret of the process, under which all keys are made. Keys under different secrets have nothing in common.
#[derive(Clone, Copy)]
pub struct KeySecret([u8; 16]);

/// The constant part of a counter's key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySeed(u64, u64);

/// The key of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u128);

impl KeySecret {
    /// A secret of these (random) bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The seed of everything whose constant part is this list.
    pub fn seed<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> KeySeed {
        let mut hasher = SipHasher13::new_with_key(&self.0);
        write_parts(parts, |bytes| hasher.write(bytes));
        let Hash128 { h1, h2 } = hasher.finish128();
        KeySeed(h1, h2)
    }
}

impl KeySeed {
    /// The key of the counter with these values.
    pub fn key<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> Key {
        // One call with all bytes is several times faster than a call a part.
        let mut bytes = SmallVec::<[u8; 192]>::new();
        write_parts(values.into_iter().map(str::as_bytes), |part| bytes.extend_from_slice(part));
        Key(SipHasher13::new_with_keys(self.0, self.1).hash(&bytes).as_u128())
    }
}

/// Secrets stay secret.
impl std::fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySecret(…)")
    }
}

impl std::fmt::Debug for KeySeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySeed(…)")
    }
}

/// Length-prefixed, so that (`ab`, `c`) and (`a`, `bc`) differ.
fn write_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>, mut write: impl FnMut(&[u8])) {
    for part in parts {
        write(&(part.len() as u64).to_le_bytes());
        write(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: KeySecret = KeySecret::new([7; 16]);

    #[test]
    fn joined_parts_differ() {
        let seed = SECRET.seed([b"shop".as_slice()]);
        assert_ne!(seed.key(["ab", "c"]), seed.key(["a", "bc"]));
        assert_ne!(seed.key(["ab", ""]), seed.key(["ab"]));
        assert_ne!(SECRET.seed([b"ab".as_slice(), b"c"]), SECRET.seed([b"a".as_slice(), b"bc"]));
    }

    #[test]
    fn the_same_parts_make_the_same_key_only_under_the_same_secret() {
        let key = |secret: KeySecret| secret.seed([b"shop".as_slice()]).key(["alice"]);
        assert_eq!(key(SECRET), key(SECRET));
        assert_ne!(key(SECRET), key(KeySecret::new([8; 16])));
    }
}
