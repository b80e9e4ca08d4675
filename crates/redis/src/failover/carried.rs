//! What this node admitted while it decided alone, until Redis is told.
//!
//! In: hits and when they were admitted. Out: the same by counter, for the first call that asks for it, or for one that
//! `debts` sends where none comes; until that call
//! has ended, others that ask for one of its counters are told to wait, or Redis would answer them without these hits.
//! Bounded: a few hundred entries a counter, each as late as the latest of its hits, so that nothing counts too short;
//! and so many counters.

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

/// Hits within this part of a window are as good as one: while there are few counters, and when there are many.
const PARTS: (u32, u32) = (60, 6);
/// So many counters are few.
const FEW: usize = 2_000;
/// Counters that are remembered: beyond them hits are forgotten. Each takes some 10 KiB where there are few, 1 KiB where
/// there are many, and its key.
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

/// Where a counter lives in Redis.
#[derive(Debug)]
pub(super) struct Place {
    /// The unit of the limit: those per second may be in a store of their own.
    pub(super) unit: Unit,
    pub(super) slot: u16,
    pub(super) key: Vec<u8>,
    pub(super) limit: Limit,
}

/// What Redis is to be told of one counter, in so many entries.
pub(super) struct Debt {
    pub(super) counter: Key,
    pub(super) place: Arc<Place>,
    pub(super) entries: usize,
}

/// All that is to be carried along.
#[derive(Debug, Default)]
pub(super) struct Carried {
    counters: Mutex<Counters>,
    count: AtomicU64,
    /// There was nothing, and now there is.
    came: Notify,
}

#[derive(Debug, Default)]
struct Counters {
    noted: KeyMap<Noted>,
    purged: Option<Instant>,
}

/// What is to be carried along of one counter.
#[derive(Debug, Default)]
struct Noted {
    /// When none of it counts any more; `None` when there is nothing.
    until: Option<Instant>,
    /// `None`: the key is too long to be held. A call that asks for the counter brings it.
    place: Option<Arc<Place>>,
    entries: Vec<Admitted>,
    flight: Option<Flight>,
}

/// A call that is under way with the first entries of a counter.
#[derive(Debug)]
struct Flight {
    entries: usize,
    ended: Arc<Notify>,
}

/// What was taken for a call. Unless it is told that all of it was charged, it is still to be carried afterwards.
#[derive(Debug)]
pub(super) struct Taken<'c> {
    carried: &'c Carried,
    counters: Vec<(Key, Vec<Admitted>)>,
    ended: Option<Arc<Notify>>,
}

impl Taken<'_> {
    /// What a counter is to be charged, once.
    pub(super) fn of(&mut self, key: Key) -> Vec<Admitted> {
        let taken = self.counters.iter_mut().find(|(taken, _)| *taken == key);
        taken.map(|(_, entries)| std::mem::take(entries)).unwrap_or_default()
    }

    /// All of it was charged.
    pub(super) fn charged(mut self) {
        self.land(true);
    }

    fn land(&mut self, charged: bool) {
        let Some(ended) = self.ended.take() else { return };
        let mut counters = self.carried.counters.lock();
        self.counters.drain(..).for_each(|(key, _)| counters.land(key, charged));
        self.carried.count.store(counters.noted.len() as u64, Relaxed);
        drop(counters);
        ended.notify_waiters();
    }
}

impl Drop for Taken<'_> {
    /// It may have been charged or not. If it was, it counts twice: too little room, never too much.
    fn drop(&mut self) {
        self.land(false);
    }
}

impl Carried {
    /// Notes hits that were admitted or reported now, of a counter that lives at `place`; whether there is room for them.
    pub(super) fn note(
        &self,
        key: Key,
        limit: &Limit,
        hits: u64,
        now: Instant,
        place: impl FnOnce() -> Option<Place>,
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

    /// Waits until there is something.
    pub(super) async fn came(&self) {
        self.came.notified().await;
    }

    /// Whether there is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// What is on no call at `now`. What counts no more is forgotten.
    pub(super) fn debts(&self, now: Instant) -> Vec<Debt> {
        let mut counters = self.counters.lock();
        counters.forget_dead(now);
        self.count.store(counters.noted.len() as u64, Relaxed);
        let debt = |(&counter, noted): (&Key, &Noted)| {
            let place = Arc::clone(noted.place.as_ref().filter(|_| noted.flight.is_none())?);
            Some(Debt { counter, place, entries: noted.entries.len() })
        };
        counters.noted.iter().filter_map(debt).collect()
    }

    /// Takes back hits that were given back: the oldest first, and none that are on their way.
    pub(super) fn lower(&self, key: Key, limit: &Limit, hits: u64, now: Instant) {
        let mut counters = self.counters.lock();
        if let Some(noted) = counters.noted.get_mut(&key) {
            noted.lower(limit, hits as f64, now);
        }
    }

    /// Takes what these counters are to be charged at `now`, each once; or tells when to ask again, while another call
    /// carries hits of one of them.
    pub(super) fn take<'l>(
        &self,
        counters: impl Iterator<Item = (Key, &'l Limit)> + Clone,
        now: Instant,
    ) -> Result<Taken<'_>, OwnedNotified> {
        let mut taken = Taken { carried: self, counters: Vec::new(), ended: None };
        if self.count.load(Relaxed) == 0 {
            return Ok(taken);
        }
        let mut all = self.counters.lock();
        // All or none: a call that has some and waits for others might wait for one that waits for it.
        if let Some(ended) = counters.clone().find_map(|(key, _)| all.flight_of(key)) {
            return Err(ended.notified_owned());
        }
        let parts = all.parts();
        for (key, limit) in counters {
            let Some(noted) = all.noted.get_mut(&key).filter(|noted| noted.flight.is_none()) else {
                continue;
            };
            noted.tidy(limit, parts, now);
            let ended = Arc::clone(taken.ended.get_or_insert_default());
            noted.flight = Some(Flight { entries: noted.entries.len(), ended });
            taken.counters.push((key, noted.entries.clone()));
        }
        Ok(taken)
    }
}

