//! What this node admitted while it decided alone, until Redis is told.
//!
//! In: hits and when they were admitted. Out, once: the same by counter, for the first call that asks for it. Bounded:
//! some sixty entries a counter, each as late as the latest of its hits, so that nothing counts too short; and so many
//! counters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engine::key::Key;
use crate::engine::limit::Limit;

/// Hits within this part of a window are as good as one.
const PARTS: u32 = 60;
/// Counters that are remembered: beyond them hits are forgotten. Each takes up to 2 KiB.
const COUNTERS_MAX: usize = 50_000;
/// How often those whose hits count no more are looked for when there is no room.
const PURGE_PAUSE: Duration = Duration::from_secs(1);

/// Hits that were admitted from `began` to `last`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Admitted {
    began: Instant,
    last: Instant,
    hits: f64,
}

/// All that is to be carried along.
#[derive(Debug, Default)]
pub(super) struct Carried {
    counters: Mutex<Counters>,
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Counters {
    noted: HashMap<Key, Noted>,
    purged: Option<Instant>,
}

/// What is to be carried along of one counter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Noted {
    /// When none of it counts any more; `None` when there is nothing.
    until: Option<Instant>,
    pub(super) entries: Vec<Admitted>,
}

/// What was taken for a call. It goes back when the call is dropped before it is known to have been answered.
#[derive(Debug)]
pub(super) struct Taken<'c> {
    carried: &'c Carried,
    noted: Vec<(Key, Noted)>,
}

impl Taken<'_> {
    /// Adds what a counter is to be charged; what it is.
    pub(super) fn take(&mut self, key: Key) -> &[Admitted] {
        let noted = self.carried.take(key);
        if noted.entries.is_empty() {
            return &[];
        }
        self.noted.push((key, noted));
        self.noted.last().map_or(&[], |(_, noted)| &noted.entries)
    }

    /// All of it was charged.
    pub(super) fn charged(mut self) {
        self.noted.clear();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.noted.drain(..).for_each(|(key, noted)| self.carried.put_back(key, noted));
    }
}

impl Carried {
    /// Notes hits that were admitted now.
    pub(super) fn note(&self, key: Key, limit: &Limit, hits: u64, now: Instant) {
        let mut counters = self.counters.lock();
        if !counters.has_room(key, now) {
            return;
        }
        let window = Duration::from_nanos(limit.window_nanos());
        let noted = counters.noted.entry(key).or_default();
        // A bucket's hits may take several windows to drain: what this node alone admits is at most a burst at a time.
        let windows = limit.burst().div_ceil(limit.requests().max(1)).saturating_add(1);
        noted.until = now.checked_add(window.saturating_mul(windows)).or(noted.until);
        let entries = &mut noted.entries;
        entries.retain(|entry| limit.algorithm().is_bucket() || now - entry.last < 2 * window);
        match entries.last_mut() {
            Some(last) if limit.algorithm().is_bucket() => {
                let left = last.left(limit, now);
                *last = Admitted { hits: left + hits as f64, began: now, last: now };
            }
            Some(last) if now - last.began < window / PARTS => {
                (last.hits, last.last) = (last.hits + hits as f64, now);
            }
            _ => entries.push(Admitted { began: now, last: now, hits: hits as f64 }),
        }
        self.count.store(counters.noted.len(), Relaxed);
    }

    /// Nothing yet, for a call.
    pub(super) fn taken(&self) -> Taken<'_> {
        Taken { carried: self, noted: Vec::new() }
    }

    /// Takes what a counter is to be charged.
    fn take(&self, key: Key) -> Noted {
        if self.count.load(Relaxed) == 0 {
            return Noted::default();
        }
        let mut counters = self.counters.lock();
        let taken = counters.noted.remove(&key).unwrap_or_default();
        self.count.store(counters.noted.len(), Relaxed);
        taken
    }

    /// Puts back what may not have been charged. If it was, it counts twice: too little room, never too much.
    fn put_back(&self, key: Key, mut taken: Noted) {
        let mut counters = self.counters.lock();
        let later = counters.noted.remove(&key).unwrap_or_default();
        taken.until = taken.until.max(later.until);
        taken.entries.extend(later.entries);
        counters.noted.insert(key, taken);
        self.count.store(counters.noted.len(), Relaxed);
    }
}

