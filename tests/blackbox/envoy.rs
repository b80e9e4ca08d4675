//! A real Envoy 1.40 with `examples/envoy/`: what its clients get, and what it counts itself.

use crate::harness::envoy::{EXAMPLE_RULES, Envoy};
use crate::harness::http::Answer;
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::{eventually_true, grpc};

const ALICE: &str = "203.0.113.1";
const BOB: &str = "203.0.113.2";

fn start() -> (Tidegate, Envoy) {
    let limiter = Setup::new().rules("edge.yaml", EXAMPLE_RULES).start();
    let envoy = Envoy::start(&limiter);
    (limiter, envoy)
}

/// A GET of this path by this client.
fn get(envoy: &Envoy, client: &str, path: &str) -> Answer {
    envoy.client().send("GET", path, &[("x-forwarded-for", client)], "").expect("Envoy answers")
}

/// The statuses of this many GETs, one after the other.
fn statuses(envoy: &Envoy, client: &str, path: &str, count: usize) -> Vec<u16> {
    (0..count).map(|_| get(envoy, client, path).status).collect()
}

#[test]
fn n_pass_and_the_next_gets_429_with_its_headers() {
    let (_limiter, envoy) = start();
    for passed in 1..=5 {
        let answer = get(&envoy, ALICE, "/api/things");
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.body, "The application says hello.\n");
        assert_eq!(answer.header("x-ratelimit-limit"), Some("5, 5;w=60"));
        assert_eq!(answer.number("x-ratelimit-remaining"), 5 - passed);
        assert!((1..=61).contains(&answer.number("x-ratelimit-reset")), "{answer:?}");
        assert_eq!(answer.header("retry-after"), None);
    }
    let denied = get(&envoy, ALICE, "/api/things");
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.header("x-ratelimit-limit"), Some("5, 5;w=60"));
    assert_eq!(denied.number("x-ratelimit-remaining"), 0);
    assert!((1..=61).contains(&denied.number("retry-after")), "{denied:?}");
    assert_eq!(denied.header("retry-after"), denied.header("x-ratelimit-reset"));

    assert_eq!(statuses(&envoy, BOB, "/api/things", 1), [200], "another client has a counter of its own");
    assert_eq!(envoy.stat("cluster.application.upstream_rq_total"), 6, "a denied request must not pass");
}

#[test]
fn of_two_descriptors_both_must_fit_and_a_denied_request_is_charged_to_neither() {
    let (limiter, envoy) = start();
    assert_eq!(statuses(&envoy, ALICE, "/shop/", 10), [200, 200, 200, 200, 200, 429, 429, 429, 429, 429]);
    // Alice's five denied requests did not use up what everybody shares: of 8, 3 are left for Bob.
    assert_eq!(statuses(&envoy, BOB, "/shop/", 4), [200, 200, 200, 429]);
    // What everybody shares is used up; Bob's own counter still has 2 and was not charged for the denied one.
    let own: &[(&str, &str)] = &[("route", "shop"), ("remote_address", BOB)];
    let answer = limiter.client().ask(grpc::ask_only("edge", &[own]));
    assert_eq!(answer.statuses[0].limit_remaining, 2);
    assert_eq!(
        answer.statuses[0].current_limit.as_ref().map(|limit| limit.name.as_str()),
        Some("shop_client")
    );
}

#[test]
fn a_wildcard_counts_every_value_that_it_matches_on_its_own() {
    let (_limiter, envoy) = start();
    assert_eq!(statuses(&envoy, ALICE, "/archive/a.zip", 4), [200, 200, 200, 429]);
    assert_eq!(statuses(&envoy, ALICE, "/archive/deep/b.zip", 4), [200, 200, 200, 429]);
    let free = get(&envoy, ALICE, "/archive/a.txt");
    assert_eq!(free.status, 200);
    assert_eq!(free.header("x-ratelimit-limit"), None, "no limit applies: {free:?}");
}

