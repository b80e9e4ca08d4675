//! Each kind of rule about who asks, one table through all of the program: the server in memory and with Redis,
//! `tidegate test`, `tidegate replay` and `tidegate ask --envoy` give the same answers by the same rule.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};

use super::commands::{folder, tidegate};
use crate::check_descriptors::envoy_of;
use crate::harness::grpc::{OK, question};
use crate::harness::http::Client;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = "
domain: edge
descriptors:
  - {key: who, value: {in: [first, 192.0.2.1]}, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: who, value: {cidr: 192.0.2.0/24}, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: who, value: {cidr_file: scanners.txt}, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: who, value: 'w*', rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: who, value: {regex: '^/api/v[0-9]+/'}, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: who, prefix: {v4: 24, v6: {64: 1, 48: 2}}, rate_limit: {unit: day, requests_per_unit: 1}}
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1}
    ban: {after: 2 denials, within: 10m, every: 0, for: 1h}
  - key: team
    rate_limit: {unit: day, requests_per_unit: 2}
    classes: {key: class, shares: {high: 1.0, low: 0.5}}
";
const SCANNERS: &str = "# known ones\n198.51.100.0/24\n2001:db8:bad::/48\n";

/// A request: when it comes, in seconds; its entries; whether it passes.
type Step = (u64, &'static [(&'static str, &'static str)], bool);

/// What metrics and reports call the rule, the name of its pattern in metadata, and requests that meet it.
const KINDS: [(&str, &str, &[Step]); 9] = [
    (
        "in",
        "edge.who_first,192_0_2_1",
        &[
            (0, &[("who", "first")], true),
            (0, &[("who", "first")], false),
            (0, &[("who", "192.0.2.1")], true),
        ],
    ),
    (
        "cidr",
        "edge.who_192_0_2_0/24",
        &[
            (0, &[("who", "192.0.2.7")], true),
            (0, &[("who", "[::ffff:192.0.2.8]:443")], true),
            (0, &[("who", "192.0.2.9")], false),
        ],
    ),
    (
        "cidr_file",
        "edge.who_scanners.txt",
        &[
            (0, &[("who", "2001:DB8:bad::1")], true),
            (0, &[("who", "2001:DB8:bad::1")], false),
            (0, &[("who", "198.51.100.1")], true),
        ],
    ),
    ("*", "edge.who_w*", &[(0, &[("who", "word")], true), (0, &[("who", "word")], false)]),
    (
        "regex",
        "edge.who_^/api/v[0-9]+/",
        &[
            (0, &[("who", "/api/v1/a")], true),
            (0, &[("who", "/api/v1/a")], false),
            (0, &[("who", "/api/v2/a")], true),
        ],
    ),
    ("prefix", "edge.who", &[(0, &[("who", "203.0.113.1")], true), (0, &[("who", "203.0.113.2:80")], false)]),
    (
        "prefix of two lengths",
        "edge.who",
        &[
            (0, &[("who", "2001:db8:0:1::1")], true),
            (0, &[("who", "2001:db8:0:1::2")], false),
            (0, &[("who", "2001:db8:0:2::1")], true),
            (0, &[("who", "2001:db8:0:3::1")], false),
            (0, &[("who", "2001:db8:1::1")], true),
        ],
    ),
    (
        "ban",
        "edge.user",
        &[
            (0, &[("user", "mallory")], true),
            (0, &[("user", "mallory")], false),
            (0, &[("user", "mallory")], false),
            (0, &[("user", "alice")], true),
            (600, &[("user", "mallory")], false),
            (3_600, &[("user", "mallory")], true),
        ],
    ),
    (
        "classes",
        "edge.team",
        &[
            (0, &[("team", "a"), ("class", "low")], true),
            (0, &[("team", "a"), ("class", "other")], false),
            (0, &[("team", "a"), ("class", "high")], true),
            (0, &[("team", "a"), ("class", "high")], false),
        ],
    ),
];

fn code(passes: bool) -> &'static str {
    if passes { "OK" } else { "OVER_LIMIT" }
}

fn setup() -> Setup {
    Setup::new().rules("edge.yaml", RULES).rules("scanners.txt", SCANNERS)
}

/// Requests that need no waiting.
fn at_once() -> impl Iterator<Item = (&'static str, &'static str, &'static Step)> {
    let of_kind = |(kind, rule, steps): &'static (_, _, &[Step])| {
        steps.iter().filter(|(at, ..)| *at == 0).map(|step| (*kind, *rule, step))
    };
    KINDS.iter().flat_map(of_kind)
}

/// What `tidegate ask --envoy` says of the descriptor that a real configuration makes.
fn asked(limiter: &Tidegate, envoy: &str, entries: &[(&str, &str)]) -> Value {
    let port = limiter.ports().debug.to_string();
    let headers: Vec<_> = entries.iter().map(|(key, value)| format!("x-{key}: {value}")).collect();
    let mut arguments = vec!["ask", "--envoy", envoy, "--request", "GET /", "--from", "127.0.0.2"];
    headers.iter().for_each(|header| arguments.extend(["--header", header]));
    arguments.extend(["--format", "json"]);
    let (code, shown, complaints) = tidegate(&arguments, &[("DEBUG_PORT", &port)]);
    assert_eq!((code, complaints.as_str()), (0, ""), "{entries:?}");
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown["answers"][0].clone()
}

