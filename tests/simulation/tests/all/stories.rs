//! Scenarios that somebody thought out, each a fault that no longer is.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::overlay::Effect;
use tidegate_engine::plan::Modes;
use tidegate_serve::service::StaleMode;
use tidegate_simulation::node::NodeClock;
use tidegate_simulation::redis::scripts::RunBy;
use tidegate_simulation::run::run;
use tidegate_simulation::scenario::{
    Ask, Fault, Item, Layout, LimitSpec, Scenario, Settings, StoredIn, Terms, What, Whom,
};
use tidegate_simulation::world::{MICRO, MILLI, SECOND, Time};

/// Two nodes and two servers, of which one has the limits per second.
fn scenario(limits: Vec<LimitSpec>, asks: Vec<Ask>, faults: Vec<Fault>) -> Scenario {
    Scenario {
        seed: 1,
        later: 0,
        clocks: vec![NodeClock::default(); 2],
        layout: Layout::PerSecond,
        scripts_run_by: RunBy::Lua,
        limits,
        settings: Settings { lease_time: 100 * MILLI, denies_cold: false, local_share_percent: 100 },
        other: None,
        timeout: 100 * MILLI,
        wait_replicas: 0,
        replicas_ahead: 0,
        deny_cache_bytes: 0,
        modes: Modes::default(),
        unlimited_replaces: None,
        workers: 1,
        pool_size: 10,
        slow_one_in: None,
        far: vec![[0, 0]; 2],
        follows_resets: false,
        records_in: StoredIn::List,
        exceptions_in: StoredIn::List,
        stale_mode: StaleMode::Rule,
        record_cache: 100,
        asks,
        faults,
    }
}

/// A request for so many hits of each of these limits.
fn ask(at: Time, node: usize, items: &[(usize, u64)]) -> Ask {
    let item = |&(limit, hits): &(usize, u64)| Item::new(limit, 0, hits);
    Ask::new(at, node, items.iter().map(item).collect())
}

