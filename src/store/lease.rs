//! Leases: hits of one counter that this node takes from Redis at once and then spends alone.
//!
//! A lease is n hits, valid for T. Redis counts them as if they all happened when it **ends**, and from the moment at
//! which it was taken; the node measures T from before it asked. So whenever a hit is spent, Redis counts it, and does
//! so until a whole window after: no window ever holds more than N, as without leases. The price is capacity that
//! comes back up to T later.
//!
//! In: checks, what Redis granted, and times of a clock that runs while the machine sleeps. Out: hits that are held,
//! how many to ask for, and what is to be given back, each hit once. It reads no clock and talks to nobody. Bounded:
//! so many counters, of which each has at most one lease and one demand under way.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::key::Key;
use crate::engine::limit::{Limit, Verdict};
use crate::engine::plan::{Check, Hits};
use crate::store::redis::script::Granted;

/// Parts of the table, each behind a lock of its own.
const SHARDS: usize = 64;
/// Counters of one part; those beyond it are asked for one hit at a time. An entry takes some 300 bytes.
const SHARD_COUNTERS_MAX: usize = 1_024;
/// A window is at least so many times T, or its limit would lose too much of what it allows.
const WINDOW_TIMES_MIN: u32 = 4;

/// Every lease of the process.
pub(super) struct Leases {
    shards: Vec<Shard>,
    time: Duration,
    /// Leases that were taken.
    pub(super) taken: AtomicU64,
    /// Hits of them.
    pub(super) hits_taken: AtomicU64,
    /// Hits that were not spent.
    pub(super) hits_given_back: AtomicU64,
}

#[derive(Default)]
struct Shard {
    counters: Mutex<HashMap<Key, Counter>>,
    hits_spent: AtomicU64,
}

/// What is known of one counter.
#[derive(Default)]
struct Counter {
    /// When the period began in which it was seen last; a period lasts T.
    began: Duration,
    now: Seen,
    before: Seen,
    /// Redis is being asked for a lease.
    demanded: bool,
    lease: Option<Lease>,
}

/// How often a counter was asked within a period.
#[derive(Clone, Copy, Default)]
struct Seen {
    asks: u64,
    hits: u64,
}

struct Lease {
    source: Arc<Source>,
    taken: Duration,
    /// At this time nothing is spent any more.
    ends: Duration,
    left: u64,
    /// Hits that would pass, as Redis told when it was asked, less those spent since.
    remaining: u64,
    /// When capacity comes back, as Redis told.
    reset_nanos: u64,
}

/// Where the hits of a lease count.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// They are in the store of limits per second.
    pub(super) per_second: bool,
    pub(super) slot: u16,
    pub(super) key: Vec<u8>,
    pub(super) limit: Limit,
    pub(super) stamp: u64,
}

/// Hits to be given back.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unspent {
    pub(super) source: Arc<Source>,
    pub(super) hits: u64,
}

/// Hits of a lease that one request holds: spent, unless they are released.
pub(super) struct Held {
    key: Key,
    source: Arc<Source>,
    pub(super) hits: u64,
    pub(super) verdict: Verdict,
}

/// The only demand for a lease of a counter, as long as it lives.
pub(super) struct Demand<'l> {
    leases: &'l Leases,
    key: Key,
    /// How many hits to ask for.
    pub(super) hits: u64,
}

