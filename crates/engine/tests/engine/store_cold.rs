//! A store that lost its counters: with what another one admitted before, it never admits more than N in a window.

use tidegate_engine::decision::{Code, conclude};
use tidegate_engine::limit::{Algorithm, Limit, Verdict};
use tidegate_engine::memory::{Cold, MemoryOptions, MemoryStore};
use tidegate_engine::plan::{Candidate, Check, Hits};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{at, check, key, plan};
use crate::random::Random;

const HOUR: u64 = 3_600 * SECOND_NANOS;

fn cold_store(since: Timestamp) -> MemoryStore {
    MemoryStore::new(MemoryOptions::new(64 << 20)).cold(Cold::since(since, HOUR))
}

/// Hits at random times on stores of which each forgets what the one before knew. An oracle that has the log of all
/// admitted hits finds no window with more than N.
#[test]
fn crashes_admit_nothing_more() {
    for seed in 0..3_000 {
        let mut random = Random(seed);
        let algorithm = random.pick(&[Algorithm::SlidingLog, Algorithm::SlidingWindow]);
        let (requests, window) = (1 + random.below(8), random.pick(&[1_000, 60 * SECOND_NANOS, HOUR]));
        let limit = Limit::new(algorithm, requests, window);
        let mut now = 1_700_000_000 * SECOND_NANOS;
        let mut store = cold_store(Timestamp::from_nanos(now));
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for _ in 0..200 {
            now += random.below(window / 4);
            let time = Timestamp::from_nanos(now);
            if random.one_in(40) {
                store = cold_store(time);
            }
            let hits = 1 + random.below(2);
            if !store.take(&limit, key(1), hits, time).over {
                admitted.push((now, hits));
            }
            let in_window = |&&(at, _): &&(u64, u64)| at + window > now;
            let sum: u64 = admitted.iter().filter(in_window).map(|(_, hits)| hits).sum();
            assert!(sum <= requests, "seed {seed}: {sum} of {requests} in a window");
        }
        assert!(!admitted.is_empty(), "seed {seed}: it does not stay cold");
    }
}

