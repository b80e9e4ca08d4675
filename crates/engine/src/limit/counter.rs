//! The trait of every algorithm's state, and the pending hits of a request.
//!
//! In: a limit, a time, hits. Out: previews and reset times. No algorithm knows about requests, modes or stores.

use crate::limit::Limit;
use crate::limit::bytes::{Damage, Reader};
use crate::time::Timestamp;

/// What a counter would answer to a check, before the request is settled.
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
    /// The preview after these hits were charged. By every algorithm, a charged hit moves from `left` to `before`.
    #[inline]
    pub fn charged(self, hits: u64) -> Self {
        let (left, before) = (self.left.saturating_sub(hits), self.before.saturating_add(hits));
        Self { left, before, ..self }
    }
}

/// The state of one counter. `Default` is the unused state: nothing counts.
pub(crate) trait Counter: Default {
    /// Moves the state to `now`, unless the latest time is later. All other functions work at the latest time.
    fn advance(&mut self, limit: &Limit, now: Timestamp);

    /// Whether these hits would pass after the pending ones. 0 hits only ask.
    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview;

    /// Counts these hits. They fit, as [`look`](Self::look) said, or are a reported cost of at most
    /// [`report_max`](Self::report_max).
    fn charge(&mut self, limit: &Limit, hits: u64);

    /// Counts a reported cost of at most [`report_max`](Self::report_max). If the limit carries debts, what does not fit
    /// counts in later windows or periods too.
    fn charge_cost(&mut self, limit: &Limit, hits: u64) {
        self.charge(limit, hits);
    }

    /// A preview after these hits were charged.
    #[inline]
    fn after(&self, _limit: &Limit, now: Preview, hits: u64) -> Preview {
        now.charged(hits)
    }

    /// The most hits that a reported cost adds after the pending ones, whether they fit or not.
    fn report_max(&self, _limit: &Limit, _pending: Pending) -> u64 {
        u64::MAX
    }

    /// What calls may cost at most whose cost is not known yet, apart from that of the check, which takes so many hits.
    fn worst_case(&self, _limit: &Limit, _hits: u64) -> u64 {
        0
    }

    /// Takes back as many of these hits as still count, the oldest first. Even if the client means others, the
    /// remaining hits then count at least as long as those would have.
    fn refund(&mut self, limit: &Limit, hits: u64);

    /// For hits that do not pass now: the shortest time in nanoseconds after which they would pass, if no other hits
    /// came. W when they never would.
    fn wait_nanos(&self, limit: &Limit, hits: u64) -> u64;

    /// From this time on the state equals the unused one. It may be up to 2^26 ns (67 ms) late, never early.
    fn expires_at(&self) -> Timestamp;

    /// The reset time of the verdict in nanoseconds, given the preview `now`. Over: the wait for `hits`. Else: the
    /// time until capacity comes back.
    #[inline]
    fn reset_nanos(&self, limit: &Limit, now: Preview, hits: u64, over: bool) -> u64 {
        match (over, now.before) {
            (true, _) => self.wait_nanos(limit, hits.max(1)),
            (false, 0) => 0,
            (false, _) => self.wait_nanos(limit, now.left + 1),
        }
    }

    /// The latest time that the state has seen.
    fn latest(&self) -> Timestamp;

    /// Appends the state, which is not unused, as bytes that do not depend on its layout in memory.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads a state that [`encode`](Self::encode) wrote, and checks everything that can be checked without the
    /// limit.
    ///
    /// # Errors
    /// What is wrong: no counter can have this state.
    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage>;

    /// The hits that are left, and the reset time in nanoseconds.
    fn status(&self, limit: &Limit, hits: u64, over: bool) -> (u64, u64) {
        let now = self.look(limit, Pending::default(), 0);
        (now.left, self.reset_nanos(limit, now, hits, over))
    }

    /// What is wrong with the state, if anything is: checked after every change in builds with assertions.
    fn invariants(&self, _limit: &Limit) -> Result<(), &'static str> {
        Ok(())
    }

    /// Bytes that the state holds on the heap.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// The most bytes by which [`heap_bytes`](Self::heap_bytes) grows if hits are charged now.
    fn growth_bytes(&self, _limit: &Limit) -> usize {
        0
    }

    /// The same, if other hits are charged first at the same time.
    fn growth_bytes_after_others(&self, limit: &Limit) -> usize {
        self.growth_bytes(limit)
    }

    /// The same for a reported cost whose debt is carried.
    fn growth_bytes_of_debt(&self, limit: &Limit) -> usize {
        self.growth_bytes_after_others(limit)
    }
}

/// The changes that earlier descriptors of the same request make to the same counter if the request passes. The
/// counter's state does not include them yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Hits to be charged now, and those that reservations hold.
    pub(crate) taken: u64,
    /// Hits to be taken back from the state.
    pub(crate) given_back: u64,
    /// Those of `taken` that reservations hold.
    pub(crate) held: u64,
}

impl Pending {
    /// The pending hits of a counter, of which reservations hold so many.
    pub(crate) fn held(held: u64) -> Self {
        Self { taken: held, given_back: 0, held }
    }

    /// The hits to be charged now.
    pub(crate) fn charged(self) -> u64 {
        self.taken - self.held
    }

    /// Without what is held, which no counter of hits has in its state.
    pub(crate) fn without_held(self) -> Self {
        Self { taken: self.charged(), held: 0, ..self }
    }

    pub(crate) fn take(&mut self, hits: u64) {
        self.taken = self.taken.saturating_add(hits);
    }

    /// Takes hits back, first from those to be charged. The order does not change the count: new hits weigh as much
    /// as any other, or are the first to be taken back anyway (`sliding_window_weighted`). Held hits are not taken back.
    pub(crate) fn give_back(&mut self, hits: u64) {
        let newest = hits.min(self.charged());
        self.taken -= newest;
        self.given_back = self.given_back.saturating_add(hits - newest);
    }

    /// `count` after the pending hits, for a counter whose hits all weigh the same.
    pub(crate) fn on(self, count: u64) -> u64 {
        count.saturating_sub(self.given_back).saturating_add(self.taken)
    }
}

/// The capacity of a list that takes so many items more: at most a fifth of it is free then. Lists grow by exactly this, so that
/// counters from a file need no more room than before.
pub(crate) fn grown_capacity<T>(list: &Vec<T>, more: usize) -> usize {
    let needed = list.len() + more;
    if needed <= list.capacity() {
        list.capacity()
    } else {
        needed.next_multiple_of((needed.next_power_of_two() / 8).max(1))
    }
}

/// The most hits that a report adds to a count of 32 bits, where debts are not carried.
pub(crate) fn report_max_of_count(count: u64) -> u64 {
    u64::from(u32::MAX).saturating_sub(count)
}

/// The preview of `hits` on a counter of `count` hits under a capacity. 0 hits ask whether 1 would fit.
#[inline]
pub(crate) fn look_at_count(capacity: u64, count: u64, hits: u64) -> Preview {
    let left = capacity.saturating_sub(count);
    Preview { over: hits.max(1) > left, left, before: count }
}