impl Leases {
    /// No leases yet, of this T (cut to whole microseconds, in which Redis counts; 0: none ever).
    pub(super) fn new(time: Duration) -> Self {
        let time = Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            time,
            taken: AtomicU64::new(0),
            hits_taken: AtomicU64::new(0),
            hits_given_back: AtomicU64::new(0),
        }
    }

    /// T.
    pub(super) fn time(&self) -> Duration {
        self.time
    }

    /// Hits that were spent.
    pub(super) fn hits_spent(&self) -> u64 {
        self.shards.iter().map(|shard| shard.hits_spent.load(Relaxed)).sum()
    }

    fn shard(&self, key: Key) -> &Shard {
        &self.shards[key.0 as usize % SHARDS]
    }

    /// Notes that a counter is asked at `now`, and holds the hits if a lease has them.
    pub(super) fn hold(&self, check: &Check<'_>, now: Duration) -> Option<Held> {
        let Hits::Take(hits) = check.hits else { return None };
        let mut counters = self.shard(check.key).counters.lock();
        let has_room = counters.len() < SHARD_COUNTERS_MAX;
        let counter = match counters.entry(check.key) {
            Place::Occupied(known) => known.into_mut(),
            Place::Vacant(new) if has_room => new.insert(Counter::default()),
            Place::Vacant(_) => return None,
        };
        counter.see(hits.max(1), now, self.time);
        let lease = counter.lease.as_mut().filter(|lease| lease.has(check, hits, now))?;
        let verdict = lease.spend(hits, now);
        Some(Held { key: check.key, source: Arc::clone(&lease.source), hits, verdict })
    }

    /// Whether a lease has the hits at `now`. This is not noted.
    pub(super) fn has(&self, check: &Check<'_>, now: Duration) -> bool {
        let Hits::Take(hits) = check.hits else { return false };
        let counters = self.shard(check.key).counters.lock();
        let lease = counters.get(&check.key).and_then(|counter| counter.lease.as_ref());
        lease.is_some_and(|lease| lease.has(check, hits, now))
    }

    /// How many hits to ask Redis for, beside those that the check itself takes: as many as are seen in T. `None`: too
    /// few to be worth it, or somebody asks already.
    pub(super) fn demand(&self, check: &Check<'_>) -> Option<Demand<'_>> {
        let window = Duration::from_nanos(check.limit.window_nanos());
        if !matches!(check.hits, Hits::Take(_)) || window < self.time * WINDOW_TIMES_MIN {
            return None;
        }
        let mut counters = self.shard(check.key).counters.lock();
        let counter = counters.get_mut(&check.key).filter(|counter| !counter.demanded)?;
        let hits = counter.expected()?;
        counter.demanded = true;
        Some(Demand { leases: self, key: check.key, hits })
    }

    /// Holds so many of these hits no longer. What is told has to be given back: their lease is over.
    pub(super) fn release(&self, held: &Held, hits: u64) -> Option<Unspent> {
        let mut counters = self.shard(held.key).counters.lock();
        let lease = counters.get_mut(&held.key).and_then(|counter| counter.lease.as_mut());
        match lease.filter(|lease| Arc::ptr_eq(&lease.source, &held.source)) {
            Some(lease) => {
                lease.left += hits;
                lease.remaining = lease.remaining.saturating_add(hits);
                None
            }
            None => self.give_back(Arc::clone(&held.source), hits),
        }
    }

    /// Counts so many of these hits as spent.
    pub(super) fn spent(&self, held: &Held, hits: u64) {
        self.shard(held.key).hits_spent.fetch_add(hits, Relaxed);
    }

    /// Ends what is over at `now`, and tells what was not spent. Forgets counters that are not asked any more.
    pub(super) fn sweep(&self, now: Duration, mut unspent: impl FnMut(Key, Unspent)) {
        for shard in &self.shards {
            let mut ended = Vec::new();
            shard.counters.lock().retain(|&key, counter| {
                if let Some(lease) = counter.lease.take_if(|lease| lease.ends <= now) {
                    ended.push((key, lease));
                }
                let idle = now.saturating_sub(counter.began) >= self.time * 2;
                counter.demanded || counter.lease.is_some() || !idle
            });
            for (key, lease) in ended {
                self.give_back(lease.source, lease.left).into_iter().for_each(|it| unspent(key, it));
            }
        }
    }

    fn give_back(&self, source: Arc<Source>, hits: u64) -> Option<Unspent> {
        self.hits_given_back.fetch_add(hits, Relaxed);
        (hits > 0).then_some(Unspent { source, hits })
    }
}

impl Counter {
    fn see(&mut self, hits: u64, now: Duration, time: Duration) {
        let age = now.saturating_sub(self.began);
        if age >= time {
            self.before = if age < time * 2 { self.now } else { Seen::default() };
            (self.began, self.now) = (now, Seen::default());
        }
        self.now.asks += 1;
        self.now.hits = self.now.hits.saturating_add(hits);
    }

    /// The hits of the busier of two periods, if it is more than one question.
    fn expected(&self) -> Option<u64> {
        let often = |seen: &Seen| seen.asks > 1;
        [self.now, self.before].iter().filter(|seen| often(seen)).map(|seen| seen.hits).max()
    }
}

impl Lease {
    fn has(&self, check: &Check<'_>, hits: u64, now: Duration) -> bool {
        self.source.limit == check.limit && now < self.ends && self.left >= hits.max(1)
    }

    fn spend(&mut self, hits: u64, now: Duration) -> Verdict {
        let before = u64::from(self.source.limit.requests()).saturating_sub(self.remaining);
        self.left -= hits;
        self.remaining = self.remaining.saturating_sub(hits);
        let age = u64::try_from(now.saturating_sub(self.taken).as_nanos()).unwrap_or(u64::MAX);
        let (after, remaining) = (before.saturating_add(hits), self.remaining);
        let reset_nanos = self.reset_nanos.saturating_sub(age);
        Verdict { over: false, before, after, remaining, reset_nanos }
    }
}

impl Demand<'_> {
    /// Redis granted this, beside what it said in `verdict` to a question that was asked after `taken`. What is told is
    /// left of the lease before, and has to be given back.
    pub(super) fn granted(
        &self,
        source: Source,
        granted: Granted,
        verdict: &Verdict,
        taken: Duration,
    ) -> Option<Unspent> {
        if granted.hits == 0 {
            return None;
        }
        self.leases.taken.fetch_add(1, Relaxed);
        self.leases.hits_taken.fetch_add(granted.hits, Relaxed);
        let lease = Lease {
            source: Arc::new(source),
            taken,
            ends: taken.saturating_add(self.leases.time),
            left: granted.hits,
            remaining: verdict.remaining,
            reset_nanos: verdict.reset_nanos,
        };
        let mut counters = self.leases.shard(self.key).counters.lock();
        let old = counters.entry(self.key).or_default().lease.replace(lease)?;
        self.leases.give_back(old.source, old.left)
    }
}

impl Drop for Demand<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.leases.shard(self.key).counters.lock().get_mut(&self.key) {
            counter.demanded = false;
        }
    }
}

#[cfg(test)]
mod tests;
