//! A counter as the model keeps it, and how it is read from what the scripts keep.

use std::collections::VecDeque;

use tidegate_engine::limit::Algorithm;

use super::bans::Ban;
use super::bucket::Bucket;
use super::check::{Check, Reader, Stamp};
use super::entries::{Entries, Entry};
use super::holds::Holds;
use super::slots::Slots;
use super::windows::{Budget, Fixed, Weighted};
use crate::redis::database::Value;

/// A counter. Times are Unix time in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub enum Counter {
    /// Of a sliding log or window.
    Entries(Entries),
    /// Of a weighted window.
    Weighted(Weighted),
    /// Of a fixed window.
    Fixed(Fixed),
    /// Of a token or leaky bucket.
    Bucket(Bucket),
    /// Of a calendar.
    Budget(Budget),
    /// Of calls in flight.
    Slots(Slots),
    /// Of denials.
    Ban(Ban),
    /// Of reservations.
    Holds(Holds),
}

/// What earlier checks of the request take from a counter, and give back to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    pub(super) taken: i64,
    pub(super) given: i64,
}

impl Ahead {
    /// The count after them.
    pub(super) fn after(self, count: i64) -> i64 {
        (count - self.given).max(0) + self.taken
    }
}

/// What a counter says about some hits.
pub(super) struct Look {
    pub(super) over: bool,
    pub(super) left: i64,
    pub(super) before: i64,
}

impl Look {
    /// At a count. A check of no hits looks for room for one.
    pub(super) fn at_count(capacity: i64, count: i64, hits: i64) -> Self {
        let left = (capacity - count).max(0);
        Self { over: hits.max(1) > left, left, before: count }
    }
}

/// The most hits that are added in any case to a count of 32 bits.
pub(super) fn room_of_count(count: i64) -> i64 {
    (i64::from(u32::MAX) - count).max(0)
}