impl Counters {
    /// The end of the call that is under way with hits of this counter, if there is one.
    fn flight_of(&self, key: Key) -> Option<Arc<Notify>> {
        Some(Arc::clone(&self.noted.get(&key)?.flight.as_ref()?.ended))
    }

    fn land(&mut self, key: Key, charged: bool) {
        let Some(noted) = self.noted.get_mut(&key) else { return };
        let flown = noted.flight.take().map_or(0, |flight| flight.entries);
        noted.entries.drain(..if charged { flown } else { 0 });
        if noted.entries.is_empty() {
            self.noted.remove(&key);
        }
    }

    fn parts(&self) -> u32 {
        if self.noted.len() <= FEW { PARTS.0 } else { PARTS.1 }
    }

    /// Whether hits of this counter can be noted, once those are forgotten that count no more.
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
        self.noted.retain(|_, noted| noted.flight.is_some() || noted.until.is_some_and(|until| now < until));
    }
}

impl Noted {
    fn note(&mut self, limit: &Limit, parts: u32, hits: u64, now: Instant) {
        let window = Duration::from_nanos(limit.window_nanos());
        // A bucket's hits may take several windows to drain: at most a burst, and what is reported beyond it.
        let reported = if limit.algorithm().is_bucket() { 16 } else { 0 };
        let windows = limit.burst().div_ceil(limit.requests().max(1)).saturating_add(1 + reported);
        self.until = now.checked_add(window.saturating_mul(windows)).or(self.until);
        let new = Admitted { began: now, last: now, hits: hits as f64 };
        let flown = self.flown();
        if !self.entries[flown..].last_mut().is_some_and(|last| last.joins(&new, limit, parts)) {
            self.entries.push(new);
            self.tidy(limit, parts, now);
        }
    }

    /// Entries that are on their way, and stay as they are.
    fn flown(&self) -> usize {
        self.flight.as_ref().map_or(0, |flight| flight.entries)
    }

    /// Forgets what counts no more, and joins what calls that failed have left in pieces.
    fn tidy(&mut self, limit: &Limit, parts: u32, now: Instant) {
        if self.flight.is_some() {
            return;
        }
        let window = Duration::from_nanos(limit.window_nanos());
        let counts = |entry: &Admitted| now.saturating_duration_since(entry.last) < 2 * window;
        self.entries.retain(|entry| limit.algorithm().is_bucket() || counts(entry));
        self.entries.dedup_by(|later, entry| entry.joins(later, limit, parts));
    }

    fn lower(&mut self, limit: &Limit, mut hits: f64, now: Instant) {
        let flown = self.flown();
        while let Some(oldest) = self.entries.get_mut(flown).filter(|_| hits > 0.0) {
            let left = if limit.algorithm().is_bucket() { oldest.left(limit, now) } else { oldest.hits };
            if left > hits {
                (oldest.hits, oldest.last) =
                    (left - hits, if limit.algorithm().is_bucket() { now } else { oldest.last });
                return;
            }
            hits -= left;
            self.entries.remove(flown);
        }
    }
}

impl Admitted {
    /// Takes the hits of a later entry in, if they are as good as its own.
    fn joins(&mut self, later: &Self, limit: &Limit, parts: u32) -> bool {
        if limit.algorithm().is_bucket() {
            *self = Self { hits: self.left(limit, later.last) + later.hits, ..*later };
            return true;
        }
        let span = later.last.saturating_duration_since(self.began);
        let near = span < Duration::from_nanos(limit.window_nanos()) / parts;
        if near {
            (self.hits, self.last) = (self.hits + later.hits, self.last.max(later.last));
        }
        near
    }

    /// The hits that are left in a bucket now.
    fn left(&self, limit: &Limit, now: Instant) -> f64 {
        let drained =
            now.saturating_duration_since(self.last).as_nanos() as f64 * f64::from(limit.requests());
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
