//! The lane as clients see it that others have written: h2spec, grpcio (gRPC's C core), grpc-go (by grpcurl), nghttp2
//! (by h2load and curl). `clients` has them mix calls of every kind. The rest of this suite runs on it too, and the
//! modules about the gRPC port also on tonic, with TIDEGATE_TEST_FRONT=tonic.

use std::io::Write;
use std::process::Command;

use crate::harness::programs::{installed, python, run, succeed};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, h2};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: day, requests_per_unit: 10 }
";

const CALL: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

fn lane() -> Tidegate {
    Setup::new().env("GRPC_FRONT", "lane").rules("shop.yaml", RULES).start()
}

#[test]
fn every_case_of_h2spec_passes_strictly() {
    let limiter = lane();
    let port = limiter.ports().grpc.to_string();
    let said = succeed(installed("h2spec").args(["--strict", "--port", &port, "--timeout", "5"]));
    assert!(said.contains("146 tests, 146 passed, 0 skipped, 0 failed"), "{said}");
}

#[test]
fn grpcio_is_answered_as_it_expects() {
    let limiter = lane();
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blackbox/lane/grpcio_client.py");
    let said = succeed(python().arg(client).arg(limiter.ports().grpc.to_string()));
    assert!(said.ends_with("ok\n"), "{said}");
    assert_eq!(limiter.scrape().sum("tidegate_lane_misbehaved_total", &[]), 0.0);
}

#[test]
fn grpc_go_is_answered_as_it_expects() {
    let limiter = lane();
    let ask = |user: &str| {
        let question = format!(
            r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"user","value":"{user}"}}]}}]}}"#
        );
        let mut command = installed("grpcurl");
        command
            .args(["-plaintext", "-import-path", concat!(env!("CARGO_MANIFEST_DIR"), "/proto")])
            .args(["-proto", "envoy/service/ratelimit/v3/rls.proto", "-d", &question])
            .arg(format!("127.0.0.1:{}", limiter.ports().grpc))
            .arg(CALL.trim_start_matches('/'));
        succeed(&mut command)
    };
    for left in (0..10).rev() {
        let said = ask("alice");
        assert!(said.contains(r#""overallCode": "OK""#), "{said}");
        assert!(left == 0 || said.contains(&format!(r#""limitRemaining": {left}"#)), "{said}");
    }
    assert!(ask("alice").contains(r#""overallCode": "OVER_LIMIT""#));
    assert!(ask("bob").contains(r#""limitRemaining": 9"#));
}

/// A file with the framed question of a user.
fn question_file(user: &str) -> tempfile::NamedTempFile {
    let request = crate::harness::grpc::question("shop", &[&[("user", user)]]);
    let mut file = tempfile::NamedTempFile::new().expect("a file can be made");
    file.write_all(&h2::call_body(&request)).expect("it is ours");
    file
}

#[test]
fn h2load_gets_an_answer_to_every_call() {
    let limiter = lane();
    let question = question_file("alice");
    let mut h2load = Command::new("h2load");
    h2load
        .args([
            "-n",
            "20000",
            "-c",
            "8",
            "-m",
            "64",
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
        ])
        .arg("-d")
        .arg(question.path())
        .arg(format!("http://127.0.0.1:{}{CALL}", limiter.ports().grpc));
    let said = succeed(&mut h2load);
    assert!(said.contains("20000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
    let scrape = limiter.scrape();
    assert_eq!(scrape.sum("tidegate_requests_total", &[("front", "grpc"), ("code", "OK")]), 10.0);
    assert_eq!(scrape.sum("tidegate_requests_total", &[("front", "grpc"), ("code", "OVER_LIMIT")]), 19_990.0);
    assert_eq!(scrape.sum("tidegate_lane_streams_total", &[]), 20_000.0);
}

#[test]
fn curl_asks_for_health() {
    let limiter = lane();
    let mut nothing = tempfile::NamedTempFile::new().expect("a file can be made");
    nothing.write_all(&[0; 5]).expect("it is ours");
    let mut curl = Command::new("curl");
    curl.args([
        "-s",
        "--http2-prior-knowledge",
        "-H",
        "content-type: application/grpc",
        "-H",
        "te: trailers",
    ])
    .args(["--data-binary", &format!("@{}", nothing.path().display())])
    .arg(format!("http://127.0.0.1:{}/grpc.health.v1.Health/Check", limiter.ports().grpc));
    let (output, said) = run(&mut curl);
    assert!(output.status.success(), "{said}");
    assert_eq!(output.stdout, b"\0\0\0\0\x02\x08\x01");
}

#[test]
fn whoever_misbehaves_is_counted_and_logged_in_one_line() {
    let limiter = lane();
    for _ in 0..20 {
        let mut client = h2::Attacker::greeted(limiter.ports().grpc);
        client.send(&h2::frame(6, 0, 1, &[0; 8])); // a PING for a stream
        client.is_closed();
    }
    let scrape = || limiter.scrape();
    eventually_true("every one to be counted", || {
        scrape().sum("tidegate_lane_misbehaved_total", &[]) == 20.0
    });
    assert_eq!(scrape().sum("tidegate_lane_goaways_total", &[("code", "PROTOCOL_ERROR")]), 20.0);
    eventually_true("all to be gone", || scrape().sum("tidegate_lane_connections", &[]) == 0.0);
    let lines = limiter.lines_with("a PING is for a stream");
    assert!((1..=3).contains(&lines), "{lines}");
}
