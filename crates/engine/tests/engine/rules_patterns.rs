//! `value` as a mapping (`in`, `cidr`, `cidr_file`, `regex`): which node a value leads to, compared with an oracle that
//! follows the words of the specification; which counter it has; and what load refuses.

use core::net::IpAddr;

use tidegate_engine::key::Key;
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::plan::{Check, Modes, Origin, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{End, Epochs, Fit, Met, Reach, ResetPath, RuleSet, SourceFile, lists_of, load};

use crate::random::Random;
use crate::rules::{file, options};

const LIMIT: &str = "rate_limit: {unit: minute, requests_per_unit: 5}";

/// What a node's `value` is, as the oracle sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Written {
    Any,
    Exact(&'static str),
    In(&'static [&'static str]),
    Cidr(&'static str),
    File(&'static [&'static str]),
    Wildcard(&'static str),
    Regex(&'static str),
}

const NODES: [Written; 17] = [
    Written::Any,
    Written::Exact("10.0.0.1"),
    Written::Exact("a"),
    Written::In(&["b", "10.0.0.2"]),
    Written::In(&["c", "[::1]:80"]),
    Written::Cidr("10.0.0.0/8"),
    Written::Cidr("10.0.0.0/30"),
    Written::Cidr("0.0.0.0/0"),
    Written::Cidr("2001:db8::/32"),
    Written::Cidr("::/0"),
    Written::File(&["10.0.0.0/24", "2001:db8::/48", "192.0.2.7/32"]),
    Written::Wildcard("*"),
    Written::Wildcard("10.*"),
    Written::Wildcard("*b*"),
    Written::Regex("^[a-c]+$"),
    Written::Regex("[0-9]"),
    Written::Regex("::"),
];

/// Values, and the address that each of them is.
const VALUES: [(&str, Option<&str>); 19] = [
    ("", None),
    ("a", None),
    ("b", None),
    ("c", None),
    ("abc", None),
    ("x", None),
    ("10.0.0.1", Some("10.0.0.1")),
    ("10.0.0.2", Some("10.0.0.2")),
    ("10.0.0.3:80", Some("10.0.0.3")),
    ("10.0.0.4", Some("10.0.0.4")),
    ("::ffff:10.0.1.1", Some("10.0.1.1")),
    ("11.0.0.1", Some("11.0.0.1")),
    ("192.0.2.7", Some("192.0.2.7")),
    ("010.0.0.1", None),
    ("10.0.0.0/8", None),
    ("{cidr: 10.0.0.0/8}", None),
    ("[::1]:80", Some("::1")),
    ("2001:db8::1%eth0", Some("2001:db8::1")),
    ("[2001:db8:1::1]:443", Some("2001:db8:1::1")),
];

fn yaml(value: Written, number: usize) -> String {
    match value {
        Written::Any => String::new(),
        Written::Exact(value) | Written::Wildcard(value) => format!("value: '{value}', "),
        Written::In(values) => format!("value: {{in: ['{}']}}, ", values.join("', '")),
        Written::Cidr(range) => format!("value: {{cidr: '{range}'}}, "),
        Written::File(_) => format!("value: {{cidr_file: lists/{number}.txt}}, "),
        Written::Regex(regex) => format!("value: {{regex: '{regex}'}}, "),
    }
}

fn rules_of(nodes: &[(Written, bool)]) -> RuleSet {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    let mut files = Vec::new();
    for (number, &(value, shared)) in nodes.iter().enumerate() {
        text += &format!("- {{key: k, {}share_threshold: {shared}, {LIMIT}}}\n", yaml(value, number));
        if let Written::File(ranges) = value {
            files.push(file(&format!("rules/lists/{number}.txt"), ranges.join("\n")));
        }
    }
    files.push(file("rules/a.yaml", text));
    load(&files, &options()).expect("valid").rules
}

/// How many bits of the range are the same, if it contains the address.
fn contains(range: &str, address: IpAddr) -> Option<u32> {
    let (start, len) = range.split_once('/').expect("a range");
    let len: u32 = len.parse().expect("a number");
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => format!("4{:032b}", address.to_bits()),
        IpAddr::V6(address) => format!("6{:0128b}", address.to_bits()),
    };
    let (start, address) = (bits(start.parse().expect("an address")), bits(address));
    address.starts_with(&start[..=len as usize]).then_some(len)
}

fn wildcard_matches(pattern: &str, value: &str) -> bool {
    let regex = format!("^{}$", pattern.split('*').map(regex::escape).collect::<Vec<_>>().join(".*"));
    regex::Regex::new(&regex).expect("an expression").is_match(value)
}

/// "Exact and `in`, then the longest range, then the first wildcard, then the first expression, then any value."
fn expected(nodes: &[(Written, bool)], value: &str, address: Option<&str>) -> Option<usize> {
    let find = |fits: &dyn Fn(Written) -> bool| nodes.iter().position(|&(node, _)| fits(node));
    let longest = |node: Written| {
        let address: IpAddr = address?.parse().expect("an address");
        match node {
            Written::Cidr(range) => contains(range, address),
            Written::File(ranges) => ranges.iter().filter_map(|range| contains(range, address)).max(),
            _ => None,
        }
    };
    let most = nodes.iter().filter_map(|&(node, _)| longest(node)).max();
    find(&|node| match node {
        Written::Exact(own) => own == value,
        Written::In(values) => values.contains(&value),
        // Its own text leads to a wildcard.
        Written::Wildcard(own) => own == value,
        _ => false,
    })
    .or_else(|| most.and_then(|most| find(&|node| longest(node) == Some(most))))
    .or_else(|| find(&|node| matches!(node, Written::Wildcard(own) if wildcard_matches(own, value))))
    .or_else(|| find(&|node| matches!(node, Written::Regex(own) if regex::Regex::new(own).is_ok_and(|own| own.is_match(value)))))
    .or_else(|| find(&|node| node == Written::Any))
}

/// The rule and the counter of one entry.
fn met(rules: &RuleSet, value: &str) -> Option<(usize, Key)> {
    let mut request = Request::new("d", 1);
    request.push([Entry { key: "k", value }], DescriptorOptions::default());
    match rules.plan(&request, Modes::default()).steps[0] {
        Step::Check(Check { origin: Origin::Rule { rule, .. }, key, .. }) => Some((rule.id, key)),
        _ => None,
    }
}

#[test]
fn a_value_leads_to_the_node_that_the_order_says_and_each_has_its_counter() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut left = NODES.to_vec();
        let mut nodes = Vec::new();
        for _ in 0..1 + random.below(8) {
            let node = left.swap_remove(random.below(left.len() as u64) as usize);
            nodes.push((node, !matches!(node, Written::Any | Written::Exact(_)) && random.one_in(3)));
        }
        let rules = rules_of(&nodes);
        let mut counters = Vec::new();
        for (value, address) in VALUES {
            let (found, expected) = (met(&rules, value), expected(&nodes, value, address));
            assert_eq!(found.map(|(rule, _)| rule), expected, "{value:?} {nodes:?}");
            let Some((rule, key)) = found else { continue };
            for &(other_rule, other_value, other_key) in &counters {
                let is_one = rule == other_rule && (nodes[rule].1 || value == other_value);
                assert_eq!(key == other_key, is_one, "{value:?} {other_value:?} {nodes:?}");
            }
            counters.push((rule, value, key));
            let walk = rules.walk("d", &[Entry { key: "k", value }]);
            assert!(matches!(walk.end, End::Rule(own) if own.id == rule), "{value:?} {nodes:?}");
        }
    }
}

