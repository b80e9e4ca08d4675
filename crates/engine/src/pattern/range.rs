//! Ranges of addresses: how one is written, and which of many is the longest that contains an address.
//!
//! The ranges of one key are cut at their ends into parts that do not overlap. Each part has the longest range that
//! contains it, so looking up an address is one binary search, for any number of ranges.

use core::net::{IpAddr, Ipv6Addr};
use std::fmt;

use super::address;

/// A range of addresses: those that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Range {
    is_v6: bool,
    /// The first address, as [`bits`] of it.
    first: u128,
    /// How many bits are the same.
    len: u8,
}

/// The ranges of the patterns under one key. `T` is the target of a pattern.
#[derive(Clone, Debug)]
pub(super) struct Ranges<T> {
    v4: Parts<T>,
    v6: Parts<T>,
}

/// Parts without overlap, in order. Each ends where the next one begins; the last one has no end.
#[derive(Clone, Debug)]
struct Parts<T> {
    begins: Vec<u128>,
    targets: Vec<Option<T>>,
}

impl Range {
    /// The range that is written as `10.0.0.0/8`; an address alone is a range of one. `Err`: what is wrong with it, in
    /// words that go on after it.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        Self::written(text)?.of_v4()
    }

    /// The same, but a range of IPv4 in IPv6 stays one of IPv6.
    pub(super) fn written(text: &str) -> Result<Self, String> {
        let no_range =
            || "is no range of addresses (expected one such as 10.0.0.0/8 or 2001:db8::/32)".to_owned();
        let (address, len) = text.split_once('/').map_or((text, None), |(address, len)| (address, Some(len)));
        let address: IpAddr = address.parse().map_err(|_| no_range())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let len = len.map_or(Ok(bits_max), |len| prefix_len(len, bits_max).ok_or_else(no_range))?;
        let range = Self::around(address, len);
        if range.first != bits(address) {
            return Err(format!("has bits set behind its first {len} (expected {range}, if that is meant)"));
        }
        Ok(range)
    }

    /// The range of this length that contains an address.
    fn around(address: IpAddr, len: u8) -> Self {
        Self { is_v6: address.is_ipv6(), first: bits(address) & mask(len), len }
    }

    /// The range that contains an address, of the length for its family.
    pub(crate) fn of_address(address: IpAddr, v4_len: Option<u8>, v6_len: Option<u8>) -> Option<Self> {
        Some(Self::around(address, if address.is_ipv4() { v4_len } else { v6_len }?))
    }

    /// The range of which this is the text.
    pub(crate) fn of_text(text: &str) -> Option<Self> {
        let range = text.contains('/').then(|| Self::written(text).ok()).flatten();
        range.filter(|range| range.to_string() == text)
    }

    /// Stands for it in keys: no text has a byte of 255.
    pub(crate) fn key_bytes(&self) -> [u8; 19] {
        let mut bytes = [u8::MAX; 19];
        (bytes[1], bytes[2]) = (u8::from(self.is_v6), self.len);
        bytes[3..].copy_from_slice(&self.first.to_be_bytes());
        bytes
    }

    /// A range of IPv4 addresses in IPv6 is that range of IPv4 addresses.
    fn of_v4(self) -> Result<Self, String> {
        let Some(len) = self.len.checked_sub(96).filter(|_| self.is_v6) else { return Ok(self) };
        let first = Ipv6Addr::from_bits(self.first);
        let Some(v4) = address::v4_in(first) else { return Ok(self) };
        let range = Self::around(v4.into(), len);
        match address::is_nat64(first) {
            true => Err(format!(
                "is in the prefix of NAT64, whose addresses count as the IPv4 in them (expected {range})"
            )),
            false => Ok(range),
        }
    }

    /// Whether it contains the address that this value is.
    pub(super) fn contains(&self, value: &str) -> bool {
        address::read(value).is_some_and(|address| self.has(address))
    }

    /// Whether it contains an address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        Self::around(address, self.len) == *self
    }

    /// Whether some address is in both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.has(other.first_address()) || other.has(self.first_address())
    }

    /// How many bits are the same.
    pub(super) fn len(&self) -> u8 {
        self.len
    }

    /// Its first address, as text.
    pub(super) fn address(&self) -> String {
        self.first_address().to_string()
    }

    pub(super) fn first_address(&self) -> IpAddr {
        match self.is_v6 {
            true => IpAddr::V6(self.first.into()),
            false => IpAddr::V4(((self.first >> 96) as u32).into()),
        }
    }

    /// The last address.
    fn last(&self) -> u128 {
        self.first | !mask(self.len)
    }
}

