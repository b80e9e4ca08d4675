//! `prefix`: which addresses count together, compared with naive masks of `std::net`; what is no address; what other
//! parts of the engine make of it; and what load refuses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tidegate_engine::decision::{Code, Status, conclude};
use tidegate_engine::explain::explain;
use tidegate_engine::key::Key;
use tidegate_engine::overlay::{Effect, Exception, Exceptions, Overlay};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Check, Modes, Plan, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{Epochs, Reach, ResetPath, RuleSet};

use crate::asking::{at, store};
use crate::random::Random;
use crate::rules::{loaded, refused};

/// Rules of one node with this prefix, and five requests a minute.
fn rules(prefix: &str) -> RuleSet {
    rules_with(&format!("prefix: {prefix}"))
}

fn rules_with(more: &str) -> RuleSet {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5, candidate: {requests_per_unit: 3}}";
    loaded(&format!("domain: d\ndescriptors:\n- {{key: ip, {limit}, {more}}}\n")).rules
}

fn request<'r>(value: &'r str) -> Request<'r> {
    let mut request = Request::new("d", 1);
    request.push([Entry { key: "ip", value }], DescriptorOptions::default());
    request
}

/// The keys of the counter and of the candidate's.
fn keys(rules: &RuleSet, value: &str) -> (Key, Key) {
    let plan = rules.plan(&request(value), Modes::default());
    (only(&plan).key, plan.candidates[0].check.key)
}

fn only<'a, 'p>(plan: &'a Plan<'p>) -> &'a Check<'p> {
    match &plan.steps[..] {
        [Step::Check(check)] => check,
        steps => panic!("{steps:?}"),
    }
}

/// The first `len` bits of an address, by dividing.
fn naive(address: IpAddr, (v4, v6): (u32, u32)) -> (bool, u128) {
    match address {
        IpAddr::V4(address) => (false, u128::from(u32::from(address)) / 2u128.pow(32 - v4)),
        IpAddr::V6(address) if v6 == 128 => (true, u128::from(address)),
        IpAddr::V6(address) => (true, (u128::from(address) >> 1) / 2u128.pow(127 - v6)),
    }
}

/// An address: often one that differs from others in a few bits only.
fn address(random: &mut Random) -> IpAddr {
    let flips = |random: &mut Random, bits: u64| match random.below(4) {
        0 => 0,
        1 => 1u128 << random.below(bits),
        2 => (1u128 << random.below(bits)) | (1u128 << random.below(bits)),
        _ => u128::from(random.next()) << 64 | u128::from(random.next()),
    };
    if random.one_in(2) {
        let flips = flips(random, 32) as u32;
        return Ipv4Addr::from_bits(0xC633_6400 ^ flips).into();
    }
    let flips = flips(random, 128);
    let address = Ipv6Addr::from_bits(0x2001_0db8_0001_0002_0003_0004_0005_0006 ^ flips);
    // Those are IPv4, and are drawn above.
    let is_v4 = address.to_ipv4_mapped().is_some() || address.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
    if is_v4 { Ipv6Addr::LOCALHOST.into() } else { address.into() }
}

/// One of the spellings of an address.
pub(crate) fn spelled(random: &mut Random, address: IpAddr) -> String {
    let port = random.below(65_536);
    match address {
        IpAddr::V4(v4) => match random.below(6) {
            0 => format!("{v4}:{port}"),
            1 => format!("::ffff:{v4}"),
            2 => format!("[{}]:{port}", v4.to_ipv6_mapped()),
            3 => format!("64:ff9b::{v4}"),
            4 => format!("64:FF9B:0:0::{:x}:{:x}%eth0", v4.to_bits() >> 16, v4.to_bits() & 0xffff),
            _ => v4.to_string(),
        },
        IpAddr::V6(v6) => match random.below(6) {
            0 => format!("[{v6}]:{port}"),
            1 => format!("[{v6}]"),
            2 => format!("{v6}%eth{port}"),
            3 => v6.to_string().to_uppercase(),
            4 => v6.segments().map(|part| format!("{part:04x}")).join(":"),
            _ => v6.to_string(),
        },
    }
}

