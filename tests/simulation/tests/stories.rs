//! Scenarios that somebody thought out, each a fault that no longer is.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;
use tidegate_simulation::node::NodeClock;
use tidegate_simulation::redis::scripts::RunBy;
use tidegate_simulation::run::run;
use tidegate_simulation::scenario::{Ask, Fault, Item, Layout, LimitSpec, Scenario, What};
use tidegate_simulation::world::{MICRO, MILLI, SECOND, Time};

fn limit(algorithm: Algorithm, requests: u32, window_secs: u64) -> LimitSpec {
    LimitSpec {
        algorithm,
        requests: [requests; 2],
        window_secs: [window_secs; 2],
        is_override: false,
        is_shadow: false,
        is_leased: false,
        is_reported: false,
        failure: StoreFailure::Error,
        excepted: None,
    }
}

/// Two nodes and two servers, of which one has the limits per second.
fn scenario(limits: Vec<LimitSpec>, asks: Vec<Ask>, faults: Vec<Fault>) -> Scenario {
    Scenario {
        seed: 1,
        clocks: vec![NodeClock::default(); 2],
        layout: Layout::PerSecond,
        scripts_run_by: RunBy::Lua,
        limits,
        lease_time: 100 * MILLI,
        timeout: 100 * MILLI,
        wait_replicas: 0,
        deny_cache_bytes: 0,
        denies_cold: false,
        slow_one_in: 1 << 40,
        far: vec![[0, 0]; 2],
        asks,
        faults,
    }
}

/// A request for so many hits of each of these limits.
fn ask(at: Time, node: usize, items: &[(usize, u64)]) -> Ask {
    let item = |&(limit, hits): &(usize, u64)| Item { limit, key: 0, hits };
    Ask { at, node, items: items.iter().map(item).collect(), deadline: None, cancelled: None, refunded: None }
}

/// A failover keeps the generation of a server but loses what was charged last. Hits of a request that another server
/// denied went back to the new master nevertheless, and took those of others along.
#[test]
fn what_a_failover_lost_does_not_go_back() {
    let limits = vec![limit(Algorithm::SlidingWindow, 1, 1), limit(Algorithm::TokenBucket, 100, 60)];
    let denied_at = 2 * SECOND;
    let mut asks = vec![ask(denied_at - 10 * MILLI, 0, &[(0, 1)]), ask(denied_at, 0, &[(0, 1), (1, 50)])];
    // Both nodes see that the connection has ended.
    asks.extend([0, 1].map(|node| ask(denied_at + 6 * MILLI, node, &[(1, 1)])));
    let others = (0..25).map(|number| ask(denied_at + (70 + number) * MILLI, 1, &[(1, 10)]));
    asks.extend(others);
    // The one server denies late. Meanwhile the other one loses what it charged.
    let what = [
        (denied_at - MILLI, What::Cut { node: 0, server: 1, lasts: 91 * MILLI }),
        (denied_at - 500 * MICRO, What::FailOver { server: 0, lacks: 5 * MILLI }),
    ];
    let faults = what.map(|(at, what)| Fault { at, what });
    let outcome = run(&scenario(limits, asks, faults.to_vec()), true);
    assert_eq!(outcome.violation, None, "{}", outcome.story);
}
