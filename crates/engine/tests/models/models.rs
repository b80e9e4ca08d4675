//! The models: a few threads and a handful of steps each, so that many of all their interleavings are tried.

use std::sync::Arc;

use shuttle::thread;

use crate::explore::explore;
use crate::key::Key;
use crate::known::RecordCache;
use crate::limit::{Algorithm, Limit};
use crate::memory::{MemoryOptions, MemoryStore};
use crate::overlay::Record;
use crate::plan::{Check, Hits, Modes, Origin, Plan, Step};
use crate::rules::Unit;
use crate::time::{SECOND_NANOS, Timestamp};
use crate::unit::Window;

fn store(max_bytes: u64) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(MemoryOptions::new(max_bytes)))
}

/// N hits an hour. All times of a test lie in the same hour.
fn limit(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests.into(), 3_600 * SECOND_NANOS)
}

const NOW: Timestamp = Timestamp::from_secs(7);

/// The key of a counter: by its low half in this shard of 64, by its high half anywhere in the table.
fn key(shard: u64, number: u64) -> Key {
    let (home, low) = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15), shard << 58 | number);
    Key(u128::from(home) << 64 | u128::from(low))
}

/// Takes a hit from each counter, in this order, in one request. Returns whether it passed.
fn request(store: &MemoryStore, counters: &[(Limit, Key)], now: Timestamp) -> bool {
    let check = |&(limit, key): &(Limit, Key)| {
        Step::Check(Check::new(
            Origin::Override { window: Window::of(Unit::Hour) },
            limit,
            key,
            Hits::Take(1),
        ))
    };
    let steps = counters.iter().map(check).collect();
    let verdicts = store.apply(&Plan { steps, domain_known: true, ..Plan::empty(Modes::default()) }, now);
    verdicts.iter().flatten().all(|verdict| !verdict.over)
}

/// Each thread makes these requests in turn. Returns how many passed.
fn passed(store: &Arc<MemoryStore>, threads: Vec<Vec<Vec<(Limit, Key)>>>) -> usize {
    let ask = |requests: Vec<Vec<(Limit, Key)>>| {
        let store = Arc::clone(store);
        thread::spawn(move || requests.iter().filter(|counters| request(&store, counters, NOW)).count())
    };
    let threads: Vec<_> = threads.into_iter().map(ask).collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
}

/// Hits that the counter holds.
fn counted(store: &MemoryStore, (limit, key): (Limit, Key)) -> u64 {
    store.take(&limit, key, 0, NOW).before
}

#[test]
fn one_counter_admits_n_and_loses_none() {
    explore(|| {
        let (store, counter) = (store(1 << 20), (limit(Algorithm::SlidingWindow, 4), key(0, 1)));
        assert_eq!(passed(&store, vec![vec![vec![counter]; 2]; 3]), 4);
        assert_eq!(counted(&store, counter), 4);
    });
}

/// Three counters of two algorithms in three shards, asked in all orders, twice in one request too.
#[test]
fn requests_in_any_order_are_all_or_nothing_and_never_wait_for_ever() {
    explore(|| {
        let store = store(1 << 20);
        let a = (limit(Algorithm::SlidingWindow, 3), key(0, 1));
        let b = (limit(Algorithm::SlidingWindow, 2), key(1, 2));
        let c = (limit(Algorithm::SlidingLog, 9), key(0, 3));
        let threads = vec![vec![vec![a, b], vec![c, a]], vec![vec![b, a], vec![a, c]], vec![vec![b, c, b]]];
        let admitted = passed(&store, threads) as u64;
        let [a, b, c] = [a, b, c].map(|counter| counted(&store, counter));
        assert!(a <= 3 && b <= 2 && c <= 3 && admitted >= 2, "{admitted} passed, counted {a}, {b}, {c}");
        // Each request takes two hits, but for one that takes b, c and b.
        assert!(a + b + c == 2 * admitted || a + b + c == 2 * admitted + 1, "{admitted}: {a}, {b}, {c}");
    });
}

/// A shard fills up while one of its counters is in use: slots move while other threads wait for them.
#[test]
fn a_table_that_grows_loses_nothing() {
    explore(|| {
        let (store, strict) = (store(1 << 20), Algorithm::SlidingWindow);
        let shared = (limit(strict, 2), key(0, 1_000));
        let own = |number: u64| vec![(limit(strict, 1), key(0, number))];
        let thread = |first: u64| (first..first + 15).map(own).chain([vec![shared]; 1]).collect::<Vec<_>>();
        assert_eq!(passed(&store, vec![thread(0), thread(100), thread(200)]), 3 * 15 + 2);
        assert_eq!((store.counters(), counted(&store, shared)), (46, 2));
        let all_counted =
            [0, 100, 200].iter().all(|first| (*first..first + 15).all(|at| counted(&store, own(at)[0]) == 1));
        assert!(all_counted);
    });
}

