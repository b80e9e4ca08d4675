//! Envoys and Redis that are killed, or stopped for longer than a lease lasts, under load: no window holds more than N.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::envoy::Envoy;
use crate::harness::inside::{Inside, rules};
use crate::harness::redis::Redis;
use crate::harness::users::{Asking, ask_while, busy};
use crate::harness::whole_machine;

const N: usize = 300;
const WINDOW_MICROS: u64 = 1_000_000;
/// Far longer than a lease, and than a window.
const STOPPED: Duration = Duration::from_millis(1_500);

/// Three Envoys share a limit of N a second while their users ask as fast as they are answered, and something happens.
fn certainly_strict(happens: impl FnOnce(&mut [Envoy], &mut Redis, &Asking)) {
    let _machine = whole_machine();
    let mut redis = Redis::start(&[]);
    let limit = format!("{{unit: second, requests_per_unit: {N}, on_store_failure: deny}}");
    let inside = Inside::new(&rules(&limit))
        .setting("REDIS_URL", &redis.url())
        .setting("REDIS_TIMEOUT", "2s")
        .setting("COLD_START", "deny");
    let mut envoys: Vec<_> = (0..3).map(|_| inside.start()).collect();
    let ports: Vec<_> = envoys.iter().map(|envoy| envoy.port).collect();
    let log = ask_while(&busy(&ports, 2), |asking| {
        asking.until_admitted(N);
        happens(&mut envoys, &mut redis, asking);
        asking.until_admitted(2 * N);
    });
    let most = log.admitted.most_in_a_window(WINDOW_MICROS);
    assert!(most <= N, "{most} in a window, of {} in all", log.admitted.len());
    assert!(most > N / 2 && log.denied > 0, "the limit must be reached: {most}");
    for envoy in &envoys {
        let ok = envoy.stat("dynamicmodulescustom.tidegate_ok");
        let waited = envoy.stat("dynamicmodulescustom.tidegate_waited");
        assert!(ok > 0, "each serves at the end");
        println!("admitted {ok}, waited {waited}");
    }
}

#[test]
fn envoys_that_are_killed_take_their_leases_with_them() {
    certainly_strict(|envoys, _, asking| {
        for envoy in envoys {
            envoy.kill();
            asking.until_admitted(N / 3);
            envoy.restart();
            asking.until_admitted(N / 3);
        }
    });
}

#[test]
fn a_redis_that_lost_everything_admits_nothing_more() {
    certainly_strict(|envoys, redis, asking| {
        redis.kill();
        asking.until_denied(N);
        redis.restart();
        asking.until_admitted(N);
        redis.kill();
        envoys[0].kill();
        redis.restart();
        envoys[0].restart();
        asking.until_admitted(N);
    });
}

#[test]
fn an_envoy_that_was_stopped_spends_no_lease_that_has_ended() {
    certainly_strict(|envoys, redis, asking| {
        for envoy in envoys.iter() {
            envoy.signal(Signal::STOP);
            asking.until_admitted(N / 3);
            std::thread::sleep(STOPPED);
            envoy.signal(Signal::CONT);
            asking.until_admitted(N / 3);
        }
        redis.stop();
        std::thread::sleep(STOPPED);
        redis.wake();
        envoys.iter().for_each(|envoy| envoy.signal(Signal::STOP));
        std::thread::sleep(STOPPED);
        envoys.iter().for_each(|envoy| envoy.signal(Signal::CONT));
    });
}