/// A failover keeps the generation of a server but loses what was charged last. Hits of a request that another server
/// denied went back to the new master nevertheless, and took those of others along.
#[test]
fn what_a_failover_lost_does_not_go_back() {
    let limits =
        vec![LimitSpec::new(Algorithm::SlidingWindow, 1, 1), LimitSpec::new(Algorithm::TokenBucket, 100, 60)];
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

/// A node that stops while a request waits: what that request holds of a lease is accounted for when it ends. It was looked
/// for when the node had given back the rest, though the request still held it then.
#[test]
fn a_request_that_outlives_its_node_holds_leased_hits() {
    let limits = vec![
        LimitSpec { is_leased: true, ..LimitSpec::new(Algorithm::SlidingLog, 200, 60) },
        LimitSpec::new(Algorithm::SlidingLog, 5, 1),
    ];
    let at = |millis: Time| 2 * SECOND + millis * MILLI;
    // The third spends one of two leased hits. The last one holds the other, while it waits for a server that is slow.
    let mut asks: Vec<_> = (0..3).map(|number| ask(at(4 * number), 0, &[(0, 1)])).collect();
    asks.push(ask(at(20), 0, &[(1, 2), (0, 1)]));
    let what = [
        (at(19), What::Cut { node: 0, server: 1, lasts: 50 * MILLI }),
        (at(21), What::StopNode { node: 0, lasts: 5 * MILLI }),
    ];
    let faults = what.map(|(at, what)| Fault { at, what });
    let outcome = run(&scenario(limits, asks, faults.to_vec()), true);
    assert_eq!(outcome.violation, None, "{}", outcome.story);
    assert_eq!(outcome.codes, [4 + 2, 0, 0], "{}", outcome.story);
}

/// What operators do is in force: a counter has room after a reset, and exceptions come and go.
#[test]
fn operators_are_obeyed() {
    let asked = |at| ask(at * SECOND, 0, &[(0, 5)]);
    let fault = |at, what| Fault { at: at * SECOND + SECOND / 2, what };
    let except = |effect| What::Except { node: 0, limit: 0, whom: Whom::One(0), effect, lasts: SECOND };
    let reset = |epoch| What::Reset { limit: Some(0), key: Some(0), epoch, heard_within: 0 };
    let faults = vec![
        fault(2, reset(1)),
        fault(3, except(Effect::Limit { requests: Some(10), burst: None })),
        fault(5, except(Effect::Unlimited)),
        fault(7, reset(2)),
        fault(7, except(Effect::Deny)),
    ];
    let limits = vec![LimitSpec { excepted: Some(10), ..LimitSpec::new(Algorithm::SlidingWindow, 5, 60) }];
    // 1: 5 of 5. 2: denied. 3: after a reset. 4: 10 of 10. 5: denied. 6: unlimited. 7: denied. 8: by an exception. 9: 5
    // of 5.
    let outcome = run(&scenario(limits, (1..10).map(asked).collect(), faults), true);
    assert_eq!(outcome.violation, None, "{}", outcome.story);
    assert_eq!(outcome.codes, [5 + 1, 4, 0], "{}", outcome.story);
}

/// Records are in force as they come, change and go. One with another window has another counter.
#[test]
fn records_are_obeyed() {
    let asked = |at| ask(at * SECOND, 0, &[(0, 5)]);
    let fault = |at, terms| Fault {
        at: at * SECOND + SECOND / 2,
        what: What::Record { limit: 0, key: 0, terms, heard_within: SECOND / 4 },
    };
    let of_thirty_secs = Terms { window_secs: Some(30), ..Terms::of(20) };
    let faults = vec![fault(2, Some(Terms::of(10))), fault(4, Some(of_thirty_secs)), fault(5, None)];
    let limits = vec![LimitSpec { recorded: Some(20), ..LimitSpec::new(Algorithm::SlidingWindow, 5, 60) }];
    // 1: 5 of 5. 2: denied. 3: 10 of 10. 4: denied. 5: 5 of another 20. 6: denied.
    let outcome = run(&scenario(limits, (1..7).map(asked).collect(), faults), true);
    assert_eq!(outcome.violation, None, "{}", outcome.story);
    assert_eq!(outcome.codes, [3 + 1, 3, 0], "{}", outcome.story);
}

/// A node with short leases notices a loss first, and another spends a lease of before that is longer. Then counters were
/// full for too short a time: 428 of 400 were admitted.
#[test]
fn a_loss_is_over_when_the_longest_leases_are() {
    let (lost, window) = (17 * SECOND, 12 * SECOND);
    let limits =
        vec![LimitSpec { is_leased: true, ..LimitSpec::new(Algorithm::SlidingWindow, 400, window / SECOND) }];
    let each = |from: Time, every: Time, count: Time| (0..count).map(move |number| from + number * every);
    // Counters are cold at first, as long as they are after the loss.
    let mut asks: Vec<Ask> = each(16 * SECOND, 20 * MILLI, 50).map(|at| ask(at, 0, &[(0, 1)])).collect();
    asks.extend(each(lost + MILLI, 50 * MILLI, 1).map(|at| ask(at, 1, &[(0, 1)])));
    asks.extend(each(lost + 2 * SECOND, MILLI, 30).map(|at| ask(at, 0, &[(0, 1)])));
    asks.extend(each(lost + window, 10 * MILLI, 310).map(|at| ask(at, 1, &[(0, 20)])));
    let settings = Settings { lease_time: 100 * MILLI, denies_cold: true, local_share_percent: 100 };
    let story = Scenario {
        layout: Layout::Single,
        settings: Settings { lease_time: 3 * SECOND, ..settings },
        other: Some((1, settings)),
        ..scenario(limits, asks, vec![Fault { at: lost, what: What::Flush { server: 0 } }])
    };
    let outcome = run(&story, true);
    assert_eq!(outcome.violation, None, "{}", outcome.story);
    // Of node 0: 50, and 13 of its lease. Of node 1: 20 requests for 20 hits, as soon as 15 s are over.
    assert_eq!(outcome.codes, [50 + 13 + 20 + 1, 17 + 1 + 290, 0], "{}", outcome.story);
}
