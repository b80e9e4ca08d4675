//! The deny cache: counters that Redis reported as over, until the time at which Redis expects capacity again.
//!
//! In: verdicts of Redis. Out: the same verdict for requests of as many hits or more under the same limit. It is
//! bounded in bytes; a counter without room in it is asked in Redis. It never learns a verdict that Redis gave
//! before hits were given back to the counter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::runtime::Runtime;
use tidegate_engine::key::Key;
use tidegate_engine::keyed::KeyMap;
use tidegate_engine::limit::{Share, Verdict};
use tidegate_engine::plan::{Check, Hits};

/// Parts of the cache, each with its own lock.
const SHARDS: usize = 64;
/// The bytes of one entry in the table.
const ENTRY_BYTES: usize = 160;

/// A counter that is over.
#[derive(Clone, Copy, Debug)]
struct Over {
    requests: u64,
    burst: u64,
    /// Requests for so many hits or more are denied.
    hits: u64,
    until: Instant,
    /// From then on Redis is asked again, even if the answer may be the same.
    asked_again: Instant,
    remaining: u64,
    /// See [`Verdict::is_counted`].
    is_counted: bool,
}

/// A part of the cache.
#[derive(Debug, Default)]
struct Shard {
    counters: KeyMap<Over>,
    /// The same for classes of importance that may use a part of the limit: a denial of one says nothing about another.
    of_classes: BTreeMap<(Key, Share), Over>,
    /// When a counter was last forgotten. A question from before that may have been answered before that too.
    forgot: Option<Instant>,
    /// Checks that were answered.
    answered: u64,
}

/// Counters to which hits are being given back, until it is dropped. They are forgotten at the beginning, so that the
/// request itself is not answered from the cache, and again at the end, whether or not the hits went back.
pub(super) struct Refunds<R: Runtime> {
    runtime: R,
    deny_cache: Arc<DenyCache>,
    keys: SmallVec<[Key; 1]>,
}

impl<R: Runtime> Refunds<R> {
    pub(super) fn begin(runtime: &R, deny_cache: &Arc<DenyCache>, keys: SmallVec<[Key; 1]>) -> Option<Self> {
        if keys.is_empty() {
            return None;
        }
        let refunds = Self { runtime: runtime.clone(), deny_cache: Arc::clone(deny_cache), keys };
        refunds.forget();
        Some(refunds)
    }

    fn forget(&self) {
        self.keys.iter().for_each(|&key| self.deny_cache.forget(key, self.runtime.monotonic()));
    }
}

impl<R: Runtime> Drop for Refunds<R> {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The cache of counters that are over.
#[derive(Debug, Default)]
pub(super) struct DenyCache {
    shards: Vec<Mutex<Shard>>,
    shard_entries_max: usize,
}

impl DenyCache {
    /// A cache of at most `bytes`. 0: it keeps nothing.
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

    /// Whether the cache has the counter as over at `now`.
    pub(super) fn knows(&self, check: &Check<'_>, now: Instant) -> bool {
        self.shard(check.key).is_some_and(|shard| shard.lock().entry(check, now).is_some())
    }

    /// Whether the counter may still be over at `now`, as Redis expected, also if Redis has to be asked again.
    pub(super) fn may_be_over(&self, check: &Check<'_>, now: Instant) -> bool {
        self.shard(check.key).is_some_and(|shard| shard.lock().of(check).is_some_and(|over| now < over.until))
    }

    /// The verdict, if the cache has the counter as over at `now`.
    pub(super) fn answer(&self, check: &Check<'_>, now: Instant) -> Option<Verdict> {
        let mut shard = self.shard(check.key)?.lock();
        let (over, hits) = shard.entry(check, now)?;
        shard.answered += 1;
        drop(shard);
        let before = check.limit.capacity();
        let reset_nanos = u64::try_from((over.until - now).as_nanos()).unwrap_or(u64::MAX);
        Some(Verdict {
            over: true,
            before,
            after: before.saturating_add(hits),
            remaining: over.remaining,
            reset_nanos,
            is_counted: over.is_counted,
        })
    }

