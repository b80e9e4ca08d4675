//! PROMETHEUS_MAPPER_YAML against the program that its files are written for: a real `statsd_exporter`, which gets the
//! same names over StatsD and the same file, has to show the same series.

use std::collections::BTreeMap;
use std::fs;

use crate::harness::grpc::question;
use crate::harness::statsd_exporter::StatsdExporter;
use crate::harness::tidegate::Setup;
use crate::harness::{eventually_true, http};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 4}
  - key: plan
    value: free
    descriptors:
      - key: path
        rate_limit: {unit: day, requests_per_unit: 2}
        descriptors:
          - key: method
            shadow_mode: true
            rate_limit: {unit: day, requests_per_unit: 1}
";

/// What Envoy Gateway does: names for what it shows, by the parts of a path, and everything else is dropped.
pub const LIKE_ENVOY_GATEWAY: &str = r#"
mappings:
  - match: "ratelimit.service.rate_limit.*.*.near_limit"
    name: "ratelimit_service_rate_limit_near_limit"
    observer_type: "histogram"
    labels: {domain: "$1", key1: "$2"}
  - match: "ratelimit.service.rate_limit.*.*.over_limit"
    name: "ratelimit_service_rate_limit_over_limit"
    observer_type: "histogram"
    labels: {domain: "$1", key1: "$2"}
  - match: "ratelimit.service.rate_limit.*.*.total_hits"
    name: "ratelimit_service_rate_limit_total_hits"
    observer_type: "histogram"
    labels: {domain: "$1", key1: "$2"}
  - match: "ratelimit.service.rate_limit.*.*.*.total_hits"
    name: "ratelimit_service_rate_limit_total_hits"
    observer_type: "histogram"
    labels: {domain: "$1", key1: "$2", key2: "$3"}
  - match: "ratelimit_server.*.total_requests"
    name: "ratelimit_service_total_requests"
    match_metric_type: counter
    labels: {grpc_method: "$1"}
  - match: "ratelimit_server.*.response_time"
    name: "ratelimit_service_response_time_seconds"
    observer_type: "histogram"
    labels: {grpc_method: "$1"}
  - match: "ratelimit.service.config_load_success"
    name: "ratelimit_service_config_load_success"
    match_metric_type: counter
  - match: "."
    match_type: "regex"
    action: "drop"
    name: "dropped"
"#;

/// Every key that has an effect, ambiguous globs, captures in every form, counters that come to the same series.
const EVERYTHING: &str = r#"
mappings:
  - match: "ratelimit.service.rate_limit.*.*.within_limit"
    name: "within_$1"
    labels: {both: "${1}/$2", gone: "$9", whole: "$0", glued: "$1_x", plain: "text"}
    help: "What passed."
    scale: 0.5
  - match: "ratelimit.service.rate_limit.shop.*.within_limit"
    name: "never_because_it_comes_second"
  - match: "ratelimit.service.rate_limit.*.*.*.*.total_hits"
    name: "hits_of_three_levels"
    match_metric_type: observer
  - match: "ratelimit.service.rate_limit.*.*.*.total_hits"
    name: "hits_together"
    labels: {domain: "$1"}
  - match: "ratelimit.service.rate_limit.*.*.total_hits"
    name: "hits_together"
    labels: {domain: "$1"}
  - match: "ratelimit_server.*.response_time"
    match_metric_type: observer
    observer_type: histogram
    histogram_options: {buckets: [0.01, 60]}
    name: "took"
    labels: {method: "$1"}
  - match: 'limit\.(?P<first>\w+)\.(.*)\.over_limit$'
    match_type: regex
    name: "over_$1"
    labels: {rest: "$2", first: "$first", glued: "$1x"}
  - match: 'domain_not_found'
    match_type: regex
    action: drop
    name: "dropped"
"#;

/// The samples of a page by their series, each with its labels in order; what the programs say of themselves is not.
fn series(page: &str) -> BTreeMap<String, f64> {
    let ours = ["go_", "process_", "promhttp_", "statsd_", "tidegate_"];
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line}"));
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let mut labels: Vec<_> =
            labels.trim_end_matches('}').split("\",").map(|l| l.trim_end_matches('"')).collect();
        labels.sort_unstable();
        (format!("{name}{labels:?}"), value.parse().unwrap_or_else(|_| panic!("no number in {line}")))
    };
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    lines.filter(|line| !ours.iter().any(|own| line.starts_with(own))).map(sample).collect()
}

/// The types of the families of a page that are not about the programs themselves.
fn types(page: &str) -> BTreeMap<&str, &str> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let ours = ["go_", "process_", "promhttp_", "statsd_", "tidegate_"];
    types.filter(|(name, _)| !ours.iter().any(|own| name.starts_with(own))).collect()
}