#[test]
fn addresses_in_all_spellings_count_together_exactly_when_naive_masks_say_so() {
    let lens = [(24, 64), (32, 128), (1, 1), (8, 48), (31, 127), (17, 65), (32, 56)];
    for (seed, len @ (v4, v6)) in (0..).zip(lens) {
        let mut random = Random(seed);
        let rules = rules(&format!("{{v4: {v4}, v6: {v6}}}"));
        let (mut of_range, mut ranges) = (HashMap::new(), HashMap::new());
        for _ in 0..20_000 {
            let address = address(&mut random);
            let text = spelled(&mut random, address);
            let (key, candidate) = keys(&rules, &text);
            let range = naive(address, len);
            assert_eq!(*of_range.entry(range).or_insert(key), key, "{text} {len:?}");
            for key in [key, candidate] {
                assert_eq!(*ranges.entry(key).or_insert(range), range, "{text} {len:?}");
            }
        }
        assert!(of_range.len() > 2, "{len:?}");
    }
}

#[test]
fn a_family_without_a_length_counts_each_address() {
    let (v4, v6) = (rules("{v4: {24: 1}}"), rules("{v6: {64: 1}}"));
    let same = |rules: &RuleSet, one: &str, other: &str| keys(rules, one).0 == keys(rules, other).0;
    assert!(same(&v4, "10.0.0.1", "10.0.0.2") && !same(&v4, "10.0.0.1", "10.0.1.1"));
    assert!(same(&v4, "2001:db8::1", "[2001:DB8::1]:80") && !same(&v4, "2001:db8::1", "2001:db8::2"));
    assert!(same(&v6, "2001:db8::1", "2001:db8::2") && !same(&v6, "2001:db8::1", "2001:db8:0:1::1"));
    assert!(same(&v6, "10.0.0.1", "::ffff:10.0.0.1") && !same(&v6, "10.0.0.1", "10.0.0.2"));
}

#[test]
fn addresses_behind_nat64_count_as_the_ipv4_in_them() {
    let same = |rules: &RuleSet, one: &str, other: &str| keys(rules, one) == keys(rules, other);
    let with = rules("{v4: 24, v6: 64, nat64: [2001:db8:64::/96, 2001:db8:122::/48]}");
    for address in ["2001:db8:64::192.0.2.33", "[2001:DB8:122:c000:2:2100::]:80", "64:ff9b::c000:221"] {
        assert!(same(&with, address, "192.0.2.1"), "{address}");
        assert!(!same(&with, address, "192.0.3.33"), "{address}");
    }
    assert!(same(&with, "2001:db8:64::1:0:0", "2001:db8:64::2:0:0"), "beside the /96: by the /64");
    let without = rules("{v4: 24, v6: 64}");
    assert!(same(&without, "2001:db8:64::192.0.2.33", "2001:db8:64::198.51.100.1"));
    // What a prefix changes is the counters of its addresses.
    assert_eq!(keys(&with, "192.0.2.33"), keys(&without, "192.0.2.33"));
    assert_eq!(keys(&with, "2001:db8::1"), keys(&without, "2001:db8::1"));

    let lengths = rules_with("prefix: {v4: {32: 1, 24: 4}, v6: {64: 1, 48: 2}, nat64: [2001:db8:64::/96]}");
    let keys_of = |value: &str| {
        let request = request(value);
        lengths.plan(&request, Modes::default()).checks().map(|(_, check)| check.key).collect::<Vec<_>>()
    };
    let translated = keys_of("2001:db8:64::192.0.2.33");
    assert_eq!(translated, keys_of("192.0.2.33"));
    let neighbour = keys_of("192.0.2.34");
    assert!(translated[0] != neighbour[0] && translated[1] == neighbour[1], "the /32 and the /24");
}

#[test]
fn all_addresses_of_a_64_get_n_together() {
    let (rules, store) = (rules("{v6: 64}"), store());
    let admitted = (0..1u128 << 17).filter(|low| {
        let address = Ipv6Addr::from_bits(
            0x2001_0db8 << 96 | low.wrapping_mul(0x9E37_79B9_7F4A_7C15) & u128::from(u64::MAX),
        );
        let address = address.to_string();
        let plan = rules.plan(&request(&address), Modes::default());
        let verdicts = store.apply(&plan, at(1_000.0));
        conclude(&plan, &verdicts).code == Code::Ok
    });
    assert_eq!(admitted.count(), 5);
    assert_eq!(store.counters(), 2, "the counter and the candidate's");
}

