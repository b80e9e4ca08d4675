//! What is carried, under times that the test tells.

use std::time::{Duration, Instant};

use super::super::carried::{Carried, Taken};
use crate::clock::monotonic;
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit};

const SECOND: Duration = Duration::from_secs(1);

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new(algorithm, 9, 60_000_000_000)
}

fn take<'c>(carried: &'c Carried, limit: &Limit, now: Instant) -> Option<Taken<'c>> {
    carried.take(std::iter::once((KEY, limit)), now).ok()
}

/// What a call would carry, which then fails.
fn told(carried: &Carried, limit: &Limit, now: Instant) -> Vec<(u64, u64)> {
    let mut taken = take(carried, limit, now).expect("no call is under way");
    taken.of(KEY).iter().map(|entry| entry.told(limit, now)).collect()
}

fn note(carried: &Carried, key: Key, limit: &Limit, hits: u64, now: Instant) {
    carried.note(key, limit, hits, now, || None);
}

const KEY: Key = Key(1);

#[test]
fn hits_are_told_once_and_never_as_older_than_they_are() {
    let (carried, now, limit) = (Carried::default(), monotonic(), limit(Algorithm::SlidingLog));
    note(&carried, KEY, &limit, 1, now);
    note(&carried, KEY, &limit, 2, now + Duration::from_millis(900));
    note(&carried, KEY, &limit, 4, now + 2 * SECOND);
    let after = now + 3 * SECOND;
    assert_eq!(told(&carried, &limit, after), [(2_100_000, 3), (1_000_000, 4)]);
    let mut taken = take(&carried, &limit, after).expect("a call that failed leaves everything as it was");
    assert_eq!(taken.of(KEY).len(), 2);
    assert!(taken.of(KEY).is_empty(), "a counter that is asked twice is charged once");
    taken.charged();
    assert!(told(&carried, &limit, after).is_empty());
}

#[tokio::test]
async fn nobody_overtakes_the_call_that_carries() {
    let (carried, now, limit) = (Carried::default(), monotonic(), limit(Algorithm::SlidingWindow));
    let other = Key(2);
    note(&carried, KEY, &limit, 3, now);
    let first = take(&carried, &limit, now).expect("the first");
    let both = || carried.take([(other, &limit), (KEY, &limit)].into_iter(), now);
    assert!(carried.take(std::iter::once((other, &limit)), now).is_ok(), "another counter is free");
    let waits = both().expect_err("it would be answered without these hits");
    note(&carried, KEY, &limit, 1, now + SECOND);
    drop(first);
    waits.await;
    let mut second = both().expect("its turn");
    assert_eq!(second.of(KEY).len(), 2, "what the first may not have told, and what came meanwhile");
    let waits = both().expect_err("again");
    note(&carried, KEY, &limit, 1, now + 2 * SECOND);
    second.charged();
    waits.await;
    assert_eq!(told(&carried, &limit, now + 2 * SECOND), [(0, 1)], "what came while the others were charged");
}

#[test]
fn hits_that_are_given_back_are_not_carried() {
    let (carried, now, log) = (Carried::default(), monotonic(), limit(Algorithm::SlidingLog));
    [3, 2, 4]
        .into_iter()
        .zip(0..)
        .for_each(|(hits, at)| note(&carried, KEY, &log, hits, now + at * 2 * SECOND));
    let after = now + 5 * SECOND;
    carried.lower(KEY, &log, 4, after);
    assert_eq!(told(&carried, &log, after), [(3_000_000, 1), (1_000_000, 4)], "the oldest first");
    let under_way = take(&carried, &log, after).expect("free");
    note(&carried, KEY, &log, 1, after);
    carried.lower(KEY, &log, 3, after);
    drop(under_way);
    assert_eq!(told(&carried, &log, after), [(3_000_000, 1), (1_000_000, 4)], "nothing that is on its way");
    carried.lower(KEY, &log, 100, after);
    assert!(told(&carried, &log, after).is_empty());
    let bucket = Limit::new(Algorithm::TokenBucket, 1, 1_000_000_000).with_burst(9);
    note(&carried, KEY, &bucket, 6, after);
    carried.lower(KEY, &bucket, 2, after + SECOND);
    assert_eq!(told(&carried, &bucket, after + 2 * SECOND), [(0, 2)]);
}

#[test]
fn calls_that_fail_again_and_again_leave_no_pieces() {
    for algorithm in [Algorithm::SlidingWindow, Algorithm::TokenBucket] {
        let (carried, now, limit) = (Carried::default(), monotonic(), limit(algorithm));
        note(&carried, KEY, &limit, 1, now);
        for call in 1..=20_000 {
            let now = now + call * Duration::from_millis(9);
            let taken = take(&carried, &limit, now).expect("the one before has ended");
            note(&carried, KEY, &limit, 1, now);
            drop(taken);
            let entries = told(&carried, &limit, now).len();
            // A sixtieth of a window each, for two windows.
            assert!(entries <= 250, "{entries} after {call} calls");
        }
    }
}

#[test]
fn counters_whose_hits_count_no_more_make_room() {
    let (carried, now) = (Carried::default(), monotonic());
    let limit = Limit::new(Algorithm::SlidingWindow, 9, 1_000_000_000);
    (2..50_000_u128 + 2).for_each(|key| note(&carried, Key(key), &limit, 1, now));
    let soon = now + SECOND / 2;
    note(&carried, KEY, &limit, 1, soon);
    assert!(told(&carried, &limit, soon).is_empty(), "all of them still count");
    note(&carried, KEY, &limit, 1, now + 3 * SECOND);
    assert_eq!(told(&carried, &limit, now + 3 * SECOND).len(), 1);
}

#[test]
fn a_bucket_drains_meanwhile() {
    let (carried, now) = (Carried::default(), monotonic());
    let limit = Limit::new(Algorithm::TokenBucket, 2, 1_000_000_000).with_burst(10);
    note(&carried, KEY, &limit, 6, now);
    note(&carried, KEY, &limit, 1, now + SECOND);
    assert_eq!(told(&carried, &limit, now + Duration::from_millis(1_250)), [(0, 5)]);
}