    /// Learns a verdict to a question that was asked at `asked`. There is no capacity earlier than Redis said, unless
    /// hits are given back. After `lasts` Redis is asked again.
    pub(super) fn learn(&self, check: &Check<'_>, verdict: &Verdict, asked: Instant, lasts: Duration) {
        let (Some(shard), Hits::Take(hits), true) = (self.shard(check.key), check.hits, verdict.over) else {
            return;
        };
        let Some(until) = asked.checked_add(Duration::from_nanos(verdict.reset_nanos)) else { return };
        // Only a reported cost has such a limit, and it always goes to Redis.
        if check.limit.passes_nothing() {
            return;
        }
        let (requests, burst) = (check.limit.requests(), check.limit.burst());
        let asked_again = asked.checked_add(lasts).map_or(until, |again| again.min(until));
        // The wait in the verdict of a reported cost is that of one hit.
        let hits = if check.reported { 1 } else { hits.max(1) };
        let &Verdict { remaining, is_counted, .. } = verdict;
        let over = Over { requests, burst, hits, until, asked_again, remaining, is_counted };
        let mut shard = shard.lock();
        if shard.forgot.is_some_and(|forgot| asked <= forgot) {
            return;
        }
        if shard.len() >= self.shard_entries_max && shard.of(check).is_none() {
            shard.counters.retain(|_, over| over.asked_again > asked);
            shard.of_classes.retain(|_, over| over.asked_again > asked);
            if shard.len() >= self.shard_entries_max {
                return;
            }
        }
        match check.limit.share() {
            Share::FULL => shard.counters.insert(check.key, over),
            share => shard.of_classes.insert((check.key, share), over),
        };
    }

    /// Forgets one counter, because hits are being given back to it at `now`, or have been.
    pub(super) fn forget(&self, key: Key, now: Instant) {
        if let Some(shard) = self.shard(key) {
            let Shard { counters, of_classes, forgot, .. } = &mut *shard.lock();
            counters.remove(&key);
            while let Some((&class, _)) = of_classes.range((key, Share::LEAST)..=(key, Share::FULL)).next() {
                of_classes.remove(&class);
            }
            *forgot = (*forgot).max(Some(now));
        }
    }

    /// Forgets all counters at `now`.
    pub(super) fn clear(&self, now: Instant) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            *shard = Shard { forgot: Some(now), answered: shard.answered, ..Shard::default() };
        }
    }

    /// The checks that were answered, and the counters in the cache.
    pub(super) fn totals(&self) -> (u64, u64) {
        let totals = |(answered, counters): (u64, u64), shard: &Mutex<Shard>| {
            let shard = shard.lock();
            (answered + shard.answered, counters + shard.len() as u64)
        };
        self.shards.iter().fold((0, 0), totals)
    }
}

impl Shard {
    fn len(&self) -> usize {
        self.counters.len() + self.of_classes.len()
    }

    fn of(&self, check: &Check<'_>) -> Option<&Over> {
        match check.limit.share() {
            Share::FULL => self.counters.get(&check.key),
            share => self.of_classes.get(&(check.key, share)),
        }
    }

    /// The entry that answers this check at `now`, and the hits that the check asks for.
    fn entry(&self, check: &Check<'_>, now: Instant) -> Option<(Over, u64)> {
        let Hits::Take(hits) = check.hits else { return None };
        let over = *self.of(check)?;
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
    use tidegate_engine::unit::Window;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn check(key: Key) -> Check<'static> {
        Check::new(
            Origin::Override { window: Window::of(Unit::Hour) },
            Limit::new(Algorithm::SlidingWindow, 9, HOUR.as_nanos() as u64),
            key,
            Hits::Take(1),
        )
    }

    fn over() -> Verdict {
        Verdict {
            over: true,
            before: 9,
            after: 10,
            remaining: 0,
            reset_nanos: HOUR.as_nanos() as u64,
            is_counted: true,
        }
    }

    #[test]
    fn a_verdict_from_before_a_refund_is_not_learned_after_it() {
        let (cache, check, asked) = (DenyCache::new(1 << 20), check(Key(7)), monotonic());
        let after = |millis| asked + Duration::from_millis(millis);
        cache.learn(&check, &over(), asked, HOUR);
        assert!(cache.answer(&check, after(1)).is_some());
        cache.forget(check.key, after(2));
        cache.learn(&check, &over(), after(1), HOUR);
        cache.learn(&check, &over(), after(2), HOUR);
        assert!(cache.answer(&check, after(3)).is_none(), "it was under way when hits went back");
        cache.learn(&check, &over(), after(3), HOUR);
        assert!(cache.answer(&check, after(4)).is_some(), "asked afterwards, it is true");
        cache.clear(after(5));
        cache.learn(&check, &over(), after(4), HOUR);
        assert!(cache.answer(&check, after(6)).is_none());
        assert_eq!(cache.totals(), (2, 0), "what it has answered stays counted");
    }

