//! `sliding_log`: every admitted hit keeps its own timestamp. Exact.
//!
//! A hit at s counts at t exactly when s > t − W. Hits pass while the hits that count, after adding them, are at most
//! N.
//!
//! - **Invariant:** the stamps are the times, in order, of the admitted hits (less those given back) that count at
//!   `latest`, each with its number of hits. There are at most N; beyond that, a reported cost moves the newest one. Those
//!   of debts that are carried are in the future (`debt`), and there may be [`PIECES_MAX`] more.
//!   Reads are binary searches over [`Stamps`], and changes touch one block of it, so the cost of a decision does not
//!   depend on N.
//! - **Error:** none. It is the definition.
//! - **Source:** the definition; the price is a word for each admitted hit.
//!
//! ```
//! # use tidegate_engine::key::Key;
//! # use tidegate_engine::limit::{Algorithm, Limit};
//! # use tidegate_engine::time::{SECOND_NANOS, Timestamp};
//! # use tidegate_engine::memory::{MemoryOptions, MemoryStore};
//! # let store = MemoryStore::new(MemoryOptions::new(1 << 20));
//! # let nanos = |second: f64| Timestamp::from_nanos((second * 1e9).round() as u64);
//! # let passes = |limit, second| !store.take(&limit, Key(1), 1, nanos(second)).over;
//! // Three in ten seconds: at 11 s the hits at 0 s and, exactly, at 1 s are out of the window.
//! let limit = Limit::new(Algorithm::SlidingLog, 3, 10 * SECOND_NANOS);
//! assert_eq!([0.0, 1.0, 2.0, 3.0, 11.0].map(|second| passes(limit, second)), [true, true, true, false, true]);
//! ```

mod block;
mod stamps;

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending, look_at_count};
use crate::limit::debt::{self, AHEAD_NANOS_MAX, PIECES_MAX, Placed, WINDOWS_AHEAD};
use crate::limit::expiry::Expiry;
use crate::limit::{Limit, Preview};
use crate::time::Timestamp;
use stamps::Stamps;

/// The state: 32 bytes, and a word for each admitted hit.
#[derive(Debug, Default)]
pub(crate) struct SlidingLog {
    latest: Timestamp,
    stamps: Stamps,
}

impl SlidingLog {
    /// Adds hits at a stamp. With so many stamps or more the newest is moved there.
    #[inline]
    fn add(&mut self, limit: &Limit, stamp: u64, hits: u64, stamps_max: usize) {
        let hits = u32::try_from(hits).unwrap_or(u32::MAX);
        let newest = if self.stamps.len() < stamps_max {
            self.stamps.push(stamp, hits)
        } else {
            self.stamps.move_newest(stamp, hits)
        };
        let gone_at = Timestamp::from_nanos(newest).plus(limit.window_nanos());
        self.stamps.set_expiry(Expiry::at(gone_at));
    }
}

impl Placed for SlidingLog {
    fn hits(&self) -> u64 {
        self.stamps.total()
    }

    fn place_now(&self, _limit: &Limit) -> u64 {
        self.stamps.stamp_through(self.stamps.total()).unwrap_or_default().max(self.latest.as_nanos())
    }

    fn place_without(&self, limit: &Limit, hits: u64) -> u64 {
        self.stamps.stamp_through(hits).unwrap_or_default().saturating_add(limit.window_nanos())
    }

    fn place_after(&self, limit: &Limit) -> u64 {
        self.latest.plus(limit.window_nanos()).as_nanos()
    }

    fn last_place(&self, limit: &Limit) -> u64 {
        self.latest.plus(WINDOWS_AHEAD * limit.window_nanos()).as_nanos()
    }

    fn put(&mut self, limit: &Limit, place: u64, hits: u64) {
        self.add(limit, place, hits, limit.capacity().max(1) as usize + PIECES_MAX);
    }
}

impl Counter for SlidingLog {
    fn advance(&mut self, limit: &Limit, now: Timestamp) {
        if now <= self.latest {
            return;
        }
        self.latest = now;
        if let Some(gone) = now.as_nanos().checked_sub(limit.window_nanos()) {
            self.stamps.drop_through(gone);
        }
    }

    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview {
        look_at_count(limit.capacity(), pending.on(self.stamps.total()), hits)
    }

