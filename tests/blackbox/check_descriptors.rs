//! The same `rate_limits` in a real Envoy's route and in a rule file: the same descriptors.
//!
//! A server of the test's own takes the descriptors that Envoy sends. What `/check` made of the same request comes from
//! the counters: every descriptor that there can be has one, and each must hold exactly what Envoy's say.

use std::collections::HashMap;
use std::fs;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;

use crate::harness::envoy::binary;
use crate::harness::grpc::{RateLimitRequest, RateLimitResponse, ask_only};
use crate::harness::http::Client;
use crate::harness::process::Process;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, free_port};

/// Lists of actions, each of which makes one descriptor. Entries of requests have the key `k`.
pub const ACTIONS: &[&str] = &[
    "{remote_address: {}}",
    "{masked_remote_address: {v4_prefix_mask_len: 16}}",
    "{masked_remote_address: {}}",
    "{request_headers: {header_name: x-a, descriptor_key: k}}",
    "{request_headers: {header_name: X-A, descriptor_key: k}}, {generic_key: {descriptor_value: after}}",
    "{request_headers: {header_name: x-a, descriptor_key: k, skip_if_absent: true}}, {generic_key: {descriptor_value: v}}",
    "{request_headers: {header_name: x-a, descriptor_key: k, skip_if_absent: true}}",
    "{request_headers: {header_name: ':path', descriptor_key: k}}",
    "{request_headers: {header_name: ':method', descriptor_key: k}}, {request_headers: {header_name: ':authority', descriptor_key: k}}",
    "{request_headers: {header_name: host, descriptor_key: k}}",
    "{query_parameters: {query_parameter_name: q, descriptor_key: k}}",
    "{query_parameters: {query_parameter_name: q, descriptor_key: k, skip_if_absent: true}}, {generic_key: {descriptor_key: k, descriptor_value: q}}",
    "{query_parameters: {query_parameter_name: 'a b', descriptor_key: k}}",
    "{header_value_match: {descriptor_value: present, headers: [{name: x-a}]}}",
    "{header_value_match: {descriptor_value: present, headers: [{name: x-a, present_match: true}]}}",
    "{header_value_match: {descriptor_value: absent, headers: [{name: x-a, present_match: false}]}}",
    "{header_value_match: {descriptor_value: not, headers: [{name: x-a, present_match: true, invert_match: true}]}}",
    "{header_value_match: {descriptor_value: still, headers: [{name: x-a, present_match: false, invert_match: true}]}}",
    "{header_value_match: {descriptor_value: exact, headers: [{name: x-a, string_match: {exact: Gold}}]}}",
    "{header_value_match: {descriptor_value: nocase, headers: [{name: x-a, string_match: {exact: gOLD, ignore_case: true}}]}}",
    "{header_value_match: {descriptor_value: prefix, headers: [{name: x-a, string_match: {prefix: Go}}]}}",
    "{header_value_match: {descriptor_value: suffix, headers: [{name: x-a, string_match: {suffix: LD, ignore_case: true}}]}}",
    "{header_value_match: {descriptor_value: contains, headers: [{name: x-a, string_match: {contains: 'd,s'}}]}}",
    "{header_value_match: {descriptor_value: inverted, headers: [{name: x-a, string_match: {exact: Gold}, invert_match: true}]}}",
    "{header_value_match: {descriptor_value: unexpected, expect_match: false, headers: [{name: x-a, string_match: {exact: Gold}}]}}",
    "{header_value_match: {descriptor_key: k, descriptor_value: both, headers: [{name: x-a}, {name: ':path', string_match: {prefix: /a}}]}}",
    "{generic_key: {descriptor_value: v}}, {remote_address: {}}",
];

/// What every descriptor may be made of.
pub const KEYS: [&str; 5] = ["k", "generic_key", "header_match", "remote_address", "masked_remote_address"];

const MANY: u32 = 1_000_000;

pub struct Case {
    pub method: &'static str,
    pub path: &'static str,
    host: u8,
    pub headers: &'static [(&'static str, &'static str)],
}

const fn get(path: &'static str, headers: &'static [(&'static str, &'static str)]) -> Case {
    Case { method: "GET", path, host: 2, headers }
}

