//! Logs: nothing per request, no flood, no forged lines, JSON on demand.

use std::io::Write;

use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, grpc, http};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
";

/// Lines that were written while this ran. What is counted comes before the answer of the last request.
fn lines_during(limiter: &Tidegate, run: impl FnOnce()) -> Vec<String> {
    eventually_true("the last line of its start", || limiter.lines_with("try: curl") == 1);
    let before = limiter.output().len();
    run();
    http::get(limiter.ports().http, "/livez").expect("it still runs");
    limiter.output().split_off(before)
}

#[test]
fn requests_leave_no_lines() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let client = limiter.client();
    let lines = lines_during(&limiter, || {
        for _ in 0..200 {
            client.ask(grpc::question("shop", &[&[("user", "alice")]]));
            client.ask(grpc::question("nowhere", &[&[("user", "alice")]]));
        }
    });
    assert!(lines.is_empty(), "{lines:#?}");
}

#[test]
fn what_goes_wrong_a_thousand_times_does_not_flood() {
    let limiter = Setup::new().rules("shop.yaml", RULES).start();
    let ports = limiter.ports();
    let client = limiter.client();
    let lines = lines_during(&limiter, || {
        for _ in 0..1000 {
            client.call(grpc::question("", &[&[("user", "alice")]])).expect_err("no domain");
        }
        let mut json = http::Client::new(ports.http);
        for _ in 0..1000 {
            let answer = json.send("POST", "/json", &[], "{\"domain\": 1\n ERROR forged").expect("an answer");
            assert_eq!(answer.status, 400, "{answer:?}");
        }
        for port in [ports.grpc, ports.http, ports.debug, ports.metrics] {
            for _ in 0..300 {
                let mut stream = http::connect(port).expect("it listens");
                stream.write_all(b"\x16\x03\x01 this is no protocol of ours\r\n\r\n").expect("connected");
            }
        }
    });
    assert!(lines.len() <= 50, "{} lines: {:#?}", lines.len(), &lines[..50]);
    assert!(!lines.iter().any(|line| line.trim_start().starts_with("ERROR forged")), "{lines:#?}");
}

#[test]
fn json_logs_are_an_object_a_line_with_three_keys() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("LOG_FORMAT", "json").start();
    limiter.setup.write("shop.yaml", "domain: \"\"\n");
    crate::harness::eventually_true("the bad set to be told", || limiter.lines_with("shop.yaml:1:9") == 1);
    let logged: Vec<_> = limiter.output().into_iter().filter(|line| line.starts_with('{')).collect();
    assert!(!logged.is_empty(), "{:#?}", limiter.output());
    for line in logged {
        let object: serde_json::Value = serde_json::from_str(&line).expect("one JSON object a line");
        for key in ["@timestamp", "@message", "level"] {
            assert!(object[key].is_string(), "no {key} in {line}");
        }
    }
}

#[test]
fn at_log_level_error_a_healthy_start_logs_nothing_above_it() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("LOG_LEVEL", "error").start();
    limiter.client().ask(grpc::question("shop", &[&[("user", "alice")]]));
    assert_eq!(limiter.lines_with(" INFO "), 0, "{:#?}", limiter.output());
}
