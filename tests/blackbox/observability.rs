//! What is in `packaging/observability`: rules and a dashboard, held to Prometheus' own tools and to a real Prometheus
//! that scraped real limiters under load.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::grpc::{Client, question};
use crate::harness::http;
use crate::harness::pki::Authority;
use crate::harness::programs::{python, succeed};
use crate::harness::prometheus::Prometheus;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{StopOnDrop, eventually_true};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/observability")
}

fn rules() -> PathBuf {
    folder().join("tidegate.rules.yml")
}

/// The documents of a file of YAML, read by somebody else.
fn documents(path: &Path) -> Vec<Value> {
    let code = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let json = succeed(python().args(["-c", code]).arg(path));
    serde_json::from_str(&json).expect("JSON")
}

/// A file of YAML that is one document.
fn yaml(path: &Path) -> Value {
    documents(path).remove(0)
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

#[test]
fn promtool_accepts_the_rules_and_their_tests_pass() {
    let file = rules();
    succeed(Command::new("promtool").args(["check", "rules", "--lint-fatal"]).arg(&file));
    succeed(Command::new("promtool").args(["test", "rules"]).arg(file.with_extension("test.yml")));
}

#[test]
fn every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() {
    let (rules, tests) = (yaml(&rules()), yaml(&rules().with_extension("test.yml")));
    let groups = items(&rules["groups"]).iter().flat_map(|group| items(&group["rules"]));
    let alerts: BTreeSet<_> = groups.filter_map(|rule| rule["alert"].as_str()).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let cases = || items(&tests["tests"]).iter().flat_map(|test| items(&test["alert_rule_test"]));
    let tested = |fires: bool| -> BTreeSet<_> {
        let such = cases().filter(|case| items(&case["exp_alerts"]).is_empty() != fires);
        such.map(|case| text(&case["alertname"])).collect()
    };
    assert_eq!(tested(true), alerts, "fires");
    assert_eq!(tested(false), alerts, "does not fire");
}

#[test]
fn the_dashboard_is_what_its_script_writes() {
    succeed(Command::new("python3").arg(folder().join("dashboard.py")).arg("--check"));
}

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 20}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: busy, rate_limit: {unit: hour, requests_per_unit: 1000000}}
  - {key: exact, rate_limit: {unit: hour, requests_per_unit: 1000000, sync: strict}}
  - key: plan
    descriptors:
      - key: region
        descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]
  - key: login
    rate_limit: {unit: second, requests_per_unit: 1}
    ban: {after: 1 denials, within: 1m, every: 0s, for: 1h}
  - key: tokens
    rate_limit: {unit: hour, requests_per_unit: 1000000}
    reserve: {ttl: 10s, overdraft: 0.5, hold: {percentile: 99, of: rule, initial: 5, max: 8}}
";

/// With counters in memory that survive, TLS, and StatsD.
fn in_memory(authority: &Authority) -> Tidegate {
    let setup = Setup::new().rules("shop.yaml", RULES).keeping_counters();
    let identity = authority.issue("127.0.0.1").write(setup.outside());
    let settings = [
        ("STATE_INTERVAL", "1s".to_owned()),
        ("GRPC_SERVER_USE_TLS", "true".to_owned()),
        ("GRPC_SERVER_TLS_CERT", identity.chain.display().to_string()),
        ("GRPC_SERVER_TLS_KEY", identity.key.display().to_string()),
        ("EVENTS_LOG", "-".to_owned()),
        ("USE_PROMETHEUS", "true".to_owned()),
        ("USE_STATSD", "true".to_owned()),
        ("STATSD_PORT", "1".to_owned()),
    ];
    settings.iter().fold(setup, |setup, (name, value)| setup.env(name, value)).start()
}

/// With counters in Redis, leases, and a local cache.
fn in_redis(redis: &Redis) -> Tidegate {
    let setup = Setup::new().rules("shop.yaml", RULES).env("REDIS_URL", &redis.url());
    setup
        .env("REDIS_SYNC", "leased")
        .env("REDIS_TIMEOUT", "10s")
        .env("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")
        .start()
}

/// 2020-01-01, at which certificates that are expired ended, in unix time.
const ENDED: f64 = 1_577_836_800.0;

#[test]
fn what_the_alerts_read_is_so() {
    let (authority, setup) = (Authority::new("an authority"), Setup::new().rules("shop.yaml", RULES));
    let identity = authority.issue_expired("127.0.0.1").write(setup.outside());
    let limiter = setup
        .env("GRPC_SERVER_USE_TLS", "true")
        .env("GRPC_SERVER_TLS_CERT", &identity.chain.display().to_string())
        .env("GRPC_SERVER_TLS_KEY", &identity.key.display().to_string())
        .env("MAX_COUNTER_BYTES", "123456789")
        .start();
    let ends = || limiter.metric("tidegate_tls_certificate_not_after_timestamp_seconds");
    let is_taken = || limiter.metric("tidegate_config_last_reload_successful");
    assert_eq!((ends(), is_taken()), (ENDED, 1.0));
    assert_eq!(limiter.metric("tidegate_counters_bytes_max"), 123_456_789.0);
    authority.issue("127.0.0.1").write(limiter.setup.outside());
    eventually_true("the new certificate", || ends() > ENDED);
    limiter.setup.write("shop.yaml", "domain: shop\ndescriptors: 1\n");
    eventually_true("the rules to be refused", || is_taken() == 0.0);
    limiter.setup.write("shop.yaml", RULES);
    eventually_true("the rules to be taken", || is_taken() == 1.0);
}