#[test]
fn a_shadow_mode_route_is_never_denied_and_is_counted() {
    let (limiter, envoy) = start();
    assert_eq!(statuses(&envoy, ALICE, "/beta/", 7), [200; 7]);
    let scrape = limiter.scrape();
    let beta = [("domain", "edge"), ("key1", "route_beta")];
    assert_eq!(scrape.sum("ratelimit_service_rate_limit_total_hits", &beta), 7.0);
    assert_eq!(scrape.sum("ratelimit_service_rate_limit_over_limit", &beta), 5.0);
    assert_eq!(scrape.sum("ratelimit_service_rate_limit_shadow_mode", &beta), 5.0);
}

#[test]
fn what_a_stream_done_report_spent_denies_the_next_question() {
    let (limiter, envoy) = start();
    let entries: &[(&str, &str)] = &[("meter", "bytes"), ("remote_address", ALICE)];
    let client = limiter.client();
    let left = || client.ask(grpc::ask_only("edge", &[entries])).statuses[0].limit_remaining;
    let body = "The application says hello.\n".len() as u32;

    // 100 bytes a minute: the question itself costs nothing, each answer costs its 28 bytes.
    for expected in [100 - body, 100 - 2 * body, 100 - 3 * body, 0] {
        assert_eq!(get(&envoy, ALICE, "/download/book").status, 200);
        eventually_true("the report to arrive", || left() == expected);
    }
    let denied = get(&envoy, ALICE, "/download/book");
    assert_eq!(denied.status, 429, "{denied:?}");
    assert!(denied.number("retry-after") >= 1);
    assert_eq!(get(&envoy, BOB, "/download/book").status, 200);
}

#[test]
fn envoys_own_statistics_agree_with_the_metrics() {
    let (limiter, envoy) = start();
    statuses(&envoy, ALICE, "/api/x", 9); // 5 pass
    statuses(&envoy, BOB, "/shop/x", 9); // 5 pass
    statuses(&envoy, ALICE, "/elsewhere", 25); // 20 pass
    statuses(&envoy, ALICE, "/login", 4); // 3 pass, asked by the guarded filter
    let stat = |name: &str| envoy.stat(&format!("cluster.application.ratelimit.{name}"));

    assert_eq!((stat("ok"), stat("over_limit"), stat("error")), (30, 13, 0));
    assert_eq!((stat("guarded.ok"), stat("guarded.over_limit"), stat("guarded.error")), (3, 1, 0));
    let requests =
        |code| limiter.scrape().sum("tidegate_requests_total", &[("front", "grpc"), ("code", code)]);
    assert_eq!((requests("OK"), requests("OVER_LIMIT")), (33.0, 14.0));
    // Health checks are requests too, and go on meanwhile.
    let checks = || envoy.stat("cluster.tidegate.health_check.attempt") as f64;
    let before = checks();
    let total = limiter.metric("ratelimit_service_total_requests");
    assert!((47.0 + before..=47.0 + checks()).contains(&total), "{total}");
    let api = [("domain", "edge"), ("key1", "route_api"), ("key2", "remote_address")];
    assert_eq!(limiter.scrape().sum("ratelimit_service_rate_limit_over_limit", &api), 4.0);
    assert_eq!(limiter.scrape().sum("ratelimit_service_rate_limit_within_limit", &api), 5.0);
}

#[test]
fn without_a_limiter_traffic_flows_but_guarded_routes_stay_shut() {
    let (mut limiter, envoy) = start();
    assert_eq!(statuses(&envoy, ALICE, "/api/x", 6), [200, 200, 200, 200, 200, 429]);
    assert_eq!(statuses(&envoy, ALICE, "/login", 4), [200, 200, 200, 429]);

    limiter.kill();
    assert_eq!(statuses(&envoy, ALICE, "/api/x", 3), [200; 3], "failure_mode_deny: false");
    assert_eq!(statuses(&envoy, ALICE, "/login", 3), [500; 3], "failure_mode_deny: true");
    assert_eq!(envoy.stat("cluster.application.ratelimit.error"), 3);
    assert_eq!(envoy.stat("cluster.application.ratelimit.failure_mode_allowed"), 3);
    assert_eq!(envoy.stat("cluster.application.ratelimit.guarded.error"), 3);

    let _limiter = limiter.restart();
    eventually_true("Envoy to reach the limiter again", || get(&envoy, BOB, "/login").status == 200);
    eventually_true("limits to hold again", || get(&envoy, BOB, "/login").status == 429);
}
