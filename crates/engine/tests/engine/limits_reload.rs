//! What a reload that changes N does to counters that are in use. Buckets are in `limits_changed`.

use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::time::SECOND_NANOS;

use crate::asking::TestCounter;

const BUCKETS: [Algorithm; 2] = [Algorithm::TokenBucket, Algorithm::LeakyBucket];

fn limit(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests.into(), 10 * SECOND_NANOS)
}

#[test]
fn an_unchanged_limit_keeps_its_counts() {
    for algorithm in Algorithm::OF_HITS {
        let mut counter = TestCounter::new(limit(algorithm, 10));
        assert_eq!(counter.passed(7, 1.0), 7);
        counter.limit = limit(algorithm, 10);
        assert_eq!(counter.passed(7, 1.0), 3, "{algorithm:?}");
    }
}

#[test]
fn a_changed_n_applies_to_what_was_counted_at_once() {
    for algorithm in Algorithm::OF_HITS.into_iter().filter(|algorithm| !BUCKETS.contains(algorithm)) {
        let mut counter = TestCounter::new(limit(algorithm, 10));
        assert_eq!(counter.passed(10, 1.0), 10);
        counter.limit = limit(algorithm, 15);
        assert_eq!(counter.passed(10, 1.0), 5, "{algorithm:?}");
        counter.limit = limit(algorithm, 3);
        let denied = counter.take(1, 1.0);
        assert!(denied.over && denied.remaining == 0, "{algorithm:?}");
    }
}
