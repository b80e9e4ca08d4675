//! A panic in each hook of the module: Envoy lives, and a request gets what a failure gets.

use rustix::process::Signal;

use crate::harness::envoy::{Envoy, Launch};
use crate::harness::eventually_true;
use crate::harness::http::Client;
use crate::harness::inside::{Inside, rules};
use crate::harness::redis::Redis;

const PANICKED: &str = "tidegate: a hook panicked";

fn inside(redis: &Redis) -> Inside {
    let inside = Inside::new(&rules("{unit: day, requests_per_unit: 100, sync: strict}"));
    inside.setting("REDIS_URL", &redis.url())
}

fn panics(hook: &'static str) -> Launch {
    Launch { panics_in: hook, ..Launch::default() }
}

#[test]
fn a_panic_while_envoy_starts_is_a_refusal() {
    let redis = Redis::start(&[]);
    for hook in ["program_init", "http_filter_config_new", "per_route_config_new"] {
        let output = Envoy::refuses(panics(hook), &inside(&redis).config());
        assert!(output.contains("TIDEGATE_PANICS_IN"), "{hook}: {output}");
    }
}

#[test]
fn a_panic_costs_a_request_and_never_envoy() {
    let redis = Redis::start(&[]);
    for (hook, failure_mode_deny, status) in [
        ("http_filter_new", false, 200),
        ("http_filter_new", true, 500),
        ("request_headers", false, 200),
        ("request_headers", true, 500),
        ("filter_scheduled", false, 200),
        ("filter_scheduled", true, 500),
        ("Filter::on_response", true, 200),
        ("Filter::on_end", true, 200),
        ("http_filter_destroy", true, 200),
        ("http_filter_config_scheduled", true, 200),
        ("http_filter_config_destroy", true, 200),
        ("per_route_config_destroy", true, 200),
    ] {
        let inside = inside(&redis).field(&format!("failure_mode_deny: {failure_mode_deny}"));
        let mut envoy = Envoy::launch(panics(hook), &inside.config());
        let mut client = Client::new(envoy.port);
        for _ in 0..3 {
            let answer = client.send("GET", "/", &[("x-user", "ann")], "").expect("Envoy answers");
            assert_eq!(answer.status, status, "{hook}, {failure_mode_deny}: {answer:?}");
        }
        match hook {
            // It shows statistics, so it shows none.
            "http_filter_config_scheduled" => eventually_true(hook, || envoy.lines_with(PANICKED) > 0),
            "http_filter_config_destroy" | "per_route_config_destroy" => {}
            _ => eventually_true(hook, || envoy.stat("dynamicmodulescustom.tidegate_panics") >= 3),
        }
        envoy.signal(Signal::TERM);
        assert_eq!(envoy.exit_code(), 0, "{hook}");
        assert!(envoy.lines_with(PANICKED) > 0, "{hook}");
    }
}