#[test]
fn what_is_no_address_counts_as_itself_or_is_denied() {
    let others =
        ["", "unknown", "unix:/run/client.sock", "010.0.0.1", "10.0.0.1/24", "[10.0.0.1]", " 10.0.0.1"];
    let (counts, denies) = (rules("{v4: 24, v6: 64}"), rules("{v4: 24, v6: 64, not_an_address: deny}"));
    let plain = rules_with("shadow_mode: false");
    let mut seen = Vec::new();
    for value in others {
        // The counter stays when a rule gets a prefix.
        assert_eq!(keys(&counts, value), keys(&plain, value), "{value}");
        seen.push(keys(&counts, value));
        let limits = |rules: &RuleSet| {
            let plan = rules.plan(&request(value), Modes::default());
            [only(&plan).limit, plan.candidates[0].check.limit].map(|limit| (limit.requests(), limit.burst()))
        };
        assert_eq!((limits(&counts), limits(&denies)), ([(5, 5), (3, 3)], [(0, 0), (0, 0)]), "{value}");
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), others.len());
    let of_address = request("10.0.0.1");
    assert_eq!(only(&denies.plan(&of_address, Modes::default())).limit.requests(), 5);
    // A range as text is its counter.
    assert_eq!(keys(&counts, "10.0.0.0/24"), keys(&counts, "10.0.0.7"));
}

#[test]
fn below_ranges_and_above_other_levels_addresses_count_by_prefix() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
    let text = format!(
        "domain: d\ndescriptors:\n- {{key: ip, value: {{cidr: '2001:db8::/32'}}, prefix: {{v6: 48}}, {limit}}}\n\
         - {{key: ip, prefix: {{v6: 64}}, descriptors: [{{key: user, {limit}}}]}}\n"
    );
    let rules = loaded(&text).rules;
    let key = |entries: &[(&'static str, &'static str)]| {
        let mut request = Request::new("d", 1);
        request.push(entries.iter().map(|&(key, value)| Entry { key, value }), DescriptorOptions::default());
        only(&rules.plan(&request, Modes::default())).key
    };
    assert_eq!(key(&[("ip", "2001:db8::1")]), key(&[("ip", "2001:db8:0:1::1")]));
    assert_ne!(key(&[("ip", "2001:db8::1")]), key(&[("ip", "2001:db8:1::1")]));
    let of_user = |ip, user| key(&[("ip", ip), ("user", user)]);
    assert_eq!(of_user("2001:db9::1", "::1"), of_user("2001:db9::2", "::1"));
    // No prefix is at the level of the user.
    assert_ne!(of_user("2001:db9::1", "::1"), of_user("2001:db9::1", "::2"));
}

/// The counters of an address under `{v4: {24: 1, 16: 4}, v6: {64: 1, 56: 3, 48: 8}}` and N = 5, each with its N.
fn naive_counters(address: IpAddr) -> Vec<((bool, u128, u32), usize)> {
    let lens = if address.is_ipv4() { &[(24, 1), (16, 4)][..] } else { &[(64, 1), (56, 3), (48, 8)] };
    let counter = |&(len, factor): &(u32, usize)| {
        let (is_v6, prefix) = naive(address, (len.min(32), len));
        ((is_v6, prefix, len), 5 * factor)
    };
    lens.iter().map(counter).collect()
}

