//! The promise of the strict algorithms: in no window W, wherever it starts, are more than N hits admitted.

use tidegate::engine::limit::Algorithm;
use tidegate::engine::plan::Hits;
use tidegate::engine::time::Timestamp;

use crate::asking::{check, key, plan, small_store};
use crate::limits_sequences::{next_hits, next_time, terms};
use crate::random::Random;

/// The most hits in any window of this length. A window that holds the most can be moved to start at a hit.
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
        // A counter remembers the latest time at which it was asked, from its first hit on.
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
            worst = worst.max(most as f64 / f64::from(terms.requests));
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

#[test]
fn the_slider_itself_sees_too_many() {
    assert_eq!(most_in_any_window(&[(0, 3), (9, 2), (10, 4), (20, 1)], 10), 6);
    assert_eq!(most_in_any_window(&[(10, 4), (0, 3), (9, 2)], 11), 9);
}
