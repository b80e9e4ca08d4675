//! What every algorithm's state can do, and the hits of one request that are not charged yet.
//!
//! In: a limit, a time, hits. Out: what the counter says. No algorithm knows about requests, modes or stores.

use crate::limit::Limit;
use crate::time::Timestamp;

/// What one counter says before the request is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// The hits do not fit.
    pub over: bool,
    /// Hits that would fit now.
    pub left: u64,
    /// Hits that count now, rounded up where the algorithm estimates.
    pub before: u64,
}

impl Preview {
    /// What the counter says after it was charged: a hit is a hit, by every algorithm.
    #[inline]
    pub fn charged(self, hits: u64) -> Self {
        let (left, before) = (self.left.saturating_sub(hits), self.before.saturating_add(hits));
        Self { left, before, ..self }
    }
}

/// The state of one counter. `Default` is the unused state: nothing counts.
pub(crate) trait Counter: Default {
    /// Moves to `now`, or stays at the latest time asked when that is later. All other functions speak of that time.
    fn advance(&mut self, limit: &Limit, now: Timestamp);

    /// Would these hits pass (0 only asks), after what the request brought ahead of them?
    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview;

    /// Counts these hits, of which [`look`](Self::look) said that they fit; or [`report_max`](Self::report_max) of a
    /// reported cost.
    fn charge(&mut self, limit: &Limit, hits: u64);

    /// The most hits that a reported cost adds, whatever fits, after what the request brought ahead of it.
    fn report_max(&self, _limit: &Limit, _pending: Pending) -> u64 {
        u64::MAX
    }

    /// Takes back as many of these hits as count, the oldest first: whichever hits are meant, those that stay then count
    /// at least as long as the others would have.
    fn refund(&mut self, limit: &Limit, hits: u64);

    /// The shortest time in nanoseconds after which these hits, that do not pass now, would pass if nothing else came.
    /// W when they never do.
    fn wait_nanos(&self, limit: &Limit, hits: u64) -> u64;

    /// From this time on the state equals the unused one. It may be told up to 2^26 ns (67 ms) late, never early.
    fn expires_at(&self) -> Timestamp;

    /// The nanoseconds that the answer tells, of a counter that says `now`: over, the wait for `hits`; else the time
    /// until capacity comes back.
    #[inline]
    fn reset_nanos(&self, limit: &Limit, now: Preview, hits: u64, over: bool) -> u64 {
        match (over, now.before) {
            (true, _) => self.wait_nanos(limit, hits.max(1)),
            (false, 0) => 0,
            (false, _) => self.wait_nanos(limit, now.left + 1),
        }
    }

    /// What is left, and the nanoseconds that the answer tells.
    fn status(&self, limit: &Limit, hits: u64, over: bool) -> (u64, u64) {
        let now = self.look(limit, Pending::default(), 0);
        (now.left, self.reset_nanos(limit, now, hits, over))
    }

    /// Bytes that the state holds beside itself.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// Bytes by which [`heap_bytes`](Self::heap_bytes) grows at most if hits are charged now.
    fn growth_bytes(&self, _limit: &Limit) -> usize {
        0
    }
}

/// What earlier descriptors of the same request do to the same counter if the request passes. It is not in the
/// counter's state yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Hits to be charged now.
    pub(crate) taken: u64,
    /// Hits to be taken back from what the state holds.
    pub(crate) given_back: u64,
}

impl Pending {
    /// Adds hits.
    pub(crate) fn take(&mut self, hits: u64) {
        self.taken = self.taken.saturating_add(hits);
    }

    /// Takes hits back: of those to be charged first. In which order makes no difference to the count: those of now weigh
    /// as much as any other, or are the first to go (`sliding_window_weighted`).
    pub(crate) fn give_back(&mut self, hits: u64) {
        let newest = hits.min(self.taken);
        self.taken -= newest;
        self.given_back = self.given_back.saturating_add(hits - newest);
    }

    /// The count after it, of a counter whose hits all weigh the same.
    pub(crate) fn on(self, count: u64) -> u64 {
        count.saturating_sub(self.given_back).saturating_add(self.taken)
    }
}

/// The most hits that a report adds to a count of 32 bits.
pub(crate) fn report_max_of_count(count: u64) -> u64 {
    u64::from(u32::MAX).saturating_sub(count)
}

/// What a counter of `count` hits says to `hits` more under a capacity; a question asks for one.
#[inline]
pub(crate) fn look_at_count(capacity: u32, count: u64, hits: u64) -> Preview {
    let left = u64::from(capacity).saturating_sub(count);
    Preview { over: hits.max(1) > left, left, before: count }
}
