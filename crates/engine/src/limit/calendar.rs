//! `calendar`: one count for the running period of a calendar, which rules choose by `period`.
//!
//! Hits pass while the count, after adding them, is at most N. Hits that are denied do not count.
//!
//! - **Invariant:** `count` is the number of hits charged since the count last was zero at the end of a period, less
//!   those given back; and `end` is later than `latest`.
//! - **The end is part of the state.** A count begins at zero only when the clock has reached its end. A hit that is
//!   charged by another calendar (another anchor, other zone data) moves the end to that of its own period if that is
//!   later; the end never moves back, and the count stays. So from a hit until the end of its period at most N pass,
//!   whatever changes. The price: hits of the old period may count until the new calendar's end. Denied hits move
//!   nothing: otherwise nodes with other zone data could move the end of a full count for ever.
//! - **Error:** N hits pass just before an end, and N just after it. It is a budget, not a strict window.
//!
//! A limit without a table of periods has aligned windows of W as its periods.
//!
//! ```
//! # use tidegate_engine::key::Key;
//! # use tidegate_engine::limit::{Limit, Periods};
//! # use tidegate_engine::time::{SECOND_NANOS, Timestamp};
//! # use tidegate_engine::memory::{MemoryOptions, MemoryStore};
//! # let store = MemoryStore::new(MemoryOptions::new(1 << 20));
//! # let passed = |limit, hits, second| (0..hits).filter(|_| !store.take(&limit, Key(1), 1, Timestamp::from_secs(second)).over).count();
//! // Ten a month: January, which is running, ends at 2678400 s.
//! let months = Periods::named("month (UTC)", || vec![2_678_400, 5_097_600]).expect("there is room");
//! let limit = Limit::calendar(10, 31 * 86_400 * SECOND_NANOS, months);
//! assert_eq!([passed(limit, 12, 2_678_399), passed(limit, 12, 2_678_400)], [10, 10]);
//! ```

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending, look_at_count};
use crate::limit::{Limit, Preview};
use crate::time::Timestamp;

/// The state: 24 bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calendar {
    latest: Timestamp,
    count: u64,
    end: Timestamp,
}

impl Counter for Calendar {
    #[inline]
    fn advance(&mut self, limit: &Limit, now: Timestamp) {
        self.latest = self.latest.max(now);
        if self.count == 0 || self.end <= self.latest {
            (self.count, self.end) = (0, limit.period_around(self.latest).1);
        }
    }

    #[inline]
    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview {
        look_at_count(limit.capacity(), pending.on(self.count), hits)
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, hits: u64) {
        self.end = self.end.max(limit.period_around(self.latest).1);
        self.count = self.count.saturating_add(hits);
    }

    fn refund(&mut self, _limit: &Limit, hits: u64) {
        self.count = self.count.saturating_sub(hits);
    }

    #[inline]
    fn wait_nanos(&self, _limit: &Limit, _hits: u64) -> u64 {
        self.end.nanos_since(self.latest)
    }

    #[inline]
    fn reset_nanos(&self, limit: &Limit, _now: Preview, hits: u64, _over: bool) -> u64 {
        self.wait_nanos(limit, hits)
    }

    fn expires_at(&self) -> Timestamp {
        if self.count == 0 { Timestamp::default() } else { self.end }
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.latest.as_nanos());
        out.u64(self.count);
        out.u64(self.end.as_nanos());
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let latest = Timestamp::from_nanos(bytes.u64()?);
        let (count, end) = (bytes.u64()?, Timestamp::from_nanos(bytes.u64()?));
        match count {
            0 => Err("a period without hits"),
            _ => Ok(Self { latest, count, end }),
        }
    }

    fn invariants(&self, _limit: &Limit) -> Result<(), &'static str> {
        // Nothing is later than the end of time.
        let is_running = self.latest < self.end || self.end == Timestamp::MAX;
        if is_running { Ok(()) } else { Err("the period is over") }
    }
}
