//! Clients that others have written, each of which mixes calls of every kind on one connection: decisions, health Check and
//! Watch, methods that there are not (also streams that do not end), compressed and broken messages. By two, three and
//! many callers at a time, and every call gets the answer that is its own.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::programs::{installed, run, succeed};
use crate::harness::tidegate::{Setup, Tidegate};

/// Longer than any of them takes to learn that there is no such method, on a machine that other tests keep busy.
const PROMPTLY: Duration = Duration::from_secs(5);

/// One worker, so that what comes in comes in at one time; users from u1 to u7, each with a limit of its own.
fn limiter() -> Tidegate {
    let limit = |user: u32| {
        format!(
            "  - {{key: user, value: u{user}, rate_limit: {{unit: day, requests_per_unit: {user}000000}}}}\n"
        )
    };
    let rules = format!("domain: shop\ndescriptors:\n{}", (1..8).map(limit).collect::<String>());
    Setup::new().env("WORKER_THREADS", "1").rules("shop.yaml", &rules).start()
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

#[test]
fn grpc_js_mixes_calls() {
    let mut node = Command::new("node");
    every_call_is_answered(
        node.env("NODE_PATH", file(".work/js/node_modules")).arg(file("blackbox/clients/js/mixed.js")),
    );
}

#[test]
fn grpcio_mixes_calls() {
    let python = std::env::var_os("TIDEGATE_PYTHON");
    let python = python.expect("TIDEGATE_PYTHON is set by tests/run, which installs it");
    every_call_is_answered(Command::new(python).arg(file("blackbox/clients/python/mixed.py")));
}

/// Reflection is a stream that the client does not end before it is answered.
#[test]
fn grpcurl_is_told_promptly_whether_there_is_reflection() {
    let limiter = limiter();
    let began = Instant::now();
    let (output, said) = run(installed("grpcurl").args([
        "-plaintext",
        &format!("127.0.0.1:{}", limiter.ports().grpc),
        "list",
    ]));
    assert!(began.elapsed() < PROMPTLY, "{:?}", began.elapsed());
    match output.status.success() {
        true => assert!(said.contains("envoy.service.ratelimit.v3.RateLimitService"), "{said}"),
        false => assert!(said.contains("does not support the reflection API"), "{said}"),
    }
}

#[test]
fn what_is_installed_for_the_clients_names_no_host() {
    let lock =
        std::fs::read_to_string(file("blackbox/clients/js/package-lock.json")).expect("it is committed");
    assert!(lock.contains("@grpc/grpc-js") && !lock.contains("resolved") && !lock.contains("://"));
    assert!(Path::new(&file("blackbox/clients/go/go.sum")).exists());
}
