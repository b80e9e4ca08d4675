//! Requests that wait for Redis when their clients leave, or when Envoy ends.

use std::io::Write as _;
use std::net::TcpStream;

use rustix::process::Signal;

use super::soak;
use crate::harness::envoy::Envoy;
use crate::harness::inside::{Inside, rules};
use crate::harness::redis::Redis;
use crate::harness::{eventually_true, http};

fn waiting() -> u64 {
    if soak() { 1_000 } else { 200 }
}

/// A Redis that stands still, an Envoy that asks it, and clients that wait for both.
fn clients_that_wait(limit: u64) -> (Redis, Envoy, Vec<TcpStream>) {
    let redis = Redis::start(&[]);
    let limit = format!("{{unit: day, requests_per_unit: {limit}, sync: strict}}");
    let inside =
        Inside::new(&rules(&limit)).setting("REDIS_URL", &redis.url()).setting("REDIS_TIMEOUT", "30s");
    let envoy = inside.start();
    redis.stop();
    let ask = |_| {
        let mut client = http::connect(envoy.port).expect("Envoy listens");
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-user: ann\r\n\r\n").expect("Envoy reads");
        client
    };
    let clients = (0..waiting()).map(ask).collect();
    eventually_true("all of them to wait", || {
        envoy.stat("dynamicmodulescustom.tidegate_waited") == waiting()
    });
    (redis, envoy, clients)
}

#[test]
fn clients_that_leave_while_they_wait_leave_nothing_but_their_hits() {
    let limit = 2 * waiting();
    let (redis, envoy, clients) = clients_that_wait(limit);
    drop(clients);
    eventually_true("Envoy to see them leave", || envoy.stat("http.edge.downstream_rq_active") == 0);
    redis.wake();
    // Redis may answer others first.
    let mut asked = 0;
    eventually_true("the hits of all who left to be charged", || {
        let answer = envoy.client().send("GET", "/", &[("x-user", "ann")], "").expect("Envoy answers");
        asked += 1;
        let left = answer.number("ratelimit-remaining");
        assert!(left + asked + waiting() >= limit, "{left} left after {asked} more");
        left + asked + waiting() == limit
    });
    assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_ok"), asked);
    assert_eq!(envoy.stat("cluster.application.upstream_rq_total"), asked, "no request of theirs passes");
}

#[test]
fn an_envoy_that_is_told_to_end_ends_with_requests_that_wait() {
    let (_redis, mut envoy, clients) = clients_that_wait(1);
    envoy.signal(Signal::TERM);
    assert_eq!(envoy.exit_code(), 0);
    drop(clients);
}
