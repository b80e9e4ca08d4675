//! Real traffic: a recorded access log goes through Envoy, and every client is denied exactly as often as an oracle says.

use std::collections::HashMap;

use crate::harness::access_log::{self, Line};
use crate::harness::envoy::Envoy;
use crate::harness::tidegate::Setup;
use crate::harness::{http, whole_machine};

const PER_CLIENT: u32 = 25;
const PER_CLIENT_AND_SEGMENT: u32 = 10;

/// A day, so that no hit leaves its window while the test runs.
const RULES: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: day, requests_per_unit: 25}
    descriptors:
      - key: segment
        rate_limit: {unit: day, requests_per_unit: 10}
";

/// `/blog` of `/blog/a?b`.
fn segment<'a>(line: &Line<'a>) -> &'a str {
    let end = line.path[1..].find(['/', '?']).map_or(line.path.len(), |at| at + 1);
    &line.path[..end]
}

/// Sends them one after the other. Returns how many requests of each client were denied.
fn send<'a>(port: u16, lines: &[Line<'a>]) -> HashMap<&'a str, u32> {
    let mut client = http::Client::new(port);
    let mut denied = HashMap::<&str, u32>::new();
    for line in lines {
        let answer = client.send(line.method, line.path, &[("x-forwarded-for", line.client)], "");
        let status = answer.unwrap_or_else(|error| panic!("{}: {error}", line.path)).status;
        assert!(status == 200 || status == 429, "{} {}: {status}", line.method, line.path);
        *denied.entry(line.client).or_default() += u32::from(status == 429);
    }
    denied
}

#[test]
fn every_client_of_a_real_access_log_is_denied_as_often_as_the_oracle_says() {
    let _machine = whole_machine();
    let limiter = Setup::new().rules("edge.yaml", RULES).start();
    let envoy = Envoy::start(&limiter);
    let lines = access_log::lines();
    let expected = access_log::oracle(&lines, PER_CLIENT, PER_CLIENT_AND_SEGMENT, segment);
    let denied_total: u32 = expected.values().sum();

    // Four at once; the requests of one client stay in their order.
    let mut lanes = vec![Vec::new(); 4];
    for line in lines {
        lanes[line.client.bytes().map(usize::from).sum::<usize>() % 4].push(line);
    }
    let observed: HashMap<&str, u32> = std::thread::scope(|scope| {
        let lanes: Vec<_> = lanes.iter().map(|lane| scope.spawn(|| send(envoy.port, lane))).collect();
        lanes.into_iter().flat_map(|lane| lane.join().expect("a lane does not panic")).collect()
    });
    assert_eq!(observed, expected);
    assert_eq!(envoy.stat("cluster.application.ratelimit.over_limit"), u64::from(denied_total));
    assert_eq!(envoy.stat("cluster.application.ratelimit.error"), 0);
}
