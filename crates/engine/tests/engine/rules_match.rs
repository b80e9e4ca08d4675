//! Which limit a request meets, and which counter: random sets and requests are compared with an oracle that follows
//! the words of the specification and shares no code with the engine.

use std::collections::HashMap;

use proptest::prelude::*;
use tidegate_engine::key::Key;
use tidegate_engine::plan::{Check, Hits, Modes, Origin, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Override, Request};
use tidegate_engine::rules::{RuleSet, Unit};
use tidegate_engine::unit::Window;

use crate::rules::loaded;

/// A node of a rule file.
#[derive(Debug, Default)]
struct Node {
    key: &'static str,
    value: &'static str,
    shared: bool,
    limit: Option<Limit>,
    children: Vec<Node>,
}

#[derive(Debug)]
struct Limit {
    /// Its number in file order.
    id: usize,
    name: &'static str,
    replaces: Vec<&'static str>,
    unlimited: bool,
}

/// What has to be done for a descriptor.
#[derive(Debug, PartialEq)]
enum Expected {
    Unmatched,
    Unlimited(usize),
    Replaced(usize),
    /// The rule (`None`: an override), and what its counter is.
    Check(Option<usize>, Vec<String>),
}

/// Numbers that look random; the same seed gives the same ones.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

const KEYS: [&str; 3] = ["a", "b", "a_b"];
const NODE_VALUES: [&str; 14] =
    ["", "x", "xy", "y", "b", "*", "x*", "*y", "x*y", "*x*", "xx*", "x*x*y", "*yx", "**x"];
const VALUES: [&str; 12] = ["", "x", "y", "xy", "yx", "xx", "xxy", "xyxy", "x*", "*", "b", "éxy"];
const NAMES: [&str; 3] = ["", "n", "m"];

fn nodes(random: &mut Random, levels: u64, id: &mut usize) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..1 + random.below(if levels == 3 { 12 } else { 4 }) {
        let (key, value) = (random.pick(&KEYS), random.pick(&NODE_VALUES));
        if nodes.iter().any(|node| node.key == key && node.value == value) {
            continue;
        }
        let shared = value.contains('*') && random.chance(3);
        let limit = (!random.chance(3)).then(|| limit(random, id));
        let children = if levels > 1 { nodes_below(random, levels, id) } else { Vec::new() };
        nodes.push(Node { key, value, shared, limit, children });
    }
    nodes
}

fn nodes_below(random: &mut Random, levels: u64, id: &mut usize) -> Vec<Node> {
    if random.chance(2) { nodes(random, levels - 1, id) } else { Vec::new() }
}

fn limit(random: &mut Random, id: &mut usize) -> Limit {
    *id += 1;
    let name = random.pick(&NAMES);
    let replaces = if random.chance(2) {
        NAMES[1..].iter().copied().filter(|other| *other != name).collect()
    } else {
        vec![]
    };
    Limit { id: *id - 1, name, replaces, unlimited: random.chance(5) }
}

fn yaml(nodes: &[Node], indent: usize, text: &mut String) {
    for Node { key, value, shared, limit, children } in nodes {
        let at = " ".repeat(indent);
        *text += &format!("{at}- key: {key}\n{at}  value: '{value}'\n{at}  share_threshold: {shared}\n");
        if let Some(Limit { name, replaces, unlimited, .. }) = limit {
            let window = if *unlimited { "unlimited: true" } else { "unit: minute, requests_per_unit: 5" };
            let replaces: Vec<String> = replaces.iter().map(|name| format!("{{name: {name}}}")).collect();
            *text += &format!(
                "{at}  rate_limit: {{{window}, name: '{name}', replaces: [{}]}}\n",
                replaces.join(", ")
            );
        }
        if !children.is_empty() {
            *text += &format!("{at}  descriptors:\n");
            yaml(children, indent + 2, text);
        }
    }
}

