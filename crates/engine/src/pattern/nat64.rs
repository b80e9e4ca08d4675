//! NAT64 prefixes of an operator: IPv6 networks in which the addresses of IPv4 clients arrive.
//!
//! In: prefixes as rules name them. Out: the IPv4 address in an IPv6 address, as RFC 6052 embeds it. The well-known prefix
//! is no matter of rules: `address.rs` reads it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::sync::Arc;

use super::address;
use super::range::Range;

/// The prefixes of a rule. They do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nat64(Arc<[Range]>);

/// The lengths of RFC 6052.
const LENGTHS: [&str; 6] = ["32", "40", "48", "56", "64", "96"];
/// The most prefixes of one rule.
const PREFIXES_MAX: usize = 8;
/// The bits from 64 to 71.
const RESERVED: u128 = 0xff << 56;
/// Those behind them.
const BEHIND: u128 = (1 << 56) - 1;

impl Nat64 {
    /// Adds a prefix that is written as `2001:db8:64::/96`. `Err`: what is wrong with it, in words that go on after it.
    pub(crate) fn add(&mut self, text: &str) -> Result<(), String> {
        let is_one =
            |(address, len): (&str, &str)| address.parse::<Ipv6Addr>().is_ok() && LENGTHS.contains(&len);
        if !text.split_once('/').is_some_and(is_one) {
            return Err("is no prefix of NAT64 (expected an IPv6 prefix of the length 32, 40, 48, 56, 64 or 96, such as \
                        2001:db8:64::/96)"
                .to_owned());
        }
        let range = Range::written(text)?;
        if matches!(range.first_address(), IpAddr::V6(first) if first.to_bits() & RESERVED != 0) {
            return Err("has one of the bits 64 to 71 set (expected 0 there, as RFC 6052 has it)".to_owned());
        }
        if let Some(other) = self.0.iter().find(|other| other.overlaps(&range)) {
            return Err(format!("overlaps with {other} (expected prefixes that do not)"));
        }
        if self.0.len() == PREFIXES_MAX {
            return Err(format!("is one too many (expected {} at most)", PREFIXES_MAX));
        }
        self.0 = self.0.iter().copied().chain([range]).collect();
        Ok(())
    }

    /// The address that a value is, or the IPv4 address in it.
    pub(crate) fn read(&self, value: &str) -> Option<IpAddr> {
        let address = address::read(value)?;
        let IpAddr::V6(v6) = address else { return Some(address) };
        let around = self.0.iter().find(|prefix| prefix.has(address));
        Some(around.map_or(address, |prefix| embedded(v6, prefix.len()).into()))
    }
}

/// The 32 bits after a prefix of this length. As RFC 6052 says, the bits 64 to 71 are skipped, and what follows is ignored:
/// so no client gets more counters by other bits there.
fn embedded(address: Ipv6Addr, len: u8) -> Ipv4Addr {
    let bits = address.to_bits();
    let v4 = match 88_u32.checked_sub(len.into()) {
        // Without the bits 64 to 71 there are 120: first the `len` of the prefix, then the 32 of the IPv4 address.
        Some(after) => (bits >> 64 << 56 | bits & BEHIND) >> after,
        None => bits,
    };
    Ipv4Addr::from_bits(v4 as u32)
}

/// Separated by spaces.
impl fmt::Display for Nat64 {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, prefix) in self.0.iter().enumerate() {
            write!(out, "{}{prefix}", if place == 0 { "" } else { " " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table in section 2.4 of RFC 6052.
    const TABLE: [(&str, &str); 7] = [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
    ];

    fn nat64(prefix: &str) -> Nat64 {
        let mut nat64 = Nat64::default();
        nat64.add(prefix).expect("a prefix");
        nat64
    }

    #[test]
    fn the_examples_of_the_rfc() {
        for (prefix, address) in TABLE {
            assert_eq!(nat64(prefix).read(address), "192.0.2.33".parse().ok(), "{prefix}");
        }
    }

    /// The oracle places octets, as figure 1 of RFC 6052 draws them: the octet 8 is the reserved one.
    #[test]
    fn octets_behind_the_prefix_are_the_address_whatever_the_others_are() {
        let mut random = 36_u64;
        let mut byte = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 56) as u8
        };
        let text = |octets: [u8; 16]| Ipv6Addr::from(octets).to_string();
        // Not the well-known prefix: its addresses are IPv4 in any case.
        for (prefix, address) in &TABLE[..6] {
            let nat64 = nat64(prefix);
            let (_, len) = prefix.split_once('/').expect("a length");
            let bytes = len.parse::<usize>().expect("a length") / 8;
            let own = address.parse::<Ipv6Addr>().expect("an address").octets();
            for _ in 0..1_000 {
                let v4 = [byte(), byte(), byte(), byte()];
                let mut octets: [u8; 16] = std::array::from_fn(|_| byte());
                octets[..bytes].copy_from_slice(&own[..bytes]);
                let places = (bytes..16).filter(|place| *place != 8).take(4);
                places.zip(v4).for_each(|(place, octet)| octets[place] = octet);
                assert_eq!(nat64.read(&text(octets)), Some(v4.into()), "{prefix} {octets:?}");

                // Another prefix: an address as any other.
                octets[bytes - 1] ^= 1;
                assert_eq!(nat64.read(&text(octets)), Some(octets.into()), "{prefix} {octets:?}");
            }
        }
    }

    #[test]
    fn what_is_no_address_of_ipv6_stays_what_it_is() {
        let nat64 = nat64("2001:db8::/32");
        assert_eq!(nat64.read("10.0.0.1:80"), "10.0.0.1".parse().ok());
        assert_eq!(nat64.read("2001:db8::/32"), None);
    }
}