/// What an algorithm does to its counter. What changes a counter returns when it expires from now on, if that changes.
pub(super) trait Kind {
    fn latest(&self) -> i64;
    fn is_empty(&self) -> bool;
    fn advance(&mut self, check: &Check<'_>, now: i64) -> Option<i64>;
    fn look(&self, check: &Check<'_>, hits: i64, ahead: Ahead) -> Look;
    /// The most hits that a reported cost adds.
    /// What the calls of others may cost at most that hold something.
    fn worst(&self, _: &Check<'_>) -> i64 {
        0
    }

    fn report_max(&self, check: &Check<'_>, ahead: Ahead) -> i64;
    fn charge(&mut self, check: &Check<'_>, hits: i64) -> Option<i64>;
    /// Charges hits of another time.
    fn charge_at(&mut self, check: &Check<'_>, time: i64, hits: i64, ahead: Ahead) -> Option<i64>;
    /// Takes the oldest hits first.
    fn refund(&mut self, check: &Check<'_>, hits: i64) -> Option<i64>;
    /// Whether a charge renews what is held already.
    fn renews(&self, _: &Check<'_>) -> bool {
        false
    }
    /// Takes hits back that were charged under this stamp.
    fn give_back(&mut self, check: &Check<'_>, stamp: Stamp) -> Option<i64>;
    /// The numbers that the answer's times are computed from, when so many hits are wanted: three of a bucket, else two.
    fn state(&self, check: &Check<'_>, hits: i64, over: bool) -> [Option<i64>; 3];
    /// The newest place.
    fn newest(&self) -> i64 {
        0
    }
}

impl Counter {
    /// One that was never used.
    pub(super) fn unused(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingWindow => Self::Entries(Entries::default()),
            Algorithm::SlidingWindowWeighted => Self::Weighted(Weighted::default()),
            Algorithm::FixedWindow => Self::Fixed(Fixed::default()),
            Algorithm::TokenBucket | Algorithm::LeakyBucket => Self::Bucket(Bucket::default()),
            Algorithm::Calendar => Self::Budget(Budget::default()),
            Algorithm::Concurrency => Self::Slots(Slots::default()),
            Algorithm::Ban => Self::Ban(Ban::default()),
            Algorithm::Holds => Self::Holds(Holds::default()),
        }
    }

    pub(super) fn kind(&mut self) -> &mut dyn Kind {
        match self {
            Self::Entries(counter) => counter,
            Self::Weighted(counter) => counter,
            Self::Fixed(counter) => counter,
            Self::Bucket(counter) => counter,
            Self::Budget(counter) => counter,
            Self::Slots(counter) => counter,
            Self::Ban(counter) => counter,
            Self::Holds(counter) => counter,
        }
    }
}

/// The counter in what the scripts keep under its key.
pub fn of_value(algorithm: Algorithm, value: &Value) -> Counter {
    match (algorithm, value) {
        (Algorithm::SlidingLog, Value::List(list)) => Counter::Entries(of_list(list)),
        (Algorithm::SlidingWindow, Value::Text(text)) => Counter::Entries(of_text(text)),
        (Algorithm::SlidingWindowWeighted, Value::Text(text)) => {
            let mut from = Reader::new(text);
            let (latest, current, previous) = (from.double(), from.four(), from.four());
            Counter::Weighted(Weighted { latest, current, previous })
        }
        (Algorithm::FixedWindow, Value::Text(text)) => {
            let mut from = Reader::new(text);
            Counter::Fixed(Fixed { latest: from.double(), count: from.double() })
        }
        (Algorithm::Calendar, Value::Text(text)) => {
            let mut from = Reader::new(text);
            let (latest, count, ends) = (from.double(), from.double(), from.double());
            let paid = if from.is_empty() { 0 } else { from.double() };
            Counter::Budget(Budget { latest, count, ends, paid })
        }
        (Algorithm::TokenBucket | Algorithm::LeakyBucket, Value::Text(text)) => {
            let mut from = Reader::new(text);
            let (latest, hits, rest) = (from.double(), from.double(), from.double());
            let (requests, taken_back) = (from.four(), from.double());
            let requests_above = if from.is_empty() { 0 } else { from.four() };
            Counter::Bucket(Bucket { latest, hits, rest, requests, taken_back, requests_above })
        }
        (Algorithm::Ban, Value::Text(text)) => Counter::Ban(Ban::of_text(text)),
        (Algorithm::Concurrency, Value::Sorted(sorted)) => Counter::Slots(Slots::of_sorted(sorted)),
        (Algorithm::Holds, Value::Sorted(sorted)) => Counter::Holds(Holds::of_sorted(sorted)),
        _ => panic!("no counter of {algorithm:?}: {value:?}"),
    }
}

/// A list of latest, base, and then time and sum of each entry.
fn of_list(list: &VecDeque<Vec<u8>>) -> Entries {
    let number = |text: &Vec<u8>| std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    let numbers: Vec<i64> = list.iter().map(|text| number(text).expect("a list of numbers")).collect();
    let (entries, _) = numbers[2..].as_chunks();
    with_sums(numbers[0], numbers[1], entries)
}

/// See `window.lua`: latest, base; the newest and the oldest entry; how many are dead; and those before the newest.
fn of_text(text: &[u8]) -> Entries {
    let numbers: Vec<i64> =
        text.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes) as i64).collect();
    let [latest, base, ref more @ ..] = *numbers else { panic!("a window of {} bytes", text.len()) };
    let &[newest, sum, _, _, dead, ref older @ ..] = more else { return with_sums(latest, base, &[]) };
    let (older, _) = older.as_chunks();
    let entries = [&older[dead as usize..], &[[newest, sum]]].concat();
    with_sums(latest, base, &entries)
}

/// Entries of a place and the sum up to it.
fn with_sums(latest: i64, base: i64, entries: &[[i64; 2]]) -> Entries {
    let mut before = base;
    let entry = |&[place, sum]: &[i64; 2]| Entry { place, hits: sum - std::mem::replace(&mut before, sum) };
    Entries::new(latest, entries.iter().map(entry).collect())
}
