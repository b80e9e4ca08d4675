//! Where logs go may fail: that ends no more than the logs.

use std::io::{BufRead, BufReader, PipeWriter};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::tidegate::binary;
use crate::harness::{eventually, free_port, http};

/// A limiter with the rules of this folder, whose logs go to `stderr`.
fn start(folder: &Path, http: u16, metrics: u16, stderr: impl Into<Stdio>) -> Child {
    Command::new(binary())
        .env_clear()
        .env("CONFIG_PATH", folder)
        .env("RULES_MAY_BE_EMPTY", "true")
        .envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")])
        .envs([("GRPC_PORT", "0"), ("DEBUG_PORT", "0"), ("PORT", &http.to_string())])
        .env("PROMETHEUS_ADDR", format!("127.0.0.1:{metrics}"))
        .stderr(stderr)
        .spawn()
        .expect("it starts")
}

#[test]
fn a_reader_of_the_logs_that_is_gone_ends_nothing() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (http, metrics) = (free_port(), free_port());
    let mut child = start(folder.path(), http, metrics, Stdio::piped());
    drop(child.stderr.take());
    eventually("the limiter to be ready", || {
        http::get(http, "/readyz").ok().filter(|page| page.status == 200)
    });
    // A bad set is logged, on the thread that watches, and counted after that.
    std::fs::write(folder.path().join("shop.yaml"), "domain: \"\"\n").expect("the folder is ours");
    eventually("the bad set to be counted", || {
        let page = http::get(metrics, "/metrics").ok()?;
        page.body.contains("\nratelimit_service_config_load_error 1\n").then_some(())
    });
    assert_eq!(http::get(http, "/readyz").expect("it still runs").status, 200);
    assert!(child.try_wait().expect("it is ours").is_none(), "it still runs");
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
}

/// A pipe that holds a page, and who reads it.
fn small_pipe() -> (BufReader<std::io::PipeReader>, PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    rustix::pipe::fcntl_setpipe_size(&writer, 4_096).expect("it may be smaller");
    (BufReader::new(reader), writer)
}

#[test]
fn nobody_waits_for_a_reader_of_the_logs_that_hangs() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    // Ten rules, of which each may have a line a second, and each line is long.
    let deep = |rule: String, _| format!("{{key: k, descriptors: [{rule}]}}");
    let leaf = "{key: k, rate_limit: {unit: day, requests_per_unit: 0}}".to_owned();
    let below = (0..8).fold(leaf, deep);
    let rules: Vec<_> =
        (0..10).map(|rule| format!("  - {{key: k{rule}, descriptors: [{below}]}}\n")).collect();
    std::fs::write(
        folder.path().join("shop.yaml"),
        format!("domain: shop\ndescriptors:\n{}", rules.concat()),
    )
    .expect("the folder is ours");
    let (http, metrics) = (free_port(), free_port());
    let (mut reader, writer) = small_pipe();
    let mut child = start(folder.path(), http, metrics, writer);
    let mut line = String::new();
    while !line.contains("try: curl") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "it ended");
    }
    let value = "v".repeat(100);
    let entries: Vec<_> = (0..9).map(|_| format!(r#"{{"key":"k","value":"{value}"}}"#)).collect();
    let mut client = http::Client::new(http);
    for asked in 0..100 {
        let first = format!(r#"{{"key":"k{}","value":""}}"#, asked % 10);
        let body =
            format!(r#"{{"domain":"shop","descriptors":[{{"entries":[{first},{}]}}]}}"#, entries.join(","));
        let answer = client.send("POST", "/json", &[], &body).expect("an answer");
        assert_eq!(answer.status, 429, "{answer:?}");
    }
    let page = http::get(metrics, "/metrics").expect("it is scraped").body;
    let left_out = page.lines().find_map(|line| line.strip_prefix("tidegate_denials_not_logged_total "));
    let left_out: u32 = left_out.and_then(|count| count.parse().ok()).expect("a number");
    assert!((91..=99).contains(&left_out), "a page holds some lines, not ten: {left_out}");
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
}
