//! Spans as a collector gets them: one that is written in Python, over both protocols.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::grpc::question;
use crate::harness::lateness::Lateness;
use crate::harness::pki::{self, Authority};
use crate::harness::process::Process;
use crate::harness::programs::{installed, python, succeed};
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually, eventually_true, free_port, http};

const RULES: &str = "
domain: shop
descriptors:
  - key: plan
    value: free
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 1}
";

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector, and where it listens.
struct Collector {
    process: Process,
    port: u16,
}

impl Collector {
    fn start(protocol: &str) -> Self {
        Self::start_at(protocol, free_port())
    }

    fn start_at(protocol: &str, port: u16) -> Self {
        Self::start_with(protocol, port, &[])
    }

    /// With these files: its certificate, its key, its clients' authority.
    fn start_with(protocol: &str, port: u16, files: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blackbox/harness/otlp_receiver.py");
        let mut command = python();
        command.args([script, protocol, &port.to_string()]).args(files);
        let mut process = Process::spawn(&mut command);
        eventually_true("the collector to be ready", || {
            assert!(process.ended().is_none(), "{}", process.output().join("\n"));
            process.lines_with("ready") > 0
        });
        Self { process, port }
    }

    fn spans(&self) -> Vec<Value> {
        let lines = self.process.output();
        let spans = lines.iter().filter_map(|line| line.strip_prefix("span "));
        spans.map(|span| serde_json::from_str(span).expect("JSON")).collect()
    }

    /// Waits for so many spans.
    fn wait_for(&self, count: usize) -> Vec<Value> {
        let spans = eventually("all spans", || Some(self.spans()).filter(|spans| spans.len() >= count));
        assert_eq!(spans.len(), count);
        spans
    }
}

fn traced(protocol: &str, port: u16) -> Setup {
    Setup::new()
        .rules("shop.yaml", RULES)
        .env("TRACING_ENABLED", "true")
        .env("TRACING_EXPORTER_PROTOCOL", protocol)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{port}"))
        .env("OTEL_BSP_SCHEDULE_DELAY", "50")
}

fn ask_json(limiter: &Tidegate, headers: &[(&str, &str)], user: &str) -> u16 {
    let entries = format!(r#"[{{"key":"plan","value":"free"}},{{"key":"user","value":"{user}"}}]"#);
    let body = format!(
        r#"{{"domain":"shop","descriptors":[{{"entries":{entries}}},{{"entries":[{{"key":"x"}}]}}]}}"#
    );
    let answer = http::Client::new(limiter.ports().http).send("POST", "/json", headers, &body);
    answer.expect("an answer").status
}

#[test]
fn a_call_is_a_span_with_what_was_decided_over_both_protocols() {
    for protocol in ["http", "grpc"] {
        let collector = Collector::start(protocol);
        let limiter = traced(protocol, collector.port)
            .env("TRACING_SERVICE_NAME", "edge-limits")
            .env("TRACING_SERVICE_NAMESPACE", "edge")
            .env("TRACING_SERVICE_INSTANCE_ID", "one")
            .env("OTEL_RESOURCE_ATTRIBUTES", "team=a%20b,service.name=never")
            .env("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret")
            .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
            .start();
        let client = limiter.client();
        let ask = || client.call(question("shop", &[&[("plan", "free"), ("user", "alice")]]));
        assert!(ask().is_ok() && ask().is_ok() && client.call(question("", &[])).is_err());

        let spans = collector.wait_for(3);
        let attribute = |index: usize, name: &str| spans[index]["attributes"][name].clone();
        let name = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        for span in &spans {
            // A server's, of which nobody is the parent, and which took a moment.
            assert_eq!((span["name"].as_str(), span["kind"].as_u64()), (Some(name), Some(2)));
            assert_eq!(span["parent"], "");
            assert!(
                span["nanos"].as_u64().is_some_and(|nanos| nanos > 0 && nanos < 10_000_000_000),
                "{span}"
            );
            let resource = serde_json::json!({
                "service.name": "edge-limits", "service.namespace": "edge", "service.instance.id": "one", "team": "a b",
            });
            assert_eq!(span["resource"], resource);
            assert_eq!(span["headers"]["x-token"], "secret", "{span}");
        }
        assert_eq!(attribute(0, "ratelimit.domain"), "shop");
        assert_eq!(attribute(0, "ratelimit.code"), "OK");
        assert_eq!(attribute(0, "ratelimit.rules"), serde_json::json!(["plan_free.user"]));
        assert_eq!(attribute(0, "ratelimit.rules_over_limit"), Value::Null);
        assert_eq!(attribute(1, "ratelimit.code"), "OVER_LIMIT");
        assert_eq!(attribute(1, "ratelimit.rules_over_limit"), serde_json::json!(["plan_free.user"]));
        assert_eq!((attribute(1, "rpc.grpc.status_code"), spans[1]["status"].clone()), (0.into(), 0.into()));
        assert_eq!((attribute(2, "rpc.grpc.status_code"), spans[2]["status"].clone()), (3.into(), 2.into()));
        assert_eq!(spans[2]["why"], "rate limit domain must not be empty");
    }
}

#[test]
fn a_login_in_the_address_of_a_collector_is_not_logged() {
    for protocol in ["http", "grpc"] {
        let traced = |place: &str| {
            let endpoint = format!("http://u:hunter2@{place}");
            traced(protocol, 1).env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)
        };
        let limiter = traced(&format!("127.0.0.1:{}", free_port())).start();
        assert_eq!(ask_json(&limiter, &[], "alice"), 200);
        eventually_true("a warning", || limiter.lines_with("spans were not taken") > 0);
        assert_eq!(limiter.lines_with("hunter2"), 0, "{:#?}", limiter.output());
        let mut process = traced("no host").spawn();
        assert_eq!(process.exit_code(), 1);
        assert_eq!(process.lines_with("tracing: "), 2, "{:#?}", process.output());
        assert_eq!(process.lines_with("hunter2"), 0, "{:#?}", process.output());
    }
}

