//! A limiter that nothing in Envoy uses any more: what it held goes back to Redis, and its thread ends.

use std::time::{Duration, Instant};

use super::costs::{application, first_line};
use crate::commands::tidegate;
use crate::harness::envoy::{Envoy, Launch, listeners_apart};
use crate::harness::eventually_true;
use crate::harness::inside::{Inside, filter};
use crate::harness::lateness::Lateness;
use crate::harness::redis::Redis;

/// How long Envoy lets a listener drain.
const DRAIN: Duration = Duration::from_secs(1);
/// How long what the listener used may last after it.
const END: Duration = Duration::from_secs(2);

/// What a request is charged when it comes, and what more when its stream has ended.
const RULES: &str = "domain: edge
rate_limits:
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
    apply_on_stream_done: true
    hits_addend: {number: 5}
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 100000}}
";
const COST: u64 = 1 + 5;

/// What Redis counts of ann's hits, those of leases among them.
fn counted(inside: &Inside, redis: &Redis) -> u64 {
    let folder = inside.folder().display().to_string();
    let (_, said, complaints) =
        tidegate(&["ask", "edge", "user=ann", "--rules", &folder, "--redis-url", &redis.url()], &[]);
    let (_, count) = said.split_once("  counter   ").unwrap_or_else(|| panic!("{said}{complaints}"));
    let (count, _) = count.split_once(" counted").unwrap_or_else(|| panic!("{said}"));
    count.parse().unwrap_or_else(|_| panic!("{said}"))
}

/// A stream that is open when its listener goes is ended when the listener has drained, and then charged its cost.
#[test]
fn unspent_hits_go_back_and_the_thread_ends_with_the_last_listener() {
    let redis = Redis::start(&[]);
    let inside = Inside::new(RULES).setting("REDIS_URL", &redis.url()).setting("REDIS_TIMEOUT", "10s");
    // Until then no lease ends by itself.
    let inside = inside.setting("REDIS_LEASE_TIME", "1h");
    let endless = format!("port_value: {} }} }} }}\n", application("2\r\nok\r\n"));
    let config = inside.config().replace("port_value: 10080 } } }\n", &endless);
    let launch = Launch { epoch: Some(0), ..Launch::default() };
    let envoy = Envoy::launch(launch, &listeners_apart(&config));
    let mut asked = 1;
    let (line, held) = first_line(&envoy, "");
    assert_eq!(line, "HTTP/1.1 200 OK");
    eventually_true("hits that are leased and not spent", || {
        asked += 1;
        first_line(&envoy, "");
        counted(&inside, &redis) > COST * asked
    });
    assert_eq!(envoy.threads("tidegate"), 1);
    let lateness = Lateness::watch();
    envoy.change_listeners((filter(&config), ""));
    let changed = Instant::now();
    eventually_true("the thread to end", || envoy.threads("tidegate") == 0);
    let took = changed.elapsed();
    assert_eq!(counted(&inside, &redis), COST * asked);
    assert!(took < DRAIN + END + lateness.allowance(), "{took:?}");
    drop(held);
}