/// The problems of these files, each with its place.
#[test]
fn a_rule_knows_whether_its_values_are_patterns_of_this_program() {
    for node in NODES {
        let known = matches!(node, Written::Any | Written::Exact(_) | Written::Wildcard(_));
        let rules = rules_of(&[(node, false)]);
        assert_eq!(rules.rules()[0].has_own_pattern, !known, "{node:?}");
    }
}

fn problems(files: &[SourceFile]) -> Vec<String> {
    load(files, &options()).expect_err("they load").iter().map(ToString::to_string).collect()
}

/// The problems of nodes with these values, from 3:11 on.
fn refused(values: &[&str]) -> Vec<String> {
    let nodes =
        values.iter().map(|value| format!("- {{key: k, value: {value}, {LIMIT}}}\n")).collect::<String>();
    problems(&[file("a.yaml", format!("domain: d\ndescriptors:\n{nodes}"))])
}

#[test]
fn what_is_no_pattern_is_refused() {
    let no_range = "is no range of addresses (expected one such as 10.0.0.0/8 or 2001:db8::/32)";
    let keys = "in, cidr, cidr_file, regex";
    for (value, problem) in [
        ("{cidr: 10.1.2.3/8}", "3:26: `cidr` `10.1.2.3/8` has bits set behind its first 8 (expected 10.0.0.0/8, if that is meant)".to_owned()),
        ("{cidr: 10.0.0.0/33}", format!("3:26: `cidr` `10.0.0.0/33` {no_range}")),
        ("{cidr: [a]}", "3:26: `cidr` is a collection (expected a scalar)".to_owned()),
        ("{cidr: ''}", "3:19: `cidr` is empty (expected a text)".to_owned()),
        ("{regex: '(a'}", "3:27: `regex` `(a` is no regular expression: unclosed group".to_owned()),
        (
            "{regex: '\\w{500}{50}'}",
            "3:27: `regex` `\\w{500}{50}` is too large (expected at most 2097152 bytes when it is compiled)".to_owned(),
        ),
        ("{in: []}", "3:19: `in` has no values (expected a list of texts)".to_owned()),
        ("{in: a}", "3:24: `a` stands here (expected a list)".to_owned()),
        ("{in: [a, [b]]}", "3:28: a list stands here (expected a text)".to_owned()),
        ("{in: [a, '']}", "3:28: an empty value in `in` (expected a text)".to_owned()),
        ("{in: [a*]}", "3:25: `a*` in `in` has a `*` (expected values alone; a wildcard has a node of its own)".to_owned()),
        ("{in: [a, a]}", "3:9: the value `a` in `in` is at a.yaml:3:9 too (expected it once)".to_owned()),
        ("{}", format!("3:19: `value` is a mapping with 0 known keys (expected one of {keys})")),
        ("{in: [a], cidr: ::/0}", format!("3:19: `value` is a mapping with 2 known keys (expected one of {keys})")),
        ("{range: a}", format!("3:20: unknown key `range` in `value` (expected {keys})")),
        ("{cidr_file: ../a}", "3:31: `cidr_file` `../a` leaves its folder (expected a path below the folder of this file)".to_owned()),
        ("{cidr_file: a}", "3:31: `cidr_file` `a` was not read: the rules are not in a file (expected rule files in the folder of the list)".to_owned()),
    ] {
        let (found, problem) = (refused(&[value]), format!("a.yaml:{problem}"));
        assert!(found.contains(&problem), "{value}: {problem}\n{found:#?}");
    }
}