/// "It may hold `*` anywhere, each matching zero or more characters."
fn wildcard_matches(pattern: &str, value: &str) -> bool {
    match pattern.chars().next() {
        None => value.is_empty(),
        Some('*') => (0..=value.len())
            .filter(|&skip| value.is_char_boundary(skip))
            .any(|skip| wildcard_matches(&pattern[1..], &value[skip..])),
        Some(first) => {
            value.strip_prefix(first).is_some_and(|rest| wildcard_matches(&pattern[first.len_utf8()..], rest))
        }
    }
}

/// "The first of these that exists is taken: …"
fn child<'n>(nodes: &'n [Node], key: &str, value: &str) -> Option<&'n Node> {
    let with_key = || nodes.iter().filter(|node| node.key == key);
    with_key()
        .find(|node| !node.value.is_empty() && node.value == value)
        .or_else(|| with_key().find(|node| node.value.contains('*') && wildcard_matches(node.value, value)))
        .or_else(|| with_key().find(|node| node.value.is_empty()))
}

/// The limit at the end of the walk, and what its counter is: the limit and the values that led to it.
fn walk<'n>(nodes: &'n [Node], entries: &[(&str, &str)]) -> Option<(&'n Limit, Vec<String>)> {
    let mut level = nodes;
    let mut counter = Vec::new();
    for (index, (key, value)) in entries.iter().enumerate() {
        let node = child(level, key, value)?;
        counter.push(if node.shared { format!("shared {}", node.value) } else { format!("seen {value}") });
        if index + 1 == entries.len() {
            let limit = node.limit.as_ref()?;
            counter.push(format!("limit {}", limit.id));
            return Some((limit, counter));
        }
        level = &node.children;
    }
    None
}

/// A descriptor of a request.
#[derive(Debug)]
struct Descriptor {
    entries: Vec<(&'static str, &'static str)>,
    options: DescriptorOptions,
}

fn descriptor(random: &mut Random) -> Descriptor {
    let entries = (0..random.pick(&[0, 1, 1, 1, 1, 2, 2, 3]))
        .map(|_| (random.pick(&["a", "a", "b", "b", "a_b", "c", ""]), random.pick(&VALUES)))
        .collect();
    let limit = random.chance(6).then(|| Override {
        requests_per_unit: random.below(3) as u32,
        window: Window {
            unit: random.pick(&[Unit::Minute, Unit::Hour]),
            multiplier: 1 + random.below(2) as u32,
        },
    });
    let hits_addend = random.chance(3).then(|| random.below(3));
    let options = DescriptorOptions {
        limit,
        hits_addend,
        is_negative_hits: random.chance(5),
        ..DescriptorOptions::default()
    };
    Descriptor { entries, options }
}

fn expected(nodes: &[Node], descriptors: &[Descriptor]) -> Vec<Expected> {
    let matched: Vec<Option<(&Limit, Vec<String>)>> = descriptors
        .iter()
        .map(|it| if it.options.limit.is_some() { None } else { walk(nodes, &it.entries) })
        .collect();
    let is_replaced = |index: usize, limit: &Limit| {
        let others = matched.iter().enumerate().filter(|(other, _)| *other != index);
        others.filter_map(|(_, other)| other.as_ref()).any(|(other, _)| other.replaces.contains(&limit.name))
    };
    let of = |(index, descriptor): (usize, &Descriptor)| match (&descriptor.options.limit, &matched[index]) {
        (Some(own), _) => {
            let counter =
                format!("override {:?} {:?} {}", descriptor.entries, own.window.unit, own.window.multiplier);
            Expected::Check(None, vec![counter])
        }
        (None, None) => Expected::Unmatched,
        (None, Some((limit, _))) if limit.unlimited => Expected::Unlimited(limit.id),
        (None, Some((limit, _))) if is_replaced(index, limit) => Expected::Replaced(limit.id),
        (None, Some((limit, counter))) => Expected::Check(Some(limit.id), counter.clone()),
    };
    descriptors.iter().enumerate().map(of).collect()
}

