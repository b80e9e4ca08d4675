//! Unsynced hits: this node admitted them while Redis was away, and reports them to Redis later.
//!
//! In: hits, and when they were admitted. Out: the same by counter, for the first call that asks for the counter, or
//! for a call of `report_unsynced`. Until that call has ended, other calls for the counter wait: Redis would answer
//! them without these hits. Bounded: so many counters, and a few hundred entries for each. An entry has the time of
//! its latest hit, so that no hit counts too short. Nobody knows how much the bucket in Redis has drained meanwhile, and what drains at
//! both counts once too little. So hits in a bucket drain here only until a window ago, and those of the last window are reported as
//! they are: a long outage is not followed by a longer wait.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::sync::{AtomicU64, Mutex};
use tidegate_engine::key::Key;
use tidegate_engine::keyed::KeyMap;
use tidegate_engine::limit::Limit;
use tidegate_engine::rules::Unit;

/// Hits within this part of a window share an entry: with few counters, and with many.
const PARTS: (u32, u32) = (60, 6);
/// The most counters that count as few.
const FEW: usize = 2_000;
/// The most counters. Hits of others are forgotten. A counter takes about 10 KiB while there are few, 1 KiB while
/// there are many, and its key.
const COUNTERS_MAX: usize = 50_000;
/// How often a full table looks for counters whose hits no longer count.
const PURGE_PAUSE: Duration = Duration::from_secs(1);

/// Hits that were admitted from `began` to `last`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Admitted {
    began: Instant,
    last: Instant,
    hits: f64,
}

/// Where a counter lives in Redis.
#[derive(Debug)]
pub(super) struct CounterPlace {
    /// The unit of the limit. Limits per second may have a store of their own.
    pub(super) unit: Unit,
    pub(super) slot: u16,
    pub(super) key: Vec<u8>,
    pub(super) limit: Limit,
}

/// A counter with unsynced hits, in so many entries.
pub(super) struct UnsyncedCounter {
    pub(super) key: Key,
    pub(super) place: Arc<CounterPlace>,
    pub(super) entries: usize,
}

/// All unsynced hits of this node.
#[derive(Debug, Default)]
pub(super) struct UnsyncedHits {
    counters: Mutex<Counters>,
    count: AtomicU64,
    /// Notified when the first hits come.
    came: Notify,
}

#[derive(Debug, Default)]
struct Counters {
    noted: KeyMap<Noted>,
    purged: Option<Instant>,
}

/// The unsynced hits of one counter.
#[derive(Debug, Default)]
struct Noted {
    /// When none of them counts any more. `None`: there are none.
    until: Option<Instant>,
    /// `None`: the key is too long to keep. A call that asks for the counter knows it.
    place: Option<Arc<CounterPlace>>,
    entries: Vec<Admitted>,
    call: Option<Call>,
}

/// A call in flight with the first entries of a counter.
#[derive(Debug)]
struct Call {
    entries: usize,
    ended: Arc<Notify>,
}

/// Whether a call has charged its hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charged {
    Yes,
    Unknown,
}

/// Hits that were taken for a call. Unless [`charged`](Self::charged) is called, they stay unsynced.
#[derive(Debug)]
pub(super) struct Taken<'c> {
    unsynced: &'c UnsyncedHits,
    counters: Vec<(Key, Vec<Admitted>)>,
    ended: Option<Arc<Notify>>,
}

impl Taken<'_> {
    /// The hits to charge to a counter. A second call returns none.
    pub(super) fn of(&mut self, key: Key) -> Vec<Admitted> {
        let taken = self.counters.iter_mut().find(|(taken, _)| *taken == key);
        taken.map(|(_, entries)| std::mem::take(entries)).unwrap_or_default()
    }

    /// Notes that all hits were charged.
    pub(super) fn charged(mut self) {
        self.end_call(Charged::Yes);
    }

    fn end_call(&mut self, charged: Charged) {
        let Some(ended) = self.ended.take() else { return };
        let mut counters = self.unsynced.counters.lock();
        self.counters.drain(..).for_each(|(key, _)| counters.end_call(key, charged));
        self.unsynced.count.store(counters.noted.len() as u64, Relaxed);
        drop(counters);
        ended.notify_waiters();
    }
}