/// The length of a prefix, without sign and leading zeros.
fn prefix_len(text: &str, max: u8) -> Option<u8> {
    let len: u8 = text.parse().ok()?;
    (len <= max && len.to_string() == text).then_some(len)
}

/// The bits of an address, its first one highest: of both families, so that one mask fits both.
fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn mask(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

impl fmt::Display for Range {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.first_address(), self.len)
    }
}

impl<T: Copy> Ranges<T> {
    /// Compiles ranges, given in file order: of equal ones the first is used.
    pub(super) fn new(ranges: impl IntoIterator<Item = (Range, T)>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        // A range comes before those in it. Stable, so equal ranges stay in file order.
        ranges.sort_by_key(|&(range, _)| range);
        ranges.dedup_by_key(|&mut (range, _)| range);
        let v6 = ranges.partition_point(|(range, _)| !range.is_v6);
        let (v4, v6) = ranges.split_at(v6);
        Self { v4: Parts::new(v4), v6: Parts::new(v6) }
    }

    /// The target of the longest range that contains the address that this value is.
    pub(super) fn find(&self, value: &str) -> Option<T> {
        if self.v4.begins.is_empty() && self.v6.begins.is_empty() {
            return None;
        }
        let address = address::read(value)?;
        let parts = if address.is_ipv4() { &self.v4 } else { &self.v6 };
        parts.find(bits(address))
    }
}

impl<T: Copy> Parts<T> {
    /// Cuts ranges, of which each comes before those in it.
    fn new(ranges: &[(Range, T)]) -> Self {
        let mut parts = Self { begins: Vec::new(), targets: Vec::new() };
        // The ranges that contain the current place, longest last.
        let mut around: Vec<(u128, T)> = Vec::new();
        for &(range, target) in ranges {
            while let Some((last, _)) = around.pop_if(|(last, _)| *last < range.first) {
                parts.begin(last + 1, around.last().map(|&(_, outer)| outer));
            }
            parts.begin(range.first, Some(target));
            around.push((range.last(), target));
        }
        while let Some((last, _)) = around.pop() {
            if let Some(begin) = last.checked_add(1) {
                parts.begin(begin, around.last().map(|&(_, outer)| outer));
            }
        }
        parts
    }

    /// Begins a part. If the last one began at the same place, it is empty.
    fn begin(&mut self, begin: u128, target: Option<T>) {
        if self.begins.last() == Some(&begin) {
            self.begins.pop();
            self.targets.pop();
        }
        self.begins.push(begin);
        self.targets.push(target);
    }

    fn find(&self, address: u128) -> Option<T> {
        let part = self.begins.partition_point(|&begin| begin <= address).checked_sub(1)?;
        self.targets.get(part).copied()?
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Numbers that look random; the same seed gives the same ones.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u128 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u128::from(self.0 >> 32)
        }

        fn below(&mut self, bound: u128) -> u128 {
            self.next() % bound
        }

        /// An address. Some are close together, so that ranges contain each other.
        fn address(&mut self) -> IpAddr {
            let far = self.below(4) != 0;
            match self.below(2) {
                0 => IpAddr::V4(
                    (if far { self.next() } else { 0x0a00_0000 | self.below(1 << 12) } as u32).into(),
                ),
                _ => {
                    let start = 0x2001_0db8_u128 << 96;
                    let rest = if far {
                        self.next() << 64 | self.next() << 32 | self.next()
                    } else {
                        self.below(1 << 12)
                    };
                    IpAddr::V6((start | rest).into())
                }
            }
        }

