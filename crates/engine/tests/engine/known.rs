//! The cache compared with a map that keeps everything: an entry that is found is always the one that was put last, and
//! every entry that is counted is found.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use tidegate_engine::Algorithm;
use tidegate_engine::key::{Key, KeySecret};
use tidegate_engine::known::RecordCache;
use tidegate_engine::limit::{COUNT_REQUESTS_MAX, WINDOW_NANOS_MAX};
use tidegate_engine::overlay::Record;
use tidegate_engine::unit::{Anchor, Unit, Window};

#[derive(Clone, Debug)]
enum Change {
    Insert(Key, Option<Record>),
    Remove(Key),
    Get(Key),
    Clear,
}

/// Few keys, whose places are often the same.
fn keys() -> impl Iterator<Item = Key> {
    let highs = (0..24_u64).flat_map(|high| [high, high | 1 << 63]);
    highs.flat_map(|high| (1..5_u64).map(move |low| Key(u128::from(high) << 64 | u128::from(low))))
}

fn record() -> impl Strategy<Value = Record> {
    let granularity = proptest::option::of(1..=WINDOW_NANOS_MAX);
    let requests = prop_oneof![any::<u32>().prop_map(u64::from), 0..=COUNT_REQUESTS_MAX];
    let numbers = (requests, any::<Option<u32>>(), granularity);
    let window = proptest::option::of((1..=366 * 86_400_u32, proptest::sample::select(Unit::ALL.to_vec())));
    let window = window.prop_map(|said| said.map(|(multiplier, unit)| Window { unit, multiplier }));
    let algorithm = proptest::option::of(proptest::sample::select(Algorithm::NAMED.to_vec()));
    let anchor = proptest::option::of(1..=404_u16).prop_map(|number| number.and_then(Anchor::numbered));
    let modes = (any::<Option<bool>>(), any::<bool>());
    (numbers, window, algorithm, anchor, modes).prop_map(
        |((requests, burst, granularity_nanos), window, algorithm, anchor, (shadow, unlimited))| Record {
            requests,
            // Larger limits have none.
            burst: burst.filter(|_| requests <= u32::MAX.into()).map(u64::from),
            window,
            algorithm,
            granularity_nanos: granularity_nanos.filter(|_| anchor.is_none()),
            anchor,
            shadow,
            unlimited,
        },
    )
}

fn change() -> impl Strategy<Value = Change> {
    let key = proptest::sample::select(keys().collect::<Vec<_>>());
    prop_oneof![
        12 => (key.clone(), proptest::option::of(record())).prop_map(|(key, record)| Change::Insert(key, record)),
        3 => key.clone().prop_map(Change::Remove),
        6 => key.prop_map(Change::Get),
        1 => Just(Change::Clear),
    ]
}

proptest! {
    #[test]
    fn what_is_found_was_put_last(entries_max in 1..200_usize, changes in prop::collection::vec(change(), 1..400)) {
        let (known, mut oracle) = (RecordCache::new(entries_max), HashMap::new());
        for change in changes {
            match change {
                Change::Insert(key, record) => {
                    known.insert(key, record);
                    oracle.insert(key, record);
                }
                Change::Remove(key) => {
                    known.remove(key);
                    oracle.remove(&key);
                }
                Change::Get(key) => _ = known.get(key),
                Change::Clear => {
                    known.clear();
                    oracle.clear();
                }
            }
            let mut found = 0;
            for key in keys() {
                if let Some(record) = known.get(key) {
                    prop_assert_eq!(Some(&record), oracle.get(&key));
                    found += 1;
                }
            }
            prop_assert_eq!(found, known.len());
            prop_assert!(found <= entries_max);
        }
    }
}

fn key(number: u64) -> Key {
    KeySecret::new([7; 16]).seed([]).key([number.to_string().as_str()])
}

#[test]
fn all_that_there_is_room_for_is_found() {
    const ALL: u64 = 100_000;
    let known = RecordCache::new(ALL as usize);
    let found = |of: u64| (0..of).filter(|&number| known.get(key(number)).is_some()).count();
    for number in 0..ALL {
        known.insert(key(number), Some(Record::of((number as u32).into())));
        if (number + 1).is_multiple_of(9_973) {
            assert_eq!((found(number + 1) as u64, known.len() as u64), (number + 1, number + 1));
        }
    }
    (0..ALL).step_by(2).for_each(|number| known.remove(key(number)));
    assert_eq!((found(ALL) as u64, known.len() as u64), (ALL / 2, ALL / 2));
    known.clear();
    assert_eq!((found(ALL), known.len()), (0, 0));
}

