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
    counters: Mutex<HashMap<Key, Vec<Admitted>>>,
    count: AtomicUsize,
}

impl Carried {
    /// Notes hits that were admitted now.
    pub(super) fn note(&self, key: Key, limit: &Limit, hits: u64, now: Instant) {
        let mut counters = self.counters.lock();
        if counters.len() >= COUNTERS_MAX && !counters.contains_key(&key) {
            return;
        }
        let entries = counters.entry(key).or_default();
        let window = Duration::from_nanos(limit.window_nanos());
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
        self.count.store(counters.len(), Relaxed);
    }

    /// Takes what a counter is to be charged.
    pub(super) fn take(&self, key: Key) -> Vec<Admitted> {
        if self.count.load(Relaxed) == 0 {
            return Vec::new();
        }
        let mut counters = self.counters.lock();
        let taken = counters.remove(&key).unwrap_or_default();
        self.count.store(counters.len(), Relaxed);
        taken
    }

    /// Puts back what may not have been charged. If it was, it counts twice: too little room, never too much.
    pub(super) fn put_back(&self, key: Key, taken: Vec<Admitted>) {
        if taken.is_empty() {
            return;
        }
        let mut counters = self.counters.lock();
        let later = counters.insert(key, taken);
        counters.entry(key).or_default().extend(later.unwrap_or_default());
        self.count.store(counters.len(), Relaxed);
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
        let taken = carried.take(key);
        let told: Vec<_> = taken.iter().map(|entry| entry.told(&limit, after(3))).collect();
        assert_eq!(told, [(2_100_000, 3), (1_000_000, 4)]);
        assert!(carried.take(key).is_empty());
        carried.put_back(key, taken.clone());
        assert_eq!(carried.take(key), taken);
    }

    #[test]
    fn a_bucket_drains_meanwhile() {
        let (carried, key, now) = (Carried::default(), Key(1), monotonic());
        let limit = Limit::new(Algorithm::TokenBucket, 2, 1_000_000_000).with_burst(10);
        carried.note(key, &limit, 6, now);
        carried.note(key, &limit, 1, now + Duration::from_secs(1));
        let taken = carried.take(key);
        assert_eq!(taken[0].told(&limit, now + Duration::from_millis(1_250)), (0, 5));
    }
}
