//! Metrics as Prometheus's own tool reads them.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::harness::grpc::{Client, question};
use crate::harness::http;
use crate::harness::pki::Authority;
use crate::harness::redis::Redis;
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

fn page(limiter: &Tidegate, client: &Client) -> String {
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
    assert_eq!(complaints(&page(&limiter, &limiter.client())), expected);
}

/// With everything that has metrics of its own, and the authority of its certificate.
fn everything(redis: &[Redis; 2]) -> (Setup, Authority) {
    let (setup, authority) =
        (Setup::new().rules("shop.yaml", &(RULES.to_owned() + DEEP)), Authority::new("an authority"));
    let identity = authority.issue("127.0.0.1").write(setup.outside());
    let settings = [
        ("REDIS_URL", redis[0].url()),
        ("REDIS_PERSECOND", "true".to_owned()),
        ("REDIS_PERSECOND_URL", redis[1].url()),
        ("REDIS_TIMEOUT", "10s".to_owned()),
        ("GRPC_SERVER_USE_TLS", "true".to_owned()),
        ("GRPC_SERVER_TLS_CERT", identity.chain.display().to_string()),
        ("GRPC_SERVER_TLS_KEY", identity.key.display().to_string()),
        ("USE_PROMETHEUS", "true".to_owned()),
        ("USE_STATSD", "true".to_owned()),
        ("STATSD_PORT", "1".to_owned()),
    ];
    (settings.iter().fold(setup, |setup, (name, value)| setup.env(name, value)), authority)
}

/// Deep enough for every label of a limit.
const DEEP: &str = "    descriptors:
      - key: a
        descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 9}}]
";

/// The names of the labels of a sample.
fn labels(line: &str) -> Vec<&str> {
    let names = line.split("=\"").map(|before| before.rsplit(['{', ',']).next().unwrap_or_default());
    let mut names: Vec<_> = names.collect();
    names.pop();
    names
}

/// The page of a limiter with all of it and these tags that was asked for everything.
fn page_of_everything(redis: &[Redis; 2], tags: &str) -> String {
    let (setup, authority) = everything(redis);
    let limiter = setup.env("EXTRA_TAGS", tags).start();
    let client = Client::with_tls(limiter.ports().grpc, &authority);
    client.ask(question("shop", &[&[("user", "alice"), ("a", "a"), ("b", "b")]]));
    page(&limiter, &client)
}

#[test]
fn no_extra_tag_doubles_a_label_whatever_its_name() {
    let redis = Redis::and_valkey();
    let first = page_of_everything(&redis, "");
    let samples = first.lines().filter(|line| !line.starts_with('#'));
    let own: BTreeSet<&str> = samples.flat_map(labels).collect();
    for name in ["answer", "by", "code", "domain", "key2", "kind", "le", "port", "rule", "store"] {
        assert!(own.contains(name), "no {name} in {own:?}");
    }
    let tags: Vec<String> = own.iter().map(|name| format!("{name}:eu")).collect();
    let page = page_of_everything(&redis, &tags.join(","));
    assert_eq!(complaints(&page), complaints(&first), "of names only, which tags do not change");
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let names = labels(line);
        let different: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), different.len(), "{line}");
        for name in &own {
            assert!(line.contains(&format!("exported_{name}=\"eu\"")), "no {name} in {line}");
        }
    }
}

#[test]
fn promtool_finds_what_is_wrong() {
    assert!(!complaints("# TYPE a counter\na{b=\"c} 1\n").is_empty());
}