#[test]
fn a_span_names_the_rules_that_decided_though_others_came_before_the_answer() {
    let (collector, redis) = (Collector::start("http"), Redis::start(&[]));
    let limiter =
        traced("http", collector.port).env("REDIS_URL", &redis.url()).env("REDIS_TIMEOUT", "20s").start();
    let client = limiter.client();
    let asked = question("shop", &[&[("plan", "free"), ("user", "alice")]]);
    client.ask(asked.clone());
    collector.wait_for(1);
    redis.stop();
    let call = client.begin(tokio_stream::once(asked));
    eventually_true("the call to wait", || limiter.metric("tidegate_redis_in_flight") > 0.0);
    limiter.setup.write("shop.yaml", &RULES.replace("    value: free\n", ""));
    eventually_true("the other rules", || limiter.metric("ratelimit_service_config_load_success") == 2.0);
    redis.wake();
    client.finish(call).expect("an answer");
    let spans = collector.wait_for(2);
    assert_eq!(spans[1]["attributes"]["ratelimit.rules"], serde_json::json!(["plan_free.user"]));
    assert_eq!(spans[1]["attributes"]["ratelimit.rules_over_limit"], serde_json::json!(["plan_free.user"]));
}

#[test]
fn a_caller_that_traces_is_followed_in_w3c_and_b3_and_nobody_else_when_none_is_sampled() {
    let collector = Collector::start("http");
    let limiter = traced("http", collector.port).env("TRACING_SAMPLING_RATE", "0").start();
    let w3c = |sampled: &str| format!("00-{TRACE}-{PARENT}-0{sampled}");
    let b3 = |sampled: &str| format!("{TRACE}-{PARENT}-{sampled}");
    // None of these is sampled.
    ask_json(&limiter, &[], "a");
    ask_json(&limiter, &[("traceparent", &w3c("0"))], "b");
    ask_json(&limiter, &[("b3", &b3("0"))], "c");
    // All of these are.
    ask_json(&limiter, &[("traceparent", &w3c("1"))], "d");
    ask_json(&limiter, &[("b3", &b3("1"))], "d");
    let several = [("X-B3-TraceId", TRACE), ("X-B3-SpanId", PARENT), ("X-B3-Sampled", "1")];
    ask_json(&limiter, &several, "e");
    let mut client = http::Client::new(limiter.ports().http);
    let check = client.send("GET", "/check/shop?plan=free&user=e", &[("traceparent", &w3c("1"))], "");
    assert_eq!(check.expect("an answer").status, 429);
    let spans = collector.wait_for(4);
    for span in &spans {
        assert_eq!((span["trace"].as_str(), span["parent"].as_str()), (Some(TRACE), Some(PARENT)), "{span}");
        assert_eq!(span["attributes"]["ratelimit.domain"], "shop");
    }
    let names: Vec<_> = spans.iter().map(|span| span["name"].clone()).collect();
    assert_eq!(names, ["/json", "/json", "/json", "/check"]);
    let codes: Vec<_> = spans.iter().map(|span| span["attributes"]["ratelimit.code"].clone()).collect();
    assert_eq!(codes, ["OK", "OVER_LIMIT", "OK", "OVER_LIMIT"]);
}

