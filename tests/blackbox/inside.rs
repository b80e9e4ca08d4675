//! The limiter inside a real Envoy, with `examples/inside/`: what its clients get, and what Envoy counts and logs.
//!
//! TIDEGATE_INSIDE_SOAK makes some of these tests longer (`tests/soak/run inside`).

mod ends;
mod equal;
mod footprint;
mod hostile;
mod kills;
mod kubernetes;
mod library;
mod minors;
mod panics;
mod reloads;
mod shared;
mod waiting;

mod costs;
mod operators;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::harness::envoy::{Envoy, Launch, inside};
use crate::harness::eventually_true;
use crate::harness::http::Answer;
use crate::harness::redis::Redis;

const EXAMPLE: &str = include_str!("../../examples/inside/envoy.yaml");

const ALICE: &str = "203.0.113.1";
const BOB: &str = "203.0.113.2";

/// Whether these tests run for long.
fn soak() -> bool {
    std::env::var_os("TIDEGATE_INSIDE_SOAK").is_some()
}

/// Starts Envoy with these rules and changes, each in the first place where it fits.
fn start_with_rules(rules: &str, changes: &[(&str, &str)]) -> Envoy {
    let rules = format!("rules_inline: {rules:?}");
    let own = [("rules: examples/inside/rules", &*rules)];
    Envoy::start_config(&changes.iter().chain(&own).fold(EXAMPLE.to_owned(), |config, (old, new)| {
        assert!(config.contains(old), "the example has no {old:?}");
        config.replacen(old, new, 1)
    }))
}

/// A GET of this path by this user, from this address.
fn get(envoy: &Envoy, path: &str, from: &str, user: &str) -> Answer {
    envoy
        .client()
        .send("GET", path, &[("x-forwarded-for", from), ("x-user", user)], "")
        .expect("Envoy answers")
}

fn statuses(envoy: &Envoy, path: &str, from: &str, user: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| get(envoy, path, from, user).status).collect()
}

#[test]
fn n_pass_and_the_next_gets_429_with_its_headers_and_asks_nobody() {
    let envoy = Envoy::start_inside(&[]);
    for passed in 1..=5 {
        let answer = get(&envoy, "/", ALICE, "ann");
        assert_eq!((answer.status, &*answer.body), (200, "The application says hello.\n"), "{answer:?}");
        assert_eq!(answer.number("ratelimit-limit"), 5);
        assert_eq!(answer.number("ratelimit-remaining"), 5 - passed);
        assert_eq!(answer.header("retry-after"), None);
    }
    let denied = get(&envoy, "/", BOB, "ann");
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.number("ratelimit-remaining"), 0);
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"), "no Envoy in front retries it");
    assert!((1..=61).contains(&denied.number("retry-after")), "{denied:?}");
    assert_eq!(get(&envoy, "/", ALICE, "ben").status, 200, "another user has a counter of its own");

    assert_eq!(envoy.stat("cluster.application.upstream_rq_total"), 6, "a denied request must not pass");
    assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_ok"), 6);
    assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_over_limit"), 1);
    assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_waited"), 0, "memory answers at once");
}

#[test]
fn a_route_has_rate_limits_of_its_own() {
    let rules = "
domain: edge
rate_limits:
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: bytes, value: export, rate_limit: {unit: hour, requests_per_unit: 30}}
";
    let bytes = "actions: [{generic_key: {descriptor_key: bytes, descriptor_value: export}}]";
    let cost = "apply_on_stream_done: true, hits_addend: {format: '%REQ(x-bytes)%'}";
    let own =
        format!("value: {{rate_limits: [{{{bytes}, hits_addend: {{number: 0}}}}, {{{bytes}, {cost}}}]}}");
    let envoy = start_with_rules(rules, &[("value: { domain: login }", &own)]);
    assert_eq!(statuses(&envoy, "/", ALICE, "ann", 3), [200, 200, 429]);
    let export = |bytes: &str| {
        let headers = [("x-user", "ann"), ("x-bytes", bytes)];
        envoy.client().send("GET", "/login", &headers, "").expect("Envoy answers").status
    };
    assert_eq!([export("10"), export("20")], [200, 200], "not counted by the user");
    eventually_true("30 bytes to be charged", || export("0") == 429);
}

