//! How counters are called: the entries of their descriptors, and the paths of their rules, which operators name too.
//!
//! In: a limit and the number of a counter. Out: its entries, and the node that they meet. A rule below another has two levels,
//! and a limit may have nodes for one value, for a pattern and for all others: each of its counters has one name nevertheless.

use std::net::IpAddr;

use smallvec::{SmallVec, smallvec};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::rules::{Reach, ResetPath, RuleSet};

use crate::scenario::{ADDRESSES, Further, IDS, Item, LimitSpec, Limitless, Whom};

/// The keys of limits in requests, and the values of counters.
pub(super) const LIMITS: [&str; 3] = ["l0", "l1", "l2"];
/// With those that are further limits of their rules.
pub(super) const LIMITS_MAX: usize = LIMITS.len() + 4;
pub(super) const KEYS: [&str; 7] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6"];
/// A pattern that fits all of them.
const EVERY_KEY: &str = "k*";
/// The nodes of a limit that has several.
pub(super) const NODES: [Option<&str>; 3] = [Some("k0"), Some("*1"), None];

/// The values of the last entry: the classes of a limit, and a name that is none.
pub(super) const CLASSES: [&str; 4] = ["high", "middle", "low", "unknown"];

/// The addresses of counters with a prefix of 24 or 64 bits. What is no address is a counter of its own.
const BY_PREFIX: [[&str; ADDRESSES as usize]; KEYS.len()] = [
    ["10.0.0.1", "10.0.0.255", "::ffff:10.0.0.77", "10.0.0.0"],
    ["10.0.1.1", "10.0.1.2", "::ffff:a00:103", "64:ff9b::10.0.1.4"],
    ["2001:db8:0:2::", "2001:db8:0:2::1", "2001:DB8:0:2:ffff:ffff:ffff:ffff", "2001:0db8:0000:0002::9"],
    ["2001:db8:0:3::", "2001:db8:0:3:8000::", "2001:db8:0:3::1", "2001:DB8::3:0:0:0:1"],
    ["unknown"; 4],
    ["2001:db8:0:100::", "2001:db8:0:100:1::", "2001:db8::100:0:0:0:1", "2001:DB8:0:0100::1"],
    [""; 4],
];

/// The ids of calls.
pub(super) const CALLS: [&str; IDS as usize] =
    ["i0", "i1", "i2", "i3", "i4", "i5", "i6", "i7", "i8", "i9", "i10", "i11"];

/// The entries of a descriptor: its keys and values.
pub(super) type Entries = SmallVec<[(&'static str, &'static str); 3]>;
/// The rule that each counter of each limit meets.
pub(super) type RuleIds = [[Option<usize>; KEYS.len()]; LIMITS_MAX];

/// The entries that lead to a counter. Two that differ in one of two values are two counters.
pub(super) fn entries(limits: &[LimitSpec], limit: usize, key: u64) -> Entries {
    let key = key as usize;
    match limits[limit].shape.below {
        Some(above) => smallvec![(LIMITS[above], KEYS[key / 2]), (LIMITS[limit], KEYS[key % 2])],
        None if limits[limit].shape.has_prefix => smallvec![(LIMITS[limit], BY_PREFIX[key][0])],
        None => smallvec![(LIMITS[limit], KEYS[key])],
    }
}

/// What a descriptor asks in addition to the first limit of its rule.
pub(super) fn further(limits: &[LimitSpec], item: Item) -> impl Iterator<Item = Item> {
    let own = limits.iter().enumerate().filter_map(move |(number, limit)| match limit.further {
        Some((of, further)) if of == item.limit => Some((number, further)),
        _ => None,
    });
    own.filter_map(move |(limit, further)| Some(Item { limit, key: further_key(further, item.key)?, ..item }))
}

/// The counter of a further limit, named by the least counter of the first limit that leads to it. `None`: it does not count that.
fn further_key(further: Further, key: u64) -> Option<u64> {
    let Further::Shorter { is_v6, len, .. } = further else { return Some(key) };
    let own = first_bits(key, (is_v6, len))?;
    (0..KEYS.len() as u64).find(|&other| first_bits(other, (is_v6, len)) == Some(own))
}

/// The first bits of the address of a counter, if it is of this family.
fn first_bits(key: u64, (is_v6, len): (bool, u32)) -> Option<u128> {
    match BY_PREFIX[key as usize][0].parse().ok()? {
        IpAddr::V4(address) => (!is_v6).then(|| u128::from(u32::from(address)) / 2_u128.pow(32 - len)),
        IpAddr::V6(address) => is_v6.then(|| u128::from(address) / 2_u128.pow(128 - len)),
    }
}

/// The counters of the first limit of a rule that lead to this one of a further limit.
pub(super) fn leading_to(further: Further, key: u64) -> impl Iterator<Item = u64> {
    (0..KEYS.len() as u64).filter(move |&other| further_key(further, other) == Some(key))
}

/// The entries of a descriptor: those that lead to its counter, and the one that names its class or its call.
pub(super) fn entries_of_item(limits: &[LimitSpec], item: &Item) -> Entries {
    let mut own = entries(limits, item.limit, item.key);
    if limits[item.limit].shape.has_prefix {
        own[0].1 = BY_PREFIX[item.key as usize][usize::from(item.address)];
    }
    own.extend(item.last.map(|last| match has_calls(limits, item.limit) {
        true => ("call", CALLS[usize::from(last)]),
        false => ("class", CLASSES[usize::from(last)]),
    }));
    own
}

