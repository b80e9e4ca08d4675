//! The module and the server, asked the same: random rules, random requests, equal answers and equal metrics.
//!
//! The server makes descriptors by the same `rate_limits`, for `/check`. Windows are years, so that the two count the same
//! although they are asked one after the other.

use super::soak;
use crate::check_descriptors::{ACTIONS, CASES, Case, KEYS};
use crate::envoy_descriptors::Random;
use crate::harness::eventually_true;
use crate::harness::http::{Answer, Client};
use crate::harness::inside::Inside;
use crate::harness::tidegate::Setup;

const ALGORITHMS: [&str; 6] = [
    "sliding_window",
    "sliding_log",
    "sliding_window_weighted",
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
];
/// More than there are.
const SERIES_MAX: &str = "100000";
/// By how many seconds two answers about the same moment may differ.
const APART_SECS: u64 = 60;

/// How many rules there are, and how many requests of each.
fn seeds_and_requests() -> (u64, u64) {
    if soak() { (50, 2_000) } else { (4, 500) }
}

/// Two denials are enough, and until then each of them counts.
const BAN: &str = ", ban: {after: 2, within: 24h, every: 0s, for: 24h, doubling_to: 48h}";

/// A limit, in one of all forms.
fn limit(random: &mut Random) -> String {
    let requests = random.pick(&["0", "3", "10", "30", "100", "1000", "100000", "100000", "100000"]);
    let window = match random.below(7) {
        0 => "period: {calendar: year, tz: Europe/Berlin, anchor: 07-15}".to_owned(),
        _ => format!("unit: year, algorithm: {}", random.pick(&ALGORITHMS)),
    };
    let candidate = random.pick(&["", "", ", candidate: {requests_per_unit: 7}"]);
    let mode = random.pick(&["", "", "", BAN, ", shadow_mode: true", ", quota_mode: true"]);
    match random.below(10) {
        0 => ", rate_limit: {unlimited: true}".to_owned(),
        1 => String::new(),
        _ => format!(", rate_limit: {{{window}, requests_per_unit: {requests}{candidate}}}{mode}"),
    }
}

/// Rules for descriptors of up to this many entries.
fn nodes(random: &mut Random, depth: u32) -> String {
    let mut nodes = Vec::new();
    for key in KEYS {
        for value in ["", ", value: Gold", ", value: 'G*'"] {
            if value.is_empty() || random.one_in(4) {
                let below = if depth > 1 { nodes_below(random, depth) } else { String::new() };
                nodes.push(format!("{{key: {key}{value}{}{below}}}", limit(random)));
            }
        }
    }
    format!("[{}]", nodes.join(", "))
}

fn nodes_below(random: &mut Random, depth: u32) -> String {
    format!(", descriptors: {}", nodes(random, depth - 1))
}

fn rules(random: &mut Random) -> String {
    let mut actions: Vec<_> = ACTIONS.iter().filter(|_| random.one_in(5)).collect();
    actions.push(&ACTIONS[0]);
    let actions: String = actions.iter().map(|actions| format!("  - actions: [{actions}]\n")).collect();
    format!("domain: edge\nrate_limits:\n{actions}descriptors: {}\n", nodes(random, 2))
}

/// What a client can see of an answer but for times.
fn seen(answer: &Answer) -> (u16, [Option<&str>; 2], [bool; 2]) {
    let has = |name| answer.header(name).is_some();
    (
        answer.status,
        ["ratelimit-limit", "ratelimit-remaining"].map(|name| answer.header(name)),
        ["ratelimit-reset", "retry-after"].map(has),
    )
}

fn compare(case: &Case, from: u64, module: &mut Client, server: &mut Client) -> u16 {
    let from = format!("203.0.113.{from}");
    let headers = [&[("x-forwarded-for", &*from)], case.headers].concat();
    let inside = module.send(case.method, case.path, &headers, "").expect("Envoy answers");
    let described = [("x-original-uri", case.path), ("x-original-method", case.method)];
    let headers = [&described, &headers[..]].concat();
    let outside = server.send("GET", "/check/edge", &headers, "").expect("the server answers");
    let what = format!("{} {} from {from}, {:?}", case.method, case.path, case.headers);
    assert_eq!(seen(&inside), seen(&outside), "inside is left: {what}\n{inside:?}\n{outside:?}");
    for name in ["ratelimit-reset", "retry-after"] {
        if inside.header(name).is_some() {
            let apart = inside.number(name).abs_diff(outside.number(name));
            assert!(apart <= APART_SECS, "{name}: {what}\n{inside:?}\n{outside:?}");
        }
    }
    inside.status
}

/// What a page of metrics counts of rules, candidates and bans: name, labels and value of each series that has one.
fn counted(page: &str) -> Vec<String> {
    let families =
        ["ratelimit_service_rate_limit_", "tidegate_candidate_hits_total", "tidegate_banned_total"];
    let series = |line: &str| {
        let family = families.iter().find_map(|family| line.find(family))?;
        let (series, value) = line[family..].rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels =
            labels.split("\",").filter_map(|label| label.trim_end_matches(['"', '}']).split_once("=\""));
        let mut labels: Vec<_> = labels.filter(|(_, value)| !value.is_empty()).collect();
        labels.sort_unstable();
        (value != "0").then(|| format!("{name}{labels:?} {value}"))
    };
    let mut all: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).filter_map(series).collect();
    all.sort_unstable();
    all
}

#[test]
fn the_module_and_the_server_give_the_same_answers() {
    let (mut passed, mut denied, mut all) = (0, 0, Vec::new());
    let (seeds, requests) = seeds_and_requests();
    // Envoy itself refuses an escaped slash.
    let cases: Vec<_> = CASES.iter().filter(|case| !case.path.contains("%2F%41")).collect();
    for seed in 0..seeds {
        let mut random = Random(seed);
        let rules = rules(&mut random);
        let envoy = Inside::new(&rules).setting("MAX_METRIC_SERIES", SERIES_MAX).start();
        let limiter = Setup::new().rules("edge.yaml", &rules).env("MAX_METRIC_SERIES", SERIES_MAX).start();
        let (mut module, mut server) = (envoy.client(), Client::new(limiter.ports().http));
        for _ in 0..requests {
            let case = cases[random.below(cases.len() as u64) as usize];
            match compare(case, random.below(20), &mut module, &mut server) {
                200 => passed += 1,
                _ => denied += 1,
            }
        }
        let outside = counted(&Client::new(limiter.ports().metrics).get("/metrics").body);
        let inside = || counted(&envoy.prometheus());
        eventually_true("the module to have counted the same", || inside() == outside);
        all.extend(outside);
    }
    for what in ["over_limit[", "shadow_mode[", "tidegate_candidate_hits_total[", "tidegate_banned_total["] {
        assert!(all.iter().any(|series| series.contains(what)), "{what}: {all:#?}");
    }
    println!("{passed} passed, {denied} denied");
    let many = seeds * requests / 10;
    assert!(passed > many && denied > many, "{passed} passed, {denied} denied");
}
