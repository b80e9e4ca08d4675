//! Addresses, as proxies write them.
//!
//! In: the value of an entry. Out: its address, or nothing. The same address has many spellings; `docs/rules.md` has
//! the list. What is not in the list is no address: guessing would let a client choose what it counts as.

// From `core`, which has addresses and no sockets.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The address that a text contains. A port and a zone do not count.
pub(super) fn read(text: &str) -> Option<IpAddr> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, after) = rest.split_once(']')?;
        let is_end = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        return v6(address).filter(|_| is_end);
    }
    match text.split_once(':') {
        None => v4(text),
        // IPv6 has at least two colons.
        Some((address, after)) if is_port(after) => v4(address),
        Some(_) => v6(text),
    }
}

/// The IPv4 address in this IPv6 address: `::ffff:10.0.0.1`, or that of a client behind NAT64, `64:ff9b::10.0.0.1`.
pub(super) fn v4_in(address: Ipv6Addr) -> Option<Ipv4Addr> {
    address
        .to_ipv4_mapped()
        .or_else(|| is_nat64(address).then(|| Ipv4Addr::from_bits(address.to_bits() as u32)))
}

/// Whether it is in the prefix of NAT64 (RFC 6052).
pub(super) fn is_nat64(address: Ipv6Addr) -> bool {
    matches!(address.segments(), [0x64, 0xff9b, 0, 0, 0, 0, _, _])
}

fn v4(text: &str) -> Option<IpAddr> {
    // Leading zeros are an error here. Other programs read them as octal numbers.
    text.parse().ok().map(IpAddr::V4)
}

fn v6(text: &str) -> Option<IpAddr> {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    let address: Ipv6Addr = address.parse().ok().filter(|_| zone != Some(""))?;
    Some(v4_in(address).map_or(IpAddr::V6(address), IpAddr::V4))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_is_one_address() {
        for (address, spellings) in [
            (
                "10.0.0.1",
                &[
                    "10.0.0.1",
                    "10.0.0.1:0",
                    "10.0.0.1:65535",
                    "::ffff:10.0.0.1",
                    "::FFFF:a00:1",
                    "0:0:0:0:0:ffff:0a00:0001",
                    "[::ffff:10.0.0.1]:443",
                    "64:ff9b::10.0.0.1",
                    "64:ff9b::a00:1%eth0",
                ][..],
            ),
            (
                "2001:db8::1",
                &[
                    "2001:db8::1",
                    "2001:DB8:0:0:0:0:0:1",
                    "2001:0db8::0001",
                    "[2001:db8::1]",
                    "[2001:db8::1]:80",
                    "2001:db8::1%eth0",
                    "[2001:db8::1%25eth0]:80",
                ],
            ),
            ("::1", &["::1", "::0.0.0.1"]),
            ("64:ff9b:1::a00:1", &["64:ff9b:1::10.0.0.1"]),
            ("fe80::1", &["fe80::1%1", "fe80::1%a b"]),
        ] {
            for spelling in spellings {
                assert_eq!(read(spelling), address.parse().ok(), "{spelling}");
            }
        }
    }

    #[test]
    fn anything_else_is_no_address() {
        for text in [
            "",
            " 10.0.0.1",
            "10.0.0.1 ",
            "10.0.0",
            "10.0.0.256",
            "010.0.0.1",
            "10.0.0.01",
            "0x0a.0.0.1",
            "167772161",
            "10.0.0.1:",
            "10.0.0.1:65536",
            "10.0.0.1:+80",
            "10.0.0.1%eth0",
            "10.0.0.1/32",
            "[10.0.0.1]",
            "[10.0.0.1]:80",
            "2001:db8::1::",
            "2001:db8::00001",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]80",
            "[2001:db8::1]:",
            "2001:db8::1%",
            "unix:/run/client.sock",
            "client.example",
            "unknown",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
