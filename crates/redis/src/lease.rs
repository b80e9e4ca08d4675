//! Leases: hits of one counter that this node takes from Redis at once and then spends alone.
//!
//! A lease is n hits, valid for T. Redis counts them from the moment at which they are taken, as if they all
//! happened when the lease **ends**. The node measures T from before it asked. So whenever a hit is spent, Redis
//! counts it, and counts it until a whole window later: no window ever holds more than N. The price is room that
//! comes back up to T later.
//!
//! In: checks, what Redis granted, and times of a clock that runs while the machine sleeps. Out: held hits, demands
//! for leases, and hits to give back, each once. A lease in much use is renewed before it is spent, so that no
//! request waits for the next. It reads no clock and talks to no server. Bounded: so many counters, each with a few
//! leases and one demand.

mod counter;

use std::collections::hash_map::Entry as MapEntry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arrayvec::ArrayVec;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use crate::script::Granted;
pub(super) use counter::Source;
use counter::{LEASES_MAX, Lease, LeasedCounter};
use tidegate_engine::key::Key;
use tidegate_engine::keyed::KeyMap;
use tidegate_engine::limit::{Share, Verdict};
use tidegate_engine::plan::{Check, Hits};

/// Parts of the table, each with its own lock: as many as a word has bits.
const SHARDS: usize = u64::BITS as usize;
/// The most counters of one part. Hits of further counters are asked for one by one. An entry takes about 300 bytes.
const SHARD_COUNTERS_MAX: usize = 1_024;
/// A counter is leased only if its window is at least this many times T. With a shorter window too much of the limit
/// would be held in leases.
const WINDOW_TIMES_MIN: u64 = 4;

/// All leases of the node.
pub(super) struct Leases {
    shards: Vec<Mutex<Shard>>,
    /// The shards that may have counters, a bit each. A sweep leaves the others alone.
    in_use: AtomicU64,
    /// In nanoseconds.
    time: u64,
    /// Leases that are due for renewal.
    due: Mutex<Vec<Due>>,
    /// Notified when another lease is due for renewal.
    pub(super) came_due: Notify,
    /// Demands in flight, or due.
    demands: watch::Sender<usize>,
    pub(super) taken: AtomicU64,
    pub(super) hits_taken: AtomicU64,
    /// Hits that were not spent.
    pub(super) hits_given_back: AtomicU64,
}

#[derive(Default)]
struct Shard {
    counters: KeyMap<LeasedCounter>,
    hits_spent: u64,
}

/// Hits to be given back.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unspent {
    pub(super) source: Arc<Source>,
    pub(super) hits: u64,
}

/// Hits of a lease that one request holds. They are spent, unless they are released. `key` here and below is the
/// [own key](own_key) of its check.
pub(super) struct Held {
    key: Key,
    source: Arc<Source>,
    pub(super) hits: u64,
    pub(super) verdict: Verdict,
}

/// A lease that is due for renewal, and the hits of the next.
struct Due {
    key: Key,
    source: Arc<Source>,
    hits: u64,
}

/// The only demand for a lease of a counter, until it is dropped.
pub(super) struct Demand<'l> {
    leases: &'l Leases,
    key: Key,
    /// The hits to ask for.
    pub(super) hits: u64,
}

