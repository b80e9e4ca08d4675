//! Lists of address ranges, and addresses: a value is in a list exactly if one of its ranges has it, as the standard
//! library reads both. Before the first empty line is the list, after it are values, one a line.

#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use tidegate_engine::key::KeySecret;
use tidegate_engine::plan::{Modes, Step};
use tidegate_engine::request::Request;
use tidegate_engine::rules::{LoadOptions, SourceFile, load};

const RULES: &str = "domain: d\ndescriptors: [{key: ip, value: {cidr_file: list.txt}, rate_limit: {unit: day, requests_per_unit: 1}}]";

fn file(name: &str, text: &str) -> SourceFile {
    SourceFile { name: name.to_owned(), bytes: text.into(), presumed: false }
}

/// The family of an address, and its bits from the left. `None`: it is IPv4 within IPv6, which rules read as IPv4.
fn bits(address: IpAddr) -> Option<(bool, u128)> {
    match address {
        IpAddr::V4(v4) => Some((false, u128::from(v4.to_bits()) << 96)),
        IpAddr::V6(v6) => {
            let is_v4 = v6.to_ipv4_mapped().is_some() || v6.to_bits() >> 32 == 0x64_ff9b << 64;
            (!is_v4).then_some((true, v6.to_bits()))
        }
    }
}

/// A line of a list: the address, and how many bits of it are the same. `None`: this oracle does not read it.
fn range(line: &str) -> Option<((bool, u128), u32)> {
    let line = line.split(['#', ';']).next()?.trim();
    let (address, len) = line.split_once('/').map_or((line, None), |(address, len)| (address, Some(len)));
    let address = bits(address.parse().ok()?)?;
    let most = if address.0 { 128 } else { 32 };
    Some((address, len.map_or(Some(most), |len| len.parse().ok())?))
}

fn has(((is_v6, first), len): ((bool, u128), u32), (of_v6, address): (bool, u128)) -> bool {
    let differing = first ^ address;
    is_v6 == of_v6 && (len == 0 || differing.leading_zeros() >= len)
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = str::from_utf8(data) else { return };
    let (list, values) = text.split_once("\n\n").unwrap_or((text, ""));
    let files = [file("a.yaml", RULES), file("list.txt", list)];
    let Ok(loaded) = load(&files, &LoadOptions::new(KeySecret::new([1; 16]))) else { return };
    let is_comment = |line: &str| line.split(['#', ';']).next().is_none_or(|line| line.trim().is_empty());
    let ranges: Option<Vec<_>> = list.lines().filter(|line| !is_comment(line)).map(range).collect();
    for value in values.lines() {
        let entries = [("ip", value)];
        let request = Request::new("d", 1).descriptor(&entries);
        let plan = loaded.rules.plan(&request, Modes::default());
        let is_in = matches!(plan.steps[0], Step::Check(_));
        let address = value.parse().ok().map(bits);
        if let (Some(ranges), Some(Some(address))) = (&ranges, address) {
            assert_eq!(ranges.iter().any(|&range| has(range, address)), is_in, "{value} in {list:?}");
        }
    }
});
