//! Prefixes: addresses that count together, because one client can choose among them.
//!
//! In: the value of an entry. Out: what it counts as. Addresses are read as ranges of addresses in rules read them, so
//! all spellings of an address count as one; and those in a rule's prefixes of NAT64 are IPv4. Allocates nothing.

// From `core`, which has addresses and no sockets.
use core::net::IpAddr;
use std::fmt::{self, Write as _};
use std::ops::Deref;

use smallvec::SmallVec;

use crate::pattern::{Nat64, Range};

/// How many bits are the same in addresses that count together, in each family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Of IPv4 addresses: from 1 to 32. `None`: they do not count here.
    pub v4: Option<u8>,
    /// Of IPv6 addresses: from 1 to 128. `None`: they do not count here.
    pub v6: Option<u8>,
    /// Values that are no addresses are denied. Otherwise each counts as itself.
    pub denies_others: bool,
    /// Networks of IPv6 whose addresses count as the IPv4 addresses in them.
    pub(crate) nat64: Nat64,
}

/// The prefixes of a rule: one for each level of its path, if the level has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixes(pub Box<[Option<Prefix>]>);

/// The addresses in the values of a descriptor, by level. `None`: the level has no prefix, or the value is no address.
pub(crate) type Addresses = SmallVec<[Option<IpAddr>; 4]>;

/// What stands for a value in a counter's key.
pub(crate) enum KeyPart<'e> {
    /// The value itself.
    Value(&'e str),
    /// The [bytes](Range::key_bytes) of a range.
    Range([u8; 19]),
}

/// What a value counts as.
#[derive(Clone, Debug)]
pub enum CountedAs<'e> {
    /// The value itself.
    Value(&'e str),
    /// The range of addresses that its address is in.
    Range(RangeText),
}

/// A range of addresses as text, such as `2001:db8::/64`.
#[derive(Clone, Debug)]
pub struct RangeText {
    bytes: [u8; Self::BYTES_MAX],
    len: usize,
}

impl Prefix {
    /// What a value counts as.
    pub fn counts_as<'e>(&self, value: &'e str) -> CountedAs<'e> {
        self.range(value).map_or(CountedAs::Value(value), |range| CountedAs::Range(RangeText::of(&range)))
    }

    /// Whether it denies this value.
    fn denies(&self, value: &str) -> bool {
        self.denies_others && self.range(value).is_none()
    }

    fn range(&self, value: &str) -> Option<Range> {
        self.range_of(self.nat64.read(value))
    }

    fn range_of(&self, address: Option<IpAddr>) -> Option<Range> {
        Range::of_address(address?, self.v4, self.v6)
    }

    /// Whether it is a further one, which counts the addresses of one family and nothing else.
    fn is_of_one_family(&self) -> bool {
        self.v4.is_none() || self.v6.is_none()
    }
}

impl Prefixes {
    /// The prefix of a level.
    pub fn of_level(&self, level: usize) -> Option<&Prefix> {
        self.0.get(level)?.as_ref()
    }

    /// The addresses in these values, one for each level with a prefix: further limits of the rule read them as the first
    /// one does.
    pub(crate) fn read<'e>(&self, values: impl Iterator<Item = &'e str>) -> Addresses {
        self.0.iter().zip(values).map(|(prefix, value)| prefix.as_ref()?.nat64.read(value)).collect()
    }

    /// Whether the values of all levels count.
    pub(crate) fn count(&self, addresses: &Addresses) -> bool {
        let counts = |prefix: &Prefix, &address: &Option<IpAddr>| {
            !prefix.is_of_one_family() || prefix.range_of(address).is_some()
        };
        self.0
            .iter()
            .zip(addresses)
            .all(|(prefix, address)| prefix.as_ref().is_none_or(|prefix| counts(prefix, address)))
    }

    /// What stands in the counter's key for the value of a level. That is a range if the value counts as one, or is the
    /// text of one: in Redis these have one key.
    pub(crate) fn key_part<'e>(&self, level: usize, addresses: &Addresses, value: &'e str) -> KeyPart<'e> {
        let range = self.of_level(level).and_then(|prefix| {
            let address = addresses.get(level).copied().flatten();
            prefix.range_of(address).or_else(|| Range::of_text(value))
        });
        range.map_or(KeyPart::Value(value), |range| KeyPart::Range(range.key_bytes()))
    }

    /// Whether any of them denies the value of its level.
    pub fn deny<'e>(&self, values: impl Iterator<Item = &'e str>) -> bool {
        self.0
            .iter()
            .zip(values)
            .any(|(prefix, value)| prefix.as_ref().is_some_and(|prefix| prefix.denies(value)))
    }
}

impl AsRef<[u8]> for KeyPart<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Value(value) => value.as_bytes(),
            Self::Range(range) => range,
        }
    }
}

impl RangeText {
    /// The longest one is `ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128`.
    const BYTES_MAX: usize = 43;

    fn of(range: &Range) -> Self {
        let mut text = Self { bytes: [0; Self::BYTES_MAX], len: 0 };
        let written = write!(text, "{range}");
        debug_assert!(written.is_ok(), "{range} is longer than the longest one");
        text
    }
}

impl fmt::Write for RangeText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.len + part.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(part.as_bytes());
        self.len = end;
        Ok(())
    }
}

impl Deref for RangeText {
    type Target = str;

    fn deref(&self) -> &str {
        str::from_utf8(&self.bytes[..self.len]).expect("it was written as texts")
    }
}

impl Deref for CountedAs<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Value(value) => value,
            Self::Range(range) => range,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let families = [("v4", self.v4), ("v6", self.v6)].into_iter();
        for (place, (family, len)) in families.filter_map(|(family, len)| Some((family, len?))).enumerate() {
            write!(out, "{}{family} {len}", if place == 0 { "" } else { ", " })?;
        }
        if self.nat64 != Nat64::default() {
            write!(out, ", nat64 {}", self.nat64)?;
        }
        if self.denies_others { out.write_str(", others denied") } else { Ok(()) }
    }
}

/// Those that there are, from the first level on.
impl fmt::Display for Prefixes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels = (1..).zip(&self.0).filter_map(|(level, prefix)| Some((level, prefix.as_ref()?)));
        for (place, (level, prefix)) in levels.enumerate() {
            let comma = if place == 0 { "" } else { "; " };
            write!(out, "{comma}level {level}: {prefix}")?;
        }
        Ok(())
    }
}