pub const CASES: &[Case] = &[
    get("/", &[]),
    get("/a?q=1", &[("x-a", "Gold")]),
    get("/a", &[("X-A", "gold")]),
    get("/", &[("x-a", "")]),
    get("/", &[("x-a", "Goldfish")]),
    get("/", &[("x-a", "old")]),
    get("/", &[("x-a", "Gold"), ("x-a", "silver")]),
    get("/", &[("x-a", "silver"), ("x-a", "Gold")]),
    get("/", &[("x-a", "two words, one value")]),
    get("/?q=", &[]),
    get("/?q", &[]),
    get("/?q=1&q=2", &[]),
    get("/?x=1&q=%41%2f%26", &[]),
    get("/?q=a+b%20c%2B", &[]),
    get("/?q=100%", &[]),
    get("/?q=%zz&p=1", &[]),
    get("/?q=a=b", &[]),
    get("/?q=%C3%A9", &[]),
    get("/?%71=decoded+key", &[]),
    get("/?a+b=plus&q=1", &[]),
    get("/?a%20b=percent", &[]),
    get("/?Q=1", &[]),
    get("/?&&q=1&", &[]),
    get("/a/../b?q=/../", &[]),
    get("/%2F%41", &[]),
    get("//a", &[("x-a", "Gold")]),
    get("/%61/./x", &[("x-a", "Gold")]),
    Case { method: "POST", path: "/a", host: 77, headers: &[("x-a", "Gold")] },
    Case { method: "DELETE", path: "/?q=1", host: 77, headers: &[] },
];

fn rate_limits(indent: &str) -> String {
    ACTIONS.iter().map(|actions| format!("{indent}- actions: [{actions}]\n")).collect()
}

/// Rules in which every descriptor of up to three entries has a counter.
fn rules() -> String {
    let limit = format!("rate_limit: {{unit: day, requests_per_unit: {MANY}}}");
    let nodes = |below: &str| {
        let node = |key: &&str| format!("{{key: {key}, {limit}{below}}}");
        format!("[{}]", KEYS.iter().map(node).collect::<Vec<_>>().join(", "))
    };
    let two = nodes("");
    let one = nodes(&format!(", descriptors: {two}"));
    format!("domain: edge\nrate_limits:\n{}descriptors: {one}\n", rate_limits("  "))
}

/// An Envoy whose only route has these `rate_limits`, asked about by the limiter at this port.
fn envoy(port: u16, limiter: u16) -> String {
    let host = format!(
        "            - name: all\n              domains: [\"*\"]\n              routes:\n              - match: {{prefix: /}}\n                \
         route:\n                  cluster: application\n                  rate_limits:\n{}",
        rate_limits("                  ")
    );
    envoy_of(port, limiter, "          normalize_path: true\n          merge_slashes: true", &host)
}

/// An Envoy with these options of its connection manager and these virtual hosts, which asks the limiter at this port.
pub fn envoy_of(port: u16, limiter: u16, options: &str, virtual_hosts: &str) -> String {
    let application = free_port();
    let cluster = |name: &str, port: u16, protocol: &str| {
        format!(
            "  - name: {name}\n    connect_timeout: 5s\n    type: STATIC\n{protocol}    load_assignment: {{cluster_name: {name}, endpoints: \
             [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}]}}]}}\n"
        )
    };
    let http2 = "    typed_extension_protocol_options:\n      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n        \
                 \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n        \
                 explicit_http_config: {http2_protocol_options: {}}\n";
    format!(
        r#"
node: {{id: test, cluster: edge-nodes}}
static_resources:
  listeners:
  - name: edge
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: edge
          use_remote_address: true
{options}
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
              domain: edge
              timeout: 10s
              failure_mode_deny: true
              rate_limit_service: {{transport_api_version: V3, grpc_service: {{envoy_grpc: {{cluster_name: limiter}}}}}}
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
{virtual_hosts}
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {application}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: application
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200}}}}]}}
  clusters:
{application_cluster}{limiter_cluster}"#,
        application_cluster = cluster("application", application, ""),
        limiter_cluster = cluster("limiter", limiter, http2),
    )
}

/// Takes every question and lets it pass.
pub async fn take(listener: tokio::net::TcpListener, taken: Sender<RateLimitRequest>) {
    while let Ok((stream, _)) = listener.accept().await {
        let taken = taken.clone();
        let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
            let taken = taken.clone();
            async move {
                let body = request.into_body().collect().await?.to_bytes();
                // A frame of gRPC begins with five bytes that are no message.
                let question = RateLimitRequest::decode(&body[5..]).expect("Envoy speaks the protocol");
                taken.send(question).expect("the test waits for it");
                Ok::<_, hyper::Error>(passes())
            }
        });
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
    }
}