impl Drop for Taken<'_> {
    /// The hits may or may not have been charged. If they were, they count twice, which admits too little and never
    /// too much.
    fn drop(&mut self) {
        self.end_call(Charged::Unknown);
    }
}

impl UnsyncedHits {
    /// Notes hits that were admitted or reported at `now`, of a counter that lives at `place`. Returns whether
    /// there was room.
    pub(super) fn note(
        &self,
        key: Key,
        limit: &Limit,
        hits: u64,
        now: Instant,
        place: impl FnOnce() -> Option<CounterPlace>,
    ) -> bool {
        let mut counters = self.counters.lock();
        if !counters.has_room(key, now) {
            return false;
        }
        let parts = counters.parts();
        let noted = counters.noted.entry(key).or_insert_with(|| {
            let place = place().map(Arc::new);
            Noted { place, ..Noted::default() }
        });
        noted.note(limit, parts, hits, now);
        if self.count.swap(counters.noted.len() as u64, Relaxed) == 0 {
            self.came.notify_one();
        }
        true
    }

    /// Waits until there are hits.
    pub(super) async fn came(&self) {
        self.came.notified().await;
    }

    /// Whether there are no hits.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// The counters that are in no call at `now`. Forgets hits that no longer count.
    pub(super) fn idle(&self, now: Instant) -> Vec<UnsyncedCounter> {
        let mut counters = self.counters.lock();
        counters.forget_dead(now);
        self.count.store(counters.noted.len() as u64, Relaxed);
        let idle = |(&key, noted): (&Key, &Noted)| {
            let place = Arc::clone(noted.place.as_ref().filter(|_| noted.call.is_none())?);
            Some(UnsyncedCounter { key, place, entries: noted.entries.len() })
        };
        counters.noted.iter().filter_map(idle).collect()
    }

    /// Takes back hits that a request gave back: the oldest first, and none that are in a call.
    pub(super) fn give_back(&self, key: Key, hits: u64) {
        let mut counters = self.counters.lock();
        if let Some(noted) = counters.noted.get_mut(&key) {
            noted.give_back(hits as f64);
        }
    }

    /// Takes the hits of these counters at `now`; each hit is taken once. While another call has hits of one of the
    /// counters this fails, with a notification for when that call has ended.
    pub(super) fn take<'l>(
        &self,
        counters: impl Iterator<Item = (Key, &'l Limit)> + Clone,
        now: Instant,
    ) -> Result<Taken<'_>, OwnedNotified> {
        let mut taken = Taken { unsynced: self, counters: Vec::new(), ended: None };
        if self.count.load(Relaxed) == 0 {
            return Ok(taken);
        }
        let mut all = self.counters.lock();
        // All or none: two calls that each have some and wait for the rest would wait for each other.
        if let Some(ended) = counters.clone().find_map(|(key, _)| all.call_of(key)) {
            return Err(ended.notified_owned());
        }
        let parts = all.parts();
        for (key, limit) in counters {
            let Some(noted) = all.noted.get_mut(&key).filter(|noted| noted.call.is_none()) else {
                continue;
            };
            noted.tidy(limit, parts, now);
            let ended = Arc::clone(taken.ended.get_or_insert_default());
            noted.call = Some(Call { entries: noted.entries.len(), ended });
            taken.counters.push((key, noted.entries.clone()));
        }
        Ok(taken)
    }
}

impl Counters {
    /// The end of the call that has hits of this counter, if there is one.
    fn call_of(&self, key: Key) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.noted.get(&key)?.call.as_ref()?.ended))
    }

    fn end_call(&mut self, key: Key, charged: Charged) {
        let Some(noted) = self.noted.get_mut(&key) else { return };
        let in_call = noted.call.take().map_or(0, |call| call.entries);
        if charged == Charged::Yes {
            noted.entries.drain(..in_call);
        }
        if noted.entries.is_empty() {
            self.noted.remove(&key);
        }
    }

    fn parts(&self) -> u32 {
        if self.noted.len() <= FEW { PARTS.0 } else { PARTS.1 }
    }

    /// Whether there is room for this counter. Looks for hits that no longer count if there is not.
    fn has_room(&mut self, key: Key, now: Instant) -> bool {
        if self.noted.len() < COUNTERS_MAX || self.noted.contains_key(&key) {
            return true;
        }
        if self.purged.is_none_or(|purged| now.saturating_duration_since(purged) >= PURGE_PAUSE) {
            self.purged = Some(now);
            self.forget_dead(now);
        }
        self.noted.len() < COUNTERS_MAX
    }

    fn forget_dead(&mut self, now: Instant) {
        self.noted.retain(|_, noted| noted.call.is_some() || noted.until.is_some_and(|until| now < until));
    }
}

