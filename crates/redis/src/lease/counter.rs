//! What a node knows of one counter that may be leased: how often it is asked, and the leases that it has.
//!
//! In: hits, and times of the table's clock. Out: verdicts, how many hits a lease should have, and whether it is time for
//! the next. Few leases at a time: one that is being spent, the one that was taken before its end, and those that have
//! ended and were not swept yet.

use std::sync::Arc;

use arrayvec::ArrayVec;

use crate::script::Memory;
use tidegate_engine::limit::{Limit, Verdict};
use tidegate_engine::plan::Check;
use tidegate_engine::rules::Unit;

/// One that is being spent, the next, and two that have ended: what is left of them goes back with many others.
pub(super) const LEASES_MAX: usize = 4;
/// A lease of fewer hits is not renewed before it is spent: who asks next takes the next one along.
const RENEWED_HITS_MIN: u64 = 8;
/// It is time for the next lease when no more than this part of the hits, or of the time, is left of the last.
const RENEWED_PART: u64 = 5;

/// What is known of one counter: small, because every hit reads it. Times are nanoseconds of the table's clock.
#[derive(Default)]
pub(super) struct Counter {
    /// What its leases are of.
    limit: Option<(Unit, Limit)>,
    /// When the period began in which it was seen last; a period lasts T.
    pub(super) began: u64,
    now: Seen,
    before: Seen,
    /// Redis is being asked for a lease.
    pub(super) demanded: bool,
    /// In the order in which they were taken.
    pub(super) leases: ArrayVec<Lease, LEASES_MAX>,
}

/// How often a counter was asked within a period.
#[derive(Clone, Copy, Default)]
struct Seen {
    asks: u64,
    hits: u64,
}

/// Some hits that this node may spend alone.
pub(super) struct Lease {
    pub(super) source: Arc<Source>,
    /// At this time nothing is spent any more.
    pub(super) ends: u64,
    /// All of them, and those that are left.
    pub(super) hits: u64,
    pub(super) left: u64,
    /// Hits that would pass, as Redis told when it was asked, less those spent since.
    pub(super) remaining: u64,
    /// At this time capacity comes back, as Redis told.
    pub(super) resets: u64,
}

/// Where the hits of a lease count.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The unit of the limit: those per second may be in a store of their own.
    pub(crate) unit: Unit,
    pub(crate) slot: u16,
    pub(crate) key: Vec<u8>,
    pub(crate) limit: Limit,
    pub(crate) stamp: u64,
    /// The server's memory in which they count, if it was known.
    pub(crate) memory: Option<Arc<Memory>>,
}

impl Counter {
    /// Notes that it is asked for so many hits, where a period lasts `time`.
    pub(super) fn see(&mut self, hits: u64, now: u64, time: u64) {
        let age = now.saturating_sub(self.began);
        if age >= time {
            self.before = if age < time.saturating_mul(2) { self.now } else { Seen::default() };
            (self.began, self.now) = (now, Seen::default());
        }
        self.now.asks += 1;
        self.now.hits = self.now.hits.saturating_add(hits);
    }

    /// The hits of the busier of two periods, if it is more than one question.
    pub(super) fn expected(&self) -> Option<u64> {
        let often = |seen: &Seen| seen.asks > 1;
        [self.now, self.before].iter().filter(|seen| often(seen)).map(|seen| seen.hits).max()
    }

    /// The lease that has these hits at `now`, the oldest first.
    pub(super) fn lease(&mut self, check: &Check<'_>, hits: u64, now: u64) -> Option<&mut Lease> {
        let (unit, limit) = self.limit.as_ref()?;
        let leases =
            if *unit == check.unit() && *limit == check.limit { &mut self.leases[..] } else { &mut [] };
        leases.iter_mut().find(|lease| now < lease.ends && lease.left >= hits.max(1))
    }

    /// Where the next lease is to come from, and how many hits it should have, if it is time for it at `now`: those
    /// that are expected while it lasts, without those that the last one still has.
    pub(super) fn next(&self, now: u64, time: u64) -> Option<(&Arc<Source>, u64)> {
        let last = self.leases.last().filter(|last| !self.demanded && last.is_low(now, time))?;
        Some((&last.source, self.expected()?.saturating_sub(last.left).max(1)))
    }

    /// Takes a new lease in. Those before it that are of another limit are over, and the oldest when there is no room.
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

    /// Ends the leases that are over at `now`. What one did not spend goes over to a later one that counts under the same
    /// stamp, because Redis counts it as long as the hits of that one.
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

    /// Takes hits in that nobody spent.
    pub(super) fn put_back(&mut self, hits: u64) {
        self.left += hits;
        self.remaining = self.remaining.saturating_add(hits);
    }

    /// Spends hits of a counter of this limit.
    pub(super) fn spend(&mut self, limit: &Limit, hits: u64, now: u64) -> Verdict {
        let before = u64::from(limit.requests()).saturating_sub(self.remaining);
        self.left -= hits;
        self.remaining = self.remaining.saturating_sub(hits);
        let (after, remaining) = (before.saturating_add(hits), self.remaining);
        Verdict { over: false, before, after, remaining, reset_nanos: self.resets.saturating_sub(now) }
    }
}
