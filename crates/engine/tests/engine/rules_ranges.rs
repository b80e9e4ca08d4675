//! Many ranges of addresses in rules, and addresses in all spellings: which range an address meets, compared with a naive
//! list.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::collections::HashSet;
use std::fmt::Write as _;

use tidegate_engine::plan::Modes;
use tidegate_engine::request::Request;

use crate::random::Random;
use crate::rules::loaded;
use crate::rules_prefix::spelled;

/// A range as the oracle sees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Naive {
    is_v6: bool,
    first: u128,
    last: u128,
    len: u32,
}

impl Naive {
    /// The range of this length around an address.
    fn around(is_v6: bool, address: u128, len: u32) -> Self {
        let size = 1 << (if is_v6 { 128 } else { 32 } - len);
        let first = address / size * size;
        Self { is_v6, first, last: first + (size - 1), len }
    }

    /// A range of its own, or one inside of another range.
    fn random(random: &mut Random, others: &[Self]) -> Self {
        let outer = (!others.is_empty() && random.one_in(2)).then(|| random.pick(others));
        let is_v6 = outer.map_or_else(|| random.one_in(2), |outer| outer.is_v6);
        // Networks of IPv6 that clients have: none of them is IPv4 in IPv6.
        let all = if is_v6 { Self::around(true, 1 << 125, 3) } else { Self::around(false, 0, 0) };
        let Self { len, .. } = outer.unwrap_or(all);
        let longer = len + random.below(u64::from(if is_v6 { 128 } else { 32 } - len) + 1) as u32;
        Self::around(is_v6, outer.unwrap_or(all).inside(random), longer)
    }

    fn inside(&self, random: &mut Random) -> u128 {
        let any = u128::from(random.next()) << 64 | u128::from(random.next());
        self.first + any % (self.last - self.first + 1)
    }

    /// An address in it, at one of its ends, or right beyond one of them.
    fn near(&self, random: &mut Random) -> u128 {
        let most = if self.is_v6 { u128::MAX } else { u128::from(u32::MAX) };
        match random.below(5) {
            0 => self.first,
            1 => self.last,
            2 => self.first.saturating_sub(1),
            3 => self.last.saturating_add(1).min(most),
            _ => self.inside(random),
        }
    }
}

fn address(is_v6: bool, bits: u128) -> IpAddr {
    if is_v6 { Ipv6Addr::from_bits(bits).into() } else { Ipv4Addr::from_bits(bits as u32).into() }
}

/// TIDEGATE_ADDRESSES says how many addresses are looked up among 100,000 ranges. Otherwise there are fewer of both: the
/// oracle compares each address with each range.
#[test]
#[allow(clippy::disallowed_methods, reason = "a soak says how many addresses there are")]
fn of_many_ranges_an_address_meets_the_longest_that_a_naive_list_finds() {
    let set = std::env::var_os("TIDEGATE_ADDRESSES");
    let addresses = set.as_ref().map(|addresses| addresses.to_string_lossy().parse().expect("a number"));
    let (ranges, addresses) = addresses.map_or((2_000, 10_000), |addresses: u64| (100_000, addresses));
    let (mut random, mut list, mut known) = (Random(36), Vec::new(), HashSet::new());
    while list.len() < ranges {
        let range = Naive::random(&mut random, &list);
        if known.insert(range) {
            list.push(range);
        }
    }
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for Naive { is_v6, first, len, .. } in &list {
        let value = format!("{{cidr: '{}/{len}'}}", address(*is_v6, *first));
        writeln!(text, "- {{key: ip, value: {value}, rate_limit: {{unlimited: true}}}}").unwrap();
    }
    let rules = loaded(&text).rules;
    let numbered = list.iter().zip(0..);
    let families: [Vec<(&Naive, usize)>; 2] =
        [false, true].map(|is_v6| numbered.clone().filter(|(range, _)| range.is_v6 == is_v6).collect());
    let mut found = 0;
    for _ in 0..addresses {
        let near = random.pick(&list);
        let bits = near.near(&mut random);
        let value = spelled(&mut random, address(near.is_v6, bits));
        let family = &families[usize::from(near.is_v6)];
        let longest = family
            .iter()
            .filter(|(range, _)| range.first <= bits && bits <= range.last)
            .max_by_key(|(range, _)| range.len)
            .map(|&(_, number)| number);
        let entries = [("ip", value.as_str())];
        let plan = rules.plan(&Request::new("d", 1).descriptor(&entries), Modes::default());
        assert_eq!(plan.steps[0].rule().map(|rule| rule.id), longest, "{value}");
        found += u64::from(longest.is_some());
    }
    assert!((addresses / 2..addresses).contains(&found), "{found} addresses are in a range");
}
