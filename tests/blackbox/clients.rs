//! Clients that others have written, each of which mixes calls of every kind on one connection: decisions, health Check and
//! Watch, methods that there are not (also streams that do not end), compressed and broken messages. By two, three and
//! many callers at a time, and every call gets the answer that is its own.

use std::path::Path;
use std::process::Command;

use crate::harness::programs::{installed, python, run, succeed};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};

/// One worker, so that what comes in comes in at one time; users from u1 to u7, each with a limit of its own.
fn setup() -> Setup {
    let limit = |user: u32| {
        format!(
            "  - {{key: user, value: u{user}, rate_limit: {{unit: day, requests_per_unit: {user}000000}}}}\n"
        )
    };
    let rules = format!("domain: shop\ndescriptors:\n{}", (1..8).map(limit).collect::<String>());
    Setup::new().env("WORKER_THREADS", "1").rules("shop.yaml", &rules)
}

fn limiter() -> Tidegate {
    setup().start()
}

fn file(path: &str) -> String {
    format!("{}/tests/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// Has this client make its calls.
fn every_call_is_answered(client: &mut Command) {
    let limiter = limiter();
    let said = succeed(client.arg(limiter.ports().grpc.to_string()));
    assert!(said.ends_with("ok\n"), "{said}");
    assert_eq!(limiter.scrape().sum("tidegate_lane_misbehaved_total", &[]), 0.0);
}

#[test]
fn grpc_go_mixes_calls() {
    every_call_is_answered(&mut installed("mixed_go"));
}

/// It pings, to measure its connection, and updates windows: hyper's front counts these too.
#[test]
fn grpc_go_mixes_calls_on_the_other_front() {
    let limiter = setup().env("GRPC_FRONT", "tonic").start();
    let said = succeed(installed("mixed_go").arg(limiter.ports().grpc.to_string()));
    assert!(said.ends_with("ok\n"), "{said}");
}

#[test]
fn grpc_js_mixes_calls() {
    let mut node = Command::new("node");
    every_call_is_answered(
        node.env("NODE_PATH", file(".work/js/node_modules")).arg(file("blackbox/clients/js/mixed.js")),
    );
}

#[test]
fn grpcio_mixes_calls() {
    every_call_is_answered(python().arg(file("blackbox/clients/python/mixed.py")));
}

/// Reflection is a stream that the client does not end before it is answered. grpcurl asks for the descriptors first,
/// and then makes the call with what it has learned.
#[test]
fn grpcurl_lists_describes_and_calls_by_reflection() {
    let limiter = limiter();
    let address = format!("127.0.0.1:{}", limiter.ports().grpc);
    let grpcurl = |arguments: &[&str]| succeed(installed("grpcurl").arg("-plaintext").args(arguments));
    let list = grpcurl(&[&address, "list"]);
    for service in
        ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health", "grpc.reflection.v1."]
    {
        assert!(list.contains(service), "{list}");
    }
    let described = grpcurl(&[&address, "describe", "envoy.service.ratelimit.v3.RateLimitRequest"]);
    assert!(described.contains("hits_addend = 3"), "{described}");
    let descriptor = r#"{"entries": [{"key": "user", "value": "u3"}]}"#;
    let request = format!(r#"{{"domain": "shop", "descriptors": [{descriptor}]}}"#);
    let method = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let answer = grpcurl(&["-d", &request, &address, method]);
    assert!(answer.contains(r#""overallCode": "OK""#) && answer.contains("3000000"), "{answer}");
    let (output, said) =
        run(installed("grpcurl").args(["-plaintext", &address, "describe", "no.such.Thing"]));
    assert!(!output.status.success() && said.contains("not found"), "{said}");
}

/// What Kuadrant's filter sends, by a client that learns the calls by reflection.
#[test]
fn grpcurl_asks_and_reports_as_kuadrant_does() {
    let rules = "domain: ns/route
descriptors:
  - {key: limit.tokens__1, value: '1', descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]}
";
    let redis = Redis::start(&[]);
    for (front, store) in [("lane", ""), ("tonic", ""), ("lane", &*redis.url()), ("tonic", &*redis.url())] {
        let setup = Setup::new().env("GRPC_FRONT", front).rules("kuadrant.yaml", rules);
        let limiter = if store.is_empty() { setup } else { setup.env("REDIS_URL", store) }.start();
        let address = format!("127.0.0.1:{}", limiter.ports().grpc);
        let code = |method: &str, hits: u32| {
            let entries = format!(
                r#"{{"key": "limit.tokens__1", "value": "1"}}, {{"key": "user", "value": "{front}"}}"#
            );
            let descriptors = format!(r#"{{"entries": [{entries}]}}"#);
            let request =
                format!(r#"{{"domain": "ns/route", "descriptors": [{descriptors}], "hits_addend": {hits}}}"#);
            let method = format!("kuadrant.service.ratelimit.v1.RateLimitService/{method}");
            let said = succeed(installed("grpcurl").args(["-plaintext", "-d", &request, &address, &method]));
            let answer: serde_json::Value = serde_json::from_str(&said).expect("JSON");
            answer["overallCode"].as_str().expect("a code").to_owned()
        };
        let asked = |hits| code("CheckRateLimit", hits);
        assert_eq!([asked(0), asked(10), asked(11)], ["OK", "OK", "OVER_LIMIT"], "{front} {store}");
        assert_eq!(code("Report", 9), "OK");
        assert_eq!([asked(0), asked(1), asked(2)], ["OK", "OK", "OVER_LIMIT"], "{front} {store}");
        assert_eq!(code("Report", 500), "OK");
        assert_eq!(asked(0), "OVER_LIMIT", "{front} {store}");
        let calls = limiter.scrape().sum("tidegate_requests_total", &[("front", "kuadrant")]);
        assert_eq!(calls, 9.0, "{front} {store}");
    }
}

#[test]
fn what_is_installed_for_the_clients_names_no_host() {
    let lock =
        std::fs::read_to_string(file("blackbox/clients/js/package-lock.json")).expect("it is committed");
    assert!(lock.contains("@grpc/grpc-js") && !lock.contains("resolved") && !lock.contains("://"));
    assert!(Path::new(&file("blackbox/clients/go/go.sum")).exists());
}