#[test]
fn several_lengths_are_counters_that_are_charged_together() {
    let prefix = "{v4: {24: 1, 16: 4}, v6: {48: 8, 64: 1, 56: 3}}";
    let log = "rate_limit: {unit: minute, requests_per_unit: 5, algorithm: sliding_log}";
    let rules = loaded(&format!("domain: d\ndescriptors: [{{key: ip, {log}, prefix: {prefix}}}]")).rules;
    let (mut random, store, mut now) = (Random(5), store(), 1_000_000);
    let mut times: HashMap<(bool, u128, u32), Vec<u64>> = HashMap::new();
    let mut denied_by = [0; 3];
    for number in 0..40_000 {
        now += random.below(400);
        let address = match random.one_in(2) {
            true => IpAddr::from(Ipv4Addr::from_bits(0xC633_0000 | random.below(1 << 11) as u32)),
            false => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(random.below(1 << 12)) << 62).into(),
        };
        let text = spelled(&mut random, address);
        let request = request(&text);
        let plan = rules.plan(&request, Modes::default());
        let decision = conclude(&plan, &store.apply(&plan, at(now as f64 / 1_000.0)));
        let counters = naive_counters(address);
        times.values_mut().for_each(|times| times.retain(|time| time + 60_000 > now));
        let used = |counter| times.get(counter).map_or(0, Vec::len);
        let full: Vec<_> = counters.iter().filter(|(counter, n)| used(counter) >= *n).collect();
        assert_eq!(decision.code == Code::Ok, full.is_empty(), "{number} {text}");
        let Status::Limited(shown) = decision.statuses[0] else { panic!("a limit") };
        let [Status::Limited(_)] = decision.statuses[..] else { panic!("one status") };
        if full.is_empty() {
            counters.iter().for_each(|(counter, _)| times.entry(*counter).or_default().push(now));
            let left = counters.iter().map(|(counter, n)| n - times[counter].len()).min();
            assert_eq!(Some(shown.remaining() as usize), left, "{number} {text}");
        } else {
            let wait = full.iter().map(|(counter, _)| times[counter][0] + 60_000 - now).max();
            assert_eq!(Some(shown.verdict.reset_nanos / 1_000_000), wait, "{number} {text}");
            let place = counters.iter().position(|(_, n)| *n == shown.limit.requests() as usize);
            denied_by[place.expect("one of its limits")] += 1;
        }
    }
    assert!(denied_by.iter().all(|denials| *denials > 300), "{denied_by:?}");
}

#[test]
fn several_lengths_and_what_lies_over_their_rule() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5, algorithm: token_bucket, burst: 7}";
    let node = format!("key: ip, {limit}, prefix: {{v6: {{64: 1, 48: 10}}, not_an_address: deny}}");
    let text = format!(
        "domain: d\ndescriptors:\n- {{{node}, descriptors: [{{key: path, {limit}}}]}}\n\
         - {{key: site, prefix: {{v6: {{64: 1, 48: 2}}}}, descriptors: [{{key: path, {limit}}}]}}\n"
    );
    let rules = loaded(&text).rules;
    let path = Path {
        domain: "d".into(),
        entries: vec![PathEntry { key: "ip".to_owned(), value: Some("2001:db8::1".to_owned()) }],
    };
    let numbers = |rules: &RuleSet, entries: &[(&str, &str)], effect: Option<Effect>| {
        let exceptions = effect.map(|effect| Exceptions::new(&[Exception { path: path.clone(), effect }]));
        let request = Request::new("d", 1).descriptor(entries);
        let overlay = Overlay { exceptions: exceptions.as_ref(), records: None };
        let plan = rules.plan_under(&request, Modes::default(), overlay);
        let of = |check: &Check<'_>| (check.limit.requests(), check.limit.burst(), check.shadow);
        plan.checks().map(|(_, check)| of(check)).collect::<Vec<_>>()
    };
    let ip = [("ip", "2001:db8::1")];
    assert_eq!(numbers(&rules, &ip, None), [(5, 7, false), (50, 70, false)]);
    assert_eq!(
        numbers(&rules, &[("ip", "10.0.0.1")], None),
        [(5, 7, false)],
        "no further length of its family"
    );
    assert_eq!(numbers(&rules, &[("ip", "unknown")], None), [(0, 0, false)]);
    let below = [("site", "2001:db8::1"), ("path", "/")];
    assert_eq!(numbers(&rules, &below, None), [(5, 7, false), (10, 14, false)]);
    let to = |requests, burst| Some(Effect::Limit { requests, burst });
    assert_eq!(numbers(&rules, &ip, to(Some(8), Some(9))), [(8, 9, false), (80, 90, false)]);
    assert_eq!(numbers(&rules, &ip, to(Some(u32::MAX.into()), None))[1].0, u64::from(u32::MAX));
    assert_eq!(numbers(&rules, &ip, Some(Effect::Unlimited)), [(5, 7, true), (50, 70, true)]);
    assert_eq!(numbers(&rules, &ip, Some(Effect::Deny))[0], (0, 0, false));

    // A reset of the address resets all that deny it.
    let keys = |rules: &RuleSet, value: &str| {
        rules.plan(&request(value), Modes::default()).checks().map(|(_, check)| check.key).collect::<Vec<_>>()
    };
    for reach in [Reach::Counter, Reach::Below] {
        let mut epochs = Epochs::default();
        epochs.raise(ResetPath { path: path.clone(), reach }, 1);
        let reset = rules.clone().in_epochs(&epochs);
        let (before, after) = (keys(&rules, "2001:db8::1"), keys(&reset, "2001:db8::1"));
        match reach {
            Reach::Counter => assert!(before.iter().zip(&after).all(|(before, after)| before != after)),
            Reach::Below => assert_eq!(before, after, "no node has this value"),
        }
        let beside = keys(&reset, "2001:db8:0:1::1");
        assert_eq!(beside[0], keys(&rules, "2001:db8:0:1::1")[0]);
        assert_eq!(beside[1], after[1]);
    }
}

