//! Metered routes behind a real Envoy, for every algorithm and two shapes of cost, all at once: a call asks first (0 hits),
//! and what its answer cost is reported when the stream is done. In no window is more spent than the limit and what was
//! under way when it was reached.
//!
//! TIDEGATE_METERED_SECONDS: how long, 6 unless set; from 20 on with windows of 10 s instead of 2 s.

use std::time::{Duration, Instant};

use crate::harness::envoy::{Envoy, Upstream};
use crate::harness::lateness::Lateness;
use crate::harness::redis::Redis;
use crate::harness::tidegate::{Setup, Tidegate};

/// Each algorithm, and how often it may admit its limit within a window.
const ALGORITHMS: [(&str, u64); 6] = [
    ("sliding_log", 1),
    ("sliding_window", 1),
    ("sliding_window_weighted", 2),
    ("fixed_window", 2),
    ("token_bucket", 2),
    ("leaky_bucket", 2),
];
/// What calls cost: all the same, or a few of them a lot; each with what the costliest does.
const SHAPES: [(&str, u64); 2] = [("constant", 500), ("heavy", 2_000)];
const LIMIT: u64 = 600;
const CLIENTS: u64 = 2;
/// Times are those of the clients, which may see an answer so much later than it was given, and by what the machine is late.
const LATE: Duration = Duration::from_millis(500);

fn seconds() -> u64 {
    let shown = std::env::var("TIDEGATE_METERED_SECONDS").ok();
    shown.map_or(6, |shown| shown.parse().expect("TIDEGATE_METERED_SECONDS is a number of seconds"))
}

fn window() -> Duration {
    Duration::from_secs(if seconds() < 20 { 2 } else { 10 })
}

/// A rule a meter.
fn rules() -> String {
    let mut rules = "domain: edge\ndescriptors:\n".to_owned();
    for ((algorithm, _), (shape, _)) in meters() {
        rules += &format!(
            "  - {{key: meter, value: {algorithm}-{shape}, rate_limit: {{window: {}s, requests_per_unit: {LIMIT}, \
             algorithm: {algorithm}}}}}\n",
            window().as_secs()
        );
    }
    rules
}

fn meters() -> impl Iterator<Item = ((&'static str, u64), (&'static str, u64))> {
    ALGORITHMS.into_iter().flat_map(|algorithm| SHAPES.map(|shape| (algorithm, shape)))
}

/// The example with a metered route a meter, before the one for everything else; the application costs what it is asked to.
fn envoy(limiter: &Tidegate) -> Envoy {
    let mut routes = String::new();
    for ((algorithm, _), (shape, _)) in meters() {
        let meter = format!("{algorithm}-{shape}");
        let actions =
            format!("actions: [{{ generic_key: {{ descriptor_key: meter, descriptor_value: {meter} }} }}]");
        routes += &format!(
            r#"                        - match: {{ path: /{meter} }}
                          route: {{ cluster: application }}
                          typed_per_filter_config:
                            envoy.filters.http.ratelimit:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                              rate_limits:
                                - hits_addend: {{ number: 0 }}
                                  {actions}
                                - hits_addend: {{ format: "%DYNAMIC_METADATA(metered:cost)%" }}
                                  apply_on_stream_done: true
                                  {actions}
"#
        );
    }
    let everything_else = "                        # Everything else:";
    Envoy::start_changed(
        &Upstream::at(limiter),
        &[
            (everything_else, &(routes + everything_else)),
            (r#"{ key: x-cost, value: "28" }"#, r#"{ key: x-cost, value: "%REQ(x-cost)%" }"#),
        ],
    )
}

/// What one client spent, and when; and how often it was denied.
fn spend(envoy: &Envoy, meter: &str, shape: &str, until: Instant) -> (Vec<(Instant, u64)>, usize) {
    let (mut client, path) = (envoy.client(), format!("/{meter}"));
    let (mut spent, mut denied) = (Vec::new(), 0);
    for call in 0_u64.. {
        if Instant::now() >= until {
            break;
        }
        let cost = match shape {
            "constant" => 500,
            _ if call % 20 == 7 => 2_000,
            _ => 20,
        };
        let answer = client.send("GET", &path, &[("x-cost", &cost.to_string())], "").expect("Envoy answers");
        match answer.status {
            200 => spent.push((Instant::now(), cost)),
            429 => denied += 1,
            _ => panic!("{answer:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    (spent, denied)
}

/// The most that was spent within any such time.
fn most_within(spent: &[(Instant, u64)], time: Duration) -> u64 {
    let within = |from: Instant| spent.iter().filter(move |call| call.0 >= from && call.0 < from + time);
    spent.iter().map(|&(from, _)| within(from).map(|call| call.1).sum()).max().unwrap_or_default()
}

fn limits_hold(limiter: &Tidegate) {
    let envoy = envoy(limiter);
    let (watched, until) = (Lateness::watch(), Instant::now() + Duration::from_secs(seconds()));
    std::thread::scope(|scope| {
        let clients: Vec<_> = meters()
            .map(|meter| {
                let ((algorithm, _), (shape, _)) = meter;
                let (envoy, name) = (&envoy, format!("{algorithm}-{shape}"));
                let client = || {
                    let name = name.clone();
                    scope.spawn(move || spend(envoy, &name, shape, until))
                };
                (meter, [client(), client()])
            })
            .collect();
        for (((algorithm, times), (shape, costliest)), clients) in clients {
            let (mut spent, mut denied) = (Vec::new(), 0);
            for client in clients {
                let (its, its_denied) = client.join().expect("no panic");
                spent.extend(its);
                denied += its_denied;
            }
            let late = LATE + watched.allowance();
            let most = most_within(&spent, window().saturating_sub(late));
            // Each client has a call under way, and maybe the report of the one before.
            let under_way = CLIENTS * 2 * costliest;
            assert!(
                most <= times * (LIMIT + under_way),
                "{algorithm}, {shape}: {most} were spent in a window"
            );
            let reached = most_within(&spent, window());
            assert!(
                reached >= LIMIT && denied > 0,
                "{algorithm}, {shape}: {reached} were spent, {denied} denied"
            );
        }
    });
}

#[test]
fn what_is_reported_holds_limits_in_memory() {
    let limiter = Setup::new().rules("edge.yaml", &rules()).start();
    limits_hold(&limiter);
    assert!(limiter.metric("tidegate_reported_beyond_limit_hits_total") > 0.0);
}

#[test]
fn what_is_reported_holds_leased_limits_in_redis() {
    let redis = Redis::start(&[]);
    let setup = Setup::new().rules("edge.yaml", &rules()).env("REDIS_URL", &redis.url());
    let limiter = setup.env("REDIS_SYNC", "leased").env("REDIS_TIMEOUT", "5s").start();
    limits_hold(&limiter);
    assert!(limiter.metric("tidegate_redis_reported_beyond_limit_hits_total") > 0.0);
}