impl Noted {
    fn note(&mut self, limit: &Limit, parts: u32, hits: u64, now: Instant) {
        let window = Duration::from_nanos(limit.window_nanos());
        // A bucket may take several windows to drain: at most a burst, and the hits that were reported beyond it.
        let reported = if limit.algorithm().is_bucket() { 16 } else { 0 };
        let windows = limit.burst().div_ceil(limit.requests().max(1)).saturating_add(1 + reported);
        self.until =
            now.checked_add(window.saturating_mul(u32::try_from(windows).unwrap_or(u32::MAX))).or(self.until);
        let new = Admitted { began: now, last: now, hits: hits as f64 };
        let in_call = self.in_call();
        if !self.entries[in_call..].last_mut().is_some_and(|last| last.merges(&new, limit, parts)) {
            self.entries.push(new);
            self.tidy(limit, parts, now);
        }
    }

    /// The entries in a call. They stay as they are.
    fn in_call(&self) -> usize {
        self.call.as_ref().map_or(0, |call| call.entries)
    }

    /// Forgets entries that no longer count, and merges entries that failed calls left.
    fn tidy(&mut self, limit: &Limit, parts: u32, now: Instant) {
        if self.call.is_some() {
            return;
        }
        let window = Duration::from_nanos(limit.window_nanos());
        if !limit.algorithm().is_bucket() {
            self.entries.retain(|entry| now.saturating_duration_since(entry.last) < 2 * window);
        } else if let Some(until) = now.checked_sub(window) {
            self.drain(limit, until);
        }
        self.entries.dedup_by(|later, entry| entry.merges(later, limit, parts));
    }

    /// Replaces the entries of a bucket until this time by what is left of them then.
    fn drain(&mut self, limit: &Limit, until: Instant) {
        let old = self.entries.partition_point(|entry| entry.last < until);
        let level = self.entries.drain(..old).reduce(|level, later| Admitted {
            hits: level.left(limit, later.last) + later.hits,
            last: later.last,
            ..level
        });
        let left = level.map(|level| Admitted { hits: level.left(limit, until), last: until, ..level });
        self.entries.splice(..0, left.filter(|left| left.hits > 0.0));
    }

    fn give_back(&mut self, mut hits: f64) {
        let in_call = self.in_call();
        while let Some(oldest) = self.entries.get_mut(in_call).filter(|_| hits > 0.0) {
            if oldest.hits > hits {
                oldest.hits -= hits;
                return;
            }
            hits -= oldest.hits;
            self.entries.remove(in_call);
        }
    }
}

impl Admitted {
    /// Merges a later entry into this one, if they are close enough. Returns whether they were.
    fn merges(&mut self, later: &Self, limit: &Limit, parts: u32) -> bool {
        if let Some(terms) = limit.ban_terms() {
            let since = later.last.saturating_duration_since(self.last);
            if since < Duration::from_nanos(terms.every_nanos) {
                return true;
            }
        }
        let span = later.last.saturating_duration_since(self.began);
        let near = span < Duration::from_nanos(limit.window_nanos()) / parts;
        if near {
            (self.hits, self.last) = (self.hits + later.hits, self.last.max(later.last));
        }
        near
    }

    /// The hits that are still in a bucket at `now`.
    fn left(&self, limit: &Limit, now: Instant) -> f64 {
        let drained = now.saturating_duration_since(self.last).as_nanos() as f64 * limit.requests() as f64;
        (self.hits - drained / limit.window_nanos() as f64).max(0.0)
    }

    /// How many microseconds ago how many hits were admitted.
    pub(super) fn age_and_hits(&self, now: Instant) -> (u64, u64) {
        let age = now.saturating_duration_since(self.last).as_micros();
        (u64::try_from(age).unwrap_or(u64::MAX), self.hits.ceil() as u64)
    }
}
