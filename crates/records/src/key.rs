//! Which key a record is for: a domain and the entries of a descriptor, as bytes.
//!
//! In: texts. Out: bytes that are different for different texts, and that sort as the texts do. So in a store that is
//! sorted by bytes, all records of a domain are next to each other, and all below a path.
//!
//! Each text is followed by a byte 0. Within a text, a byte 0 becomes `01 01` and a byte 1 becomes `01 02`.

use std::fmt;

use tidegate_engine::request::Entry;

/// The longest key, in bytes. Longer ones have no record.
pub const KEY_BYTES_MAX: usize = 4_096;

/// The most entries of a key: rules have no more levels.
pub const LEVELS_MAX: usize = 32;

const END: u8 = 0;
const ESCAPE: u8 = 1;

/// The key of a record.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey(Box<[u8]>);

/// A prefix of keys: a domain, and some entries of which the last may lack its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPrefix(Box<[u8]>);

/// Why texts are no key of a record, or bytes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It has no domain.
    #[error("domain: is empty")]
    NoDomain,
    /// It has no entries, or too many.
    #[error("entries: {0} (expected 1 to {LEVELS_MAX})")]
    Levels(usize),
    /// An entry has an empty key.
    #[error("entries[{0}].key: is empty")]
    NoKey(usize),
    /// It is too long.
    #[error("domain and entries: too long together (expected at most {KEY_BYTES_MAX} bytes)")]
    TooLong,
    /// An entry before the last has no value.
    #[error("entries[{0}].value: is missing (expected one in all entries but the last)")]
    NoValue(usize),
    /// Bytes that no texts become.
    #[error("bytes that are no key of a record")]
    Malformed,
}

impl RecordKey {
    /// The key of these entries, each a key and a value, in the order of the descriptor. Values may be empty.
    ///
    /// # Errors
    /// The reason why no record can have this key.
    pub fn of<'t>(
        domain: &str,
        entries: impl IntoIterator<Item = (&'t str, &'t str)>,
    ) -> Result<Self, KeyError> {
        let entries = entries.into_iter().map(|(key, value)| (key, Some(value)));
        let (bytes, levels) = encoded(domain, entries)?;
        if levels == 0 { Err(KeyError::Levels(0)) } else { Ok(Self(bytes)) }
    }

    /// The key with these bytes.
    ///
    /// # Errors
    /// When [`as_bytes`](Self::as_bytes) never makes such bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let key = Self(bytes.into());
        let (domain, entries) = key.texts().ok_or(KeyError::Malformed)?;
        let again = Self::of(&domain, entries.iter().map(|(key, value)| (&**key, &**value)));
        if again.as_ref() == Ok(&key) { Ok(key) } else { Err(KeyError::Malformed) }
    }

    /// Its bytes: at most [`KEY_BYTES_MAX`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its domain, and its entries as keys and values.
    pub fn decode(&self) -> (String, Vec<(String, String)>) {
        self.texts().expect("only `of` and `from_bytes` make keys")
    }

    /// Calls `take` with the domain and the entries.
    pub fn with_entries<T>(&self, take: impl FnOnce(&str, &[Entry<'_>]) -> T) -> T {
        let (domain, entries) = self.decode();
        let entries: Vec<_> = entries.iter().map(|(key, value)| Entry { key, value }).collect();
        take(&domain, &entries)
    }

    fn texts(&self) -> Option<(String, Vec<(String, String)>)> {
        let mut rest = &*self.0;
        let domain = text(&mut rest)?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            entries.push((text(&mut rest)?, text(&mut rest)?));
        }
        Some((domain, entries))
    }
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (domain, entries) = self.decode();
        write!(out, "{domain:?}")?;
        entries.iter().try_for_each(|(key, value)| write!(out, " {key:?}={value:?}"))
    }
}

impl KeyPrefix {
    /// The prefix of all keys.
    pub fn everything() -> Self {
        Self(Box::default())
    }

    /// The prefix of the keys of a domain that begin with these entries. Without entries: all of the domain. Without
    /// the last value: all values of the last key.
    ///
    /// # Errors
    /// The reason why no key begins like this.
    pub fn of<'t>(
        domain: &str,
        entries: impl IntoIterator<Item = (&'t str, Option<&'t str>)>,
    ) -> Result<Self, KeyError> {
        Ok(Self(encoded(domain, entries)?.0))
    }

    /// Its bytes, with which the bytes of those keys begin, and of no others.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of texts, and how many entries there were.
fn encoded<'t>(
    domain: &str,
    entries: impl IntoIterator<Item = (&'t str, Option<&'t str>)>,
) -> Result<(Box<[u8]>, usize), KeyError> {
    if domain.is_empty() {
        return Err(KeyError::NoDomain);
    }
    let (mut bytes, mut levels, mut is_whole) = (Vec::with_capacity(64), 0, true);
    push(&mut bytes, domain)?;
    for (level, (key, value)) in entries.into_iter().enumerate() {
        levels = level + 1;
        match (is_whole, key.is_empty()) {
            (false, _) => return Err(KeyError::NoValue(level - 1)),
            (_, true) => return Err(KeyError::NoKey(level)),
            _ if levels > LEVELS_MAX => return Err(KeyError::Levels(levels)),
            _ => push(&mut bytes, key)?,
        }
        match value {
            Some(value) => push(&mut bytes, value)?,
            None => is_whole = false,
        }
    }
    Ok((bytes.into(), levels))
}

