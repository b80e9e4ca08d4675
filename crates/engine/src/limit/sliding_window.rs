//! `sliding_window`: a true sliding window over time that is cut into buckets. The default.
//!
//! Time is cut into buckets of g (W/60 by default). A bucket counts until all of it has left the window, that is while
//! its end > t − W. Hits pass while the sum of the buckets that count, after adding them, is at most N. Only admitted
//! hits and reported costs count.
//!
//! - **Invariant:** the buckets held are those that count at `latest`, each with at least one hit, in order; `first`
//!   inline, further ones in [`Cells`] with running sums. So every read is a binary search at most, whatever W, N and
//!   g are. Debts that are carried are in buckets of the future (`debt`).
//! - **Error:** never more than N in any window W; capacity comes back at most g late.
//! - **Source:** the exact log (`sliding_log`), its timestamps rounded up to the end of their bucket.
//!
//! ```
//! # use tidegate_engine::key::Key;
//! # use tidegate_engine::limit::{Algorithm, Limit};
//! # use tidegate_engine::time::{SECOND_NANOS, Timestamp};
//! # use tidegate_engine::memory::{MemoryOptions, MemoryStore};
//! # let store = MemoryStore::new(MemoryOptions::new(1 << 20));
//! # let nanos = |second: f64| Timestamp::from_nanos((second * 1e9).round() as u64);
//! # let passes = |limit, second| !store.take(&limit, Key(1), 1, nanos(second)).over;
//! // Two in ten seconds: the bucket of the hit at 1 s ends at 1.1667 s, so capacity comes back at 11.1667 s, not at 11 s.
//! let limit = Limit::new(Algorithm::SlidingWindow, 2, 10 * SECOND_NANOS);
//! assert_eq!([1.0, 2.0, 11.0, 11.167].map(|second| passes(limit, second)), [true, true, false, true]);
//! ```

mod cells;

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending, look_at_count};
use crate::limit::debt::{self, AHEAD_NANOS_MAX, PIECES_MAX, Placed, WINDOWS_AHEAD};
use crate::limit::expiry::Expiry;
use crate::limit::{BUCKETS_MAX, Limit, Preview};
use crate::time::Timestamp;
use cells::Cells;

/// The most buckets from the first to the newest: those of a window, and those in which debts may be. A cell's number has 16
/// bits.
const SPAN_MAX: u64 = (1 + WINDOWS_AHEAD) * (BUCKETS_MAX + 2);
const _: () = assert!(SPAN_MAX <= u16::MAX as u64);

/// The state: 40 bytes, and 6 for each bucket after the first.
#[derive(Debug, Default)]
pub(crate) struct SlidingWindow {
    latest: Timestamp,
    /// The number of the oldest bucket that counts.
    first: u64,
    /// Its hits; 0 when nothing counts.
    first_count: u32,
    expiry: Expiry,
    /// The buckets after it.
    more: Cells,
}

impl SlidingWindow {
    #[inline]
    fn total(&self) -> u32 {
        self.first_count.saturating_add(self.more.total())
    }

    /// The full number of a bucket, whose low 16 bits a cell holds. All that count lie within [`SPAN_MAX`] from the first.
    fn number(&self, low: u16) -> u64 {
        self.first + u64::from(low.wrapping_sub(self.first as u16))
    }

    #[inline]
    fn newest(&self) -> u64 {
        self.more.last().map_or(self.first, |low| self.number(low))
    }

    /// Hits at `latest` belong to the newest bucket: it holds `latest`, or is later.
    #[inline]
    fn newest_is_current(&self, limit: &Limit) -> bool {
        self.first_count > 0 && limit.bucket_ends_after(self.newest(), self.latest)
    }

    /// The oldest bucket such that it and those before it hold at least `hits`.
    #[inline]
    fn bucket_through(&self, hits: u64) -> u64 {
        let further = hits.saturating_sub(u64::from(self.first_count));
        if further == 0 {
            return self.first;
        }
        let index = self.more.index_through(u32::try_from(further).unwrap_or(u32::MAX));
        self.more.get(index).map_or_else(|| self.newest(), |low| self.number(low))
    }

    #[inline(always)]
    fn add_to_newest(&mut self, hits: u32) {
        match self.more.last() {
            Some(_) => self.more.add_to_last(hits),
            None => self.first_count = self.first_count.saturating_add(hits),
        }
    }

    /// Adds a bucket after the newest.
    #[inline(always)]
    fn push(&mut self, limit: &Limit, bucket: u64, hits: u32) {
        if self.first_count == 0 {
            (self.first, self.first_count) = (bucket, hits);
        } else {
            self.more.push(bucket as u16, hits);
        }
        self.expiry = Expiry::at(counts_until(limit, bucket));
    }

    /// Drops the buckets before `oldest`.
    fn drop_before(&mut self, oldest: u64) {
        let dead = self.more.partition_point(|low| self.number(low) < oldest);
        match self.more.take_front(dead) {
            Some((low, count)) => (self.first, self.first_count) = (self.number(low), count),
            None => self.first_count = 0,
        }
    }
}

/// Places are the numbers of buckets. A hit is gone in a bucket if it leaves the window within it.
impl Placed for SlidingWindow {
    fn hits(&self) -> u64 {
        self.total().into()
    }

    fn place_now(&self, limit: &Limit) -> u64 {
        let now = limit.bucket_of(self.latest);
        if self.first_count == 0 { now } else { now.max(self.newest()) }
    }

    fn place_without(&self, limit: &Limit, hits: u64) -> u64 {
        self.bucket_through(hits).saturating_add(buckets_counted(limit))
    }