    fn charge(&mut self, limit: &Limit, hits: u64) {
        // Hits that fit find less than N stamps. A reported cost is added to the newest of N.
        self.add(limit, self.latest.as_nanos(), hits, limit.capacity().max(1) as usize);
    }

    fn charge_cost(&mut self, limit: &Limit, hits: u64) {
        if limit.carries_debt() { debt::charge(self, limit, hits) } else { self.charge(limit, hits) }
    }

    fn report_max(&self, limit: &Limit, pending: Pending) -> u64 {
        debt::report_max(self, limit, pending)
    }

    fn refund(&mut self, _limit: &Limit, hits: u64) {
        self.stamps.drop_hits(hits);
    }

    fn wait_nanos(&self, limit: &Limit, hits: u64) -> u64 {
        let capacity = limit.capacity();
        if hits > capacity {
            return limit.window_nanos();
        }
        let too_many = (self.stamps.total() + hits).saturating_sub(capacity);
        if too_many == 0 {
            return 0; // A refund in the same request made room.
        }
        let stamp = Timestamp::from_nanos(self.stamps.stamp_through(too_many).unwrap_or_default());
        stamp.plus(limit.window_nanos()).nanos_since(self.latest)
    }

    fn expires_at(&self) -> Timestamp {
        if self.stamps.is_empty() { Timestamp::default() } else { self.stamps.expiry().time(self.latest) }
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.latest.as_nanos());
        out.u32(self.stamps.expiry().bits());
        // The hits of one time may lie in two blocks.
        let mut last = (0, 0);
        self.stamps.each(|stamp, hits| {
            if stamp == last.0 {
                last.1 += hits;
            } else {
                append(out, last);
                last = (stamp, hits);
            }
        });
        append(out, last);
        out.u32(0);
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let (latest, expiry) = (bytes.u64()?, Expiry::from_bits(bytes.u32()?));
        let mut all = Vec::new();
        let (mut before, mut total) = (None, 0_u32);
        loop {
            let hits = bytes.u32()?;
            if hits == 0 {
                break;
            }
            let stamp = bytes.u64()?;
            if Some(stamp) <= before || stamp > latest.saturating_add(AHEAD_NANOS_MAX) {
                return Err("the times are not in order");
            }
            total = total.checked_add(hits).ok_or("more hits than a counter holds")?;
            before = Some(stamp);
            all.push((stamp, hits));
        }
        let mut stamps = Stamps::packed(&all);
        stamps.set_expiry(expiry);
        if total == 0 {
            Err("a log without hits")
        } else {
            Ok(Self { latest: Timestamp::from_nanos(latest), stamps })
        }
    }

    fn invariants(&self, limit: &Limit) -> Result<(), &'static str> {
        let total = self.stamps.total();
        if total == 0 || self.stamps.is_empty() {
            return if total == 0 && self.stamps.is_empty() {
                Ok(())
            } else {
                Err("hits without times, or times without hits")
            };
        }
        let (oldest, newest) = (self.stamps.stamp_through(1), self.stamps.stamp_through(total));
        match (oldest, newest) {
            (Some(oldest), Some(newest)) if oldest <= newest && newest <= self.last_place(limit) => Ok(()),
            _ => Err("the times are not in order"),
        }
    }

    fn heap_bytes(&self) -> usize {
        self.stamps.heap_bytes()
    }

    fn growth_bytes(&self, _limit: &Limit) -> usize {
        self.stamps.growth_bytes()
    }

    fn growth_bytes_after_others(&self, _limit: &Limit) -> usize {
        self.stamps.growth_bytes_max()
    }

    fn growth_bytes_of_debt(&self, _limit: &Limit) -> usize {
        self.stamps.growth_bytes_of(PIECES_MAX)
    }
}

/// Appends hits at a time, if there are any.
fn append(out: &mut Vec<u8>, (stamp, hits): (u64, u32)) {
    if hits > 0 {
        out.u32(hits);
        out.u64(stamp);
    }
}