/// By grpcurl, which is grpc-go: `name: value` of each header.
fn ask_grpc(limiter: &Tidegate, headers: &[String], user: &str) {
    let entries = format!(r#"[{{"key":"plan","value":"free"}},{{"key":"user","value":"{user}"}}]"#);
    let request = format!(r#"{{"domain":"shop","descriptors":[{{"entries":{entries}}}]}}"#);
    let mut grpcurl = installed("grpcurl");
    grpcurl.args(["-plaintext", "-d", &request]);
    for header in headers {
        grpcurl.args(["-rpc-header", header]);
    }
    succeed(grpcurl.args([
        &format!("127.0.0.1:{}", limiter.ports().grpc),
        "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    ]));
}

#[test]
fn a_grpc_caller_that_traces_is_followed_in_w3c_and_b3() {
    let collector = Collector::start("http");
    let limiter = traced("http", collector.port).env("TRACING_SAMPLING_RATE", "0").start();
    let w3c = |sampled: &str| format!("traceparent: 00-{TRACE}-{PARENT}-0{sampled}");
    // None of these is sampled.
    ask_grpc(&limiter, &[], "a");
    ask_grpc(&limiter, &[w3c("0")], "b");
    ask_grpc(&limiter, &[format!("b3: {TRACE}-{PARENT}-0")], "c");
    // All of these are.
    ask_grpc(&limiter, &[w3c("1"), "tracestate: vendor=1".to_owned()], "d");
    ask_grpc(&limiter, &[format!("b3: {TRACE}-{PARENT}-1")], "d");
    let several = [("traceid", TRACE), ("spanid", PARENT), ("sampled", "1")];
    ask_grpc(&limiter, &several.map(|(name, value)| format!("x-b3-{name}: {value}")), "e");
    let spans = collector.wait_for(3);
    for span in &spans {
        assert_eq!((span["trace"].as_str(), span["parent"].as_str()), (Some(TRACE), Some(PARENT)), "{span}");
        assert_eq!(span["attributes"]["ratelimit.domain"], "shop");
    }
    let each = |field: &str| spans.iter().map(|span| span[field].clone()).collect::<Vec<_>>();
    assert_eq!(each("state"), ["vendor=1", "", ""]);
    let codes: Vec<_> = spans.iter().map(|span| span["attributes"]["ratelimit.code"].clone()).collect();
    assert_eq!(codes, ["OK", "OVER_LIMIT", "OK"]);
}

#[test]
fn the_last_spans_are_sent_at_the_end() {
    let collector = Collector::start("grpc");
    let mut limiter = traced("grpc", collector.port).env("OTEL_BSP_SCHEDULE_DELAY", "600000").start();
    ask_json(&limiter, &[], "a");
    limiter.signal(rustix::process::Signal::TERM);
    assert_eq!(limiter.exit_code(), 0);
    collector.wait_for(1);
}

#[test]
fn a_collector_that_stalls_or_dies_slows_no_decision_and_takes_no_memory() {
    for protocol in ["http", "grpc"] {
        // It accepts (by its backlog) and never reads.
        let deaf = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = deaf.local_addr().expect("bound").port();
        let limiter = traced(protocol, port)
            .env("OTEL_EXPORTER_OTLP_TIMEOUT", "500")
            .env("OTEL_BSP_MAX_QUEUE_SIZE", "100")
            .start();
        let client = limiter.client();
        let (mut slowest, watched) = (Duration::ZERO, Lateness::watch());
        let mut ask = |count: usize| {
            for _ in 0..count {
                let began = Instant::now();
                client.ask(question("shop", &[&[("plan", "free"), ("user", "alice")]]));
                slowest = slowest.max(began.elapsed());
            }
        };
        // More than the queue holds.
        ask(500);
        let memory = limiter.memory_peak_bytes();
        ask(1_000);
        eventually_true("the limiter to notice", || limiter.lines_with("spans were not taken") > 0);
        let late = watched.allowance();
        assert!(slowest < Duration::from_secs(2) + late, "{slowest:?}, the machine is {late:?} late");
        let grown = limiter.memory_peak_bytes().saturating_sub(memory);
        assert!(grown < 8 << 20, "{grown} bytes");
        drop(deaf);
        let collector = Collector::start_at(protocol, port);
        let mut asked = 1_500;
        eventually_true("spans to come again", || {
            client.ask(question("shop", &[&[("plan", "free"), ("user", "alice")]]));
            asked += 1;
            !collector.spans().is_empty()
        });
        let spans = |outcome| limiter.scrape().sum("tidegate_spans_total", &[("outcome", outcome)]);
        eventually_true("every span to be accounted for", || {
            let [sent, refused, dropped] = ["sent", "refused", "dropped"].map(spans);
            refused > 0.0
                && dropped > 0.0
                && sent == collector.spans().len() as f64
                && sent + refused + dropped == f64::from(asked)
        });
    }
}

#[test]
fn a_collector_may_want_certificates() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let authority = Authority::new("an authority");
    let identity = authority.issue("127.0.0.1").write(folder.path());
    let ca = pki::write(folder.path(), "ca.crt", &authority.pem());
    let [ca, crt, key] = [ca, identity.chain, identity.key].map(|path| path.display().to_string());
    for protocol in ["http", "grpc"] {
        let collector = Collector::start_with(protocol, free_port(), &[&crt, &key, &ca]);
        // Without a scheme, and not insecure: TLS.
        let endpoint = format!("127.0.0.1:{}", collector.port);
        let setup = || {
            let setup = traced(protocol, 1).env("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint);
            // Exports are tried again until then.
            setup.env("OTEL_EXPORTER_OTLP_TIMEOUT", "1000")
        };
        let stranger = setup().env("OTEL_EXPORTER_OTLP_CERTIFICATE", &ca).start();
        ask_json(&stranger, &[], "a");
        eventually_true("a refusal", || stranger.lines_with("spans were not taken") > 0);
        let distrusting = setup()
            .env("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", &crt)
            .env("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", &key)
            .start();
        ask_json(&distrusting, &[], "a");
        eventually_true("a refusal", || distrusting.lines_with("spans were not taken") > 0);
        assert_eq!(collector.spans().len(), 0);
        let known = setup()
            .env("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", &ca)
            .env("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &crt)
            .env("OTEL_EXPORTER_OTLP_CLIENT_KEY", &key)
            .start();
        ask_json(&known, &[], "a");
        collector.wait_for(1);
    }
}

#[test]
fn what_is_said_of_traces_wins_over_what_is_said_of_all() {
    let collector = Collector::start("http");
    let limiter = traced("http", 1)
        .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &format!("127.0.0.1:{}/v1/traces", collector.port))
        .env("OTEL_EXPORTER_OTLP_INSECURE", "false")
        .env("OTEL_EXPORTER_OTLP_TRACES_INSECURE", "true")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-token=all")
        .env("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-token=traces")
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .env("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "none")
        .start();
    ask_json(&limiter, &[], "a");
    let spans = collector.wait_for(1);
    assert_eq!(spans[0]["headers"]["x-token"], "traces");
    assert_eq!(spans[0]["headers"]["content-encoding"], Value::Null);
}

#[test]
fn an_export_takes_no_longer_than_the_shortest_of_its_bounds() {
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = deaf.local_addr().expect("bound").port();
    let far = "600000";
    for (bound, others) in [
        ("OTEL_BSP_EXPORT_TIMEOUT", ["OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT"]),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", ["OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_BSP_EXPORT_TIMEOUT"]),
    ] {
        let setup = others.iter().fold(traced("http", port), |setup, other| setup.env(other, far));
        let limiter = setup.env(bound, "300").start();
        ask_json(&limiter, &[], "a");
        eventually_true(bound, || limiter.lines_with("spans were not taken") > 0);
    }
}

#[test]
fn an_export_holds_as_many_spans_as_were_set_under_the_name_that_was_set() {
    let collector = Collector::start("http");
    let limiter = traced("http", collector.port)
        .env("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
        .env("OTEL_BSP_SCHEDULE_DELAY", "2000")
        .env("TRACING_SERVICE_NAME", "")
        .env("OTEL_SERVICE_NAME", "all-services")
        .start();
    for _ in 0..6 {
        ask_json(&limiter, &[], "a");
    }
    for span in collector.wait_for(6) {
        assert!(span["batch"].as_u64().is_some_and(|batch| batch <= 2), "{span}");
        assert_eq!(span["resource"]["service.name"], "all-services");
    }
}