fn configuration() -> String {
    let action = |key: &str| format!("{{request_headers: {{header_name: x-{key}, descriptor_key: {key}}}}}");
    let keys: [&[&str]; 3] = [&["who"], &["user"], &["team", "class"]];
    let actions = keys.map(|keys| keys.iter().map(|key| action(key)).collect::<Vec<_>>().join(", "));
    let limits = actions.map(|actions| format!("{{actions: [{actions}]}}")).join(", ");
    let host = format!(
        "            - {{name: all, domains: ['*'], routes: [{{match: {{prefix: /}}, route: {{cluster: application, \
         rate_limits: [{limits}]}}}}]}}"
    );
    envoy_of(1, 2, "", &host)
}

#[test]
fn each_kind_is_asked_about_and_answered_alike_in_memory_and_with_redis() {
    let redis = Redis::start(&[]);
    let (_folder, path) = folder(&[("envoy.yaml", &configuration())]);
    let of_redis = |setup: Setup| setup.env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "10s");
    for setup in [setup(), of_redis(setup())] {
        let limiter = setup.start();
        let client = limiter.client();
        for (kind, rule, (_, entries, passes)) in at_once() {
            let shown = asked(&limiter, &format!("{path}/envoy.yaml"), entries);
            assert_eq!(shown["code"], code(*passes), "{kind} {entries:?}: {shown:#}");
            assert_eq!(shown["descriptors"][0]["rule"]["path"], rule, "{kind} {entries:?}: {shown:#}");
            let answer = client.ask(question("edge", &[entries]));
            assert_eq!(answer.overall_code == OK, *passes, "{kind} {entries:?}: {answer:?}");
        }
        let banned = client.ask(question("edge", &[&[("user", "mallory")]]));
        let wait = banned.statuses[0].duration_until_reset.as_ref().expect("a wait").seconds;
        assert!(wait > 3_000, "a ban and not the limit: {wait} s");
    }
}

#[test]
fn each_kind_is_named_in_metadata_if_envoyproxy_does_not_know_it() {
    let limiter = setup().env("RESPONSE_DYNAMIC_METADATA", "true").start();
    for (kind, rule, (_, entries, _)) in at_once() {
        let entries: Vec<_> =
            entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
        let body = json!({"domain": "edge", "descriptors": [{"entries": entries}]}).to_string();
        let answer = Client::new(limiter.ports().http).send("POST", "/json", &[("host", "x")], &body);
        let answer = answer.expect("an answer").body;
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let named = &answer["dynamicMetadata"]["descriptors"][0]["rule"];
        let is_known = ["*", "ban", "classes"].contains(&kind);
        assert_eq!(*named, if is_known { Value::Null } else { rule.into() }, "{kind}: {answer:#}");
    }
}

#[test]
fn each_kind_is_tried_in_cases() {
    let mut cases = "rules: rules\ncases:\n".to_owned();
    for (kind, rule, steps) in KINDS {
        let _ = writeln!(cases, "  - name: '{kind}'\n    steps:");
        for (at, entries, passes) in steps {
            let entries = entries.iter().map(|(key, value)| format!("{key}: '{value}'")).collect::<Vec<_>>();
            let (entries, code) = (entries.join(", "), code(*passes));
            let expected = format!("{{code: {code}, rule: '{rule}'}}");
            let _ = writeln!(cases, "      - {{at: {at}s, request: {{{entries}}}, expect: {expected}}}");
        }
    }
    let (_folder, path) = folder(&[("cases.yaml", &cases)]);
    fs::create_dir(format!("{path}/rules")).expect("the folder is ours");
    for (name, text) in [("edge.yaml", RULES), ("scanners.txt", SCANNERS)] {
        fs::write(format!("{path}/rules/{name}"), text).expect("the folder is ours");
    }
    let (code, report, complaints) = tidegate(&["test", &format!("{path}/cases.yaml")], &[]);
    assert_eq!(code, 0, "{report}{complaints}");
}

#[test]
fn each_kind_is_replayed() {
    for (kind, rule, steps) in KINDS {
        let line = |(at, entries, _): &Step| {
            let mut line = json!({"time": 1_790_000_000 + at});
            entries.iter().for_each(|(key, value)| line[*key] = (*value).into());
            format!("{line}\n")
        };
        let log: String = steps.iter().map(line).collect();
        let (_folder, path) = folder(&[("edge.yaml", RULES), ("scanners.txt", SCANNERS), ("log", &log)]);
        let (_, entries, _) = steps[0];
        let map = entries.iter().map(|(key, _)| format!("{key}=${key}")).collect::<Vec<_>>().join(", ");
        let (code, report, complaints) = tidegate(
            &[
                "replay",
                "--rules",
                &path,
                "--format",
                "json",
                "--time",
                "time",
                "--report",
                "json",
                "--map",
                &map,
                &format!("{path}/log"),
            ],
            &[],
        );
        assert_eq!(code, 0, "{kind}: {complaints}");
        let report: Value = serde_json::from_str(&report).expect("JSON");
        let each = report["rules"]["each"].as_array().expect("a list");
        // Each length of a prefix is a line of its own.
        let met: HashSet<_> =
            each.iter().filter(|it| it["requests"] != 0).map(|it| it["rule"].as_str()).collect();
        let denied = steps.iter().filter(|(.., passes)| !passes).count();
        assert_eq!((met, &report["denied"]), ([Some(rule)].into(), &denied.into()), "{kind}: {report:#}");
    }
}