/// Keys that have one place together, more than it holds.
fn crowded() -> impl Iterator<Item = Key> {
    (0..12_u64).map(|number| Key(u128::from(number << 40 | 29_999) << 64 | u128::from(number)))
}

#[test]
fn a_cache_that_was_full_has_room_again_after_it_was_cleared() {
    let known = RecordCache::new(100);
    (0..200).for_each(|number| known.insert(key(number), None));
    known.clear();
    crowded().for_each(|key| known.insert(key, None));
    assert_eq!(crowded().filter(|&key| known.get(key).is_some()).count(), 12);
}

#[test]
fn an_entry_takes_two_cache_lines_at_most() {
    assert_eq!(RecordCache::BYTES_OF_ENTRY, 128);
}

/// While all is cleared, some of the last keys to be cleared are put again and again.
#[test]
fn what_is_put_while_all_is_cleared_can_be_removed() {
    const ALL: u64 = 60_000;
    let known = &RecordCache::new(2 * ALL as usize);
    for _ in 0..10 {
        (0..ALL).for_each(|number| known.insert(key(number), None));
        std::thread::scope(|scope| {
            scope.spawn(move || (0..300).for_each(|_| crowded().for_each(|key| known.insert(key, None))));
            known.clear();
        });
        crowded().for_each(|key| known.remove(key));
        known.clear();
        crowded().for_each(|key| known.insert(key, None));
        crowded().for_each(|key| known.remove(key));
        assert_eq!((crowded().find_map(|key| known.get(key)), known.len()), (None, 0));
    }
}

/// Two threads read what a third one puts, moves and takes away.
#[test]
fn nobody_reads_half_of_an_entry() {
    const KEYS: u64 = 64;
    let (known, is_over) = (&RecordCache::new(KEYS as usize / 2), &AtomicBool::new(false));
    let version = |number: u32| {
        let burst = Some(number.into());
        Record {
            burst,
            window: Some(Window { unit: Unit::Hour, multiplier: number }),
            granularity_nanos: Some(1 + u64::from(number)),
            ..Record::of(number.into())
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    for record in (0..KEYS).filter_map(|number| known.get(key(number)).flatten()) {
                        assert_eq!(record, version(record.requests.try_into().unwrap()));
                    }
                }
            });
        }
        for round in 0..3_000 {
            (0..KEYS).for_each(|number| known.insert(key(number), Some(version(round))));
            known.remove(key(u64::from(round) % KEYS));
            if round % 100 == 0 {
                known.clear();
            }
        }
        is_over.store(true, Relaxed);
    });
}

/// A splitmix64 sequence, so that one seed repeats a run.
fn draw(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A thousand entries, five hundred keys that are asked for again and again, and far more that come once.
/// TIDEGATE_ONE_TIME_KEYS says how many more.
#[test]
#[allow(clippy::disallowed_methods, reason = "a soak says how many keys come")]
fn keys_that_come_once_do_not_wear_the_cache_out() {
    const HOT: u64 = 500;
    /// Keys that come once, between two rounds of the others.
    const SLICE: u64 = 3_000;
    let set = std::env::var_os("TIDEGATE_ONE_TIME_KEYS");
    let one_time = set.map_or(300_000, |keys| keys.to_string_lossy().parse::<u64>().expect("a number"));
    let known = RecordCache::new(1_000);
    let is_known = |number: u64| {
        let key = Key(u128::from(draw(number)) << 64 | u128::from(draw(!number)));
        let is_known = known.get(key).is_some();
        if !is_known {
            known.insert(key, None);
        }
        is_known
    };
    let hot_known = || (0..HOT).filter(|&number| is_known(number)).count() as u64;
    hot_known();
    for slice in 0..one_time / SLICE {
        (0..2).for_each(|_| _ = hot_known());
        (0..SLICE).for_each(|number| _ = is_known(HOT + slice * SLICE + number));
        let found = hot_known();
        assert!(found * 100 >= HOT * 99, "{found} of {HOT} after {slice} times {SLICE} others");
        assert!(known.len() <= 1_000);
    }
}