impl Counters {
    /// Whether hits of this counter can be noted, once those are forgotten that count no more.
    fn has_room(&mut self, key: Key, now: Instant) -> bool {
        if self.noted.len() < COUNTERS_MAX || self.noted.contains_key(&key) {
            return true;
        }
        if self.purged.is_none_or(|purged| now.saturating_duration_since(purged) >= PURGE_PAUSE) {
            self.purged = Some(now);
            self.noted.retain(|_, noted| noted.until.is_some_and(|until| now < until));
        }
        self.noted.len() < COUNTERS_MAX
    }
}

impl Admitted {
    /// The hits that are left in a bucket now.
    fn left(&self, limit: &Limit, now: Instant) -> f64 {
        let drained = (now - self.last).as_nanos() as f64 * f64::from(limit.requests());
        (self.hits - drained / limit.window_nanos() as f64).max(0.0)
    }

    /// How many microseconds ago how many hits were admitted.
    pub(super) fn told(&self, limit: &Limit, now: Instant) -> (u64, u64) {
        if limit.algorithm().is_bucket() {
            return (0, self.left(limit, now).ceil() as u64);
        }
        let age = now.saturating_duration_since(self.last).as_micros();
        (u64::try_from(age).unwrap_or(u64::MAX), self.hits as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;
    use crate::engine::limit::Algorithm;

    #[test]
    fn hits_are_told_once_and_never_as_older_than_they_are() {
        let (carried, key, now) = (Carried::default(), Key(1), monotonic());
        let limit = Limit::new(Algorithm::SlidingLog, 9, 60_000_000_000);
        let after = |secs| now + Duration::from_secs(secs);
        carried.note(key, &limit, 1, now);
        carried.note(key, &limit, 2, now + Duration::from_millis(900));
        carried.note(key, &limit, 4, after(2));
        let mut taken = carried.taken();
        let entries = taken.take(key).to_vec();
        let told: Vec<_> = entries.iter().map(|entry| entry.told(&limit, after(3))).collect();
        assert_eq!(told, [(2_100_000, 3), (1_000_000, 4)]);
        assert!(carried.taken().take(key).is_empty());
        drop(taken);
        let mut again = carried.taken();
        assert_eq!(again.take(key), entries, "a call that was dropped leaves everything as it was");
        again.charged();
        assert!(carried.taken().take(key).is_empty());
    }

    #[test]
    fn counters_whose_hits_count_no_more_make_room() {
        let (carried, now) = (Carried::default(), monotonic());
        let limit = Limit::new(Algorithm::SlidingWindow, 9, 1_000_000_000);
        (0..COUNTERS_MAX as u128).for_each(|key| carried.note(Key(key), &limit, 1, now));
        let next = Key(u128::MAX);
        carried.note(next, &limit, 1, now + Duration::from_millis(500));
        assert!(carried.taken().take(next).is_empty(), "all of them still count");
        carried.note(next, &limit, 1, now + Duration::from_secs(3));
        assert_eq!(carried.taken().take(next).len(), 1);
    }

    #[test]
    fn a_bucket_drains_meanwhile() {
        let (carried, key, now) = (Carried::default(), Key(1), monotonic());
        let limit = Limit::new(Algorithm::TokenBucket, 2, 1_000_000_000).with_burst(10);
        carried.note(key, &limit, 6, now);
        carried.note(key, &limit, 1, now + Duration::from_secs(1));
        let taken = carried.take(key).entries;
        assert_eq!(taken[0].told(&limit, now + Duration::from_millis(1_250)), (0, 5));
    }
}