/// Asks for everything that has a metric.
fn ask(client: &Client) {
    for user in ["alice", "bob"] {
        client.ask(question("shop", &[&[("user", user)], &[("busy", "x")]]));
        client.ask(question("shop", &[&[("trial", user)], &[("exact", "x")]]));
        client.ask(question("shop", &[&[("plan", "free"), ("region", "eu"), ("user", user)]]));
    }
    client.ask(question("shop", &[&[("login", "x")]]));
    client.ask(question("shop", &[&[("color", "red")]]));
    client.ask(question("nowhere", &[&[("user", "alice")]]));
}

/// Reserves the tokens of a call, and commits what it cost.
fn call(http: u16, id: &str) {
    let descriptors = json!([{"entries": [{"key": "tokens", "value": "x"}]}]);
    for verb in ["/reserve", "/commit"] {
        let body = json!({"domain": "shop", "id": id, "amount": 4, "descriptors": descriptors});
        let answer = http::Client::new(http).send("POST", verb, &[], &body.to_string()).expect("an answer");
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
}

/// Keeps asking until it has to stop.
fn ask_on(clients: &[Client], http: u16, stop: &AtomicBool) {
    for number in 0.. {
        if stop.load(Relaxed) {
            return;
        }
        clients.iter().for_each(ask);
        call(http, &number.to_string());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An expression of the dashboard, with what Grafana would put into it.
fn filled(expression: &str) -> String {
    expression.replace("$__rate_interval", "10s").replace("$domain", ".*").replace("$instance", ".*")
}

/// All expressions of the dashboard, with the titles of their panels.
fn dashboard() -> Vec<(String, String)> {
    let json = std::fs::read_to_string(folder().join("dashboard.json")).expect("the tree can be read");
    let dashboard: Value = serde_json::from_str(&json).expect("JSON");
    let of_panel = |panel: &Value| {
        let targets: Vec<_> = items(&panel["targets"]).iter().map(|target| text(&target["expr"])).collect();
        let title = text(&panel["title"]).to_owned();
        targets.into_iter().map(|target| (title.clone(), filled(target))).collect::<Vec<_>>()
    };
    let of_variable = |variable: &Value| {
        let call = variable["definition"].as_str()?.strip_prefix("label_values(")?.strip_suffix(')')?;
        let (metric, label) = call.split_once(", ")?;
        Some((format!("variable {label}"), format!("count by ({label}) ({metric}{{{label}!=\"\"}})")))
    };
    let variables = items(&dashboard["templating"]["list"]).iter().filter_map(of_variable);
    items(&dashboard["panels"]).iter().flat_map(of_panel).chain(variables).collect()
}

/// What an adapter asks for the autoscaler of `examples/kubernetes`, for each instance instead of each pod.
fn autoscaling() -> Vec<(String, String)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/kubernetes/autoscaling.yaml");
    let configured = documents(&file)
        .into_iter()
        .find_map(|object| Some(object["data"]["config.yaml"].as_str()?.to_owned()));
    let folder = tempfile::tempdir().expect("a folder can be made");
    let inner = folder.path().join("config.yaml");
    std::fs::write(&inner, configured.expect("a configuration of the adapter")).expect("the folder is ours");
    let query = |rule: &Value| {
        let series = text(&rule["seriesQuery"]).split('{').next().unwrap_or_default().to_owned();
        let query = text(&rule["metricsQuery"])
            .replace("<<.Series>>", &series)
            .replace("<<.LabelMatchers>>", "instance!=\"\"")
            .replace("<<.GroupBy>>", "instance");
        (format!("autoscaling by {series}"), query)
    };
    items(&yaml(&inner)["rules"]).iter().map(query).collect()
}

#[test]
fn no_query_of_the_dashboard_or_of_autoscalers_and_no_recorded_series_is_empty() {
    let (authority, redis) = (Authority::new("an authority"), Redis::start(&[]));
    let limiters = [in_memory(&authority), in_redis(&redis)];
    let prometheus = Prometheus::start(&limiters.each_ref().map(|node| node.ports().metrics), &rules());
    let clients = [Client::with_tls(limiters[0].ports().grpc, &authority), limiters[1].client()];
    let (stop, mut queries, signals) = (AtomicBool::new(false), dashboard(), autoscaling());
    assert!(queries.len() > 50 && signals.len() > 1, "{queries:?} {signals:?}");
    queries.extend(signals);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| ask_on(&clients, limiters[0].ports().http, &stop));
        for (title, expression) in &queries {
            let has_value = || prometheus.query(expression).iter().any(|value| value.is_finite());
            eventually_true(&format!("a value in {title:?}: {expression}"), has_value);
        }
        for rule in prometheus.rules() {
            eventually_true(&format!("health of {rule}"), || rule_is_well(&prometheus, &rule));
        }
    });
}

/// It was evaluated; one that records has recorded.
fn rule_is_well(prometheus: &Prometheus, rule: &Value) -> bool {
    let now = prometheus.rules();
    let now = now.iter().find(|now| now["name"] == rule["name"]).expect("it is still there");
    assert_ne!(now["health"], "err", "{now}");
    let records = now["type"] == "recording";
    let has_value = || prometheus.query(text(&now["name"])).iter().any(|value| value.is_finite());
    now["health"] == "ok" && (!records || has_value())
}
