//! The worked sequences, row by row, inside a real Redis.

use Algorithm::{
    Calendar as CAL, FixedWindow as FX, LeakyBucket as LB, SlidingLog as SL, SlidingWindow as SW,
    SlidingWindowWeighted as WT, TokenBucket as TB,
};
use redis::Connection;
use tidegate_engine::limit::{Algorithm, Limit, Verdict};
use tidegate_engine::plan::Hits;
use tidegate_engine::time::{SECOND_NANOS, ceil_secs};

use crate::asking::{check, key, plan};
use crate::script::Asked;
use crate::server::Server;

/// One counter after another in one server.
struct Rows {
    asked: Asked,
    limit: Limit,
    counter: u32,
    _server: Server,
}

impl Rows {
    fn new() -> Self {
        let server = Server::start(&[]);
        let connection: Connection = server.connect();
        let limit = Limit::new(SL, 1, SECOND_NANOS);
        Self { asked: Asked::new(vec![connection]), limit, counter: 0, _server: server }
    }

    /// A new counter.
    fn counter(&mut self, limit: Limit) -> &mut Self {
        (self.limit, self.counter) = (limit, self.counter + 1);
        self
    }

    fn of(&mut self, algorithm: Algorithm, requests: u32, window_secs: u64) -> &mut Self {
        self.counter(Limit::new(algorithm, requests.into(), window_secs * SECOND_NANOS))
    }

    fn take(&mut self, hits: u64, seconds: f64) -> Verdict {
        let (counter, plan) = (self.counter, plan([check(self.limit, key(1), Hits::Take(hits))]));
        let now = (seconds * 1e6).round() as u64;
        self.asked.apply(&plan, |_| format!("row{counter}"), now)[0].unwrap()
    }

    fn outcome(&mut self, times: &[f64]) -> String {
        times.iter().map(|&time| if self.take(1, time).over { 'F' } else { 'T' }).collect()
    }

    fn passed(&mut self, count: usize, seconds: f64) -> usize {
        (0..count).filter(|_| !self.take(1, seconds).over).count()
    }
}

#[test]
fn rows_1_to_3() {
    let mut rows = Rows::new();
    let times = [0.0, 1.0, 2.0, 3.0, 11.0];
    for algorithm in Algorithm::OF_HITS {
        let expected = if algorithm == WT { "TTTFF" } else { "TTTFT" };
        assert_eq!(rows.of(algorithm, 3, 10).outcome(&times), expected, "{algorithm:?}");
    }
    let log = times.map({
        rows.of(SL, 3, 10);
        |time| rows.take(1, time)
    });
    assert_eq!(log.map(|verdict| verdict.remaining), [2, 1, 0, 0, 1]);
    assert_eq!(log.map(|verdict| ceil_secs(verdict.reset_nanos)), [10, 9, 8, 7, 1]);
    assert_eq!(rows.of(SL, 2, 10).outcome(&[1.0, 2.0, 10.999_999, 11.0]), "TTFT");
    assert_eq!(rows.of(SW, 2, 10).outcome(&[1.0, 2.0, 11.0, 11.1666, 11.167]), "TTFFT");
    assert_eq!(rows.of(WT, 2, 10).outcome(&[1.0, 2.0, 10.999_999, 11.0, 11.167]), "TTFFF");
    for algorithm in Algorithm::OF_HITS {
        rows.of(algorithm, 10, 60);
        let passed = (rows.passed(10, 119.0), rows.passed(10, 121.0));
        assert_eq!(passed, (10, if [FX, CAL].contains(&algorithm) { 10 } else { 0 }), "{algorithm:?}");
    }
}

#[test]
fn rows_4_to_7() {
    let mut rows = Rows::new();
    for (algorithm, at_60, at_61) in
        [(FX, 100, 100), (TB, 1, 3), (LB, 1, 3), (SL, 0, 0), (SW, 0, 0), (WT, 0, 1)]
    {
        for (later, expected) in [(60.0, at_60), (61.0, at_61)] {
            assert_eq!(rows.of(algorithm, 100, 60).passed(102, 59.0), 100, "{algorithm:?}");
            assert_eq!(rows.passed(100, later), expected, "{algorithm:?} at {later}");
        }
    }
    for algorithm in Algorithm::OF_HITS {
        rows.of(algorithm, 60, 60);
        let passed = (0..600).filter(|&second| !rows.take(1, f64::from(second)).over).count();
        assert_eq!(passed, if [SW, WT].contains(&algorithm) { 591 } else { 600 }, "{algorithm:?}");
        rows.of(algorithm, 100, 60);
        let passed = (rows.passed(100, 0.0), rows.passed(100, 75.0));
        assert_eq!(passed, (100, if algorithm == WT { 25 } else { 100 }), "{algorithm:?}");
    }
    for (algorithm, expected) in [(SL, 0), (SW, 0), (WT, 99), (TB, 99), (LB, 99), (FX, 100)] {
        rows.of(algorithm, 100, 60);
        let passed = (rows.passed(100, 59.9), rows.passed(100, 119.8));
        assert_eq!(passed, (100, expected), "{algorithm:?}");
    }
}

#[test]
fn rows_8_to_11() {
    let mut rows = Rows::new();
    let bucket = |algorithm| Limit::new(algorithm, 2, SECOND_NANOS).with_burst(10);
    assert_eq!(rows.counter(bucket(LB)).passed(20, 0.0), 10);
    assert_eq!(rows.outcome(&[0.49, 0.5, 0.99, 1.0]), "FTFT");
    rows.counter(bucket(LB));
    let mut second = |second: usize| {
        (0..5).filter(|&part| !rows.take(1, second as f64 + f64::from(part) * 0.2).over).count()
    };
    let passed: Vec<usize> = (0..20).map(&mut second).collect();
    assert_eq!(passed[..3], [5, 5, 5]);
    assert!(passed[3..].iter().all(|&passed| passed == 2), "{passed:?}");
    assert_eq!(rows.counter(bucket(TB)).passed(11, 0.0), 10);
    assert_eq!(rows.outcome(&[0.49, 0.5]), "FT");
    let never = rows.take(11, 100.0);
    assert_eq!((never.over, never.reset_nanos), (true, SECOND_NANOS));
    assert!(!rows.take(10, 100.0).over);
    for algorithm in Algorithm::OF_HITS {
        rows.of(algorithm, 5, 1);
        let passed = (rows.passed(10, 0.9), rows.passed(10, 1.0));
        assert_eq!(passed, (5, if [FX, CAL].contains(&algorithm) { 5 } else { 0 }), "{algorithm:?}");
    }
}

#[test]
fn row_13_critical_first() {
    let mut rows = Rows::new();
    for (number, algorithm) in Algorithm::OF_HITS.into_iter().enumerate() {
        let limit = |requests| Limit::new(algorithm, requests, 60 * SECOND_NANOS);
        let all = check(limit(100), key(1), Hits::Take(1));
        let ordinary = check(limit(80), key(2), Hits::Take(1));
        let mut passes = |checks: &[_]| {
            let name = |index: usize| format!("{number}:{index}");
            let verdicts = rows.asked.apply(&plan(checks.iter().copied()), name, 5_000_000);
            verdicts.iter().flatten().all(|verdict| !verdict.over)
        };
        let ordinary_passed = (0..100).filter(|_| passes(&[all, ordinary])).count();
        let critical_passed = (0..30).filter(|_| passes(&[all])).count();
        let expected = if algorithm == FX { (80, 0) } else { (80, 20) };
        assert_eq!((ordinary_passed, critical_passed), expected, "{algorithm:?}");
    }
}