#[test]
fn nodes_for_the_same_values_are_refused() {
    let twice = |second: &str| format!("a.yaml:4:9: {second} (expected one such node)");
    let range = "key `k` with value `{cidr: 10.0.0.0/8}` is at a.yaml:3:9 too";
    assert_eq!(refused(&["{cidr: 10.0.0.0/8}", "{cidr: '::ffff:10.0.0.0/104'}"]), [twice(range)]);
    assert_eq!(
        refused(&["{regex: a}", "{regex: a}"]),
        [twice("key `k` with value `{regex: a}` is at a.yaml:3:9 too")]
    );
    let listed = |value: &str| {
        [format!("a.yaml:4:9: the value `{value}` in `in` is at a.yaml:3:9 too (expected it once)")]
    };
    assert_eq!(refused(&["a", "{in: [b, a]}"]), listed("a"));
    assert_eq!(refused(&["{in: [b, c]}", "{in: [a, b]}"]), listed("b"));
}

#[test]
fn regular_expressions_are_bounded_together() {
    let large: Vec<String> = (0..60).map(|number| format!("{{regex: 'a{number}\\w{{40}}'}}")).collect();
    let large: Vec<&str> = large.iter().map(String::as_str).collect();
    let why = "the regular expressions of this key are too large together (expected fewer or shorter ones)";
    assert_eq!(refused(&large), [format!("a.yaml:3:9: {why}")]);
}