/// "A descriptor's own `hits_addend`, if the field is present; else the request's, where 0 or absent means 1."
fn expected_hits(descriptor: &Descriptor, of_request: u32) -> (Hits, bool) {
    let hits = descriptor.options.hits_addend.unwrap_or(if of_request == 0 { 1 } else { of_request.into() });
    match descriptor.options.is_negative_hits {
        true => (Hits::GiveBack(hits), false),
        false => (Hits::Take(hits), matches!(descriptor.options.hits_addend, Some(1..))),
    }
}

/// Which counters were seen under which keys: one to one.
#[derive(Default)]
struct Counters {
    by_key: HashMap<Key, Vec<String>>,
    by_counter: HashMap<Vec<String>, Key>,
}

impl Counters {
    fn see(&mut self, key: Key, counter: &[String]) {
        assert_eq!(
            self.by_key.entry(key).or_insert_with(|| counter.to_vec()),
            counter,
            "two counters, one key"
        );
        assert_eq!(*self.by_counter.entry(counter.to_vec()).or_insert(key), key, "one counter, two keys");
    }
}

fn compare(rules: &RuleSet, nodes: &[Node], random: &mut Random, counters: &mut Counters) {
    let hits_addend = random.below(3) as u32;
    let descriptors: Vec<Descriptor> = (0..random.below(5)).map(|_| descriptor(random)).collect();
    let mut request = Request::new("d", hits_addend);
    for Descriptor { entries, options } in &descriptors {
        request.push(entries.iter().map(|&(key, value)| Entry { key, value }), *options);
    }
    let plan = rules.plan(&request, Modes { quota: true, ..Modes::default() });
    assert!(plan.domain_known && plan.modes.quota);
    let expected = expected(nodes, &descriptors);
    assert_eq!(plan.steps.len(), expected.len());
    for ((step, expected), descriptor) in plan.steps.iter().zip(&expected).zip(&descriptors) {
        match (step, expected) {
            (Step::Unmatched, Expected::Unmatched) => {}
            (Step::Unlimited(rule), Expected::Unlimited(id)) => assert_eq!(rule.id, *id),
            (Step::Replaced(rule), Expected::Replaced(id)) => assert_eq!(rule.id, *id),
            (Step::Check(check), Expected::Check(id, counter)) => {
                counters.see(check.key, counter);
                assert_eq!((check.hits, check.reported), expected_hits(descriptor, hits_addend));
                assert_eq!(rule_id(check), *id, "{descriptor:?}");
            }
            _ => panic!("{descriptor:?}: {step:?}, expected {expected:?}"),
        }
    }
}

