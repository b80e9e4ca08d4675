//! Costs that are known when a stream has ended, and metadata as a value: set by Envoy's other filters.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

use super::start_with_rules;
use crate::harness::envoy::Envoy;
use crate::harness::eventually_true;
use crate::harness::http::Answer;

/// Users may spend 10 an hour. A request asks with nothing, and costs what its end says.
const SPENT: &str = "
domain: edge
rate_limits:
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
    hits_addend: {number: 0}
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
    apply_on_stream_done: true
    hits_addend: {format: \"%COST%\"}
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10}}
";

/// Makes metadata of two headers, before the limiter.
const METADATA_OF_HEADERS: &str = r#"http_filters:
                  - name: envoy.filters.http.header_to_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config
                      request_rules:
                        - header: x-tier
                          on_header_present: { metadata_namespace: auth, key: tier }
                        - header: x-tokens
                          on_header_present: { metadata_namespace: auth, key: tokens, type: NUMBER }
                  - name: tidegate
"#;

const FILTERS: &str = "http_filters:\n                  - name: tidegate\n";

const CANNED: &str = "direct_response: { status: 200,";

/// The application says what a request cost, as its client wants it to.
const WITH_COST: &str = r#"response_headers_to_add: [{ header: { key: x-cost, value: "%REQ(x-cost)%" } }]
                          direct_response: { status: 200,"#;

/// Starts Envoy with these rules and changes.
fn start(rules: &str, changes: &[(&str, &str)]) -> Envoy {
    let own = [(FILTERS, METADATA_OF_HEADERS), (CANNED, WITH_COST)];
    start_with_rules(rules, &[changes, &own].concat())
}

fn get(envoy: &Envoy, headers: &[(&str, &str)]) -> Answer {
    envoy.client().send("GET", "/", &[headers, &[("x-user", "ann")]].concat(), "").expect("Envoy answers")
}

/// The streams of answers that have come may not have ended yet.
fn await_remaining(envoy: &Envoy, remaining: u64) {
    eventually_true("the cost to be charged", || get(envoy, &[]).number("ratelimit-remaining") == remaining);
}

#[test]
fn a_header_of_the_answer_is_charged_in_full_beyond_n_too() {
    let envoy = start(&SPENT.replace("%COST%", "%RESP(x-cost)%"), &[]);
    assert_eq!(get(&envoy, &[("x-cost", "4")]).number("ratelimit-remaining"), 10);
    await_remaining(&envoy, 6);
    for nothing in ["none", "-1", "1000000001"] {
        get(&envoy, &[("x-cost", nothing)]);
    }
    assert_eq!(get(&envoy, &[("x-cost", "1e2")]).status, 200, "it is asked with nothing, and 6 are left");
    eventually_true("the limit to be reached", || get(&envoy, &[]).status == 429);
}

/// The router removes a header before the stream ends, and an item whose cost is unknown drops only itself.
#[test]
fn a_cost_is_charged_to_what_came_whatever_becomes_of_the_request() {
    let rules = SPENT.replace("%COST%", "%RESP(x-none)%");
    let by_user = "  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]\n";
    let item =
        format!("{by_user}    apply_on_stream_done: true\n    hits_addend: {{number: 4}}\ndescriptors:");
    let last = "- match: { prefix: / }\n                          route: { cluster: application }\n";
    let removing = format!("{last}                          request_headers_to_remove: [x-user]\n");
    let envoy = start(&rules.replace("descriptors:", &item), &[(last, &removing)]);
    assert_eq!(get(&envoy, &[]).number("ratelimit-remaining"), 10);
    eventually_true("the limit to be reached", || get(&envoy, &[]).status == 429);
    assert!(envoy.stat("dynamicmodulescustom.tidegate_cost_unknown") >= 3);
}

#[test]
fn a_number_in_metadata_is_charged_also_for_what_was_denied() {
    let by_key = "hits_addend: {number: 0}
  - actions: [{request_headers: {header_name: x-key, descriptor_key: key}}]";
    let rules = SPENT
        .replace("hits_addend: {number: 0}", by_key)
        .replace("%COST%", "%DYNAMIC_METADATA(auth:tokens)%")
        + "  - {key: key, rate_limit: {unit: hour, requests_per_unit: 1}}\n";
    let envoy = start(&rules, &[]);
    let with_key = [("x-key", "k"), ("x-tokens", "9")];
    assert_eq!(get(&envoy, &with_key).status, 200);
    assert_eq!(get(&envoy, &with_key).status, 429, "the key has had its one");
    eventually_true("both to be charged to the user", || get(&envoy, &[]).status == 429);
}

#[test]
fn a_trailer_of_the_answer_is_charged() {
    let port = application("2\r\nok\r\n0\r\nx-cost: 4\r\n\r\n");
    let cluster = format!(
        "port_value: {port} }} }} }}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{ http_protocol_options: {{ enable_trailers: true }} }}\n"
    );
    let rules = SPENT.replace("%COST%", "%TRAILER(x-cost)%");
    let envoy = start(&rules, &[("port_value: 10080 } } }\n", &cluster)]);
    assert_eq!(get(&envoy, &[]).status, 200);
    eventually_true("the limit to be reached", || get(&envoy, &[]).status == 429);
    let asked = envoy.stat("cluster.application.upstream_rq_total");
    assert!((3..=20).contains(&asked), "each answer costs 4 of 10: {asked}");
}

/// What is known then is charged, and its answer need not have ended.
#[test]
fn a_client_that_leaves_is_charged() {
    let endless = application("2\r\nok\r\n");
    let cluster = format!("port_value: {endless} }} }} }}\n");
    let rules = SPENT.replace("%COST%", "%DYNAMIC_METADATA(auth:tokens)%");
    let envoy = start(&rules, &[("port_value: 10080 } } }\n", &cluster)]);
    // Leaves once it has read this much.
    let line = |headers| first_line(&envoy, headers).0;
    assert_eq!(line("x-tokens: 10\r\n"), "HTTP/1.1 200 OK");
    eventually_true("the limit to be reached", || line("") == "HTTP/1.1 429 Too Many Requests");
}

/// The first line that ann is answered with, and the connection, whose answer goes on.
pub fn first_line(envoy: &Envoy, headers: &str) -> (String, impl Sized + use<>) {
    let mut client = TcpStream::connect(("127.0.0.1", envoy.port)).expect("Envoy listens");
    write!(client, "GET / HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n{headers}\r\n").expect("Envoy reads");
    let mut lines = BufReader::new(client).lines();
    (lines.next().expect("an answer begins").expect("it is text"), lines)
}

/// An application that answers every request with this body, in chunks. Returns its port.
pub fn application(body: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    let answer = move |mut stream: &TcpStream| -> std::io::Result<()> {
        let mut lines = BufReader::new(stream).lines();
        while lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()) {
            write!(stream, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{body}")?;
        }
        Ok(())
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(&stream));
        }
    });
    port
}

