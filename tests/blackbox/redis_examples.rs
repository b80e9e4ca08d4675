//! The examples with Redis, and that of budgets, run as they are but for ports.

use std::path::Path;
use std::process::{Command, Output};

use crate::harness::free_port;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{CHECKED_BINARY, binary};

/// The commands of an example's README, on ports that are free: `(as written, the one instead)`.
fn run_readme(name: &str, ports: &[(u16, u16)]) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    let readme = std::fs::read_to_string(folder.join("README.md")).expect("it is there");
    let block = readme.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block");
    // First by names that no port holds: a free port may have one of the written ones within it.
    let named = ports.iter().fold(block.to_owned(), |text, (written, _)| {
        assert!(text.contains(&written.to_string()), "{written} is gone from the README");
        text.replace(&written.to_string(), &format!("<{written}>"))
    });
    let script = ports
        .iter()
        .fold(named, |text, (written, free)| text.replace(&format!("<{written}>"), &free.to_string()));
    let script = script.replace("PROMETHEUS_ADDR=:", "PROMETHEUS_ADDR=127.0.0.1:");
    let path = format!("{}:{}", folder_of(binary()).display(), std::env::var("PATH").unwrap_or_default());
    // Who started servers by hand ends them by hand.
    let script = format!("trap 'kill $(jobs -p); wait' EXIT\n{script}");
    let mut command = Command::new("timeout");
    command.args(["60", "bash", "-c", &script]).current_dir(&folder).env("PATH", path);
    command.envs([("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1"), ("DEBUG_HOST", "127.0.0.1")]);
    shown(&command.output().expect("bash is there"))
}

fn folder_of(binary: &str) -> &Path {
    Path::new(binary).parent().expect("a folder")
}

fn shown(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn ports(written: &[u16]) -> Vec<(u16, u16)> {
    written.iter().map(|&written| (written, free_port())).collect()
}

/// Ports of the two nodes, as both examples have them.
const NODES: [u16; 8] = [8181, 8180, 6170, 9190, 8281, 8280, 6270, 9290];

fn passed_and_denied(shown: &str) -> (usize, usize) {
    let count = |code: &str| shown.matches(&format!("{{\"overallCode\":\"{code}\"")).count();
    (count("OK"), count("OVER_LIMIT"))
}

#[test]
fn two_nodes_share_one_limit_in_redis() {
    let shown = run_readme("redis", &ports(&[&NODES[..], &[7379]].concat()));
    assert_eq!(passed_and_denied(&shown), (5, 1), "{shown}");
}

#[test]
fn two_nodes_share_one_limit_in_a_cluster() {
    // A server of a Cluster takes the port that is 10,000 higher too: that one is ours, and the lower one nobody's.
    let servers = [7001, 7002, 7003].map(|written| (written, free_port() - 10_000));
    let shown = run_readme("cluster", &[&ports(&NODES)[..], &servers].concat());
    assert_eq!(passed_and_denied(&shown), (5, 1), "{shown}");
}

/// One node, with counters in memory.
#[test]
fn a_request_that_one_of_three_budgets_denies_is_charged_to_none() {
    let shown = run_readme("budgets", &ports(&NODES[..4]));
    assert_eq!(passed_and_denied(&shown), (2, 2), "{shown}");
    let left: Vec<&str> = shown.split("\"limitRemaining\":").skip(1).map(|rest| &rest[..2]).collect();
    assert_eq!(left, ["1,", "7,", "97", "1,", "7,", "97", "6,", "96", "6,", "96"], "0 is left out: {shown}");
}

#[test]
fn another_program_shares_it_as_a_library() {
    let redis = Redis::start(&[]);
    let program = folder_of(CHECKED_BINARY).join("examples/embed_redis");
    assert!(program.exists(), "cargo test builds the examples, but not with --test: {}", program.display());
    let run = || shown(&Command::new(&program).arg(redis.url()).output().expect("it starts"));
    let shown = run() + &run();
    let expected = [(1, true, 2), (2, true, 1), (1, true, 0), (2, false, 0)];
    assert_eq!(shown.lines().count(), expected.len(), "{shown}");
    for (line, (number, passes, remaining)) in shown.lines().zip(expected) {
        let beginning = format!("request {number}: passes: {passes}, remaining: {remaining}, ");
        assert!(line.starts_with(&beginning), "{line} does not begin with {beginning}");
    }
}
