//! Many threads: never N + 1, no hit lost, no deadlock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;

use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::plan::Hits;
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{at, check, key, plan, small_store, store};
use crate::limits_strict::most_in_any_window;
use crate::random::Random;

const THREADS: u64 = 8;

#[test]
fn a_million_hits_on_one_key_admit_exactly_n() {
    for algorithm in Algorithm::OF_HITS {
        let (store, limit) = (store(), Limit::new(algorithm, 10_000, 3_600 * SECOND_NANOS));
        let plan = plan([check(limit, key(1), Hits::Take(1))]);
        let passed = AtomicU64::new(0);
        let ask = || {
            (0..1_000_000 / THREADS)
                .filter(|_| !store.apply(&plan, at(7.0))[0].expect("checked").over)
                .count()
        };
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| passed.fetch_add(ask() as u64, Relaxed));
            }
        });
        assert_eq!(passed.into_inner(), 10_000, "{algorithm:?}");
    }
}

/// A shared clock that all threads push on: windows pass during the run, and times arrive out of order.
#[test]
fn windows_that_pass_never_hold_more_than_n() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow] {
        let window = SECOND_NANOS / 10;
        let (store, limit) = (store(), Limit::new(algorithm, 500, window));
        let plan = plan([check(limit, key(1), Hits::Take(1))]);
        let clock = AtomicU64::new(window);
        let admitted: Vec<(u64, u64)> = thread::scope(|scope| {
            let ask = || {
                let mut admitted = Vec::new();
                for _ in 0..50_000 {
                    let now = clock.fetch_add(10_007, Relaxed);
                    if !store.apply(&plan, Timestamp::from_nanos(now))[0].expect("checked").over {
                        admitted.push((now, 1));
                    }
                }
                admitted
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        // A thread that was held up between reading the clock and asking is counted at the latest time asked, so its
        // own time may be earlier than the one that counts: at most by what the others moved on meanwhile.
        let windows = 8 * 50_000 * 10_007 / window;
        let most = most_in_any_window(&admitted, window);
        assert!(admitted.len() as u64 >= windows * 490, "{algorithm:?}: {} admitted", admitted.len());
        assert!(admitted.len() as u64 <= (windows + 1) * 500, "{algorithm:?}: {} admitted", admitted.len());
        assert!(most >= 500, "{algorithm:?}: {most}");
    }
}

/// Each thread holds the clock while it asks, so the times that it writes down are those that count.
#[test]
fn the_log_of_admissions_holds_at_most_n_in_any_window() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow] {
        let window = SECOND_NANOS / 10;
        let (store, limit) = (store(), Limit::new(algorithm, 500, window));
        let plan = plan([check(limit, key(1), Hits::Take(1))]);
        let admissions = std::sync::Mutex::new((window, Vec::new()));
        thread::scope(|scope| {
            let ask = || {
                for _ in 0..25_000 {
                    let mut admissions = admissions.lock().expect("no panic");
                    admissions.0 += 10_007;
                    let now = admissions.0;
                    if !store.apply(&plan, Timestamp::from_nanos(now))[0].expect("checked").over {
                        admissions.1.push((now, 1));
                    }
                }
            };
            (0..THREADS).for_each(|_| drop(scope.spawn(ask)));
        });
        let (_, admitted) = admissions.into_inner().expect("no panic");
        assert_eq!(most_in_any_window(&admitted, window), 500, "{algorithm:?}");
    }
}

/// Descriptors in any order, counters in all tables, sweeps in between: no deadlock, all or nothing.
#[test]
fn mixed_requests_charge_all_or_nothing() {
    let store = small_store();
    let limits: Vec<Limit> = (0..24)
        .map(|number| {
            Limit::new(
                Algorithm::OF_HITS[number % Algorithm::OF_HITS.len()],
                (2_000 + 37 * number as u32).into(),
                3_600 * SECOND_NANOS,
            )
        })
        .collect();
    let strict = |number: usize| limits[number].algorithm() != Algorithm::FixedWindow;
    let charged: Vec<AtomicU64> = (0..24).map(|_| AtomicU64::new(0)).collect();
    let ask = |seed: u64| {
        let mut random = Random(seed);
        for _ in 0..12_000 {
            let numbers: Vec<usize> = (0..1 + random.below(5)).map(|_| random.below(24) as usize).collect();
            let hits = |number: usize| check(limits[number], key(number as u64), Hits::Take(1));
            let verdicts = store.apply(&plan(numbers.iter().map(|&number| hits(number))), at(9.0));
            if verdicts.iter().flatten().all(|verdict| !verdict.over) {
                for &number in &numbers {
                    charged[number].fetch_add(1, Relaxed);
                }
            }
            if random.one_in(500) {
                store.sweep(at(9.0));
            }
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|seed| drop(scope.spawn(move || ask(seed)))));
    for number in (0..24).filter(|&number| strict(number)) {
        let verdict =
            store.apply(&plan([check(limits[number], key(number as u64), Hits::Take(0))]), at(9.0))[0];
        let charged = charged[number].load(Relaxed);
        assert_eq!(verdict.expect("checked").before, charged, "counter {number}");
        assert!(charged <= limits[number].requests() && charged > 1_000, "counter {number}: {charged}");
    }
}

/// Hits and refunds from all threads: what is left is what was not given back.
#[test]
fn no_refund_is_lost() {
    for algorithm in Algorithm::OF_HITS {
        let (store, limit) = (store(), Limit::new(algorithm, 1_000_000, 3_600 * SECOND_NANOS));
        let ask = |hits| drop(store.apply(&plan([check(limit, key(1), hits)]), at(9.0)));
        ask(Hits::Take(1_000));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    (0..5_000).for_each(|_| [Hits::Take(3), Hits::GiveBack(2)].into_iter().for_each(ask))
                });
            }
        });
        let left = store.apply(&plan([check(limit, key(1), Hits::Take(0))]), at(9.0))[0].expect("checked");
        assert_eq!(left.before, 1_000 + THREADS * 5_000, "{algorithm:?}");
    }
}