/// What another level of the path is changes nothing.
#[test]
fn below_another_prefix_a_further_length_counts_its_own_family() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
    let text = format!(
        "domain: d\ndescriptors: [{{key: site, prefix: {{v4: 24, v6: 64}}, \
         descriptors: [{{key: ip, prefix: {{v4: {{24: 1, 16: 4}}}}, {limit}}}]}}]"
    );
    let rules = loaded(&text).rules;
    let numbers = |ip| {
        let request = Request::new("d", 1).descriptor(&[("site", "192.0.2.1"), ("ip", ip)]);
        let plan = rules.plan(&request, Modes::default());
        plan.checks().map(|(_, check)| check.limit.requests()).collect::<Vec<_>>()
    };
    assert_eq!([numbers("10.0.0.1"), numbers("2001:db8::1")], [vec![5, 20], vec![5]]);
}

#[test]
fn in_quota_mode_no_length_passes_by_another() {
    let rules = rules_with("prefix: {v6: {64: 1, 48: 2}}");
    let (store, modes) = (store(), Modes { quota: true, ..Modes::default() });
    let passes = |network: usize| {
        let address = format!("2001:db8:0:{network}::1");
        let request = request(&address);
        let plan = rules.plan(&request, modes);
        conclude(&plan, &store.apply(&plan, at(1.0))).code == Code::Ok
    };
    assert_eq!((0..6).filter(|_| passes(0)).count(), 5, "the /64");
    assert_eq!((1..9).filter(|&network| passes(network)).count(), 5, "the rest of the /48");
}

#[test]
fn two_lengths_are_two_descriptors_that_are_charged_together() {
    let node = |key, len, n| {
        format!(
            "- {{key: {key}, prefix: {{v6: {len}}}, rate_limit: {{unit: minute, requests_per_unit: {n}}}}}\n"
        )
    };
    let nodes = node("ip", 64, 2) + &node("site", 48, 5);
    let rules = loaded(&format!("domain: d\ndescriptors:\n{nodes}")).rules;
    let store = store();
    let passes = |network: u16| {
        let address = format!("2001:db8:1:{network:x}::1");
        let entries = ["ip", "site"].map(|key| [Entry { key, value: &address }]);
        let mut request = Request::new("d", 1);
        entries.into_iter().for_each(|entry| request.push(entry, DescriptorOptions::default()));
        let plan = rules.plan(&request, Modes::default());
        conclude(&plan, &store.apply(&plan, at(1_000.0))).code == Code::Ok
    };
    // What the /64 denies is not charged to the /48.
    let first: Vec<_> = (0..20).map(|_| passes(1)).collect();
    assert_eq!(first.iter().filter(|passes| **passes).count(), 2);
    assert_eq!((2..20).filter(|network| passes(*network)).count(), 3);
}

