//! What only NGINX has: real traffic, a question that no client may ask.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crate::harness::access_log::{self, Line};
use crate::harness::http::{self, Client};
use crate::harness::proxy::{EXAMPLE_RULES, Kind, Proxy};
use crate::harness::tidegate::Setup;
use crate::harness::whole_machine;

const PER_CLIENT: u32 = 25;
const PER_CLIENT_AND_PATH: u32 = 2;

/// A day, so that no hit leaves its window while the test runs.
const RULES: &str = "
domain: edge
rate_limits:
  - actions:
      - remote_address: {}
  - actions:
      - remote_address: {}
      - request_headers: {header_name: ':path', descriptor_key: path}
descriptors:
  - key: remote_address
    rate_limit: {unit: day, requests_per_unit: 25}
    descriptors:
      - key: path
        rate_limit: {unit: day, requests_per_unit: 2}
";

/// Sends the requests of each client in their order, each client from an address of its own. Returns how many of each
/// were denied.
fn send<'a>(port: u16, clients: &[(Ipv4Addr, Vec<Line<'a>>)]) -> HashMap<&'a str, u32> {
    let mut denied = HashMap::<&str, u32>::new();
    for (address, lines) in clients {
        let mut client = Client::at(*address, port);
        for Line { client: name, method, path } in lines {
            let answer = client.send(method, path, &[], "").unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(answer.status == 200 || answer.status == 429, "{method} {path}: {answer:?}");
            *denied.entry(name).or_default() += u32::from(answer.status == 429);
        }
    }
    denied
}

#[test]
fn every_client_of_a_real_access_log_is_denied_as_often_as_the_oracle_says() {
    let _machine = whole_machine();
    let limiter = Setup::new().rules("edge.yaml", RULES).start();
    let proxy = Proxy::start(Kind::Nginx, &format!("127.0.0.1:{}", limiter.ports().http));
    let lines = access_log::lines();
    let expected = access_log::oracle(&lines, PER_CLIENT, PER_CLIENT_AND_PATH, |line| line.path);
    let denied_total: u32 = expected.values().sum();

    let mut by_client = HashMap::<&str, Vec<Line>>::new();
    lines.iter().for_each(|line| by_client.entry(line.client).or_default().push(*line));
    let addresses =
        (1..).map(|index: u32| Ipv4Addr::from_bits(Ipv4Addr::new(127, 1, 0, 0).to_bits() + index));
    let clients: Vec<_> = addresses.zip(by_client.into_values()).collect();
    let observed: HashMap<&str, u32> = std::thread::scope(|scope| {
        let lanes = clients.chunks(clients.len().div_ceil(4));
        let lanes: Vec<_> = lanes.map(|lane| scope.spawn(|| send(proxy.port, lane))).collect();
        lanes.into_iter().flat_map(|lane| lane.join().expect("a lane does not panic")).collect()
    });
    assert_eq!(observed, expected);
    let denied = [("front", "check"), ("code", "OVER_LIMIT")];
    assert_eq!(limiter.scrape().sum("tidegate_requests_total", &denied), f64::from(denied_total));
}

#[test]
fn on_a_unix_socket_an_address_has_to_be_named() {
    let setup = Setup::new().rules("edge.yaml", EXAMPLE_RULES);
    let socket = setup.outside().join("http.sock").display().to_string();
    let _limiter = setup.env("HTTP_UDS", &socket).start();
    let nobody = http::get_unix(socket.as_ref(), "/check/edge").expect("an answer");
    assert_eq!(nobody.status, 400);
    assert!(nobody.body.contains("x-forwarded-for is missing"), "{nobody:?}");
}

#[test]
fn the_question_itself_is_not_for_clients() {
    let limiter = Setup::new().rules("edge.yaml", EXAMPLE_RULES).start();
    let proxy = Proxy::start(Kind::Nginx, &format!("127.0.0.1:{}", limiter.ports().http));
    for path in ["/_tidegate/open", "/_tidegate/closed", "/_tidegate/"] {
        assert_eq!(proxy.client(2).get(path).status, 404, "{path}");
    }
}