fn rule_id(check: &Check<'_>) -> Option<usize> {
    match check.origin {
        Origin::Rule { rule, .. } => Some(rule.id),
        Origin::Override { .. } => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plans_follow_the_specification(seed: u64) {
        let mut random = Random(seed);
        let nodes = nodes(&mut random, 3, &mut 0);
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        yaml(&nodes, 0, &mut text);
        let rules = loaded(&text).rules;
        let mut counters = Counters::default();
        for _ in 0..200 {
            compare(&rules, &nodes, &mut random, &mut counters);
        }
    }
}

/// All cases of the oracle occur, so none of the comparisons above is empty.
#[test]
fn the_random_cases_are_not_vacuous() {
    let mut seen = [0; 4];
    for seed in 0..200 {
        let mut random = Random(seed);
        let nodes = nodes(&mut random, 3, &mut 0);
        for _ in 0..50 {
            let descriptors: Vec<Descriptor> = (0..5).map(|_| descriptor(&mut random)).collect();
            for expected in expected(&nodes, &descriptors) {
                seen[match expected {
                    Expected::Unmatched => 0,
                    Expected::Unlimited(_) => 1,
                    Expected::Replaced(_) => 2,
                    Expected::Check(..) => 3,
                }] += 1;
            }
        }
    }
    assert!(seen.iter().all(|&times| times > 300), "{seen:?}");
}

/// The keys that one descriptor has under several sets.
fn keys(entries: &[(&str, &str)], files: &[&str]) -> Vec<Key> {
    let key = |text: &&str| {
        let loaded = loaded(text);
        let domain = loaded.rules.domains().next().unwrap_or_default().to_owned();
        let request = Request::new(&domain, 0).descriptor(entries);
        match loaded.rules.plan(&request, Modes::default()).steps[0] {
            Step::Check(check) => check.key,
            ref step => panic!("{text}: {step:?}"),
        }
    };
    files.iter().map(key).collect()
}

#[test]
fn a_counter_is_domain_path_values_algorithm_window_and_granularity() {
    let file = |domain: &str, node: &str, limit: &str| {
        format!(
            "domain: {domain}\ndescriptors: [{{key: a, {node} rate_limit: {{requests_per_unit: 5, {limit}}}}}]"
        )
    };
    let same = [
        file("d", "", "unit: minute"),
        file("d", "", "unit: minute, requests_per_unit: 6").replace("requests_per_unit: 5, ", ""),
        file("d", "", "unit: second, unit_multiplier: 60"),
        file("d", "", "window: 1m, granularity: 1s, name: other"),
        file("d", "shadow_mode: true, metadata: {a: b}, ", "unit: minute, sync: leased"),
    ];
    let same_keys = keys(&[("a", "x")], &same.each_ref().map(String::as_str));
    assert!(same_keys.iter().all(|key| *key == same_keys[0]));
    let other = [
        file("e", "", "unit: minute"),
        file("d", "", "unit: hour"),
        file("d", "", "unit: minute, granularity: 2s"),
        file("d", "", "unit: minute, algorithm: fixed_window"),
        file("d", "", "unit: minute, algorithm: token_bucket"),
        file("d", "", "unit: minute, algorithm: leaky_bucket"),
        file("d", "value: x, ", "unit: minute"),
        file("d", "value: 'x*', ", "unit: minute"),
        file("d", "value: '*', ", "unit: minute"),
        file("d", "value: 'x*', share_threshold: true, ", "unit: minute"),
    ];
    let mut all = keys(&[("a", "x")], &other.each_ref().map(String::as_str));
    all.push(same_keys[0]);
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn a_cycle_of_replacements_drops_all_that_are_in_it() {
    let node = |key: &str, name: &str, replaces: &str, rest: &str| {
        format!("- {{key: {key}, rate_limit: {{{rest}, name: {name}, replaces: [{{name: {replaces}}}]}}}}\n")
    };
    let minute = "unit: minute, requests_per_unit: 1";
    let text = "domain: d\ndescriptors:\n".to_owned()
        + &node("a", "A", "B", minute)
        + &node("b", "B", "C", minute)
        + &node("c", "C", "A", minute)
        + &node("u", "U", "C", "unlimited: true")
        + &node("w", "W", "U", minute);
    let loaded = loaded(&text);
    let steps = |keys: &[&'static str]| {
        let request =
            keys.iter().fold(Request::new("d", 0), |request, key| request.descriptor(&[(*key, "x")]));
        let plan = loaded.rules.plan(&request, Modes::default());
        let letter = |step: &Step<'_>| match step {
            Step::Unmatched => '-',
            Step::Unlimited(_) => 'U',
            Step::Replaced(_) => 'R',
            Step::Check(_) => 'C',
        };
        plan.steps.iter().map(letter).collect::<String>()
    };
    assert_eq!(steps(&["a", "b", "c"]), "RRR");
    assert_eq!(steps(&["a", "b"]), "CR");
    assert_eq!(steps(&["b", "c", "x"]), "CR-");
    assert_eq!(steps(&["c", "u"]), "RU");
    assert_eq!(steps(&["u", "w"]), "UC");
    assert_eq!(steps(&["a", "a"]), "CC");
}

#[test]
fn an_unknown_domain_has_no_limits_at_all() {
    let loaded = loaded("domain: d\n");
    let limit = Some(Override { requests_per_unit: 1, window: Window::of(Unit::Minute) });
    for (domain, known) in [("d", true), ("e", false)] {
        let mut request = Request::new(domain, 0);
        request.push([], DescriptorOptions { limit, ..DescriptorOptions::default() });
        let plan = loaded.rules.plan(&request, Modes::default());
        assert_eq!((plan.domain_known, matches!(plan.steps[0], Step::Check(_))), (known, known));
    }
}
