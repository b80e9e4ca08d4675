//! What README.md shows is what happens.

use crate::harness::tidegate::Setup;
use crate::harness::{eventually, grpc, http};

const README: &str = include_str!("../../README.md");

/// The only fenced block of README.md that begins so.
fn block(beginning: &str) -> &'static str {
    let mut blocks =
        README.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').expect("a line").1);
    let found = blocks.find(|block| block.starts_with(beginning));
    found.unwrap_or_else(|| panic!("no block of README.md begins with {beginning:?}"))
}

#[test]
fn the_line_to_try_gets_the_answer_that_is_shown() {
    let limiter = Setup::new().directory(env!("CARGO_MANIFEST_DIR")).env("CONFIG_PATH", "").start();
    let question = block("curl -s localhost:8080/json").split('\'').nth(1).expect("a body in quotes");
    let mut client = http::Client::new(limiter.ports().http);
    let mut ask = || client.send("POST", "/json", &[], question).expect("an answer");
    let but_time = |body: &str| body.split("\"durationUntilReset\"").next().map(str::to_owned);
    assert_eq!(but_time(&ask().body), but_time(block("{\"overallCode\"")));
    let denied = (2..).find(|_| ask().status == 429);
    assert_eq!(denied, Some(101), "README.md names the first that is denied");
}

#[test]
fn the_rule_file_does_what_is_said_of_it() {
    let limiter = Setup::new().rules("shop.yaml", block("domain: shop")).start();
    let client = limiter.client();
    let limit = |entries| {
        let status = client.ask(grpc::question("shop", &[entries])).statuses.remove(0);
        status.current_limit.map(|limit| (limit.requests_per_unit, limit.unit))
    };
    let (minute, hour) = (2, 3);
    assert_eq!(limit(&[("remote_address", "10.1.2.3")]), Some((100, minute)));
    assert_eq!(limit(&[("plan", "free-trial"), ("user", "alice")]), Some((1000, hour)));
    assert_eq!(limit(&[("plan", "free-trial")]), None);
    assert_eq!(limiter.metric("tidegate_rules_warnings"), 0.0);
}

#[test]
fn the_error_that_is_shown_is_what_a_typo_gets() {
    let typo = block("domain: shop").replacen("unit: minute ", "unit: minutes ", 1);
    let setup = Setup::new().rules("shop.yaml", &typo);
    let mut process = setup.spawn();
    eventually("the start to be refused", || process.ended());
    let shown = block("config/shop.yaml:").trim_end().strip_prefix("config/").expect("it begins so");
    let first = shown.lines().next().expect("three lines");
    assert_eq!(process.lines_with(first), 1, "{first}\n{:#?}", process.output());
    let checked = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("check")
        .arg(setup.folder())
        .output()
        .expect("it starts");
    let told = String::from_utf8(checked.stdout).expect("UTF-8");
    assert!(told.contains(shown), "{shown}\n{told}");
}

#[test]
fn what_is_asked_gets_the_explanation_that_is_shown() {
    let limiter = Setup::new().directory(env!("CARGO_MANIFEST_DIR")).env("CONFIG_PATH", "").start();
    let client = limiter.client();
    (0..100).for_each(|_| drop(client.ask(grpc::question("shop", &[&[("user", "alice")]]))));
    let words = block("tidegate ask ").split_whitespace().skip(1);
    let asked = std::process::Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(words)
        .args(["--debug-host=127.0.0.1", &format!("--debug-port={}", limiter.ports().debug)])
        .output()
        .expect("it starts");
    let told = String::from_utf8(asked.stdout).expect("UTF-8");
    let but_time = |text: &str| {
        text.lines().map(|line| line.split(" in ").next().map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(but_time(&told), but_time(block("shop: 1 hit")));
}