        /// A range. One of so many is a wide one.
        fn range(&mut self, wide: u128) -> Range {
            let address = self.address();
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let most = if self.below(wide) == 0 { bits - 7 } else { 12 };
            let len = bits - self.below(most);
            Range::around(address, len as u8)
        }
    }

    #[test]
    fn the_longest_of_some_ranges_is_the_one_that_a_naive_list_finds() {
        for seed in 0..100 {
            let mut random = Random(seed);
            let list: Vec<Range> = (0..=random.below(200)).map(|_| random.range(4)).collect();
            let ranges = Ranges::new(list.iter().copied().zip(0..));
            for _ in 0..500 {
                let value = random.address().to_string();
                let longest = list.iter().filter(|range| range.contains(&value)).map(|range| range.len).max();
                let is_first = |range: &Range| Some(range.len) == longest && range.contains(&value);
                assert_eq!(ranges.find(&value), list.iter().position(is_first), "{value} {list:?}");
            }
            // Where ranges begin and end.
            for range in &list {
                let value = range.first_address().to_string();
                let longest =
                    list.iter().filter(|range| range.contains(&value)).max_by_key(|range| range.len);
                assert_eq!(ranges.find(&value).map(|found| list[found]), longest.copied());
            }
        }
    }

    /// The oracle looks up the prefixes of an address, the longest first, in a map.
    #[test]
    fn of_100_000_ranges_the_longest_is_found() {
        let mut random = Random(36);
        let list: Vec<Range> = (0..100_000).map(|_| random.range(1024)).collect();
        let ranges = Ranges::new(list.iter().copied().zip(0..));
        let map: BTreeMap<Range, usize> =
            list.iter().enumerate().rev().map(|(at, range)| (*range, at)).collect();
        let mut found = 0;
        for _ in 0..5_000 {
            let address = random.address();
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let longest = (0..=bits).rev().find_map(|len| map.get(&Range::around(address, len)));
            assert_eq!(ranges.find(&address.to_string()), longest.copied(), "{address}");
            found += usize::from(longest.is_some());
        }
        assert!((1_000..5_000).contains(&found), "{found} addresses are in a range");
    }

    #[test]
    fn a_range_has_one_name() {
        for (written, name) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
            ("2001:DB8:0::/32", "2001:db8::/32"),
            ("::1", "::1/128"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::/96", "::/96"),
        ] {
            assert_eq!(Range::read(written).map(|range| range.to_string()), Ok(name.to_owned()), "{written}");
        }
    }

    #[test]
    fn no_ipv4_address_is_in_a_range_of_ipv6_addresses() {
        let all = Range::read("::/0").expect("a range");
        assert!(all.contains("2001:db8::1") && !all.contains("10.0.0.1") && !all.contains("::ffff:10.0.0.1"));
        let v4 = Range::read("0.0.0.0/0").expect("a range");
        assert!(v4.contains("64:ff9b::10.0.0.1") && !v4.contains("2001:db8::1"));
    }

    #[test]
    fn what_is_no_range_is_refused_with_the_one_that_was_meant() {
        let no_range = "is no range of addresses (expected one such as 10.0.0.0/8 or 2001:db8::/32)";
        for (written, why) in [
            ("10.1.2.3/8", "has bits set behind its first 8 (expected 10.0.0.0/8, if that is meant)"),
            ("2001:db8::1/64", "has bits set behind its first 64 (expected 2001:db8::/64, if that is meant)"),
            (
                "64:ff9b::a00:0/104",
                "is in the prefix of NAT64, whose addresses count as the IPv4 in them (expected 10.0.0.0/8)",
            ),
            ("10.0.0.0/33", no_range),
            ("10.0.0.0/-1", no_range),
            ("10.0.0.0/+8", no_range),
            ("10.0.0.0/08", no_range),
            ("10.0.0.0/255.0.0.0", no_range),
            ("10.0.0.0-10.0.0.9", no_range),
            ("10.0.0.0/", no_range),
            ("010.0.0.0/8", no_range),
            ("[::1]/128", no_range),
            ("::/129", no_range),
            ("scanners", no_range),
            ("", no_range),
        ] {
            assert_eq!(Range::read(written), Err(why.to_owned()), "{written}");
        }
    }
}
