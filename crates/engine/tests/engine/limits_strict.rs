//! The promise of the strict algorithms: in no window W, wherever it starts, are more than N hits admitted.

use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::plan::{Check, Hits};
use tidegate_engine::time::Timestamp;

use crate::asking::{check, key, plan, small_store};
use crate::limits_oracle::Terms;
use crate::limits_sequences::{next_hits, next_time, terms};
use crate::random::Random;

/// The most hits in any window of this length. Some window that holds the most starts at a hit.
pub(crate) fn most_in_any_window(admitted: &[(u64, u64)], window: u64) -> u64 {
    let mut ordered = admitted.to_vec();
    ordered.sort_unstable();
    let (mut start, mut sum, mut most) = (0, 0, 0);
    for &(time, hits) in &ordered {
        sum += hits;
        while ordered[start].0 + window <= time {
            sum -= ordered[start].1;
            start += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Runs many sequences; returns the largest share of N that any window held.
fn worst_of(algorithm: Algorithm, sequences: u64, steps: u64) -> f64 {
    let (store, mut worst) = (small_store(), 0_f64);
    for seed in 0..sequences {
        let mut random = Random(seed ^ 0xA11);
        let terms = terms(&mut random, algorithm);
        // A counter keeps the latest time from its first hit on.
        let (mut now, mut latest, mut admitted) = (random.below(3 * terms.window), None, Vec::new());
        for _ in 0..steps {
            now = next_time(&mut random, now, terms.window);
            let hits = next_hits(&mut random, &terms).min(1 << 33);
            let plan = plan([check(terms.limit(), key(seed), Hits::Take(hits))]);
            let verdict = store.apply(&plan, Timestamp::from_nanos(now))[0].expect("a check has a verdict");
            let time = latest.map_or(now, |latest: u64| latest.max(now));
            if !verdict.over && hits > 0 {
                admitted.push((time, hits));
            }
            let exists =
                latest.is_some() || !admitted.is_empty() || algorithm == Algorithm::FixedWindow && hits > 0;
            latest = exists.then_some(time);
        }
        let most = most_in_any_window(&admitted, terms.window);
        if terms.requests > 0 {
            worst = worst.max(most as f64 / terms.requests as f64);
        } else {
            assert_eq!(most, 0, "seed {seed}: N = 0 admits nothing");
        }
    }
    worst
}

#[test]
fn a_log_never_admits_more_than_n_in_any_window() {
    assert_eq!(worst_of(Algorithm::SlidingLog, 10_000, 24), 1.0);
}

#[test]
fn a_sliding_window_never_admits_more_than_n_in_any_window() {
    assert_eq!(worst_of(Algorithm::SlidingWindow, 10_000, 24), 1.0);
}

#[test]
fn the_estimate_can_admit_almost_twice_the_limit_and_never_twice() {
    let worst = worst_of(Algorithm::SlidingWindowWeighted, 10_000, 24);
    assert!((1.5..2.0).contains(&worst), "{worst}");
}

#[test]
fn fixed_windows_can_admit_twice_the_limit() {
    assert_eq!(worst_of(Algorithm::FixedWindow, 10_000, 24), 2.0);
}

/// Two fifths of all requests give back hits that still count, of whatever age: those that stay are never more than N in any
/// window.
fn worst_beside_refunds(algorithm: Algorithm) -> f64 {
    let (store, mut worst) = (small_store(), 0_f64);
    for seed in 0..3_000 {
        let mut random = Random(seed ^ 0x5EF);
        let terms = Terms { requests: 1 + random.below(12), ..terms(&mut random, algorithm) };
        let (mut now, mut admitted) = (3 * terms.window, Vec::<(u64, u64)>::new());
        for _ in 0..60 {
            now = next_time(&mut random, now, terms.window).max(now);
            let ask = |hits| {
                let plan = plan([check(terms.limit(), key(seed), hits)]);
                store.apply(&plan, Timestamp::from_nanos(now))[0].expect("a check has a verdict")
            };
            let mut counting = admitted.iter_mut().filter(|hit| hit.0 + terms.window > now && hit.1 > 0);
            match random.below(5) < 2 {
                true => {
                    let meant = random.below(8) as usize;
                    let Some(hit) = counting.nth(meant) else { continue };
                    let back = 1 + random.below(hit.1);
                    hit.1 -= back;
                    ask(Hits::GiveBack(back));
                }
                false => {
                    let hits = 1 + random.below(terms.requests);
                    let over = ask(Hits::Take(hits)).over;
                    admitted.extend((!over).then_some((now, hits)));
                }
            }
        }
        let most = most_in_any_window(&admitted, terms.window);
        worst = worst.max(most as f64 / terms.requests as f64);
    }
    worst
}

#[test]
fn refunds_of_hits_that_count_never_make_room_for_more_than_n() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow] {
        assert_eq!(worst_beside_refunds(algorithm), 1.0, "{algorithm:?}");
    }
}

/// Calls that ask first (0 hits) and report what they cost when they are done. In no window is more spent than N and what
/// was under way when N was reached; or so many `times` as much, where the algorithm itself allows N as often.
fn metered(algorithm: Algorithm, times: u64) {
    let (store, window) = (small_store(), 10_000);
    for seed in 0..40 {
        let mut random = Random(seed ^ 0x4E7);
        let limit = Limit::new(algorithm, 600, window).with_burst(600);
        let heavy = random.one_in(2);
        let ask = |hits, reported, now| {
            let asked = Check { reported, ..check(limit, key(seed), Hits::Take(hits)) };
            store.apply(&plan([asked]), Timestamp::from_nanos(now))[0].expect("a check has a verdict")
        };
        // When a call ends, and what it costs.
        let (mut under_way, mut spent, mut denied) = (Vec::<(u64, u64)>::new(), Vec::new(), 0);
        for now in (0..100_000).step_by(20) {
            for (_, cost) in under_way.extract_if(.., |call| call.0 <= now) {
                ask(cost, true, now);
                spent.push((now, cost));
            }
            if under_way.len() < 4 {
                let over = ask(0, false, now).over;
                denied += u64::from(over);
                let cost = if heavy && random.one_in(20) { 5_000 } else { 100 + 400 * u64::from(!heavy) };
                under_way.extend((!over).then(|| (now + random.below(600), cost)));
            }
        }
        let most = most_in_any_window(&spent, window);
        let costliest = spent.iter().map(|call| call.1).max().unwrap_or_default();
        assert!(most <= times * (600 + 4 * costliest), "seed {seed}: {most} in a window, {algorithm:?}");
        assert!(most >= 600 && denied > 1_000, "seed {seed}: the limit must be reached, {most}, {denied}");
    }
}

#[test]
fn what_is_reported_stays_within_n_and_what_was_under_way() {
    [Algorithm::SlidingLog, Algorithm::SlidingWindow].into_iter().for_each(|it| metered(it, 1));
    // The excess that an estimate, the edge of a window or a full bucket admits in addition to N.
    let others = [Algorithm::SlidingWindowWeighted, Algorithm::FixedWindow, Algorithm::TokenBucket];
    others.into_iter().chain([Algorithm::LeakyBucket]).for_each(|it| metered(it, 2));
}

#[test]
fn the_slider_itself_sees_too_many() {
    assert_eq!(most_in_any_window(&[(0, 3), (9, 2), (10, 4), (20, 1)], 10), 6);
    assert_eq!(most_in_any_window(&[(10, 4), (0, 3), (9, 2)], 11), 9);
}
