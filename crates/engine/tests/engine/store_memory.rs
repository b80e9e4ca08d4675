//! The memory store's bounds: expiry is never early, bytes never exceed the maximum, and memory is given back.

use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::memory::{FullTotal, MemoryOptions, MemoryStore, StoreFull};
use tidegate_engine::plan::Hits;
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{at, check, key, plan, small_store};
use crate::limits_oracle::{Answer, Naive};
use crate::limits_sequences::{next_hits, next_time, terms};
use crate::random::Random;

fn take(store: &MemoryStore, limit: Limit, number: u64, hits: u64, now: Timestamp) -> Answer {
    let verdict = store.apply(&plan([check(limit, key(number), Hits::Take(hits))]), now)[0];
    let verdict = verdict.expect("a check has a verdict");
    Answer {
        over: verdict.over,
        before: verdict.before,
        after: verdict.after,
        remaining: verdict.remaining,
        reset_nanos: verdict.reset_nanos,
    }
}

fn sweep_all(store: &MemoryStore, now: Timestamp) {
    while !store.sweep(now).round_done {}
}

/// Sweeps after every step, at the latest time of all. That changes no answer.
#[test]
fn nothing_is_forgotten_early() {
    let mut expired = 0;
    for seed in 0..6_000 {
        let store = small_store();
        let mut random = Random(seed);
        let terms = terms(&mut random, Algorithm::OF_HITS[seed as usize % Algorithm::OF_HITS.len()]);
        let (mut naive, mut now) = (Naive::default(), random.below(3 * terms.window));
        for _ in 0..8 {
            now = now.max(next_time(&mut random, now, terms.window));
            let hits = next_hits(&mut random, &terms);
            let answer = take(&store, terms.limit(), seed, hits, Timestamp::from_nanos(now));
            assert_eq!(answer, naive.take(&terms, now, hits, false), "seed {seed}: {terms:?} at {now}");
            if random.one_in(3) {
                sweep_all(&store, Timestamp::from_nanos(now));
            }
        }
        sweep_all(&store, Timestamp::MAX);
        assert_eq!((store.counters(), store.bytes()), (0, 0), "seed {seed}: {terms:?}");
        expired += store.expired_total();
    }
    assert!(expired > 3_000);
}

/// The time after which each algorithm's counter equals an unused one: N = 2, W = 10 s, one hit at 1 s.
#[test]
fn a_counter_is_given_back_within_a_second_after_its_time() {
    let over_at = [11.0, 11.0 + 1.0 / 6.0, 20.0, 10.0, 6.0, 6.0, 10.0];
    for (algorithm, over_at) in Algorithm::OF_HITS.into_iter().zip(over_at) {
        let store = small_store();
        assert!(!take(&store, Limit::new(algorithm, 2, 10 * SECOND_NANOS), 1, 1, at(1.0)).over);
        sweep_all(&store, at(over_at - 0.001));
        assert_eq!(store.counters(), 1, "{algorithm:?} was forgotten early");
        sweep_all(&store, at(over_at + 0.5));
        assert_eq!((store.counters(), store.expired_total()), (0, 1), "{algorithm:?} was kept too long");
    }
}

/// No request asks for one of them alone.
#[test]
fn counters_that_one_request_adds_together_are_given_back_too() {
    let (store, limit) = (small_store(), Limit::new(Algorithm::SlidingLog, 2, 10 * SECOND_NANOS));
    store.apply(&plan([1, 2].map(|number| check(limit, key(number), Hits::Take(1)))), at(1.0));
    assert_eq!(store.counters(), 2);
    sweep_all(&store, at(11.5));
    assert_eq!((store.counters(), store.expired_total()), (0, 2));
}

/// A bucket of 60 in a minute: 60 hits take a minute to drain, and one a second.
#[test]
fn a_counter_to_which_hits_went_back_is_given_back_earlier() {
    let (store, limit) = (small_store(), Limit::new(Algorithm::TokenBucket, 60, 60 * SECOND_NANOS));
    // A sweep learns when the counters that are there expire.
    take(&store, limit, 1, 60, at(1.0));
    sweep_all(&store, at(1.0));
    store.apply(&plan([check(limit, key(1), Hits::GiveBack(59))]), at(1.0));
    sweep_all(&store, at(1.5));
    assert_eq!(store.counters(), 1, "a hit is there");
    sweep_all(&store, at(2.5));
    assert_eq!((store.counters(), store.expired_total()), (0, 1));
}

#[test]
fn questions_refunds_and_denied_hits_make_no_counter() {
    for algorithm in Algorithm::OF_HITS {
        let (store, limit) = (small_store(), Limit::new(algorithm, 2, SECOND_NANOS));
        for hits in [Hits::Take(0), Hits::GiveBack(1)] {
            store.apply(&plan([check(limit, key(1), hits)]), at(1.0));
        }
        assert_eq!((store.counters(), store.bytes()), (0, 0), "{algorithm:?}");
        assert!(take(&store, limit, 1, 3, at(1.0)).over);
        assert_eq!(store.counters(), u64::from(algorithm == Algorithm::FixedWindow), "{algorithm:?}");
    }
}

