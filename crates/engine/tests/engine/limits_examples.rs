//! The worked examples, row by row, for every algorithm that a row names.

use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::time::{SECOND_NANOS, ceil_secs};

use crate::asking::{TestCounter, at};
use Algorithm::{
    FixedWindow as FX, LeakyBucket as LB, SlidingLog as SL, SlidingWindow as SW, SlidingWindowWeighted as WT,
    TokenBucket as TB,
};

const ALL: [Algorithm; 6] = [SL, SW, WT, FX, TB, LB];

/// T and F for single hits at these times.
fn outcome(counter: &TestCounter, times: &[f64]) -> String {
    times.iter().map(|&time| if counter.passes(1, time) { 'T' } else { 'F' }).collect()
}

#[test]
fn row_1_three_in_ten_seconds() {
    let times = [0.0, 1.0, 2.0, 3.0, 11.0];
    for algorithm in ALL {
        let expected = if algorithm == WT { "TTTFF" } else { "TTTFT" };
        assert_eq!(outcome(&TestCounter::of(algorithm, 3, 10), &times), expected, "{algorithm:?}");
    }
    let answers = |algorithm| {
        let counter = TestCounter::of(algorithm, 3, 10);
        let verdicts = times.map(|time| counter.take(1, time));
        (verdicts.map(|verdict| verdict.remaining), verdicts.map(|verdict| ceil_secs(verdict.reset_nanos)))
    };
    assert_eq!(answers(SL), ([2, 1, 0, 0, 1], [10, 9, 8, 7, 1]));
    assert_eq!(answers(SW).0, [2, 1, 0, 0, 0]);
}

#[test]
fn row_2_the_edge_of_the_window() {
    let full = |algorithm| {
        let counter = TestCounter::of(algorithm, 2, 10);
        assert_eq!(outcome(&counter, &[1.0, 2.0]), "TT");
        counter
    };
    let one_ns_early = 11.0 - 1e-9;
    assert_eq!(outcome(&full(SL), &[one_ns_early, 11.0]), "FT");
    assert_eq!(outcome(&full(SW), &[11.0, 11.1666, 11.167]), "FFT");
    assert_eq!(outcome(&full(WT), &[one_ns_early, 11.0, 11.167]), "FFF");
}

#[test]
fn row_3_around_the_end_of_a_minute() {
    for algorithm in ALL {
        let counter = TestCounter::of(algorithm, 10, 60);
        let passed = (counter.passed(10, 119.0), counter.passed(10, 121.0));
        assert_eq!(passed, (10, if algorithm == FX { 10 } else { 0 }), "{algorithm:?}");
    }
}

#[test]
fn row_4_more_than_the_limit_then_the_next_window() {
    for (algorithm, at_60, at_61) in
        [(FX, 100, 100), (TB, 1, 3), (LB, 1, 3), (SL, 0, 0), (SW, 0, 0), (WT, 0, 1)]
    {
        for (later, expected) in [(60.0, at_60), (61.0, at_61)] {
            let counter = TestCounter::of(algorithm, 100, 60);
            assert_eq!(counter.passed(102, 59.0), 100, "{algorithm:?}");
            assert_eq!(counter.passed(100, later), expected, "{algorithm:?} at {later}");
        }
    }
}

#[test]
fn row_5_exactly_at_the_limit() {
    for algorithm in ALL {
        let counter = TestCounter::of(algorithm, 60, 60);
        let passed = (0..600).filter(|&second| counter.passes(1, f64::from(second))).count();
        assert_eq!(passed, if [SW, WT].contains(&algorithm) { 591 } else { 600 }, "{algorithm:?}");
    }
}

#[test]
fn row_6_an_uneven_past() {
    for algorithm in ALL {
        let counter = TestCounter::of(algorithm, 100, 60);
        let passed = (counter.passed(100, 0.0), counter.passed(100, 75.0));
        assert_eq!(passed, (100, if algorithm == WT { 25 } else { 100 }), "{algorithm:?}");
    }
}

#[test]
fn row_7_almost_twice_the_limit() {
    for (algorithm, expected) in [(SL, 0), (SW, 0), (WT, 99), (TB, 99), (LB, 99), (FX, 100)] {
        let counter = TestCounter::of(algorithm, 100, 60);
        let passed = (counter.passed(100, 59.9), counter.passed(100, 119.8));
        assert_eq!(passed, (100, expected), "{algorithm:?}");
    }
}

fn bucket(algorithm: Algorithm) -> TestCounter {
    TestCounter::new(Limit::new(algorithm, 2, SECOND_NANOS).with_burst(10))
}

#[test]
fn row_8_a_leaky_bucket_leaks_evenly() {
    let counter = bucket(LB);
    assert_eq!(counter.passed(20, 0.0), 10);
    assert_eq!(outcome(&counter, &[0.49, 0.5, 0.99, 1.0]), "FTFT");
}

#[test]
fn row_9_a_leaky_bucket_under_steady_load() {
    let counter = bucket(LB);
    let passed = |second: usize| {
        (0..5).filter(|&part| counter.passes(1, second as f64 + f64::from(part) * 0.2)).count()
    };
    let passed: Vec<usize> = (0..20).map(passed).collect();
    assert_eq!(passed[..3], [5, 5, 5]);
    assert!(passed[3..].iter().all(|&passed| passed == 2), "{passed:?}");
}

#[test]
fn row_10_a_token_bucket_never_holds_more_than_its_burst() {
    let counter = bucket(TB);
    assert_eq!(counter.passed(11, 0.0), 10);
    assert_eq!(outcome(&counter, &[0.49, 0.5]), "FT");
    let never = counter.take(11, 100.0);
    assert!(never.over);
    assert_eq!(never.reset_nanos, SECOND_NANOS);
    assert!(counter.passes(10, 100.0));
}

#[test]
fn row_11_around_the_end_of_a_second() {
    for algorithm in ALL {
        let counter = TestCounter::of(algorithm, 5, 1);
        let passed = (counter.passed(10, 0.9), counter.passed(10, 1.0));
        assert_eq!(passed, (5, if algorithm == FX { 5 } else { 0 }), "{algorithm:?}");
    }
}

#[test]
fn row_12_one_left_and_two_ask_at_once() {
    for algorithm in ALL {
        let counter = TestCounter::of(algorithm, 10, 60);
        assert_eq!(counter.passed(9, 1.0), 9);
        let passed: usize = std::thread::scope(|scope| {
            let asks: Vec<_> = (0..2).map(|_| scope.spawn(|| usize::from(counter.passes(1, 2.0)))).collect();
            asks.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(passed, 1, "{algorithm:?}");
    }
}

#[test]
fn row_13_critical_first() {
    use crate::asking::{check, key, plan, store};
    use tidegate_engine::plan::Hits;
    for algorithm in ALL {
        let (store, minute) = (store(), 60 * SECOND_NANOS);
        let all = check(Limit::new(algorithm, 100, minute), key(1), Hits::Take(1));
        let ordinary = check(Limit::new(algorithm, 80, minute), key(2), Hits::Take(1));
        let passes = |checks: &[_]| {
            let plan = plan(checks.iter().copied());
            store.apply(&plan, at(5.0)).iter().flatten().all(|verdict| !verdict.over)
        };
        let ordinary_passed = (0..100).filter(|_| passes(&[all, ordinary])).count();
        let critical_passed = (0..30).filter(|_| passes(&[all])).count();
        let expected = if algorithm == FX { (80, 0) } else { (80, 20) };
        assert_eq!((ordinary_passed, critical_passed), expected, "{algorithm:?}");
    }
}