/// Envoy makes the filter before it knows the routes.
#[test]
fn a_domain_may_leave_its_rate_limits_to_routes() {
    let rules = "domain: edge\ndescriptors: [{key: page, rate_limit: {unit: hour, requests_per_unit: 2}}]\n";
    let page = "generic_key: { descriptor_key: page, descriptor_value: login }";
    let of_no_path = "header_value_match: { descriptor_value: a, headers: [{ name: ':path', string_match: { prefix: /a/../ } }] }";
    let own = format!(
        "value: {{ rate_limits: [{{ actions: [{{ {page} }}] }}, {{ actions: [{{ {of_no_path} }}] }}] }}"
    );
    for (field, otherwise) in [("headers: always", 200), ("failure_mode_deny: true", 500)] {
        let field = format!("{field}\n{:26}rate_limits_of_routes: true", "");
        let envoy =
            start_with_rules(rules, &[("value: { domain: login }", &own), ("headers: always", &field)]);
        assert_eq!(statuses(&envoy, "/login", ALICE, "ann", 3), [200, 200, 429]);
        assert_eq!(statuses(&envoy, "/", ALICE, "ann", 2), [otherwise; 2]);
        assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_error"), 2);
        let warning = "the filter_config of a route: rate_limits:1:";
        assert_eq!(envoy.lines_with(warning), 1, "{}", envoy.output());
    }
}

#[test]
fn a_route_has_another_domain_or_none() {
    let envoy = Envoy::start_inside(&[]);
    assert_eq!(statuses(&envoy, "/login", ALICE, "ann", 4), [200, 200, 200, 429]);
    assert_eq!(statuses(&envoy, "/login", BOB, "ann", 1), [200], "another client");
    assert_eq!(statuses(&envoy, "/", ALICE, "ann", 6), [200, 200, 200, 200, 200, 429]);
    assert_eq!(statuses(&envoy, "/health", ALICE, "ann", 9), [200; 9]);
}

#[test]
fn envoys_that_share_a_redis_share_n_with_and_without_leases() {
    for sync in ["strict", "leased"] {
        let redis = Redis::start(&[]);
        let settings = format!("settings: {{ REDIS_URL: \"{}\", REDIS_SYNC: {sync} }}", redis.url());
        let envoys: Vec<_> = (0..3).map(|_| Envoy::start_inside(&[("headers: always", &settings)])).collect();
        let mut passed = 0;
        for _ in 0..4 {
            for envoy in &envoys {
                passed += usize::from(get(envoy, "/", ALICE, "ann").status == 200);
            }
        }
        assert_eq!(passed, 5, "{sync}");
        let waited: u64 = envoys.iter().map(|envoy| envoy.stat("dynamicmodulescustom.tidegate_waited")).sum();
        assert!(waited > 0, "{sync}: somebody asked Redis");
    }
}

/// Errors that are not logged are waited for all the same.
#[test]
fn an_envoy_that_logs_nothing_decides() {
    let redis = Redis::start(&[]);
    let settings = format!("settings: {{ REDIS_URL: \"{}\", REDIS_SYNC: strict }}", redis.url());
    let launch = Launch { log_level: "off", ..Launch::default() };
    let envoy = Envoy::launch(launch, &inside(&[("headers: always", &settings)]));
    assert_eq!(statuses(&envoy, "/", ALICE, "ann", 6), [200, 200, 200, 200, 200, 429]);
}