#[test]
fn the_bound_holds_and_live_counters_stay() {
    for algorithm in Algorithm::OF_HITS {
        let max_bytes = 1 << 20;
        let store = MemoryStore::new(MemoryOptions::new(max_bytes));
        let limit = Limit::new(algorithm, 5, 3_600 * SECOND_NANOS);
        let mut live = Vec::new();
        for number in 0..60_000 {
            let answer = take(&store, limit, number, 1, at(10.0));
            assert!(number % 100 != 0 || store.bytes() <= max_bytes, "{algorithm:?}");
            if answer.over {
                assert_eq!((answer.remaining, answer.reset_nanos), (0, SECOND_NANOS));
            } else {
                live.push(number);
            }
        }
        assert!(live.len() > 10_000 && live.len() < 40_000, "{algorithm:?}: {}", live.len());
        assert_eq!(store.full_total(), FullTotal { deny: 60_000 - live.len() as u64, allow: 0 });
        assert!(live.iter().all(|&number| take(&store, limit, number, 0, at(10.0)).remaining == 4));
        assert_eq!(store.counters(), live.len() as u64);
        sweep_all(&store, at(8_000.0));
        assert_eq!((store.counters(), store.bytes()), (0, 0));
        assert!(!take(&store, limit, 99, 1, at(8_000.0)).over, "{algorithm:?}: there is room again");
    }
}

#[test]
fn a_full_store_may_allow_uncounted() {
    let store = MemoryStore::new(MemoryOptions::new(0).full(StoreFull::Allow));
    for algorithm in Algorithm::OF_HITS {
        let limit = Limit::new(algorithm, 5, SECOND_NANOS);
        let answer = take(&store, limit, 1, 3, at(1.0));
        let allowed = Answer { over: false, before: 0, after: 3, remaining: 5, reset_nanos: 0 };
        assert_eq!(answer, allowed, "{algorithm:?}");
        assert!(take(&store, limit, 1, 6, at(1.0)).over, "denied anyway");
        assert!(!take(&store, limit, 1, 0, at(1.0)).over, "a question needs no room");
    }
    assert_eq!(store.full_total(), FullTotal { deny: 0, allow: 7 });
    assert_eq!((store.counters(), store.bytes()), (0, 0));
}

/// The log of one counter, and the buckets of one, count against the bound.
#[test]
fn one_large_counter_is_bounded_too() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow] {
        let store = MemoryStore::new(MemoryOptions::new(12_000));
        let hour = 3_600 * SECOND_NANOS;
        let limit = Limit::new(algorithm, u32::MAX.into(), hour).with_granularity(SECOND_NANOS);
        let passed = (0..3_000).take_while(|&second| {
            let answer = take(&store, limit, 1, 1, Timestamp::from_secs(3_600 + second));
            assert!(store.bytes() <= 12_000);
            !answer.over
        });
        let passed = passed.count() as u64;
        assert!((1_000..2_500).contains(&passed), "{algorithm:?}: {passed}");
        let now = Timestamp::from_secs(3_600 + passed);
        assert_eq!(take(&store, limit, 1, 0, now).before, passed, "{algorithm:?}: none is lost");
        assert_eq!(store.full_total().deny, 1);
    }
}

/// What a later descriptor of a request adds comes on top of what those before it added. (An assertion of the store sees
/// bytes that nobody paid.) Every bound near the size at which the log gets a second block: only then nothing is paid ahead.
#[test]
fn a_counter_that_a_request_charges_several_times_is_bounded_too() {
    let limit = Limit::new(Algorithm::SlidingLog, u32::MAX.into(), 3_600 * SECOND_NANOS);
    for max_bytes in (4_000..8_000).step_by(16) {
        for times in 2..=4 {
            let store = MemoryStore::new(MemoryOptions::new(max_bytes));
            let plan = plan((0..times).map(|_| check(limit, key(1), Hits::Take(1))));
            let passed = (0..3_000).take_while(|&second| {
                let verdicts = store.apply(&plan, Timestamp::from_secs(3_600 + second));
                assert!(store.bytes() <= max_bytes);
                verdicts.iter().flatten().all(|verdict| !verdict.over)
            });
            let passed = passed.count() as u64;
            let now = Timestamp::from_secs(3_600 + passed);
            assert_eq!(take(&store, limit, 1, 0, now).before, times * passed, "all or nothing");
        }
    }
}

/// A request is denied as a whole when there is no room for one of its counters.
#[test]
fn a_full_store_denies_all_or_nothing() {
    let store = MemoryStore::new(MemoryOptions::new(1_000));
    let limit = Limit::new(Algorithm::SlidingWindow, 5, SECOND_NANOS);
    let fill = (0..100).filter(|&number| !take(&store, limit, number, 1, at(1.0)).over).collect::<Vec<u64>>();
    let both = plan([fill[0], 1_000].map(|number| check(limit, key(number), Hits::Take(1))));
    let verdicts = store.apply(&both, at(1.0));
    assert_eq!(verdicts.iter().flatten().map(|verdict| verdict.over).collect::<Vec<_>>(), [false, true]);
    assert_eq!(take(&store, limit, fill[0], 0, at(1.0)).before, 1);
}

