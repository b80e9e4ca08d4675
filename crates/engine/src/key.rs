//! Counter keys: which counter a hit belongs to, as 128 bits.
//!
//! A key is made from domain, path, values, algorithm, window and granularity. The constant part (all but the values)
//! is hashed once, when rules load, into a [`KeySeed`]; the values of a request are hashed under that seed. The
//! hashed bytes are injective: every part is hashed with its length. The hash is SipHash-1-3 with 128 bits under a
//! secret of the process, so nobody outside can choose values that collide or share a shard. Among a billion counters
//! a chance collision has a probability of about 10^-21.

use sha2::{Digest, Sha256};

use crate::sip::SipHash13;

/// The secret of the process, under which all keys are made. Keys under different secrets have nothing in common.
#[derive(Clone, Copy)]
pub struct KeySecret([u8; 16]);

/// The constant part of a counter's key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeySeed(u64, u64);

/// The key of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u128);

/// The constant part of a key that several processes have to agree on: 128 bits of SHA-256, the same in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedId(pub [u8; 16]);

impl SharedId {
    /// The id of this list of constant parts. Injective, like a [`KeySeed`].
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        Self(*digest.first_chunk().expect("32 bytes have a first 16"))
    }
}

impl KeySecret {
    /// A secret made of these (random) bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The seed of this list of constant parts.
    pub fn seed<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> KeySeed {
        let secret = u128::from_le_bytes(self.0);
        let (high, low) = hash_parts(SipHash13::new(secret as u64, (secret >> 64) as u64), parts);
        KeySeed(high, low)
    }

    /// What names records in the cache: the seed for those of a domain whose entries have these keys.
    pub fn records<'a>(&self, domain: &'a str, keys: impl IntoIterator<Item = &'a str>) -> KeySeed {
        self.seed(
            [b"records".as_slice(), domain.as_bytes()].into_iter().chain(keys.into_iter().map(str::as_bytes)),
        )
    }
}

impl KeySeed {
    /// Its bytes, to derive another seed from.
    pub(crate) fn bytes(&self) -> [u8; 16] {
        (u128::from(self.0) << 64 | u128::from(self.1)).to_le_bytes()
    }

    /// The name of the record of a descriptor with these values, of a seed of [`KeySecret::records`].
    #[inline(always)] // As `key`.
    pub fn record_name<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> Key {
        self.key(values)
    }

    /// The seed of other counters, which these parts distinguish from this seed's own.
    pub fn with<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let (high, low) = hash_parts(SipHash13::new(self.0, self.1), parts);
        Self(high, low)
    }

    /// The key of the counter with these values.
    #[inline(always)] // Every decision makes one: as a call of its own it takes 40 to 60 instructions more.
    pub fn key<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> Key {
        self.key_of(values.into_iter().map(str::as_bytes))
    }

    /// The same of values that need not be texts.
    #[inline(always)]
    pub(crate) fn key_of(&self, values: impl IntoIterator<Item: AsRef<[u8]>>) -> Key {
        let (high, low) = hash_parts(SipHash13::new(self.0, self.1), values);
        Key(u128::from(high) << 64 | u128::from(low))
    }
}

/// Does not print the secret.
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

/// Hashes the length and the bytes of each part, in whole words, so (`ab`, `c`) and (`a`, `bc`) differ. The length of
/// the last part goes into the word that ends every message, where it costs nothing.
#[inline(always)] // As `key`.
fn hash_parts(mut hash: SipHash13, parts: impl IntoIterator<Item: AsRef<[u8]>>) -> (u64, u64) {
    let mut parts = parts.into_iter();
    let Some(mut last) = parts.next() else { return hash.finish(0) };
    for next in parts {
        hash.write(last.as_ref().len() as u64);
        hash_bytes(&mut hash, last.as_ref());
        last = next;
    }
    hash_last(hash, last.as_ref())
}

