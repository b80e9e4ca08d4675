//! What a reload that changes N or `burst` does to counters that are in use.

use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::time::SECOND_NANOS;

use crate::asking::TestCounter;

const BUCKETS: [Algorithm; 2] = [Algorithm::TokenBucket, Algorithm::LeakyBucket];

fn limit(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests, 10 * SECOND_NANOS)
}

#[test]
fn an_unchanged_limit_keeps_its_counts() {
    for algorithm in Algorithm::ALL {
        let mut counter = TestCounter::new(limit(algorithm, 10));
        assert_eq!(counter.passed(7, 1.0), 7);
        counter.limit = limit(algorithm, 10);
        assert_eq!(counter.passed(7, 1.0), 3, "{algorithm:?}");
    }
}

#[test]
fn a_changed_n_applies_to_what_was_counted_at_once() {
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| !BUCKETS.contains(algorithm)) {
        let mut counter = TestCounter::new(limit(algorithm, 10));
        assert_eq!(counter.passed(10, 1.0), 10);
        counter.limit = limit(algorithm, 15);
        assert_eq!(counter.passed(10, 1.0), 5, "{algorithm:?}");
        counter.limit = limit(algorithm, 3);
        let denied = counter.take(1, 1.0);
        assert!(denied.over && denied.remaining == 0, "{algorithm:?}");
    }
}

/// Ten hits of ten in ten seconds: full again after ten seconds, whatever N is meanwhile.
#[test]
fn a_bucket_keeps_the_time_to_full() {
    for algorithm in BUCKETS {
        for (requests, at_half_time) in [(20, 0), (5, 7), (7, 6), (1_000_000, 0)] {
            let mut counter = TestCounter::new(limit(algorithm, 10));
            assert_eq!(counter.passed(10, 1.0), 10);
            counter.limit = limit(algorithm, requests).with_burst(10);
            assert_eq!(counter.take(0, 6.0).remaining, at_half_time, "{algorithm:?} to {requests}");
            let (early, full) = (counter.take(0, 11.0 - 1e-6), counter.take(0, 11.0));
            assert!(early.remaining < 10 || requests > 100_000, "{algorithm:?} to {requests}");
            assert_eq!((full.remaining, full.reset_nanos), (10, 0), "{algorithm:?} to {requests}");
        }
    }
}

#[test]
fn a_smaller_burst_denies_until_the_level_is_below_it() {
    for algorithm in BUCKETS {
        let mut counter = TestCounter::new(limit(algorithm, 10).with_burst(20));
        assert_eq!(counter.passed(20, 1.0), 20);
        counter.limit = limit(algorithm, 10).with_burst(5);
        let denied = counter.take(1, 1.0);
        assert!(denied.over);
        assert_eq!((denied.before, denied.reset_nanos), (20, 16 * SECOND_NANOS), "{algorithm:?}");
        assert!(counter.passes(1, 17.0));
    }
}