impl Leases {
    /// An empty table of leases that last `time`, cut to whole microseconds, because Redis counts in these. 0: there
    /// are no leases.
    pub(super) fn new(time: Duration) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            in_use: AtomicU64::new(0),
            time: nanos(time) / 1_000 * 1_000,
            due: Mutex::default(),
            came_due: Notify::new(),
            demands: watch::Sender::new(0),
            taken: AtomicU64::new(0),
            hits_taken: AtomicU64::new(0),
            hits_given_back: AtomicU64::new(0),
        }
    }

    /// T.
    pub(super) fn time(&self) -> Duration {
        Duration::from_nanos(self.time)
    }

    pub(super) fn hits_spent(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().hits_spent).sum()
    }

    /// Hits that leases still have. It reads every lease.
    pub(super) fn hits_left(&self) -> u64 {
        let left = |shard: &Shard| -> u64 {
            shard.counters.values().flat_map(|counter| &counter.leases).map(|lease| lease.left).sum()
        };
        self.shards.iter().map(|shard| left(&shard.lock())).sum()
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        self.shards[place_of(key)].lock()
    }

    /// Notes that a request asks for a counter at `now`, and holds the hits if a lease has them.
    pub(super) fn hold(&self, check: &Check<'_>, now: Duration) -> Option<Held> {
        let Hits::Take(hits) = check.hits else { return None };
        let now = nanos(now);
        let counters = &mut self.shard(own_key(check)).counters;
        let has_room = counters.len() < SHARD_COUNTERS_MAX;
        let counter = match counters.entry(own_key(check)) {
            MapEntry::Occupied(known) => known.into_mut(),
            MapEntry::Vacant(new) if has_room => {
                self.in_use.fetch_or(bit_of(own_key(check)), Relaxed);
                new.insert(LeasedCounter::default())
            }
            MapEntry::Vacant(_) => return None,
        };
        counter.see(hits.max(1), now, self.time);
        let lease = counter.lease(check, hits, now)?;
        let (verdict, source) = (lease.spend(&check.limit, hits, now), Arc::clone(&lease.source));
        self.renew(own_key(check), counter, now);
        Some(Held { key: own_key(check), source, hits, verdict })
    }

    /// Spends the hits of a request's only check, if a lease has them at `now`. The request then passes, because it
    /// has no other check. If no lease has them, nothing is noted.
    pub(super) fn spend(&self, check: &Check<'_>, now: Duration) -> Option<Verdict> {
        let Hits::Take(hits) = check.hits else { return None };
        let now = nanos(now);
        let Shard { counters, hits_spent } = &mut *self.shard(own_key(check));
        let counter = counters.get_mut(&own_key(check))?;
        let verdict = counter.lease(check, hits, now)?.spend(&check.limit, hits, now);
        *hits_spent = hits_spent.wrapping_add(hits);
        counter.see(hits.max(1), now, self.time);
        self.renew(own_key(check), counter, now);
        Some(verdict)
    }

    /// Whether a lease has the hits at `now`. Notes nothing.
    pub(super) fn has(&self, check: &Check<'_>, now: Duration) -> bool {
        let Hits::Take(hits) = check.hits else { return false };
        let counters = &mut self.shard(own_key(check)).counters;
        counters
            .get_mut(&own_key(check))
            .is_some_and(|counter| counter.lease(check, hits, nanos(now)).is_some())
    }

    /// Renews the counter's lease if it is time.
    fn renew(&self, key: Key, counter: &mut LeasedCounter, now: u64) {
        let Some((source, hits)) = counter.next(now, self.time) else { return };
        self.due.lock().push(Due { key, source: Arc::clone(source), hits });
        self.begin_demand(counter);
        self.came_due.notify_one();
    }

    fn begin_demand(&self, counter: &mut LeasedCounter) {
        counter.demanded = true;
        self.demands.send_modify(|demands| *demands += 1);
    }

    /// Waits until no demand is in flight.
    pub(super) async fn all_answered(&self) {
        let _ = self.demands.subscribe().wait_for(|&demands| demands == 0).await;
    }

    /// The demands for leases that are due, each with the current lease.
    pub(super) fn take_due(&self) -> impl Iterator<Item = (Demand<'_>, Arc<Source>)> {
        let due = std::mem::take(&mut *self.due.lock());
        due.into_iter().map(|Due { key, source, hits }| (Demand { leases: self, key, hits }, source))
    }

    /// The hits to ask Redis for in addition to those of the check: as many as arrived within T. `None`: they are too
    /// few, or another demand is in flight.
    pub(super) fn demand(&self, check: &Check<'_>) -> Option<Demand<'_>> {
        let window_min = self.time.saturating_mul(WINDOW_TIMES_MIN);
        if !matches!(check.hits, Hits::Take(_)) || check.limit.window_nanos() < window_min {
            return None;
        }
        let counters = &mut self.shard(own_key(check)).counters;
        let counter = counters.get_mut(&own_key(check)).filter(|counter| !counter.demanded)?;
        let hits = counter.expected()?;
        self.begin_demand(counter);
        Some(Demand { leases: self, key: own_key(check), hits })
    }

    /// Releases so many held hits. Returns hits to give back, if their lease has ended.
    pub(super) fn release(&self, held: &Held, hits: u64) -> Option<Unspent> {
        let counters = &mut self.shard(held.key).counters;
        let counter = counters.get_mut(&held.key);
        let mut leases = counter.into_iter().flat_map(|counter| &mut counter.leases);
        match leases.find(|lease| Arc::ptr_eq(&lease.source, &held.source)) {
            Some(lease) => {
                lease.put_back(hits);
                None
            }
            None => self.give_back(Arc::clone(&held.source), hits),
        }
    }

    /// Counts so many held hits as spent.
    pub(super) fn spent(&self, held: &Held, hits: u64) {
        let spent = &mut self.shard(held.key).hits_spent;
        *spent = spent.wrapping_add(hits);
    }

    /// Ends leases that are over at `now`, and calls `unspent` with their remaining hits. Forgets idle counters.
    pub(super) fn sweep(&self, now: Duration, mut unspent: impl FnMut(Unspent)) {
        let now = nanos(now);
        let mut in_use = self.in_use.load(Relaxed);
        while in_use > 0 {
            let place = in_use.trailing_zeros() as usize;
            in_use &= in_use - 1;
            let mut ended = Vec::new();
            let mut shard = self.shards[place].lock();
            shard.counters.retain(|_, counter| {
                counter.end(now, |lease| ended.push(lease));
                let idle = now.saturating_sub(counter.began) >= self.time.saturating_mul(2);
                counter.demanded || !counter.leases.is_empty() || !idle
            });
            if shard.counters.is_empty() {
                self.in_use.fetch_and(!(1 << place), Relaxed);
            }
            drop(shard);
            for lease in ended {
                self.give_back(lease.source, lease.left).into_iter().for_each(&mut unspent);
            }
        }
    }

    fn give_back(&self, source: Arc<Source>, hits: u64) -> Option<Unspent> {
        self.hits_given_back.fetch_add(hits, Relaxed);
        (hits > 0).then_some(Unspent { source, hits })
    }
}