#[test]
fn metadata_of_the_stream_and_of_the_route_are_values() {
    let rules = "
domain: edge
rate_limits:
  - actions:
      - metadata: {descriptor_key: tier, metadata_key: {key: auth, path: [{key: tier}]}, default_value: free}
      - metadata: {descriptor_key: team, metadata_key: {key: team, path: [{key: name}]}, source: ROUTE_ENTRY}
descriptors:
  - key: tier
    value: gold
    descriptors: [{key: team, value: cart, rate_limit: {unit: hour, requests_per_unit: 3}}]
  - key: tier
    value: free
    descriptors: [{key: team, value: cart, rate_limit: {unit: hour, requests_per_unit: 1}}]
";
    let last = "- match: { prefix: / }\n                          route: { cluster: application }\n";
    let of_cart = last.to_owned()
        + "                          metadata: { filter_metadata: { team: { name: cart } } }\n";
    let envoy = start(rules, &[(last, &of_cart)]);
    assert_eq!(get(&envoy, &[("x-tier", "gold")]).number("ratelimit-limit"), 3);
    assert_eq!(get(&envoy, &[]).number("ratelimit-limit"), 1);
    assert_eq!(get(&envoy, &[]).status, 429);
    assert_eq!(get(&envoy, &[("x-tier", "silver")]).header("ratelimit-limit"), None, "no rule has it");
}