#[test]
fn exceptions_are_for_the_addresses_they_name_and_resets_for_the_counter() {
    let rules = rules("{v4: 24}");
    let path = |value: &str| Path {
        domain: "d".into(),
        entries: vec![PathEntry { key: "ip".to_owned(), value: Some(value.to_owned()) }],
    };
    let exception =
        Exception { path: path("10.0.0.1"), effect: Effect::Limit { requests: Some(9), burst: None } };
    let exceptions = Exceptions::new([&exception]);
    let n = |value| {
        let request = request(value);
        let mut plan = rules.plan(&request, Modes::default());
        Overlay { exceptions: Some(&exceptions), ..Overlay::default() }.apply(&request, &mut plan);
        let check = only(&plan);
        (check.limit.requests(), check.key)
    };
    let (one, other) = (n("10.0.0.1"), n("10.0.0.2"));
    assert_eq!((one.0, other.0, one.1), (9, 5, other.1));

    let mut epochs = Epochs::default();
    epochs.raise(ResetPath { path: path("10.0.0.1"), reach: Reach::Counter }, 1);
    let reset = rules.clone().in_epochs(&epochs);
    assert_ne!(keys(&reset, "10.0.0.2").0, keys(&rules, "10.0.0.2").0);
    assert_eq!(keys(&reset, "10.0.0.2"), keys(&reset, "10.0.0.9"));
    assert_eq!(keys(&reset, "10.0.1.2"), keys(&rules, "10.0.1.2"));
}

#[test]
fn explanations_name_what_counts() {
    let rules = rules("{v4: 24, v6: 64, not_an_address: deny}");
    for (value, expected) in [
        ("[2001:DB8::1]:80", "ip=2001:db8::/64"),
        ("::ffff:10.0.0.1", "ip=10.0.0.0/24"),
        ("unknown", "ip=unknown, no address: denied"),
    ] {
        let (request, store) = (request(value), store());
        let plan = rules.plan(&request, Modes::default());
        let explained = explain(&rules, &request, &plan, store.look(&plan, at(1_000.0)));
        let text = explained.to_string();
        assert!(text.contains(&format!("\n  counts as {expected}\n")), "{text}");
        assert_eq!(explained.json()["descriptors"][0]["counted_as"], expected);
    }
}

