//! What Redis called over, remembered until the time at which Redis said that capacity comes back.
//!
//! In: verdicts of Redis. Out: the same verdict to requests for at least as many hits under the same N. Bounded in
//! bytes; where there is no room nothing is remembered, and Redis is asked. What Redis said before a counter was given
//! hits back is never learned after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::runtime::Runtime;
use tidegate_engine::key::Key;
use tidegate_engine::keyed::KeyMap;
use tidegate_engine::limit::Verdict;
use tidegate_engine::plan::{Check, Hits};

/// Parts of the memory, each behind a lock of its own.
const SHARDS: usize = 64;
/// What one entry takes, with the table around it.
const ENTRY_BYTES: usize = 160;

/// A counter that is over.
#[derive(Clone, Copy, Debug)]
struct Over {
    requests: u32,
    burst: u32,
    /// To so many hits or more.
    hits: u64,
    until: Instant,
    /// Redis is asked again from here on, though it may say the same.
    asked_again: Instant,
    remaining: u64,
}

/// A part of the memory.
#[derive(Debug, Default)]
struct Shard {
    counters: KeyMap<Over>,
    /// When one of them was forgotten: what was asked up to then may have been answered before that.
    forgot: Option<Instant>,
    /// Questions that were answered from here.
    answered: u64,
}

/// Counters that hits go back to, as long as that takes. What is learned of them before it has happened is forgotten: at
/// the beginning, so that a request that gives back is not answered by it, and in the end, whatever the end is.
pub(super) struct Refunds<R: Runtime> {
    runtime: R,
    over: Arc<OverMemory>,
    keys: SmallVec<[Key; 1]>,
}

impl<R: Runtime> Refunds<R> {
    pub(super) fn begin(runtime: &R, over: &Arc<OverMemory>, keys: SmallVec<[Key; 1]>) -> Option<Self> {
        if keys.is_empty() {
            return None;
        }
        let refunds = Self { runtime: runtime.clone(), over: Arc::clone(over), keys };
        refunds.forget();
        Some(refunds)
    }

    fn forget(&self) {
        self.keys.iter().for_each(|&key| self.over.forget(key, self.runtime.monotonic()));
    }
}

impl<R: Runtime> Drop for Refunds<R> {
    fn drop(&mut self) {
        self.forget();
    }
}

/// All that is remembered.
#[derive(Debug, Default)]
pub(super) struct OverMemory {
    shards: Vec<Mutex<Shard>>,
    shard_entries_max: usize,
}

impl OverMemory {
    /// A memory of at most `bytes`; of 0, none.
    pub(super) fn new(bytes: usize) -> Self {
        if bytes == 0 {
            return Self::default();
        }
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, shard_entries_max: (bytes / ENTRY_BYTES / SHARDS).max(1) }
    }

    fn shard(&self, key: Key) -> Option<&Mutex<Shard>> {
        self.shards.get(key.0 as usize % SHARDS)
    }

    /// Whether the counter is known to be over at `now`.
    pub(super) fn knows(&self, check: &Check<'_>, now: Instant) -> bool {
        self.shard(check.key).is_some_and(|shard| shard.lock().entry(check, now).is_some())
    }

    /// The verdict, if the counter is known to be over at `now`.
    pub(super) fn answer(&self, check: &Check<'_>, now: Instant) -> Option<Verdict> {
        let mut shard = self.shard(check.key)?.lock();
        let (over, hits) = shard.entry(check, now)?;
        shard.answered += 1;
        drop(shard);
        let before = u64::from(check.limit.burst());
        let reset_nanos = u64::try_from((over.until - now).as_nanos()).unwrap_or(u64::MAX);
        Some(Verdict {
            over: true,
            before,
            after: before.saturating_add(hits),
            remaining: over.remaining,
            reset_nanos,
        })
    }

    /// Notes what Redis said when it was asked at `asked`: capacity comes back no earlier than it said, unless somebody
    /// gives hits back. Redis is asked again when `patience` is over.
    pub(super) fn learn(&self, check: &Check<'_>, verdict: &Verdict, asked: Instant, patience: Duration) {
        let (Some(shard), Hits::Take(hits), true) = (self.shard(check.key), check.hits, verdict.over) else {
            return;
        };
        let Some(until) = asked.checked_add(Duration::from_nanos(verdict.reset_nanos)) else { return };
        let (requests, burst) = (check.limit.requests(), check.limit.burst());
        let asked_again = asked.checked_add(patience).map_or(until, |again| again.min(until));
        // Where a cost was reported, the wait that was told is that of one hit.
        let (hits, remaining) = (if check.reported { 1 } else { hits.max(1) }, verdict.remaining);
        let over = Over { requests, burst, hits, until, asked_again, remaining };
        let Shard { counters, forgot, .. } = &mut *shard.lock();
        if forgot.is_some_and(|forgot| asked <= forgot) {
            return;
        }
        if counters.len() >= self.shard_entries_max && !counters.contains_key(&check.key) {
            counters.retain(|_, over| over.asked_again > asked);
            if counters.len() >= self.shard_entries_max {
                return;
            }
        }
        counters.insert(check.key, over);
    }

    /// Forgets one counter: it is or was given hits back at `now`.
    pub(super) fn forget(&self, key: Key, now: Instant) {
        if let Some(shard) = self.shard(key) {
            let Shard { counters, forgot, .. } = &mut *shard.lock();
            counters.remove(&key);
            *forgot = (*forgot).max(Some(now));
        }
    }

    /// Forgets all at `now`.
    pub(super) fn clear(&self, now: Instant) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            *shard = Shard { forgot: Some(now), answered: shard.answered, ..Shard::default() };
        }
    }

    /// Questions that were answered from here, and counters that are remembered.
    pub(super) fn totals(&self) -> (u64, u64) {
        let totals = |(answered, counters): (u64, u64), shard: &Mutex<Shard>| {
            let shard = shard.lock();
            (answered + shard.answered, counters + shard.counters.len() as u64)
        };
        self.shards.iter().fold((0, 0), totals)
    }
}