/// The last few bytes of a short part share the last word with its length. One word less is one round less.
#[inline(always)]
fn hash_last(mut hash: SipHash13, last: &[u8]) -> (u64, u64) {
    let (words, rest) = last.as_chunks();
    if rest.len() > REST_BYTES_MAX || last.len() > LENGTH_MAX {
        hash_bytes(&mut hash, last);
        return hash.finish(ALL_BEFORE | (1 + last.len() as u64));
    }
    for &word in words {
        hash.write(u64::from_le_bytes(word));
    }
    let rest = if rest.is_empty() { 0 } else { part_of_word(rest) };
    hash.finish((rest << LENGTH_BITS) | (1 + last.len() as u64))
}

/// One of the 56 free bits of the last word, which says that none of the part's bytes are in it.
const ALL_BEFORE: u64 = 1 << 55;
/// The low bits of the last word have the length plus one; 0 means that there is no part at all.
const LENGTH_BITS: usize = 15;
const LENGTH_MAX: usize = (1 << LENGTH_BITS) - 2;
/// The bits between hold this many bytes.
const REST_BYTES_MAX: usize = 5;

#[inline(always)]
fn hash_bytes(hash: &mut SipHash13, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks();
    for &word in words {
        hash.write(u64::from_le_bytes(word));
    }
    if !rest.is_empty() {
        hash.write(part_of_word(rest));
    }
}

/// One to seven bytes, then zeros. Overlapping reads of fixed size save a copy of unknown length: 12 ns a key.
#[inline(always)]
fn part_of_word(bytes: &[u8]) -> u64 {
    let last = bytes.len() - 1;
    if let (Some(first), Some(end)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (first, end) = (u64::from(u32::from_le_bytes(*first)), u64::from(u32::from_le_bytes(*end)));
        return first | end << (8 * (last - 3));
    }
    let at = |index: usize| u64::from(bytes[index]) << (8 * index);
    at(0) | at(bytes.len() / 2) | at(last)
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
        assert_ne!(seed.key([""]), seed.key([]));
        assert_ne!(seed.key(["", ""]), seed.key([""]));
        assert_ne!(seed.key(["ab\0"]), seed.key(["ab"]));
        assert_ne!(seed.key(["ab\0", "c"]), seed.key(["ab", "c"]));
        assert_ne!(SECRET.seed([b"ab".as_slice(), b"c"]), SECRET.seed([b"a".as_slice(), b"bc"]));
    }

    /// A long value whose bytes look like two shorter ones with their lengths.
    #[test]
    fn a_part_that_looks_like_two_differs() {
        let (seed, first) = (SECRET.seed([]), "\0".repeat(1 << 16));
        let length = "\0\0\u{1}\0\0\0\0\0";
        let second = "b\0\0\0\0\0\0\0\u{2}";
        assert_ne!(seed.key([format!("{length}{first}b").as_str()]), seed.key([&first, second]));
    }

    #[test]
    fn the_same_parts_make_the_same_key_only_under_the_same_secret() {
        let key = |secret: KeySecret| secret.seed([b"shop".as_slice()]).key(["alice"]);
        assert_eq!(key(SECRET), key(SECRET));
        assert_ne!(key(SECRET), key(KeySecret::new([8; 16])));
    }

    #[test]
    fn every_byte_and_every_length_counts() {
        let seed = SECRET.seed([b"shop".as_slice()]);
        let text = "abcdefghijklmnopqrstuvwxyz";
        let mut keys: Vec<Key> = (0..=text.len()).map(|length| seed.key([&text[..length]])).collect();
        for place in 0..text.len() {
            let changed = format!("{}X{}", &text[..place], &text[place + 1..]);
            keys.extend([seed.key([changed.as_str()]), seed.key([changed.as_str(), "z"])]);
        }
        let zeros = "\0".repeat(LENGTH_MAX + 10);
        keys.extend((LENGTH_MAX - 10..=zeros.len()).map(|length| seed.key([&zeros[..length]])));
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    #[test]
    fn bytes_become_words_with_zeros_behind() {
        let bytes = [1, 2, 3, 4, 5, 6, 7];
        for length in 1..=7 {
            let mut word = [0; 8];
            word[..length].copy_from_slice(&bytes[..length]);
            assert_eq!(part_of_word(&bytes[..length]), u64::from_le_bytes(word), "{length}");
        }
    }
}