/// What leases of a check belong to: its counter, and its class of importance. A class spends no lease of another.
fn own_key(check: &Check<'_>) -> Key {
    /// Spreads the shares over all bits. It is odd, so different shares give different keys.
    const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let below = Share::FULL.millionths() - check.limit.share().millionths();
    Key(check.key.0 ^ u128::from(below).wrapping_mul(SPREAD))
}

/// The place of the key's shard.
fn place_of(key: Key) -> usize {
    key.0 as usize % SHARDS
}

/// The bit of the key's shard. It is set and cleared under the shard's lock.
fn bit_of(key: Key) -> u64 {
    1 << place_of(key)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Demand<'_> {
    /// Adds a lease that Redis granted with `verdict` to a call that was sent after `taken`. Returns hits of earlier
    /// leases to give back.
    pub(super) fn granted(
        &self,
        source: Source,
        granted: Granted,
        verdict: &Verdict,
        taken: Duration,
    ) -> ArrayVec<Unspent, LEASES_MAX> {
        if granted.hits == 0 {
            return ArrayVec::new();
        }
        self.leases.taken.fetch_add(1, Relaxed);
        self.leases.hits_taken.fetch_add(granted.hits, Relaxed);
        let taken = nanos(taken);
        let lease = Lease {
            source: Arc::new(source),
            ends: taken.saturating_add(self.leases.time),
            hits: granted.hits,
            left: granted.hits,
            remaining: verdict.remaining,
            resets: taken.saturating_add(verdict.reset_nanos),
        };
        let counters = &mut self.leases.shard(self.key).counters;
        self.leases.in_use.fetch_or(bit_of(self.key), Relaxed);
        let over = counters.entry(self.key).or_default().take(lease);
        over.into_iter().filter_map(|old| self.leases.give_back(old.source, old.left)).collect()
    }
}

impl Drop for Demand<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.leases.shard(self.key).counters.get_mut(&self.key) {
            counter.demanded = false;
        }
        self.leases.demands.send_modify(|demands| *demands -= 1);
    }
}

#[cfg(test)]
mod tests;