    /// Nothing was known that could have been forgotten.
    #[test]
    fn a_verdict_from_before_all_is_cleared_is_not_learned_after_it() {
        let (cache, check, asked) = (DenyCache::new(1 << 20), check(Key(7)), monotonic());
        let after = |millis| asked + Duration::from_millis(millis);
        cache.clear(after(1));
        cache.learn(&check, &over(), asked, HOUR);
        assert!(!cache.knows(&check, after(2)), "the rules have changed since it was asked for");
        cache.learn(&check, &over(), after(2), HOUR);
        assert!(cache.knows(&check, after(2)));
    }

    /// The same of one counter.
    #[test]
    fn a_verdict_from_before_a_refund_is_not_learned_where_nothing_was_known() {
        let (cache, check, asked) = (DenyCache::new(1 << 20), check(Key(7)), monotonic());
        cache.forget(check.key, asked + Duration::from_millis(1));
        cache.learn(&check, &over(), asked, HOUR);
        assert!(!cache.knows(&check, asked + Duration::from_millis(2)));
    }

    #[test]
    fn a_denial_of_a_class_says_nothing_about_another_and_a_refund_forgets_both() {
        let (cache, all, asked) = (DenyCache::new(1 << 20), check(Key(7)), monotonic());
        let of = |share| Check { limit: all.limit.with_share(Share::parse(share).expect("a share")), ..all };
        let (batch, rest) = (of("0.6"), of("0.3"));
        let knows = || [&all, &batch, &rest].map(|check| cache.knows(check, asked));
        cache.learn(&batch, &over(), asked, HOUR);
        assert_eq!(knows(), [false, true, false]);
        let before = cache.answer(&batch, asked).expect("over").before;
        assert_eq!(before, batch.limit.capacity());
        cache.learn(&all, &over(), asked, HOUR);
        cache.learn(&Check { key: Key(8), ..batch }, &over(), asked, HOUR);
        assert_eq!((knows(), cache.totals().1), ([true, true, false], 3));
        cache.forget(all.key, asked);
        assert_eq!((knows(), cache.totals().1), ([false; 3], 1), "the other counter stays");
    }

    #[test]
    fn a_denial_by_other_numbers_says_nothing() {
        let (cache, check, asked) = (DenyCache::new(1 << 20), check(Key(7)), monotonic());
        let bucket = |requests, burst| {
            let limit = Limit::new(Algorithm::TokenBucket, requests, HOUR.as_nanos() as u64);
            Check { limit: limit.with_burst(burst), ..check }
        };
        cache.learn(&bucket(9, 20), &over(), asked, HOUR);
        let knows = [(9, 20), (9, 21), (10, 20)].map(|(n, burst)| cache.knows(&bucket(n, burst), asked));
        assert_eq!(knows, [true, false, false]);
    }

    #[test]
    fn the_denial_of_a_reported_cost_answers_one_hit() {
        let (cache, check, asked) = (DenyCache::new(1 << 20), check(Key(7)), monotonic());
        cache.learn(&Check { hits: Hits::Take(9), ..check }, &over(), asked, HOUR);
        assert!(!cache.knows(&check, asked), "nine hits were denied");
        cache.learn(&Check { reported: true, hits: Hits::Take(9), ..check }, &over(), asked, HOUR);
        assert!(cache.knows(&check, asked), "its wait is that of one hit");
    }

    #[test]
    fn classes_of_many_counters_are_bounded_too() {
        let (cache, asked) = (DenyCache::new(ENTRY_BYTES * SHARDS * 2), monotonic());
        for counter in 0..1_000 {
            let mut check = check(Key(counter));
            check.limit = check.limit.with_share(Share::parse("0.6").expect("a share"));
            cache.learn(&check, &over(), asked, HOUR);
        }
        assert_eq!(cache.totals().1, 2 * SHARDS as u64);
    }

    #[test]
    fn a_verdict_learned_during_a_refund_is_forgotten_at_its_end() {
        let (cache, check) = (Arc::new(DenyCache::new(1 << 20)), check(Key(7)));
        let refunds = Refunds::begin(&Tokio, &cache, SmallVec::from_elem(check.key, 1));
        let asked = monotonic() + HOUR / 2;
        cache.learn(&check, &over(), asked, HOUR);
        assert!(cache.answer(&check, asked).is_some());
        drop(refunds);
        assert!(cache.answer(&check, asked).is_none());
        assert!(Refunds::begin(&Tokio, &cache, SmallVec::new()).is_none(), "the usual request costs nothing");
    }
}