    fn place_after(&self, limit: &Limit) -> u64 {
        limit.bucket_of(self.latest).saturating_add(buckets_counted(limit))
    }

    fn last_place(&self, limit: &Limit) -> u64 {
        limit.bucket_of(self.latest).saturating_add(WINDOWS_AHEAD * buckets_counted(limit))
    }

    fn put(&mut self, limit: &Limit, place: u64, hits: u64) {
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        if self.first_count > 0 && place <= self.newest() {
            self.add_to_newest(hits);
        } else {
            self.push(limit, place, hits);
        }
    }
}

impl Counter for SlidingWindow {
    #[inline]
    fn advance(&mut self, limit: &Limit, now: Timestamp) {
        if now <= self.latest {
            return;
        }
        self.latest = now;
        if self.first_count == 0 || now.as_nanos() < limit.window_nanos() {
            return;
        }
        let window_start = Timestamp::from_nanos(now.as_nanos() - limit.window_nanos());
        if !limit.bucket_ends_after(self.first, window_start) {
            self.drop_before(limit.bucket_of(window_start));
        }
    }

    #[inline]
    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview {
        look_at_count(limit.capacity(), pending.on(u64::from(self.total())), hits)
    }

    // Inlined together, this and `growth_bytes` search the newest bucket once.
    #[inline(always)]
    fn charge(&mut self, limit: &Limit, hits: u64) {
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        if self.newest_is_current(limit) {
            self.add_to_newest(hits);
        } else {
            self.push(limit, limit.bucket_of(self.latest), hits);
        }
    }

    fn charge_cost(&mut self, limit: &Limit, hits: u64) {
        if limit.carries_debt() { debt::charge(self, limit, hits) } else { self.charge(limit, hits) }
    }

    fn report_max(&self, limit: &Limit, pending: Pending) -> u64 {
        debt::report_max(self, limit, pending)
    }

    fn refund(&mut self, _limit: &Limit, hits: u64) {
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        if hits < self.first_count {
            self.first_count -= hits;
            return;
        }
        match self.more.take_hits(hits - self.first_count) {
            Some((low, count)) => (self.first, self.first_count) = (self.number(low), count),
            None => self.first_count = 0,
        }
    }

    #[inline]
    fn wait_nanos(&self, limit: &Limit, hits: u64) -> u64 {
        let capacity = limit.capacity();
        if hits > capacity {
            return limit.window_nanos();
        }
        let too_many = (u64::from(self.total()) + hits).saturating_sub(capacity);
        if too_many == 0 {
            return 0; // A refund in the same request made room.
        }
        counts_until(limit, self.bucket_through(too_many)).nanos_since(self.latest)
    }

    #[inline]
    fn reset_nanos(&self, limit: &Limit, now: Preview, hits: u64, over: bool) -> u64 {
        match (over, now.before, now.left) {
            (true, ..) => self.wait_nanos(limit, hits.max(1)),
            (false, 0, _) => 0,
            (false, _, 0) => self.wait_nanos(limit, 1),
            // The same as the wait for one hit more than is left: the oldest bucket has to leave.
            _ => counts_until(limit, self.first).nanos_since(self.latest),
        }
    }

    fn expires_at(&self) -> Timestamp {
        if self.first_count == 0 { Timestamp::default() } else { self.expiry.time(self.latest) }
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.latest.as_nanos());
        out.u64(self.first);
        out.u32(self.first_count);
        out.u32(self.expiry.bits());
        self.more.encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let (latest, first) = (Timestamp::from_nanos(bytes.u64()?), bytes.u64()?);
        let (first_count, expiry) = (bytes.u32()?, Expiry::from_bits(bytes.u32()?));
        let more = Cells::decode(bytes, first as u16, (first_count, SPAN_MAX))?;
        if first_count == 0 {
            return Err("a bucket has no hits");
        }
        // No bucket is shorter than a nanosecond, so none has a greater number than its time.
        let last = more.last().map_or(0, |low| low.wrapping_sub(first as u16));
        let furthest = latest.plus(AHEAD_NANOS_MAX).as_nanos();
        if first.checked_add(u64::from(last)).is_none_or(|newest| newest > furthest) {
            return Err("a bucket is later than any debt");
        }
        Ok(Self { latest, first, first_count, expiry, more })
    }

    fn invariants(&self, limit: &Limit) -> Result<(), &'static str> {
        if self.first_count == 0 {
            return if self.more.len() == 0 { Ok(()) } else { Err("buckets follow an empty one") };
        }
        if self.newest() > self.last_place(limit) {
            return Err("a bucket is later than any debt");
        }
        if self.newest() - self.first > SPAN_MAX {
            return Err("buckets span more than a window and its debts");
        }
        self.more.invariants(self.first as u16)
    }

    #[inline]
    fn heap_bytes(&self) -> usize {
        self.more.heap_bytes()
    }

    #[inline(always)]
    fn growth_bytes(&self, limit: &Limit) -> usize {
        let new_cell = self.first_count > 0 && !self.newest_is_current(limit);
        if new_cell { self.more.growth_bytes() } else { 0 }
    }

    fn growth_bytes_of_debt(&self, _limit: &Limit) -> usize {
        self.more.growth_bytes_of(PIECES_MAX)
    }
}

/// A bucket stops to count within the one that is so many later.
fn buckets_counted(limit: &Limit) -> u64 {
    limit.bucket_of(Timestamp::from_nanos(limit.window_nanos())) + 1
}

/// The first time at which `bucket` no longer counts.
#[inline]
pub(super) fn counts_until(limit: &Limit, bucket: u64) -> Timestamp {
    limit.bucket_end(bucket).plus(limit.window_nanos())
}
