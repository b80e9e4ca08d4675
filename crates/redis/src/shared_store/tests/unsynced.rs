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
    taken.of(KEY).iter().map(|entry| entry.age_and_hits(now)).collect()
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
    unsynced.give_back(KEY, 4);
    assert_eq!(reported(&unsynced, &log, after), [(3_000_000, 1), (1_000_000, 4)], "the oldest first");
    let under_way = take(&unsynced, &log, after).expect("free");
    note(&unsynced, KEY, &log, 1, after);
    unsynced.give_back(KEY, 3);
    drop(under_way);
    assert_eq!(
        reported(&unsynced, &log, after),
        [(3_000_000, 1), (1_000_000, 4)],
        "nothing that is on its way"
    );
    unsynced.give_back(KEY, 100);
    assert!(reported(&unsynced, &log, after).is_empty());
    let bucket = Limit::new(Algorithm::TokenBucket, 1, 1_000_000_000).with_burst(9);
    note(&unsynced, KEY, &bucket, 6, after);
    unsynced.give_back(KEY, 2);
    assert_eq!(reported(&unsynced, &bucket, after + SECOND), [(1_000_000, 4)]);
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
    let key = |number: u128| Key(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    (2..50_000_u128 + 2).for_each(|number| note(&unsynced, key(number), &limit, 1, now));
    let soon = now + SECOND / 2;
    note(&unsynced, KEY, &limit, 1, soon);
    assert!(reported(&unsynced, &limit, soon).is_empty(), "all of them still count");
    note(&unsynced, key(2), &limit, 5, soon);
    let mut taken = unsynced.take(std::iter::once((key(2), &limit)), soon).expect("no call");
    let hits: Vec<u64> = taken.of(key(2)).iter().map(|entry| entry.age_and_hits(soon).1).collect();
    assert_eq!(hits, [1, 5], "a counter that is known has room");
    drop(taken);
    note(&unsynced, KEY, &limit, 1, now + 3 * SECOND);
    assert_eq!(reported(&unsynced, &limit, now + 3 * SECOND).len(), 1);
}

/// Costs fill a bucket beyond its burst: those hits are there until they have drained, many windows later.
#[test]
fn what_a_bucket_has_beyond_its_burst_is_kept_until_it_has_drained() {
    let (unsynced, now) = (UnsyncedHits::default(), monotonic());
    let limit = Limit::new(Algorithm::TokenBucket, 9, 1_000_000_000);
    note(&unsynced, KEY, &limit, 90, now);
    unsynced.idle(now + 5 * SECOND);
    assert_eq!(reported(&unsynced, &limit, now + 5 * SECOND), [(1_000_000, 90 - 4 * 9)]);
    unsynced.idle(now + 20 * SECOND);
    assert!(unsynced.is_empty());
}

#[test]
fn a_counter_is_kept_as_long_as_its_last_hits_count() {
    let (unsynced, now) = (UnsyncedHits::default(), monotonic());
    let limit = limit(Algorithm::SlidingLog);
    note(&unsynced, KEY, &limit, 1, now);
    note(&unsynced, KEY, &limit, 2, now + 100 * SECOND);
    unsynced.idle(now + 130 * SECOND);
    assert_eq!(reported(&unsynced, &limit, now + 130 * SECOND), [(30_000_000, 2)]);
}

/// A weighted window counts a share of the hits in the window before.
#[test]
fn hits_are_reported_as_long_as_they_are_in_the_window_before() {
    let (unsynced, now) = (UnsyncedHits::default(), monotonic());
    let limit = limit(Algorithm::SlidingWindowWeighted);
    note(&unsynced, KEY, &limit, 3, now);
    assert_eq!(reported(&unsynced, &limit, now + 119 * SECOND), [(119_000_000, 3)]);
    assert!(reported(&unsynced, &limit, now + 120 * SECOND).is_empty());
}

#[test]
fn hits_that_come_during_a_call_are_reported_after_it() {
    let (unsynced, now) = (UnsyncedHits::default(), monotonic());
    let limit = limit(Algorithm::SlidingLog);
    note(&unsynced, KEY, &limit, 3, now);
    let first = take(&unsynced, &limit, now).expect("no call is under way");
    let soon = now + SECOND / 2;
    note(&unsynced, KEY, &limit, 1, soon);
    first.charged();
    assert_eq!(reported(&unsynced, &limit, soon), [(0, 1)]);
}

/// Redis drains what came in the last window, together with its own hits.
#[test]
fn a_bucket_drains_here_until_a_window_ago() {
    let (unsynced, now) = (UnsyncedHits::default(), monotonic());
    let limit = Limit::new(Algorithm::TokenBucket, 2, 1_000_000_000).with_burst(10);
    let after = |millis| now + Duration::from_millis(millis);
    let reported = |millis| reported(&unsynced, &limit, after(millis));
    note(&unsynced, KEY, &limit, 6, now);
    note(&unsynced, KEY, &limit, 1, after(900));
    assert_eq!(reported(1_000), [(1_000_000, 6), (100_000, 1)], "nothing has drained");
    note(&unsynced, KEY, &limit, 2, after(1_500));
    assert_eq!(
        reported(1_750),
        [(1_000_000, 5), (850_000, 1), (250_000, 2)],
        "of the 6, what drains in 0.75 s"
    );
    assert_eq!(reported(4_500), [(1_000_000, 2)]);
    assert_eq!(reported(6_000), []);
}

#[test]
fn a_bucket_does_not_grow_in_a_long_outage() {
    let (unsynced, now) = (UnsyncedHits::default(), monotonic());
    let limit = Limit::new(Algorithm::TokenBucket, 120, 60_000_000_000);
    let after = |halves: u64| now + Duration::from_millis(500 * halves);
    // What comes in a second is one entry, and as much drains.
    (0..7_200).for_each(|half| note(&unsynced, KEY, &limit, 1, after(half)));
    let reported = reported(&unsynced, &limit, after(7_200));
    let hits: u64 = reported.iter().map(|(_, hits)| hits).sum();
    assert!((120..=124).contains(&hits), "{hits} of the last window: {reported:?}");
}