/// Many new counters at once, dozens of them in each shard.
#[test]
fn a_request_of_thousands_of_descriptors_is_counted_whole() {
    for max_bytes in [1 << 20, 40_000] {
        let store = MemoryStore::new(MemoryOptions::new(max_bytes));
        let limit = Limit::new(Algorithm::SlidingLog, 1, 10 * SECOND_NANOS);
        let plan = plan((0..2_000).map(|number| check(limit, key(number), Hits::Take(1))));
        let passed = store.apply(&plan, at(1.0)).iter().flatten().filter(|verdict| !verdict.over).count();
        assert!(store.bytes() <= max_bytes, "{} of {max_bytes}", store.bytes());
        assert_eq!(
            (passed == 2_000, store.counters()),
            if max_bytes > 100_000 { (true, 2_000) } else { (false, 0) }
        );
    }
}

/// Otherwise each round would lock all shards that were ever used.
#[test]
fn shards_that_were_swept_are_visited_again_when_a_counter_is_due() {
    let store = MemoryStore::new(MemoryOptions::new(1 << 30));
    let limit = Limit::new(Algorithm::SlidingLog, 9, 10 * SECOND_NANOS);
    let take = |second| (0..20).for_each(|number| _ = take(&store, limit, number, 1, at(second)));
    let steps = |second| (1..).find(|_| store.sweep(at(second)).round_done);
    take(1.0);
    assert_eq!(steps(10.0), Some(1), "none is due");
    assert!(steps(12.0) > Some(10) && store.counters() == 0);
    assert_eq!(steps(12.0), Some(1), "they are gone");
    take(13.0);
    assert!(steps(24.0) > Some(10) && store.counters() == 0);
}

/// A decision reads the clock, then a sweep with a later time comes first. What the sweep forgot must still have
/// counted, or more than N would pass in a window.
#[test]
fn a_decision_that_comes_after_a_sweep_is_not_before_it() {
    const WINDOW: u64 = 10 * SECOND_NANOS;
    let (store, limit) = (small_store(), Limit::new(Algorithm::SlidingLog, 1, WINDOW));
    let passes = |nanos| !store.take(&limit, key(1), 1, Timestamp::from_nanos(nanos)).over;
    let begin = 1_000 * SECOND_NANOS;
    let swept_at = begin + WINDOW + SECOND_NANOS;
    assert!(passes(begin));
    assert!(!passes(begin + WINDOW - 1));
    sweep_all(&store, Timestamp::from_nanos(swept_at));
    assert_eq!(store.counters(), 0);
    assert!(passes(begin + WINDOW - 1), "as of the sweep's time, when the first hit is over");
    assert!(!passes(swept_at + WINDOW - 1), "it counts from the sweep's time on");
    assert!(passes(swept_at + WINDOW));
}

/// An explanation says what the next decision will: it is not before a sweep either.
#[test]
fn an_explanation_that_comes_after_a_sweep_is_not_before_it() {
    let (store, limit) = (small_store(), Limit::new(Algorithm::FixedWindow, 2, 60 * SECOND_NANOS));
    take(&store, limit, 1, 1, at(61.0));
    sweep_all(&store, at(150.0));
    let one = plan([check(limit, key(1), Hits::Take(1))]);
    let look = store.look(&one, at(130.0)).swap_remove(0).expect("a look");
    assert_eq!(look.verdict.reset_nanos, 30 * SECOND_NANOS, "by the time of the sweep");
    assert_eq!(take(&store, limit, 1, 1, at(130.0)).reset_nanos, 30 * SECOND_NANOS);
}

/// Keys whose tables' tags are alike: an expired counter's slot is free, and its key still stands in it.
#[test]
fn a_counter_that_expired_and_came_back_keeps_its_hits() {
    let seconds = |seconds: u64| Timestamp::from_secs(1_790_000_000 + seconds);
    let limit = |seconds| Limit::new(Algorithm::SlidingWindow, 1, seconds * SECOND_NANOS);
    let (short, long) = (limit(10), limit(1_000));
    for low_byte in [0, 1, 2, 255] {
        let store = small_store();
        let keys = |kind: u128, count: u128| {
            (0..count).map(move |number| Key(number << 100 | number << 16 | kind << 12 | low_byte))
        };
        let takes = |limit: &Limit, (kind, count), at| {
            keys(kind, count).filter(|key| !store.take(limit, *key, 1, at).over).count()
        };
        // So few of them expire that no table is built again.
        assert_eq!([takes(&long, (1, 300), seconds(0)), takes(&short, (2, 30), seconds(0))], [300, 30]);
        sweep_all(&store, seconds(100));
        assert_eq!(takes(&short, (2, 30), seconds(100)), 30, "they expired");
        assert_eq!(takes(&short, (3, 300), seconds(100)), 300, "others take free slots");
        assert_eq!(takes(&short, (2, 30), seconds(101)), 0, "{low_byte}: they were charged");
    }
}
