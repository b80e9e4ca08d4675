//! Slows down guesses of the admin token. In: a wrong token, with its address. Out: whether tokens from that address
//! are checked.
//!
//! Each address may send a few wrong tokens at once, and one more each second. Beyond that not even the right token
//! is checked, so that the answers reveal nothing. Bounded: addresses for which there is no place share one.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long it takes until one wrong token is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// Wrong tokens that an address may send at once.
const AT_ONCE: u32 = 10;
/// Addresses with a place of their own.
const ADDRESSES_MAX: usize = 4_096;

/// Where wrong tokens came from.
#[derive(Default)]
pub(super) struct Guesses(Mutex<HashMap<Option<IpAddr>, Instant>>);

impl Guesses {
    /// Whether a token from this address (`None`: a unix socket) is checked now.
    pub(super) fn may(&self, from: Option<IpAddr>, now: Instant) -> bool {
        let known = self.0.lock();
        let forgotten = known.get(&network(from)).or_else(|| {
            // Only when the table is full can the shared place count for this address.
            known.get(&SHARED).filter(|_| known.len() >= ADDRESSES_MAX)
        });
        forgotten.is_none_or(|&forgotten| forgotten + FORGOTTEN <= now + FORGOTTEN * AT_ONCE)
    }

    /// Remembers a wrong token.
    pub(super) fn note(&self, from: Option<IpAddr>, now: Instant) {
        let mut known = self.0.lock();
        let mut place = network(from);
        if !known.contains_key(&place) && known.len() >= ADDRESSES_MAX {
            known.retain(|_, forgotten| *forgotten > now);
            if known.len() >= ADDRESSES_MAX {
                place = SHARED;
            }
        }
        let forgotten = known.entry(place).or_insert(now);
        *forgotten = (*forgotten).max(now) + FORGOTTEN;
    }
}

/// The place of addresses without one of their own. It is no network: its last 64 bits are not zero.
const SHARED: Option<IpAddr> = Some(IpAddr::V6(Ipv6Addr::from_bits(1)));

/// A client with one IPv6 address usually has the 64 bits behind it too.
fn network(from: Option<IpAddr>) -> Option<IpAddr> {
    from.map(|address| match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_serve::clock::monotonic;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    #[test]
    fn after_some_at_once_it_is_one_each_second() {
        let (guesses, began) = (Guesses::default(), monotonic());
        let guess = |from, now| {
            let may = guesses.may(from, now);
            may.then(|| guesses.note(from, now));
            may
        };
        let one = address("2001:db8::1");
        let seen = |after| (0..20).filter(|_| guess(one, began + after)).count();
        assert_eq!(seen(Duration::ZERO), 10);
        assert_eq!(seen(Duration::from_millis(999)), 0);
        assert_eq!(seen(Duration::from_secs(3)), 3);
        assert!(!guess(address("2001:db8::ffff"), began + Duration::from_secs(3)), "the same network");
        assert!(guess(address("10.0.0.1"), began) && guess(None, began));
        assert_eq!(seen(Duration::from_secs(60)), 10);
    }

    #[test]
    fn addresses_without_end_take_no_memory_without_end() {
        let (guesses, now) = (Guesses::default(), monotonic());
        for host in 0..20_000_u32 {
            guesses.note(Some(IpAddr::V4(host.into())), now);
        }
        assert!(guesses.0.lock().len() <= ADDRESSES_MAX + 1);
        assert!(!guesses.may(address("203.0.113.1"), now), "the shared place is spent");
        let later = now + Duration::from_secs(20_000);
        assert!(guesses.may(address("203.0.113.1"), later));
        guesses.note(address("203.0.113.1"), later);
        assert!(guesses.0.lock().len() <= 2, "what is forgotten leaves");
    }

    #[test]
    fn no_address_is_in_the_shared_place_while_it_has_one_of_its_own() {
        for own in ["::1", "::", "::ffff:10.0.0.1", "fe80::1"] {
            let (guesses, now) = (Guesses::default(), monotonic());
            guesses.note(address(own), now);
            for host in 0..20_000_u32 {
                guesses.note(Some(IpAddr::V4((host + (20 << 24)).into())), now);
            }
            assert!(!guesses.may(address("203.0.113.1"), now), "the shared place is spent");
            assert!(guesses.may(address(own), now), "{own}");
        }
    }
}