/// Asks what moves every counter, and compares the pages of both.
fn assert_same_series(mapping: &str, durations: &str) {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("mapping.yaml");
    fs::write(&file, mapping).expect("the folder is ours");
    let exporter = StatsdExporter::start(Some(&file));
    let limiter = Setup::new()
        .rules("shop.yaml", RULES)
        .env("PROMETHEUS_MAPPER_YAML", &file.display().to_string())
        .env("USE_STATSD", "true")
        .env("STATSD_HOST", "127.0.0.1")
        .env("STATSD_PORT", &exporter.port.to_string())
        .env("STATS_FLUSH_INTERVAL", "100ms")
        .start();
    let client = limiter.client();
    let path: &[(&str, &str)] = &[("plan", "free"), ("path", "/a")];
    let method: &[(&str, &str)] = &[("plan", "free"), ("path", "/a"), ("method", "GET")];
    for user in ["alice", "10.1.2.3", "a:b|c", "alice"] {
        for _ in 0..3 {
            client.ask(question("shop", &[&[("user", user)], path, method]));
        }
    }
    client.ask(question("nowhere", &[&[("user", "alice")]]));
    let page = || http::Client::new(limiter.ports().metrics).get("/metrics").body;
    // Durations are milliseconds here and seconds there before they are scaled, so their values differ.
    let shown = |page: &str| {
        let mut series = series(page);
        series.iter_mut().filter(|(name, _)| name.starts_with(durations)).for_each(|(_, value)| *value = 0.0);
        series
    };
    let count = |page: &str| {
        let counts =
            series(page).into_iter().filter(|(name, _)| name.starts_with(&format!("{durations}_count")));
        counts.collect::<Vec<_>>()
    };
    eventually_true("both to show the same", || {
        let (ours, theirs) = (page(), exporter.page());
        shown(&ours) == shown(&theirs) && count(&ours) == count(&theirs)
    });
    let (ours, theirs) = (page(), exporter.page());
    assert_eq!(types(&ours), types(&theirs));
    assert!(shown(&ours).len() > 5, "{ours}");
    assert_eq!(count(&ours)[0].1, 13.0);
}

#[test]
fn a_mapping_with_a_drop_for_the_rest_gives_what_statsd_exporter_gives() {
    assert_same_series(LIKE_ENVOY_GATEWAY, "ratelimit_service_response_time_seconds");
}

#[test]
fn every_key_of_a_mapping_does_what_it_does_in_statsd_exporter() {
    assert_same_series(EVERYTHING, "took");
}

#[test]
fn without_rules_names_are_those_of_statsd_exporter_too() {
    // A summary there has quantiles, of which nothing is known here.
    let histogram = "mappings: [{match: '*.*.response_time', name: took, observer_type: histogram}]";
    assert_same_series(histogram, "took");
}

#[test]
fn durations_are_milliseconds_before_they_are_scaled() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("mapping.yaml");
    let took = |scale: &str| {
        let rule = format!(
            "{{match: ratelimit_server.*.response_time, name: took, timer_type: histogram, buckets: [60], {scale}}}"
        );
        fs::write(&file, format!("mappings: [{rule}]")).expect("the folder is ours");
        let setup = Setup::new().rules("shop.yaml", RULES);
        let limiter = setup.env("PROMETHEUS_MAPPER_YAML", &file.display().to_string()).start();
        limiter.client().ask(question("shop", &[&[("user", "alice")]]));
        (limiter.metric("took_sum"), limiter.metric("took_bucket"))
    };
    let ((millis, _), (nanos, within)) = (took("scale: 1"), took("scale: 1000000"));
    assert!(millis > 0.0 && millis < 10_000.0, "{millis}");
    assert!(nanos > 1_000.0 && nanos.fract() == 0.0, "{nanos}");
    // Only in +Inf: a call takes more than 60 ns.
    assert_eq!(within, 1.0);
}

#[test]
fn milliseconds_may_be_sent_under_the_built_in_name() {
    let setup =
        Setup::new().rules("shop.yaml", RULES).env("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "true");
    let limiter = setup.start();
    limiter.client().ask(question("shop", &[&[("user", "alice")]]));
    let sum = limiter.scrape().sum("ratelimit_service_response_time_seconds_sum", &[]);
    let decision = limiter.metric("tidegate_decision_seconds_sum");
    assert!(sum > decision * 1_000.0, "{sum} ms are more than {decision} s of them");
    let le = limiter.scrape();
    assert_eq!(
        le.sum("ratelimit_service_response_time_seconds_count", &[("grpc_method", "ShouldRateLimit")]),
        1.0
    );
}

#[test]
fn a_mapping_that_is_bad_ends_the_start_and_one_that_cannot_be_read_is_warned_of() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("mapping.yaml");
    let setup = |path: &str| Setup::new().rules("shop.yaml", RULES).env("PROMETHEUS_MAPPER_YAML", path);
    fs::write(&file, "mappings:\n- match: a.*\n  name: b\n  ttl: 5s\n").expect("the folder is ours");
    let mut process = setup(&file.display().to_string()).spawn();
    assert_eq!(process.exit_code(), 1);
    assert_eq!(process.lines_with("mapping.yaml:4:3: `ttl` is not supported"), 1, "{:?}", process.output());

    let limiter = setup("/nowhere/mapping.yaml").start();
    let warning = "PROMETHEUS_MAPPER_YAML: cannot read /nowhere/mapping.yaml";
    eventually_true("the warning", || limiter.lines_with(warning) == 1);
    assert_eq!(limiter.metric("ratelimit_service_config_load_success"), 1.0);
    let troubles = crate::status_page::troubles(&limiter);
    assert!(troubles.contains(&format!("Metrics have their built-in names. {warning}")), "{troubles}");
}

#[test]
fn extra_tags_are_labels_of_every_sample() {
    let setup = Setup::new().rules("shop.yaml", RULES).env("EXTRA_TAGS", "cluster:one,domain:x");
    let limiter = setup.start();
    limiter.client().ask(question("shop", &[&[("user", "alice")]]));
    let page = http::Client::new(limiter.ports().metrics).get("/metrics").body;
    let samples: Vec<_> = page.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(samples.len() > 50, "{page}");
    for line in samples {
        assert!(line.contains("cluster=\"one\"") && line.contains("exported_domain=\"x\""), "{line}");
    }
}
