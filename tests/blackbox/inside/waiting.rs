//! Requests that wait for Redis: how long, and what happens when their clients leave, or when Envoy ends.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;

use rustix::process::Signal;

use super::soak;
use crate::harness::envoy::Envoy;
use crate::harness::inside::{Inside, rules};
use crate::harness::redis::Redis;
use crate::harness::round_trips::RoundTrips;
use crate::harness::{eventually_true, http};

fn waiting() -> u64 {
    if soak() { 1_000 } else { 200 }
}

/// A Redis that stands still, an Envoy that asks it, and clients that wait for both.
fn clients_that_wait(limit: u64, change: impl FnOnce(Inside) -> Inside) -> (Redis, Envoy, Vec<TcpStream>) {
    let redis = Redis::start(&[]);
    let limit = format!("{{unit: day, requests_per_unit: {limit}, sync: strict}}");
    let inside = Inside::new(&rules(&limit)).setting("REDIS_URL", &redis.url());
    let envoy = change(inside.setting("REDIS_TIMEOUT", "30s")).start();
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

/// A request is charged to two counters.
const TWO_KEYS: &str = "domain: edge
rate_limits:
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
  - actions: [{request_headers: {header_name: x-user, descriptor_key: login}}]
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: login, rate_limit: {unit: day, requests_per_unit: 2000}}
";

/// Keys of which one is asked about while nothing else is sent to Redis, as epochs and exceptions are now and then.
const KEYS: usize = 30;

/// Counted, not timed: what a key without a lease waits for is one answer of Redis.
#[test]
fn a_key_without_a_lease_waits_for_one_round_trip() {
    let one = rules("{unit: day, requests_per_unit: 1000}");
    for (rules, sync) in [(&*one, "leased"), (&one, "strict"), (TWO_KEYS, "leased"), (TWO_KEYS, "strict")] {
        let redis = Redis::start(&[]);
        let wire = RoundTrips::to(redis.port);
        let inside = Inside::new(rules).setting("REDIS_URL", &format!("127.0.0.1:{}", wire.port));
        let inside = inside.setting("REDIS_SYNC", sync).setting("REDIS_TIMEOUT", "10s");
        let envoy = inside.start();
        let mut client = envoy.client();
        let mut ask = |user: &str| {
            wire.take();
            let answer = client.send("GET", "/", &[("x-user", user)], "").expect("Envoy answers");
            let sent = wire.take();
            assert_eq!((answer.status, answer.number("ratelimit-remaining")), (200, 999), "{answer:?}");
            sent
        };
        // From now on Redis knows the script.
        ask("first");
        let users: Vec<_> = (0..KEYS).map(|at| format!("user-{at}")).collect();
        let sent: Vec<_> = users.iter().map(|user| ask(user)).collect();
        assert_eq!(envoy.stat("dynamicmodulescustom.tidegate_waited"), 1 + KEYS as u64);
        let alone =
            users.iter().zip(&sent).find(|(user, sent)| sent.len() == 1 && sent[0].contains(&***user));
        assert!(alone.is_some(), "{sync}: {sent:#?}");
    }
}

#[test]
fn clients_that_leave_while_they_wait_leave_nothing_but_their_hits() {
    let limit = 2 * waiting();
    let (redis, envoy, clients) = clients_that_wait(limit, |inside| inside);
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
fn an_envoy_that_is_asked_to_end_ends_with_requests_that_wait() {
    let (_redis, mut envoy, clients) = clients_that_wait(1, |inside| inside);
    envoy.signal(Signal::TERM);
    assert_eq!(envoy.exit_code(), 0);
    drop(clients);
}

/// Others get what a failure of Redis gets, at once.
#[test]
fn no_more_requests_wait_than_the_bound_says() {
    let bound = waiting() / 4;
    for (failure_mode_deny, status) in [(false, 200), (true, 500)] {
        let (redis, mut envoy, clients) = clients_that_wait(waiting(), |inside| {
            let inside = inside.setting("REDIS_MAX_IN_FLIGHT", &bound.to_string());
            inside.field(&format!("failure_mode_deny: {failure_mode_deny}"))
        });
        let stat = |name: &str| envoy.stat(&format!("dynamicmodulescustom.tidegate_{name}"));
        eventually_true("the others to be answered", || stat("error") == waiting() - bound);
        let overloaded = "redis_failures_total.store.main.kind.overloaded";
        eventually_true("them to be counted", || stat(overloaded) == waiting() - bound);
        eventually_true("those that wait to be counted", || stat("redis_in_flight.store.main") == bound);
        assert_eq!((stat("ok"), stat("over_limit")), (0, 0));
        redis.wake();
        eventually_true("those that waited to be admitted", || stat("ok") == bound);
        let mut answered = [0, 0];
        for client in clients {
            let answer = http::read_answer(&mut BufReader::new(client), false).expect("Envoy answers");
            let decided = answer.header("ratelimit-limit").is_some();
            assert_eq!(answer.status, if decided { 200 } else { status }, "{answer:?}");
            answered[usize::from(decided)] += 1;
        }
        assert_eq!(answered, [waiting() - bound, bound]);
        envoy.signal(Signal::TERM);
        assert_eq!(envoy.exit_code(), 0);
    }
}