fn asked(store: &MemoryStore, checks: &[Check<'static>], seconds: f64) -> (Code, Vec<Verdict>) {
    let plan = plan(checks.iter().copied());
    let verdicts = store.apply(&plan, at(seconds));
    (conclude(&plan, &verdicts).code, verdicts.iter().map(|verdict| verdict.expect("a verdict")).collect())
}

/// Some counters are restored without the hits that came last, and windows that are too long to be cold are exempt.
#[test]
fn of_two_counters_that_are_there_either_may_be_cold() {
    let limit = |secs| Limit::new(Algorithm::SlidingWindow, 5, secs * SECOND_NANOS);
    let minute = check(limit(60), key(1), Hits::Take(1));
    let day = check(limit(24 * 3_600), key(2), Hits::Take(1));
    for (checks, over) in [([minute, day], [true, false]), ([day, minute], [false, true])] {
        let store = MemoryStore::new(MemoryOptions::new(64 << 20));
        assert_eq!(asked(&store, &checks, 600.0).0, Code::Ok);
        let store = store.cold(Cold::since(at(600.0), HOUR));
        let (code, verdicts) = asked(&store, &checks, 600.5);
        assert_eq!((code, [verdicts[0].over, verdicts[1].over]), (Code::OverLimit, over));
        assert_eq!(asked(&store, &checks, 660.0).0, Code::Ok);
    }
}

#[test]
fn a_cold_counter_answers_as_a_full_one_until_its_window_is_over() {
    for algorithm in Algorithm::NAMED {
        let limit = Limit::new(algorithm, 5, 60 * SECOND_NANOS);
        let store = cold_store(at(600.0));
        let one = check(limit, key(1), Hits::Take(1));
        let full = Verdict {
            over: true,
            before: 5,
            after: 6,
            remaining: 0,
            reset_nanos: 50 * SECOND_NANOS,
            is_counted: false,
        };
        assert_eq!(asked(&store, &[one], 610.0), (Code::OverLimit, vec![full]), "{algorithm:?}");
        let (code, both) = asked(&store, &[one, check(limit, key(2), Hits::Take(1))], 610.0);
        assert_eq!((code, both), (Code::OverLimit, vec![full; 2]), "{algorithm:?}");
        let (_, verdicts) = asked(&store, &[one], 660.0);
        assert!(!verdicts[0].over, "{algorithm:?}");
    }
}

/// Its counter has lost its hits as well.
#[test]
fn a_candidate_is_cold_as_its_limit_would_be() {
    let limit = |secs| Limit::new(Algorithm::SlidingWindow, 5, secs * SECOND_NANOS);
    let mut plan = plan([check(limit(60), key(1), Hits::Take(1))]);
    plan.candidates = vec![Candidate { step: 0, rule: 0, check: check(limit(600), key(2), Hits::Take(1)) }];
    let store = cold_store(at(600.0));
    let over = |seconds| {
        let verdicts = store.apply(&plan, at(seconds));
        [0, 1].map(|place| verdicts[place].expect("a verdict").over)
    };
    assert_eq!(
        [610.0, 660.0, 1_199.0, 1_200.0].map(over),
        [[true, true], [false, true], [false, true], [false; 2]]
    );
}

#[test]
fn a_rule_in_shadow_mode_reports_it_and_denies_nothing() {
    let limit = Limit::new(Algorithm::SlidingWindow, 5, 60 * SECOND_NANOS);
    let mut shadow = check(limit, key(1), Hits::Take(1));
    shadow.shadow = true;
    let (code, verdicts) = asked(&cold_store(at(600.0)), &[shadow], 610.0);
    assert_eq!((code, verdicts[0].over), (Code::Ok, true));
}

/// A counter that is there is cold too: what is in it is not all that counts.
#[test]
fn a_reported_cost_is_counted_and_admits_nothing() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow, Algorithm::TokenBucket] {
        let (store, limit) = (cold_store(at(600.0)), Limit::new(algorithm, 5, 60 * SECOND_NANOS));
        let mut report = check(limit, key(1), Hits::Take(2));
        report.reported = true;
        let (_, verdicts) = asked(&store, &[report], 630.0);
        assert!(verdicts[0].over, "{algorithm:?}");
        let one = check(limit, key(1), Hits::Take(1));
        assert!(asked(&store, &[one], 659.0).1[0].over, "{algorithm:?}");
        let then = asked(&store, &[one], 660.0).1[0];
        let before = if algorithm == Algorithm::TokenBucket { 0 } else { 2 };
        assert_eq!((then.over, then.before), (false, before), "{algorithm:?}");
    }
}

#[test]
fn a_request_that_only_gives_back_is_not_denied() {
    let limit = Limit::new(Algorithm::SlidingWindow, 5, 60 * SECOND_NANOS);
    let back = check(limit, key(1), Hits::GiveBack(1));
    assert_eq!(asked(&cold_store(at(600.0)), &[back], 610.0).0, Code::Ok);
}

/// The hits that a client gives back are of before the loss: the counter never had them.
#[test]
fn what_is_given_back_is_not_taken_from_what_came_later() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow, Algorithm::FixedWindow] {
        let (store, limit) = (cold_store(at(600.0)), Limit::new(algorithm, 5, 60 * SECOND_NANOS));
        let mut report = check(limit, key(1), Hits::Take(2));
        report.reported = true;
        asked(&store, &[report], 630.0);
        asked(&store, &[check(limit, key(1), Hits::GiveBack(2))], 640.0);
        let held = store.take(&limit, key(1), 0, at(650.0)).before;
        assert_eq!(held, 5, "{algorithm:?}: full");
        let warm = store.take(&limit, key(1), 0, at(660.0)).before;
        assert_eq!(warm, if algorithm == Algorithm::FixedWindow { 0 } else { 2 }, "{algorithm:?}");
    }
}
