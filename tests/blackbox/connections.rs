//! Connections end while Envoy goes on sending: by their age, by their grace, by draining. No call fails.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::tidegate::{Setup, Tidegate};
use crate::harness::traffic::{RULES, Traffic};
use crate::harness::{eventually, eventually_true};

fn setup() -> Setup {
    Setup::new().rules("edge.yaml", RULES)
}

#[test]
fn connections_that_are_old_are_replaced_and_no_call_fails() {
    let limiter = setup().env("GRPC_MAX_CONNECTION_AGE", "300ms").start();
    let envoy = Envoy::start(&limiter);
    let traffic = Traffic::begin(&envoy, |_| {});
    eventually_true("ten connections", || envoy.stat("cluster.tidegate.upstream_cx_total") >= 10);
    traffic.end(&envoy);
    let cx = |what: &str| envoy.stat(&format!("cluster.tidegate.upstream_cx_{what}"));
    assert_eq!(cx("close_notify"), cx("destroy"), "each got a GOAWAY");
    assert_eq!(cx("destroy_with_active_rq"), 0);
}

#[test]
fn a_connection_stays_when_its_age_is_0_and_by_default() {
    for setup in [setup(), setup().env("GRPC_MAX_CONNECTION_AGE", "0")] {
        let limiter = setup.start();
        let envoy = Envoy::start(&limiter);
        let traffic = Traffic::begin(&envoy, |_| {});
        eventually_true("a load", || limiter.metric("ratelimit_service_total_requests") > 500.0);
        traffic.end(&envoy);
        // One for each of its two threads.
        assert!(envoy.stat("cluster.tidegate.upstream_cx_total") <= 2);
        assert_eq!(envoy.stat("cluster.tidegate.upstream_cx_close_notify"), 0);
    }
}

#[test]
fn calls_that_outlast_the_grace_are_ended_with_their_connection() {
    let limiter =
        setup().env("GRPC_MAX_CONNECTION_AGE", "500ms").env("GRPC_MAX_CONNECTION_AGE_GRACE", "1s").start();
    let client = limiter.client();
    let began = Instant::now();
    let watch = client.watch("");
    assert_eq!(watch.recv(), Ok(1));
    assert!(watch.recv().is_err(), "the stream ends");
    assert!(began.elapsed() >= Duration::from_secs(1), "it had its grace: {:?}", began.elapsed());

    // Without a bound a call may last: it gets the end of the process.
    let mut limiter =
        setup().env("GRPC_MAX_CONNECTION_AGE", "500ms").env("GRPC_MAX_CONNECTION_AGE_GRACE", "0").start();
    let client = limiter.client();
    let watch = client.watch("");
    assert_eq!(watch.recv(), Ok(1));
    // As long as ten connections take to grow old, one after the other.
    let envoy = Envoy::start(&limiter);
    let traffic = Traffic::begin(&envoy, |_| {});
    eventually_true("ten connections", || envoy.stat("cluster.tidegate.upstream_cx_total") >= 20);
    traffic.end(&envoy);
    limiter.signal(Signal::TERM);
    assert_eq!(watch.recv(), Ok(2));
    eventually("the end", || limiter.ended());
}

#[test]
fn limiters_are_restarted_one_after_the_other_and_no_call_fails() {
    let as_shipped = || setup().default_of("DRAIN_GRACE").start();
    let (first, second) = (as_shipped(), as_shipped());
    let envoy = Envoy::start_with(&Upstream::at(&first).and_at(&second));
    let both_healthy = || envoy.stat("cluster.tidegate.membership_healthy") == 2;
    eventually_true("both to be healthy", both_healthy);
    let traffic = Traffic::begin(&envoy, |_| {});
    let mut restarted = Vec::new();
    for mut limiter in [first, second] {
        let asked =
            |limiter: &Tidegate| limiter.scrape().sum("tidegate_requests_total", &[("front", "grpc")]);
        eventually_true("it to be asked", || asked(&limiter) > 50.0);
        limiter.signal(Signal::TERM);
        assert_eq!(limiter.exit_code(), 0, "{:#?}", limiter.output());
        assert_eq!(limiter.lines_with("drained"), 1);
        let limiter = limiter.restart();
        eventually_true("both to be healthy again", both_healthy);
        eventually_true("it to be asked again", || asked(&limiter) > 50.0);
        restarted.push(limiter);
    }
    traffic.end(&envoy);
}
