//! One counter that may be leased, for one class of importance: how often it is used, and its leases.
//!
//! In: hits, and times of the table's clock. Out: verdicts, the hits of the next lease, and whether it is time for
//! it. A counter has few leases at a time: the one that is being spent, the one that was taken before its end, and
//! those that have ended but were not swept yet.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::script::DataId;
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Limit, Verdict};
use tidegate_engine::plan::Check;
use tidegate_engine::rules::Unit;

/// The lease that is being spent, the next one, and two that have ended; the rest of these goes back together with
/// that of other counters.
pub(super) const LEASES_MAX: usize = 4;
/// A lease of fewer hits is not renewed before it is spent. The next check asks for a new one.
const RENEWED_HITS_MIN: u64 = 8;
/// The next lease is due when no more than this part of the hits or of the time is left.
const RENEWED_PART: u64 = 5;

/// One counter. It is small, because every hit reads it. Times are nanoseconds of the table's clock.
#[derive(Default)]
pub(super) struct LeasedCounter {
    /// The unit and limit of its leases.
    limit: Option<(Unit, Limit)>,
    /// When the last period began in which the counter was used. A period lasts T.
    pub(super) began: u64,
    now: Seen,
    before: Seen,
    /// Whether a demand is in flight.
    pub(super) demanded: bool,
    /// In the order in which they were taken.
    pub(super) leases: ArrayVec<Lease, LEASES_MAX>,
}

/// How many hits were asked for in a period.
#[derive(Clone, Copy, Default)]
struct Seen {
    asks: u64,
    hits: u64,
}

/// Hits that this node may spend alone.
pub(super) struct Lease {
    pub(super) source: Arc<Source>,
    /// Nothing is spent from this time on.
    pub(super) ends: u64,
    /// All hits, and those that are left.
    pub(super) hits: u64,
    pub(super) left: u64,
    /// Hits that would pass: what Redis answered, less what was spent since.
    pub(super) remaining: u64,
    /// When capacity comes back, as Redis answered.
    pub(super) resets: u64,
}

/// Where the hits of a lease are charged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The unit of the limit. Limits per second may have a store of their own.
    pub(crate) unit: Unit,
    pub(crate) slot: u16,
    pub(crate) key: Vec<u8>,
    /// The counter.
    pub(crate) counter: Key,
    pub(crate) limit: Limit,
    pub(crate) stamp: u64,
    /// The data of the server in which they are charged, if it was known.
    pub(crate) data: Option<Arc<DataId>>,
}

impl LeasedCounter {
    /// Notes that the counter is asked for so many hits, in periods of `time`.
    pub(super) fn see(&mut self, hits: u64, now: u64, time: u64) {
        let age = now.saturating_sub(self.began);
        if age >= time {
            self.before = if age < time.saturating_mul(2) { self.now } else { Seen::default() };
            (self.began, self.now) = (now, Seen::default());
        }
        self.now.asks += 1;
        self.now.hits = self.now.hits.saturating_add(hits);
    }

    /// The hits of the busier of the last two periods. A period in which it was asked once does not count.
    pub(super) fn expected(&self) -> Option<u64> {
        let often = |seen: &Seen| seen.asks > 1;
        [self.now, self.before].iter().filter(|seen| often(seen)).map(|seen| seen.hits).max()
    }

    /// The oldest lease that has these hits at `now`.
    pub(super) fn lease(&mut self, check: &Check<'_>, hits: u64, now: u64) -> Option<&mut Lease> {
        let (unit, limit) = self.limit.as_ref()?;
        let leases =
            if *unit == check.unit() && *limit == check.limit { &mut self.leases[..] } else { &mut [] };
        leases.iter_mut().find(|lease| now < lease.ends && lease.left >= hits.max(1))
    }

    /// Where the next lease is charged and its hits, if it is due at `now`: the expected hits, less those that the
    /// last lease still has.
    pub(super) fn next(&self, now: u64, time: u64) -> Option<(&Arc<Source>, u64)> {
        let last = self.leases.last().filter(|last| !self.demanded && last.is_low(now, time))?;
        Some((&last.source, self.expected()?.saturating_sub(last.left).max(1)))
    }

    /// Adds a lease. Returns those that it replaces: all of another limit, or the oldest if there is no room.
    pub(super) fn take(&mut self, lease: Lease) -> ArrayVec<Lease, LEASES_MAX> {
        let mut over = ArrayVec::new();
        let limit = Some((lease.source.unit, lease.source.limit));
        if self.limit != limit {
            over = std::mem::take(&mut self.leases);
        } else if self.leases.is_full() {
            over.push(self.leases.remove(0));
        }
        self.limit = limit;
        self.leases.push(lease);
        over
    }

    /// Ends the leases that are over at `now`. If a later lease has the same stamp, it gets the remaining hits of the
    /// ended one, because Redis counts both for the same time.
    pub(super) fn end(&mut self, now: u64, mut ended: impl FnMut(Lease)) {
        while let Some(at) = self.leases.iter().position(|lease| lease.ends <= now) {
            let over = self.leases.remove(at);
            match self.leases.iter_mut().find(|later| now < later.ends && later.source == over.source) {
                Some(later) => later.put_back(over.left),
                None => ended(over),
            }
        }
    }
}

impl Lease {
    fn is_low(&self, now: u64, time: u64) -> bool {
        let few = self.left <= self.hits / RENEWED_PART;
        self.hits >= RENEWED_HITS_MIN && (few || self.ends.saturating_sub(now) <= time / RENEWED_PART)
    }

    /// Takes back hits that were not spent.
    pub(super) fn put_back(&mut self, hits: u64) {
        self.left += hits;
        // After a reset of the counter `remaining` may include these hits already, so the limit bounds it.
        let most = self.source.limit.capacity();
        self.remaining = self.remaining.saturating_add(hits).min(most);
    }

    /// Spends hits of a counter of this limit.
    pub(super) fn spend(&mut self, limit: &Limit, hits: u64, now: u64) -> Verdict {
        debug_assert!(hits <= self.left, "a lease has only the hits that are left");
        let before = limit.capacity().saturating_sub(self.remaining);
        self.left -= hits;
        self.remaining = self.remaining.saturating_sub(hits);
        let (after, remaining) = (before.saturating_add(hits), self.remaining);
        Verdict {
            over: false,
            before,
            after,
            remaining,
            reset_nanos: self.resets.saturating_sub(now),
            is_counted: true,
        }
    }
}