/// Room for one group of counters in one shard, and three shards that want it.
#[test]
fn the_bound_holds_between_shards() {
    explore(|| {
        let (store, strict) = (store(1_000), Algorithm::SlidingWindow);
        let one = |shard: u64| vec![vec![(limit(strict, 1), key(shard, shard))]];
        assert_eq!(passed(&store, vec![one(1), one(2), one(3)]), 1);
        assert!(store.bytes() <= 1_000 && store.counters() == 1);
        assert_eq!(store.full_total().deny, 2);
    });
}

/// One hit an hour, and a hit an hour ago. One decision reads the clock just before that hit expires, one after, and a
/// sweep comes in between. In any order, exactly one of the two passes.
#[test]
fn a_sweep_beside_decisions_lets_nothing_through_twice() {
    explore(|| {
        let (store, counter) = (store(1 << 20), (limit(Algorithm::SlidingLog, 1), key(0, 1)));
        let begin = 1_000_000 * SECOND_NANOS;
        let after = |nanos: u64| Timestamp::from_nanos(begin + 3_600 * SECOND_NANOS + nanos);
        assert!(request(&store, &[counter], Timestamp::from_nanos(begin)));
        let ask = |store: &Arc<MemoryStore>, now: Timestamp| {
            let store = Arc::clone(store);
            thread::spawn(move || request(&store, &[counter], now))
        };
        let late = ask(&store, Timestamp::from_nanos(begin + 3_600 * SECOND_NANOS - 1));
        let in_time = ask(&store, after(9));
        while !store.sweep(after(5)).round_done {}
        let passed = [late, in_time].map(|thread| thread.join().expect("no panic"));
        assert_eq!(passed.into_iter().filter(|&passed| passed).count(), 1, "{passed:?}");
        assert_eq!(store.counters(), 1);
    });
}

/// What is known of a key while it is put again and again, moved and pushed out.
#[test]
fn nobody_reads_half_of_what_is_known() {
    fn version(number: u32) -> Record {
        let (burst, window) = (Some(number.into()), Some(Window { unit: Unit::Hour, multiplier: number }));
        Record { burst, window, granularity_nanos: Some(number.into()), ..Record::of(number.into()) }
    }
    explore(|| {
        let known = Arc::new(RecordCache::new(3));
        let keys = [1_u64, 2, 1 << 63, 3].map(|high| Key(u128::from(high) << 64));
        known.insert(keys[0], Some(version(1)));
        let writer = Arc::clone(&known);
        let puts = thread::spawn(move || {
            keys.iter().zip(2..).for_each(|(&key, number)| writer.insert(key, Some(version(number))));
            writer.remove(keys[0]);
        });
        for terms in keys.iter().chain(&keys).filter_map(|&key| known.get(key).flatten()) {
            assert_eq!(terms, version(terms.requests as u32));
        }
        puts.join().expect("no panic");
        assert_eq!(known.get(keys[0]), None);
        assert_eq!(keys.iter().filter(|&&key| known.get(key).is_some()).count(), known.len());
    });
}

/// One pair is full, so others of it go elsewhere while all is cleared: none is found or counted after it was removed.
#[test]
fn nothing_is_left_of_what_is_removed() {
    explore(|| {
        let known = Arc::new(RecordCache::new(16));
        let keys = || (0..11_u64).map(|number| Key(u128::from(number << 40) << 64 | u128::from(number)));
        keys().take(8).for_each(|key| known.insert(key, None));
        let (clearing, writing) = (Arc::clone(&known), Arc::clone(&known));
        let clears = thread::spawn(move || clearing.clear());
        let puts = thread::spawn(move || keys().skip(7).for_each(|key| writing.insert(key, None)));
        clears.join().expect("no panic");
        puts.join().expect("no panic");
        assert_eq!(keys().filter(|&key| known.get(key).is_some()).count(), known.len());
        keys().for_each(|key| known.remove(key));
        assert!(keys().all(|key| known.get(key).is_none()) && known.is_empty());
    });
}

/// Entries beyond their pair go to the map, which is emptied when the cache is full, while another thread reads.
#[test]
fn what_is_known_is_whole_while_the_map_is_emptied() {
    explore(|| {
        let known = Arc::new(RecordCache::new(11));
        let keys = || (0..13_u64).map(|number| Key(u128::from(number << 40) << 64 | u128::from(number)));
        let terms = |number: u64| Some(Record::of((number as u32).into()));
        keys().zip(0..).take(10).for_each(|(key, number)| known.insert(key, terms(number)));
        let writer = Arc::clone(&known);
        let puts = thread::spawn(move || {
            keys().zip(0..).skip(10).for_each(|(key, number)| writer.insert(key, terms(number)));
        });
        for (key, number) in keys().zip(0..) {
            assert!(known.get(key).is_none_or(|found| found == terms(number)));
        }
        puts.join().expect("no panic");
        assert_eq!(keys().filter(|&key| known.get(key).is_some()).count(), known.len());
        keys().for_each(|key| known.remove(key));
        assert!(keys().all(|key| known.get(key).is_none()) && known.is_empty());
    });
}
