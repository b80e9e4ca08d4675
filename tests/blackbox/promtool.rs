//! Metrics as Prometheus's own tool reads them.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::harness::grpc::question;
use crate::harness::http;
use crate::harness::tidegate::{Setup, Tidegate};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    detailed_metric: true
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 2}
";

/// Names that dashboards of `envoyproxy/ratelimit` already use, and that its maintainers would choose otherwise today.
const OLD_NAMES: [&str; 11] = [
    "ratelimit_service_config_load_error",
    "ratelimit_service_config_load_success",
    "ratelimit_service_global_shadow_mode",
    "ratelimit_service_rate_limit_domain_not_found",
    "ratelimit_service_rate_limit_near_limit",
    "ratelimit_service_rate_limit_over_limit",
    "ratelimit_service_rate_limit_shadow_mode",
    "ratelimit_service_rate_limit_total_hits",
    "ratelimit_service_rate_limit_within_limit",
    "ratelimit_service_should_rate_limit_error",
    "ratelimit_service_total_requests",
];

/// What promtool says of a page, a line a complaint.
fn complaints(page: &str) -> Vec<String> {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("no promtool, tests/run installs one: {error}"));
    promtool.stdin.take().expect("piped above").write_all(page.as_bytes()).expect("it reads");
    let output = promtool.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    let mut lines: Vec<_> = String::from_utf8_lossy(&said).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn page(limiter: &Tidegate) -> String {
    let client = limiter.client();
    for user in ["alice", "alice", "alice", "b\"o\\b\n"] {
        client.ask(question("shop", &[&[("user", user)]]));
    }
    client.ask(question("nowhere", &[&[("user", "alice")]]));
    http::Client::new(limiter.ports().metrics).get("/metrics").body
}

#[test]
fn promtool_complains_of_nothing_but_the_names_that_dashboards_already_use() {
    let limiter = Setup::new().rules("shop.yaml", RULES).env("EXTRA_TAGS", "cluster:one").start();
    let expected = OLD_NAMES.map(|name| format!("{name} counter metrics should have \"_total\" suffix"));
    assert_eq!(complaints(&page(&limiter)), expected);
}

#[test]
fn promtool_finds_what_is_wrong() {
    assert!(!complaints("# TYPE a counter\na{b=\"c} 1\n").is_empty());
}