fn push(bytes: &mut Vec<u8>, text: &str) -> Result<(), KeyError> {
    if bytes.len() + text.len() >= KEY_BYTES_MAX {
        return Err(KeyError::TooLong);
    }
    for byte in text.bytes() {
        if byte <= ESCAPE {
            bytes.push(ESCAPE);
        }
        bytes.push(if byte <= ESCAPE { byte + 1 } else { byte });
    }
    bytes.push(END);
    if bytes.len() > KEY_BYTES_MAX { Err(KeyError::TooLong) } else { Ok(()) }
}

/// Removes the next text from these bytes, and returns it.
fn text(rest: &mut &[u8]) -> Option<String> {
    let end = rest.iter().position(|&byte| byte == END)?;
    let (mut bytes, mut text) = (rest[..end].iter(), Vec::with_capacity(end));
    while let Some(&byte) = bytes.next() {
        text.push(if byte == ESCAPE { bytes.next()?.checked_sub(1)? } else { byte });
    }
    *rest = &rest[end + 1..];
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Texts = (String, Vec<(String, String)>);

    fn key((domain, entries): &Texts) -> RecordKey {
        let entries = entries.iter().map(|(key, value)| (&**key, &**value));
        RecordKey::of(domain, entries).expect("a key")
    }

    /// Few letters, NUL among them, so that texts begin with each other.
    fn texts() -> impl Strategy<Value = Texts> {
        let word = "[ab\u{0}\u{1}é\u{10ffff}]{1,3}";
        let any = "[ab\u{0}\u{1}é\u{10ffff}]{0,3}";
        (word, proptest::collection::vec((word, any), 1..4))
    }

    proptest! {
        #[test]
        fn bytes_sort_as_texts_do_and_come_back(a in texts(), b in texts()) {
            prop_assert_eq!(key(&a).cmp(&key(&b)), a.cmp(&b));
            prop_assert_eq!(key(&a).as_bytes().cmp(key(&b).as_bytes()), a.cmp(&b));
            prop_assert_eq!(key(&a).decode(), a.clone());
            prop_assert_eq!(RecordKey::from_bytes(key(&a).as_bytes()), Ok(key(&a)));
        }

        #[test]
        fn a_prefix_is_of_those_below_it_alone(a in texts(), b in texts(), levels in 0_usize..4, whole: bool) {
            let levels = levels.min(b.1.len());
            let first = &b.1[..levels];
            let value = |at: usize| whole || at + 1 < levels;
            let entries = first.iter().enumerate();
            let entries = entries.map(|(at, (key, own))| (&**key, value(at).then_some(&**own)));
            let prefix = KeyPrefix::of(&b.0, entries).expect("a prefix");
            let same = |at: usize, (key, own): &(String, String)| {
                a.1.get(at).is_some_and(|(k, v)| k == key && (!value(at) || v == own))
            };
            let is_below = a.0 == b.0 && first.iter().enumerate().all(|(at, entry)| same(at, entry));
            prop_assert_eq!(key(&a).as_bytes().starts_with(prefix.as_bytes()), is_below);
        }

        #[test]
        fn any_bytes_are_a_key_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(key) = RecordKey::from_bytes(&bytes) {
                prop_assert_eq!(key.as_bytes(), &bytes[..]);
            }
        }
    }

    #[test]
    fn what_no_record_can_be_for() {
        let long = "x".repeat(KEY_BYTES_MAX);
        assert_eq!(RecordKey::of("", [("a", "b")]), Err(KeyError::NoDomain));
        assert_eq!(RecordKey::of("d", []), Err(KeyError::Levels(0)));
        assert_eq!(RecordKey::of("d", [("a", "b"), ("", "c")]), Err(KeyError::NoKey(1)));
        assert_eq!(RecordKey::of("d", [("a", &*long)]), Err(KeyError::TooLong));
        assert_eq!(RecordKey::of("d", [("a", &*"\0".repeat(KEY_BYTES_MAX / 2))]), Err(KeyError::TooLong));
        assert_eq!(RecordKey::of("d", [("a", "b"); LEVELS_MAX + 1]), Err(KeyError::Levels(LEVELS_MAX + 1)));
        assert!(RecordKey::of("d", [("a", "b"); LEVELS_MAX]).is_ok());
        assert_eq!(KeyPrefix::of("d", [("a", None), ("b", Some("c"))]), Err(KeyError::NoValue(0)));
    }

    /// They would be further keys of the same texts.
    #[test]
    fn bytes_that_no_texts_become_are_no_key() {
        assert!(RecordKey::from_bytes(b"d\0a\0\x01\x02\0").is_ok());
        for bytes in [b"d\0\x01b\0b\0".as_slice(), b"d\0a\0\x01\x03\0", b"d\0a\0b", b"d\0a\0", b"d\0"] {
            assert_eq!(RecordKey::from_bytes(bytes), Err(KeyError::Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn the_longest_key_is_as_long_as_it_says() {
        let fits = KEY_BYTES_MAX - "d\0a\0\0".len();
        let key = RecordKey::of("d", [("a", &*"x".repeat(fits))]).expect("it fits");
        assert_eq!(key.as_bytes().len(), KEY_BYTES_MAX);
        assert_eq!(RecordKey::of("d", [("a", &*"x".repeat(fits + 1))]), Err(KeyError::TooLong));
    }
}