#[test]
fn a_list_is_lines_with_a_range_or_an_address_and_every_bad_one_is_reported() {
    let rules = file(
        "rules/a.yaml",
        format!("domain: d\ndescriptors: [{{key: k, value: {{cidr_file: lists/a.txt}}, {LIMIT}}}]"),
    );
    let read = |text: &str| load(&[file("rules/lists/a.txt", text), rules.clone()], &options());
    let good =
        read("# scanners\r\n\r\n  10.0.0.0/8   # ours\r\n2001:db8::1 ; SBL1\n").expect("it loads").rules;
    assert!(met(&good, "10.9.9.9").is_some() && met(&good, "2001:db8::1").is_some());
    assert_eq!(met(&good, "2001:db8::2"), None);
    let bad: Vec<String> = read("10.0.0.0/8\n 10.0.0.1/8\nscanner\n")
        .expect_err("it is refused")
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        bad,
        [
            "rules/lists/a.txt:2:2: `10.0.0.1/8` has bits set behind its first 8 (expected 10.0.0.0/8, if that is meant)",
            "rules/lists/a.txt:3:1: `scanner` is no range of addresses (expected one such as 10.0.0.0/8 or 2001:db8::/32)",
        ]
    );
    let full = (0..100_001)
        .map(|number| format!("2001:db8::{:x}:{:x}\n", number >> 16, number & 0xFFFF))
        .collect::<String>();
    let full = read(&full).expect_err("it is refused");
    assert_eq!(
        full[0].to_string(),
        "rules/lists/a.txt:1:1: 100001 ranges (expected at most 100000 in one list)"
    );
    // Nodes see that their lists differ, and counters stay when a list changes.
    let other = read("10.0.0.0/9").expect("it loads").rules;
    assert_ne!(good.hash(), other.hash());
    assert_eq!(met(&good, "10.0.0.1"), met(&other, "10.0.0.1"));
}

#[test]
fn a_source_learns_which_lists_to_read() {
    let of = |name: &str, list: &str| {
        file(name, format!("domain: d\ndescriptors: [{{key: k, value: {{cidr_file: {list}}}, {LIMIT}}}]"))
    };
    let files = [
        of("rules/a.yaml", "lists/a.txt"),
        of("rules/b.yaml", "lists/a.txt"),
        of("c.yaml", "c.txt"),
        of("d.yaml", "/etc/passwd"),
        of("e.yaml", "lists/../e.txt"),
        file("f.yaml", "metadata: {cidr_file: f.txt}"),
        file("g.yaml", "value: {cidr_file: g.txt"),
    ];
    let lists = [("c.txt", "c.yaml:2:43"), ("rules/lists/a.txt", "rules/a.yaml:2:43")];
    assert_eq!(
        lists_of(&files, 1 << 20),
        lists.map(|(list, place)| (list.to_owned(), place.to_owned())).into()
    );
}

