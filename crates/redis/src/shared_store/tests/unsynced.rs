//! Unsynced hits, under the test's own time.

use std::time::{Duration, Instant};

use super::super::unsynced::{Taken, UnsyncedHits};
use crate::clock::monotonic;
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit};

const SECOND: Duration = Duration::from_secs(1);

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new(algorithm, 9, 60_000_000_000)
}

fn take<'c>(unsynced: &'c UnsyncedHits, limit: &Limit, now: Instant) -> Option<Taken<'c>> {
    unsynced.take(std::iter::once((KEY, limit)), now).ok()
}

/// The hits that a call would report, which then fails.
fn reported(unsynced: &UnsyncedHits, limit: &Limit, now: Instant) -> Vec<(u64, u64)> {
    let mut taken = take(unsynced, limit, now).expect("no call is under way");
    taken.of(KEY).iter().map(|entry| entry.age_and_hits(limit, now)).collect()
}

fn note(unsynced: &UnsyncedHits, key: Key, limit: &Limit, hits: u64, now: Instant) {
    unsynced.note(key, limit, hits, now, || None);
}

const KEY: Key = Key(1);

#[test]
fn hits_are_reported_once_and_never_as_older_than_they_are() {
    let (unsynced, now, limit) = (UnsyncedHits::default(), monotonic(), limit(Algorithm::SlidingLog));
    note(&unsynced, KEY, &limit, 1, now);
    note(&unsynced, KEY, &limit, 2, now + Duration::from_millis(900));
    note(&unsynced, KEY, &limit, 4, now + 2 * SECOND);
    let after = now + 3 * SECOND;
    assert_eq!(reported(&unsynced, &limit, after), [(2_100_000, 3), (1_000_000, 4)]);
    let mut taken = take(&unsynced, &limit, after).expect("a call that failed leaves everything as it was");
    assert_eq!(taken.of(KEY).len(), 2);
    assert!(taken.of(KEY).is_empty(), "a counter that is asked twice is charged once");
    taken.charged();
    assert!(reported(&unsynced, &limit, after).is_empty());
}

#[tokio::test]
async fn no_call_overtakes_the_one_that_has_the_hits() {
    let (unsynced, now, limit) = (UnsyncedHits::default(), monotonic(), limit(Algorithm::SlidingWindow));
    let other = Key(2);
    note(&unsynced, KEY, &limit, 3, now);
    let first = take(&unsynced, &limit, now).expect("the first");
    let both = || unsynced.take([(other, &limit), (KEY, &limit)].into_iter(), now);
    assert!(unsynced.take(std::iter::once((other, &limit)), now).is_ok(), "another counter is free");
    let waits = both().expect_err("it would be answered without these hits");
    note(&unsynced, KEY, &limit, 1, now + SECOND);
    drop(first);
    waits.await;
    let mut second = both().expect("its turn");
    assert_eq!(
        second.of(KEY).len(),
        2,
        "the hits that the first may not have reported, and those that came meanwhile"
    );
    let waits = both().expect_err("again");
    note(&unsynced, KEY, &limit, 1, now + 2 * SECOND);
    second.charged();
    waits.await;
    assert_eq!(
        reported(&unsynced, &limit, now + 2 * SECOND),
        [(0, 1)],
        "the hits that came while the others were charged"
    );
}

#[test]
fn hits_that_are_given_back_are_not_reported() {
    let (unsynced, now, log) = (UnsyncedHits::default(), monotonic(), limit(Algorithm::SlidingLog));
    [3, 2, 4]
        .into_iter()
        .zip(0..)
        .for_each(|(hits, at)| note(&unsynced, KEY, &log, hits, now + at * 2 * SECOND));
    let after = now + 5 * SECOND;
    unsynced.give_back(KEY, &log, 4, after);
    assert_eq!(reported(&unsynced, &log, after), [(3_000_000, 1), (1_000_000, 4)], "the oldest first");
    let under_way = take(&unsynced, &log, after).expect("free");
    note(&unsynced, KEY, &log, 1, after);
    unsynced.give_back(KEY, &log, 3, after);
    drop(under_way);
    assert_eq!(
        reported(&unsynced, &log, after),
        [(3_000_000, 1), (1_000_000, 4)],
        "nothing that is on its way"
    );
    unsynced.give_back(KEY, &log, 100, after);
    assert!(reported(&unsynced, &log, after).is_empty());
    let bucket = Limit::new(Algorithm::TokenBucket, 1, 1_000_000_000).with_burst(9);
    note(&unsynced, KEY, &bucket, 6, after);
    unsynced.give_back(KEY, &bucket, 2, after + SECOND);
    assert_eq!(reported(&unsynced, &bucket, after + 2 * SECOND), [(0, 2)]);
}

#[test]
fn failed_calls_leave_few_entries() {
    for algorithm in [Algorithm::SlidingWindow, Algorithm::TokenBucket] {
        let (unsynced, now, limit) = (UnsyncedHits::default(), monotonic(), limit(algorithm));
        note(&unsynced, KEY, &limit, 1, now);
        for call in 1..=20_000 {
            let now = now + call * Duration::from_millis(9);
            let taken = take(&unsynced, &limit, now).expect("the one before has ended");
            note(&unsynced, KEY, &limit, 1, now);
            drop(taken);
            let entries = reported(&unsynced, &limit, now).len();
            // A sixtieth of a window each, for two windows.
            assert!(entries <= 250, "{entries} after {call} calls");
        }
    }
}

#[test]
fn counters_whose_hits_no_longer_count_make_room() {
    let (unsynced, now) = (UnsyncedHits::default(), monotonic());
    let limit = Limit::new(Algorithm::SlidingWindow, 9, 1_000_000_000);
    (2..50_000_u128 + 2).for_each(|key| note(&unsynced, Key(key), &limit, 1, now));
    let soon = now + SECOND / 2;
    note(&unsynced, KEY, &limit, 1, soon);
    assert!(reported(&unsynced, &limit, soon).is_empty(), "all of them still count");
    note(&unsynced, KEY, &limit, 1, now + 3 * SECOND);
    assert_eq!(reported(&unsynced, &limit, now + 3 * SECOND).len(), 1);
}

#[test]
fn a_bucket_drains_meanwhile() {
    let (unsynced, now) = (UnsyncedHits::default(), monotonic());
    let limit = Limit::new(Algorithm::TokenBucket, 2, 1_000_000_000).with_burst(10);
    note(&unsynced, KEY, &limit, 6, now);
    note(&unsynced, KEY, &limit, 1, now + SECOND);
    assert_eq!(reported(&unsynced, &limit, now + Duration::from_millis(1_250)), [(0, 5)]);
}