fn passes() -> hyper::Response<impl hyper::body::Body<Data = Bytes, Error = std::convert::Infallible>> {
    let message = RateLimitResponse { overall_code: 1, statuses: Vec::new() }.encode_to_vec();
    let length = u32::try_from(message.len()).expect("a few bytes").to_be_bytes();
    let frame = Bytes::from([&[0][..], &length, &message].concat());
    let mut trailers = hyper::HeaderMap::new();
    trailers.insert("grpc-status", hyper::header::HeaderValue::from_static("0"));
    let frames = [Ok(Frame::data(frame)), Ok(Frame::trailers(trailers))];
    let mut response = hyper::Response::new(StreamBody::new(tokio_stream::iter(frames)));
    response
        .headers_mut()
        .insert("content-type", hyper::header::HeaderValue::from_static("application/grpc"));
    response
}

type Descriptor = Vec<(String, String)>;

/// The descriptors that Envoy sends for a request. None: it asks nothing.
fn of_envoy(port: u16, case: &Case, taken: &Receiver<RateLimitRequest>) -> Vec<Descriptor> {
    let mut client = Client::at([127, 0, 0, case.host].into(), port);
    let answer = client.send(case.method, case.path, case.headers, "").expect("Envoy answers");
    assert_eq!(answer.status, 200, "{} {}", case.method, case.path);
    let question = taken.recv_timeout(Duration::from_secs(20)).expect("Envoy asks before it answers");
    let entries = |descriptor: crate::harness::grpc::Descriptor| {
        descriptor.entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
    };
    question.descriptors.into_iter().map(entries).collect()
}

/// Asks `/check` about the same request. How many descriptors were counted.
fn check(limiter: &Tidegate, case: &Case) -> f64 {
    let hits = || limiter.metric("ratelimit_service_rate_limit_total_hits");
    let before = hits();
    let address = format!("127.0.0.{}", case.host);
    let described =
        [("x-original-uri", case.path), ("x-original-method", case.method), ("x-forwarded-for", &*address)];
    let headers = [&described, case.headers].concat();
    let answer =
        Client::new(limiter.ports().http).send("GET", "/check/edge", &headers, "").expect("an answer");
    assert_eq!(answer.status, 200, "{}: {answer:?}", case.path);
    hits() - before
}

#[test]
fn envoys_route_and_a_rule_file_make_the_same_descriptors_of_the_same_actions() {
    let limiter = Setup::new().rules("edge.yaml", &rules()).start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a thread can be had");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port is free");
    let (port, questions) = (free_port(), listener.local_addr().expect("it is bound").port());
    let (sender, taken) = channel();
    runtime.spawn(take(listener, sender));

    let folder = tempfile::tempdir().expect("a folder can be made");
    let path = folder.path().join("envoy.yaml");
    fs::write(&path, envoy(port, questions)).expect("the folder is ours");
    let mut command = Command::new(binary());
    command.arg("-c").arg(path).args([
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ]);
    let mut process = Process::spawn(&mut command);
    eventually_true("Envoy to listen", || {
        assert!(process.ended().is_none(), "Envoy ended:\n{}", process.output().join("\n"));
        crate::harness::http::connect(port).is_ok()
    });

    let mut counted = HashMap::<Descriptor, u32>::new();
    let mut kinds = 0;
    for case in CASES {
        let expected = of_envoy(port, case, &taken);
        kinds += expected.len();
        let observed = check(&limiter, case);
        let what = format!("{} {} {:?}", case.method, case.path, case.headers);
        // One whose entries were all left out meets no rule.
        let expected: Vec<_> = expected.into_iter().filter(|descriptor| !descriptor.is_empty()).collect();
        for descriptor in &expected {
            *counted.entry(descriptor.clone()).or_default() += 1;
        }
        for descriptor in &expected {
            let entries: Vec<_> = descriptor.iter().map(|(key, value)| (&**key, &**value)).collect();
            let status = &limiter.client().ask(ask_only("edge", &[&entries])).statuses[0];
            assert_eq!(status.limit_remaining, MANY - counted[descriptor], "{what}: {descriptor:?}");
        }
        assert_eq!(observed, expected.len() as f64, "{what}: {expected:#?}");
    }
    assert!(kinds > 8 * CASES.len(), "most actions have a value: {kinds}");
}