#[test]
fn an_explanation_names_the_pattern_and_why_others_were_not_taken() {
    let rules = rules_of(&[
        (Written::In(&["a", "b"]), false),
        (Written::Cidr("10.0.0.0/8"), false),
        (Written::File(&["10.0.0.0/24"]), false),
        (Written::Wildcard("*b*"), false),
        (Written::Regex("^[a-c]+$"), false),
    ]);
    let tried = |value: &str| {
        let walk = rules.walk("d", &[Entry { key: "k", value }]);
        let text = |node: Met<'_>| match node {
            Met::Exact => "exact".to_owned(),
            Met::Pattern(pattern) => pattern.to_owned(),
            Met::Any => "any".to_owned(),
        };
        walk.levels[0].tried.iter().map(|tried| (text(tried.node), tried.fit)).collect::<Vec<_>>()
    };
    let all = |fits: [Fit; 6]| {
        let names = [
            "exact",
            "{in: [a, b]}",
            "{cidr: 10.0.0.0/8}",
            "{cidr_file: lists/2.txt}",
            "*b*",
            "{regex: ^[a-c]+$}",
        ];
        names.map(str::to_owned).into_iter().zip(fits).collect::<Vec<_>>()
    };
    use Fit::{No, NotTried, Shorter, Taken};
    assert_eq!(tried("a"), all([No, Taken, NotTried, NotTried, NotTried, NotTried]));
    assert_eq!(tried("10.0.0.1"), all([No, No, Shorter, Taken, NotTried, NotTried]));
    assert_eq!(tried("10.0.1.1"), all([No, No, Taken, NotTried, NotTried, NotTried]));
    assert_eq!(tried("c"), all([No, No, No, No, No, Taken]));
    let paths: Vec<String> = rules.rules().iter().map(|rule| rule.path()).collect();
    assert_eq!(paths, ["d.k_a,b", "d.k_10_0_0_0/8", "d.k_lists/2.txt", "d.k_*b*", "d.k_^[a-c]+$"]);
}

#[test]
fn an_explanation_names_ranges_in_the_order_in_which_they_are_tried() {
    let ranges = ["10.0.0.0/8", "10.0.0.0/24", "0.0.0.0/0", "10.0.0.0/16"];
    let rules = rules_of(&ranges.map(|range| (Written::Cidr(range), false)));
    let walk = rules.walk("d", &[Entry { key: "k", value: "10.0.1.1" }]);
    // The first one stands for exact values.
    let tried: Vec<_> = walk.levels[0].tried[1..].iter().map(|tried| (tried.node, tried.fit)).collect();
    use Fit::{No, NotTried, Taken};
    let expected =
        [("10.0.0.0/24", No), ("10.0.0.0/16", Taken), ("10.0.0.0/8", NotTried), ("0.0.0.0/0", NotTried)];
    let names = expected.map(|(range, fit)| (format!("{{cidr: {range}}}"), fit));
    assert_eq!(tried, names.each_ref().map(|(name, fit)| (Met::Pattern(name), *fit)));
}

#[test]
fn a_reset_names_a_pattern_as_it_is_written() {
    let nodes = [
        Written::In(&["a", "b"]),
        Written::Cidr("10.0.0.0/8"),
        Written::File(&["::/0"]),
        Written::Regex("^c"),
    ];
    let rules = rules_of(&nodes.map(|node| (node, false)));
    let values = ["a", "10.0.0.1", "::1", "c"];
    let names = ["{in: [a, b]}", "{cidr: 10.0.0.0/8}", "{cidr_file: lists/2.txt}", "{regex: ^c}"];
    for (reset, name) in names.into_iter().enumerate() {
        let entries = vec![PathEntry { key: "k".to_owned(), value: Some(name.to_owned()) }];
        let path = ResetPath { path: Path { domain: "d".into(), entries }, reach: Reach::Below };
        assert_eq!(rules.rules_below(&path), Some(1), "{name}");
        let mut epochs = Epochs::default();
        epochs.raise(path, 1);
        let after = rules.clone().in_epochs(&epochs);
        let changed = values.map(|value| met(&rules, value) != met(&after, value));
        assert_eq!(changed, [0, 1, 2, 3].map(|rule| rule == reset), "{name}");
    }
}