impl Shard {
    /// What holds at `now` for as many hits as are asked for; and these.
    fn entry(&self, check: &Check<'_>, now: Instant) -> Option<(Over, u64)> {
        let Hits::Take(hits) = check.hits else { return None };
        let over = *self.counters.get(&check.key)?;
        let same = (over.requests, over.burst) == (check.limit.requests(), check.limit.burst());
        let holds = same && hits.max(1) >= over.hits && now < over.asked_again && !check.reported;
        holds.then_some((over, hits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;
    use crate::runtime::Tokio;
    use tidegate_engine::limit::{Algorithm, Limit};
    use tidegate_engine::plan::Origin;
    use tidegate_engine::rules::Unit;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn check(key: Key) -> Check<'static> {
        Check {
            origin: Origin::Override { unit: Unit::Hour, unit_multiplier: 1 },
            limit: Limit::new(Algorithm::SlidingWindow, 9, HOUR.as_nanos() as u64),
            key,
            hits: Hits::Take(1),
            reported: false,
            shadow: false,
            quota: false,
        }
    }

    fn over() -> Verdict {
        Verdict { over: true, before: 9, after: 10, remaining: 0, reset_nanos: HOUR.as_nanos() as u64 }
    }

    #[test]
    fn what_was_asked_before_hits_went_back_is_not_learned_after_it() {
        let (memory, check, asked) = (OverMemory::new(1 << 20), check(Key(7)), monotonic());
        let after = |millis| asked + Duration::from_millis(millis);
        memory.learn(&check, &over(), asked, HOUR);
        assert!(memory.answer(&check, after(1)).is_some());
        memory.forget(check.key, after(2));
        memory.learn(&check, &over(), after(1), HOUR);
        memory.learn(&check, &over(), after(2), HOUR);
        assert!(memory.answer(&check, after(3)).is_none(), "it was under way when hits went back");
        memory.learn(&check, &over(), after(3), HOUR);
        assert!(memory.answer(&check, after(4)).is_some(), "asked afterwards, it is true");
        memory.clear(after(5));
        memory.learn(&check, &over(), after(4), HOUR);
        assert!(memory.answer(&check, after(6)).is_none());
    }

    #[test]
    fn what_is_learned_while_hits_go_back_is_forgotten_when_they_are_back() {
        let (memory, check) = (Arc::new(OverMemory::new(1 << 20)), check(Key(7)));
        let refunds = Refunds::begin(&Tokio, &memory, SmallVec::from_elem(check.key, 1));
        let asked = monotonic() + HOUR / 2;
        memory.learn(&check, &over(), asked, HOUR);
        assert!(memory.answer(&check, asked).is_some());
        drop(refunds);
        assert!(memory.answer(&check, asked).is_none());
        assert!(
            Refunds::begin(&Tokio, &memory, SmallVec::new()).is_none(),
            "the usual request costs nothing"
        );
    }
}