/// Whether the last entry of a descriptor names a call.
pub(super) fn has_calls(limits: &[LimitSpec], limit: usize) -> bool {
    limits[limit].is_slots() || limits.iter().any(|other| other.is_slots() && other.is_further_of(limit))
}

/// The entries of a descriptor without a limit.
pub(super) fn entries_of(limitless: Limitless) -> Entries {
    match limitless {
        Limitless::Unlimited => smallvec![("none", KEYS[0])],
        Limitless::Unmatched => smallvec![("nowhere", KEYS[0])],
    }
}

/// The counter to which entries lead.
pub(super) fn counter(entries: &[(impl AsRef<str>, impl AsRef<str>)]) -> Option<(usize, u64)> {
    let place = |names: &[&str], name: &str| names.iter().position(|other| *other == name);
    let (limit, _) = entries.last()?;
    let digits = entries.iter().map(|(_, value)| place(&KEYS, value.as_ref()));
    let key = digits.reduce(|key, digit| Some(2 * key? + digit?))?;
    Some((place(&LIMITS, limit.as_ref())?, key? as u64))
}

/// The path of an exception: to one counter, or to all of a limit.
pub(super) fn path(limits: &[LimitSpec], limit: usize, whom: Whom) -> Path {
    let entry = |(name, value): (&str, &str)| {
        let value = match whom {
            Whom::All => None,
            Whom::Pattern => Some(EVERY_KEY.to_owned()),
            Whom::One(_) => Some(value.to_owned()),
        };
        PathEntry { key: name.to_owned(), value }
    };
    let key = if let Whom::One(key) = whom { key } else { 0 };
    let entries = entries(limits, limit, key).into_iter().map(entry);
    Path { domain: "sim".into(), entries: entries.collect() }
}

/// The node that a counter meets, below the nodes above it.
fn nodes(limits: &[LimitSpec], limit: usize, key: u64) -> Vec<PathEntry> {
    let node = |(name, value): (&str, &str)| {
        let own = &limits[LIMITS.iter().position(|other| *other == name).unwrap_or(limit)];
        let met = NODES.iter().flatten().find(|node| value.ends_with(node.trim_start_matches('*')));
        PathEntry {
            key: name.to_owned(),
            value: met.filter(|_| own.shape.has_nodes).map(|&node| node.to_owned()),
        }
    };
    entries(limits, limit, key).into_iter().map(node).collect()
}

/// The resets that concern a counter: of its domain, of each node on its way, and of the counter itself.
pub(super) fn resets_of(limits: &[LimitSpec], limit: usize, key: u64) -> Vec<ResetPath> {
    let nodes = nodes(limits, limit, key);
    let below = |levels| below(nodes[..levels].to_vec());
    let own = ResetPath { path: path(limits, limit, Whom::One(key)), reach: Reach::Counter };
    (0..=nodes.len()).map(below).chain([own]).collect()
}

/// The resets of one counter, of all of a limit, or of all limits. A limit of several nodes has one for each.
pub(super) fn resets(limits: &[LimitSpec], limit: Option<usize>, key: Option<u64>) -> Vec<ResetPath> {
    match (limit, key) {
        (Some(limit), Some(key)) => {
            vec![ResetPath { path: path(limits, limit, Whom::One(key)), reach: Reach::Counter }]
        }
        (Some(limit), None) => {
            let mut all: Vec<_> =
                (0..KEYS.len() as u64).map(|key| below(nodes(limits, limit, key))).collect();
            all.sort();
            all.dedup();
            all
        }
        (None, _) => vec![below(Vec::new())],
    }
}

fn below(entries: Vec<PathEntry>) -> ResetPath {
    ResetPath { path: Path { domain: "sim".into(), entries }, reach: Reach::Below }
}

/// The counter of the ban that a counter of a limit leads to: of its rule, and of the values that the ban is about.
pub(super) fn ban_of(limits: &[LimitSpec], ids: &RuleIds, limit: usize, key: u64) -> Option<u64> {
    let ban = limits[limit].shape.ban?;
    let value = match ban.on {
        None => key,
        Some(named) if named == limit => key % 2,
        Some(_) => key / 2,
    };
    Some(ids[limit][key as usize]? as u64 * KEYS.len() as u64 + value)
}

/// The rule that each counter meets.
pub(super) fn rule_ids(limits: &[LimitSpec], rules: &RuleSet) -> RuleIds {
    let mut ids = RuleIds::default();
    let own = limits.iter().enumerate().filter(|(_, limit)| !limit.is_override && limit.further.is_none());
    for (limit, _) in own {
        for (key, id) in (0..).zip(&mut ids[limit]) {
            let path = Path { domain: "sim".into(), entries: nodes(limits, limit, key) };
            *id = rules.rule_at(&path).map(|rule| rule.id);
        }
    }
    let mut places = [0; LIMITS.len()];
    for (limit, of) in limits.iter().enumerate().filter_map(|(limit, own)| Some((limit, own.further?.0))) {
        // They are behind the first one.
        places[of] += 1;
        ids[limit] = ids[of].map(|id| Some(id? + places[of]));
    }
    ids
}