#[test]
fn what_is_no_prefix_is_refused() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
    for (more, problem) in [
        ("prefix: {v4: 0}", "3:25: `v4` is `0` (expected a whole number from 1 to 32)"),
        ("prefix: {v4: 33}", "3:25: `v4` is `33` (expected a whole number from 1 to 32)"),
        ("prefix: {v6: 129}", "3:25: `v6` is `129` (expected a whole number from 1 to 128)"),
        ("prefix: {v6: /64}", "3:25: `v6` is `/64` (expected a whole number from 1 to 128)"),
        ("prefix: {v6: {0: 1}}", "3:26: a length in `v6` is `0` (expected a whole number from 1 to 128)"),
        ("prefix: {v4: {33: 1}}", "3:26: a length in `v4` is `33` (expected a whole number from 1 to 32)"),
        (
            "prefix: {v6: {64: 0}}",
            "3:30: the factor of /64 in `v6` is `0` (expected a whole number from 1 to 4294967295)",
        ),
        (
            "prefix: {v6: {64: 2}}",
            "3:26: the factor of /64 in `v6` is `2` (expected 1: N is that of the longest prefix)",
        ),
        (
            "prefix: {v6: {64: [1]}}",
            "3:30: a list stands here (expected a whole number from 1 to 4294967295)",
        ),
        ("prefix: {v6: {}}", "3:25: `v6` has 0 lengths (expected 1 to 8)"),
        (
            "prefix: {v6: {48: 16, 64: 1, 56: 17}}",
            "3:26: the factor of /48 in `v6` is `16` (expected 17 or more, as that of /56 in it)",
        ),
        (
            "prefix: {v4: {24: 1, 8: 1000000000}}",
            "3:20: N times the factor 1000000000 is more than a limit may be (expected 4294967295 at most)",
        ),
        (
            "prefix: {v4: 24, v5: 1}",
            "3:29: unknown key `v5` in `prefix` (expected v4, v6, not_an_address, nat64)",
        ),
        (
            "prefix: {not_an_address: deny}",
            "3:20: `prefix` without a length (expected `v4`, `v6` or both, such as `{v4: 24, v6: 64}`)",
        ),
        (
            "prefix: {v4: 24, not_an_address: allow}",
            "3:45: `not_an_address` is `allow` (expected count, deny)",
        ),
        (
            "prefix: {v6: 64, nat64: 2001:db8:64::/96}",
            "3:36: `2001:db8:64::/96` stands here (expected a list)",
        ),
        (
            "prefix: {v6: 64, nat64: [{a: b}]}",
            "3:37: a mapping stands here (expected an IPv6 prefix such as 2001:db8:64::/96)",
        ),
        (
            "prefix: {v6: 64, nat64: [2001:db8::/33]}",
            "3:37: `2001:db8::/33` in `nat64` is no prefix of NAT64 (expected an IPv6 prefix of the length 32, 40, 48, 56, 64 or \
             96, such as 2001:db8:64::/96)",
        ),
        (
            "prefix: {v6: 64, nat64: [2001:db8:64::1/96]}",
            "3:37: `2001:db8:64::1/96` in `nat64` has bits set behind its first 96 (expected 2001:db8:64::/96, if that is meant)",
        ),
        (
            "prefix: {v6: 64, nat64: ['2001:db8:64:0:100::/96']}",
            "3:37: `2001:db8:64:0:100::/96` in `nat64` has one of the bits 64 to 71 set (expected 0 there, as RFC 6052 has it)",
        ),
        (
            "prefix: {v6: 64, nat64: [2001:db8:64::/48, 2001:db8::/32]}",
            "3:55: `2001:db8::/32` in `nat64` overlaps with 2001:db8:64::/48 (expected prefixes that do not)",
        ),
        ("prefix: 24", "3:20: `24` stands here (expected a mapping)"),
        (
            "prefix: {v4: 24}, value: 10.0.0.1",
            "3:20: `prefix` with a `value` that is no range of addresses (expected `cidr`, `cidr_file` or no `value`)",
        ),
        (
            "prefix: {v4: 24}, value: {cidr: 10.0.0.0/8}, share_threshold: true",
            "3:74: `share_threshold` with `prefix` (expected one of the two: all values together, or those of each prefix)",
        ),
        (
            "prefix: {v4: {24: 1, 16: 4}}, quota_mode: true",
            "3:20: `prefix` with several lengths and `quota_mode` (expected one length: in quota mode a request passes by the \
             lengths that have room)",
        ),
        (
            "prefix: {v4: 24}, limits_from: store",
            "3:43: `limits_from` with `prefix`, whose addresses share a counter (expected one of the two: a record is for one value)",
        ),
    ] {
        let text = format!("domain: d\ndescriptors:\n- {{key: k, {more}, {limit}}}\n");
        assert_eq!(refused(&text), [problem], "{more}");
    }
    let nine: Vec<_> = (0..9).map(|number| format!("2001:db8:{number}::/48")).collect();
    let text = format!(
        "domain: d\ndescriptors:\n- {{key: k, prefix: {{v6: 64, nat64: [{}]}}, {limit}}}\n",
        nine.join(", ")
    );
    let problem = "`2001:db8:8::/48` in `nat64` is one too many (expected 8 at most)";
    assert_eq!(
        refused(&text),
        [format!(
            "3:{}: {problem}",
            1 + "- {key: k, prefix: {v6: 64, nat64: [".len() + nine[..8].join(", ").len() + 2
        )]
    );
    for value in ["'10.*'", "{in: [10.0.0.1]}", "{regex: '^10'}"] {
        let text =
            format!("domain: d\ndescriptors:\n- {{key: k, prefix: {{v4: 24}}, value: {value}, {limit}}}\n");
        assert!(refused(&text)[0].contains("is no range of addresses"), "{value}");
    }
}