#[test]
fn without_its_redis_a_request_passes_or_gets_500_as_configured() {
    let redis = Redis::start(&[]);
    for (failure, status) in [("", 200), ("failure_mode_deny: true,", 500)] {
        let settings =
            format!("{failure} settings: {{ REDIS_URL: \"{}\", REDIS_SYNC: strict }}", redis.url());
        let settings = settings.replace("true, ", "true\n                          ");
        let envoy = Envoy::start_inside(&[("headers: always", settings.trim_start())]);
        assert_eq!(get(&envoy, "/", ALICE, "ann").status, 200);
        redis.stop();
        assert_eq!(get(&envoy, "/", ALICE, "ann").status, status, "{failure}");
        assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_error"), 1);
        redis.wake();
    }
}

#[test]
fn a_bad_configuration_is_refused_with_its_place() {
    for (change, expected) in [
        ("domains: x", "unknown field `domains`"),
        ("settings: { GRPC_PORT: 1 }", "GRPC_PORT means nothing inside another process"),
        (
            "settings: { LIMITS_DIR: /x, STATE_DIR: /x, REDIS_URLS: x }",
            "LIMITS_DIR means nothing inside another process because its folder belongs to one server (expected \
             LIMITS_URL for records in Redis); REDIS_URLS: there is no such setting; STATE_DIR means nothing",
        ),
        (
            "settings: { LIMIT_RESET_HEADER: x }",
            "LIMIT_RESET_HEADER means nothing inside another process unlike others of the group Decisions",
        ),
        ("settings: { REDIS_TIMEOUT: soon }", "REDIS_TIMEOUT: \"soon\""),
        ("deny_status: 200", "deny_status: 200 (expected a status from 400 to 599)"),
        ("settings: { COLD_START: deny }", "COLD_START: deny needs Redis"),
        ("settings: { EXCEPTIONS_FILE: /x, REDIS_URL: \"localhost:1\" }", "EXCEPTIONS_FILE: with Redis"),
        ("settings: { EXCEPTIONS_FILE: /proc/version }", "EXCEPTIONS_FILE: /proc/version:1: "),
        ("settings: { REDIS_AUTH: 7 }", "settings.REDIS_AUTH: no text"),
        ("rules_inline: x", "expected one of rules, rules_inline and settings.CONFIG_TYPE"),
    ] {
        let output = Envoy::refuses_inside(&[("headers: always", change)]);
        assert!(output.contains(expected), "{change}: {output}");
    }
    let missing = Envoy::refuses_inside(&[("/inside/rules", "/inside/nowhere")]);
    assert!(missing.contains("cannot read the rules") && missing.contains("nowhere"), "{missing}");
    let bare = Envoy::refuses_inside(&[("/inside/rules", "/envoy/rules")]);
    let expected =
        "domain: the rules of \"edge\" have no `rate_limits` (expected some, or rate_limits_of_routes: true";
    assert!(bare.contains(expected), "{bare}");
}

/// A request that cannot be described is not one that nobody limits.
#[test]
fn what_a_client_sends_does_not_lift_its_limits() {
    let envoy = Envoy::start_inside(&[]);
    let mut socket = TcpStream::connect(("127.0.0.1", envoy.port)).expect("Envoy listens");
    let request = b"GET / HTTP/1.1\r\nhost: a\r\nx-user: \xff\r\nconnection: close\r\n\r\n";
    socket.write_all(request).expect("Envoy reads");
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).expect("Envoy answers");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_error"), 1);
    assert_eq!(envoy.stat("cluster.application.upstream_rq_total"), 0);
}

/// Envoy answers a call of gRPC with the status 200, and a local reply of a module with `grpc-status: 0` unless it says
/// otherwise.
#[test]
fn a_call_of_grpc_that_is_denied_fails() {
    let envoy = Envoy::start_inside(&[]);
    let call = || {
        let headers =
            [("content-type", "application/grpc+proto"), ("x-user", "ann"), ("x-forwarded-for", ALICE)];
        envoy.client().send("POST", "/", &headers, "").expect("Envoy answers")
    };
    // The application, which knows no gRPC, says 2.
    let denied = (0..20).map(|_| call()).find(|answer| answer.header("grpc-status") != Some("2"));
    let denied = denied.expect("a limit is reached");
    assert_eq!((denied.status, denied.header("grpc-status")), (200, Some("14")), "{denied:?}");
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
}
