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
//! - **Debts:** with `carry_debt`, each end of a period takes N from the count, down to zero. The N is the one in force then, or
//!   at the first end the largest by which hits of its period were charged. How many periods
//!   have ended follows from the last end, the begin of the running period and the mean length of one: Redis knows no more.
//!   It is exact for all calendars as long as debts last.
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
use crate::limit::debt::DEBT_WINDOWS;
use crate::limit::{Limit, Preview};
use crate::time::{SECOND_NANOS, Timestamp};

/// The state: 36 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(4))]
pub(crate) struct Calendar {
    latest: Timestamp,
    count: u64,
    end: Timestamp,
    /// If debts are carried: the largest N by which hits were charged in the running period. So hits that fitted are no debt
    /// when N becomes smaller.
    paid: u64,
    /// How long after `end` the debts that are carried are paid, in seconds, or a period later; 0: there are none.
    owed_secs: u32,
}

/// Files contain the upper half of [`Calendar::paid`] only if this bit of [`Calendar::owed_secs`] is set.
const HAS_PAID_MORE: u32 = 1 << 31;
const OWED_SECS_MAX: u32 = HAS_PAID_MORE - 1;

impl Calendar {
    /// Begins the period of `latest`, after the end of another.
    fn begin(&mut self, limit: &Limit) {
        let (begin, end) = limit.period_around(self.latest);
        let count = match limit.carries_debt() {
            true => {
                let further = ended(limit, self.end, begin) - 1;
                let paid =
                    self.paid_at_end(limit).saturating_add(limit.paid_at_once().saturating_mul(further));
                self.count.saturating_sub(paid)
            }
            false => 0,
        };
        *self = Self { latest: self.latest, count, end, paid: 0, owed_secs: 0 };
        if count > 0 {
            self.note_debt(limit);
        }
    }

    /// What the end of the running period takes from the count.
    fn paid_at_end(&self, limit: &Limit) -> u64 {
        limit.paid_at_once().max(self.paid)
    }

    fn note_debt(&mut self, limit: &Limit) {
        let debt = self.count.saturating_sub(self.paid_at_end(limit));
        let periods = debt.div_ceil(limit.paid_at_once()).min(DEBT_WINDOWS);
        // Periods are longer than a mean one, but not many of them.
        let nanos = if periods == 0 { 0 } else { (periods + 1).saturating_mul(limit.period_nanos()) };
        self.owed_secs = nanos.div_ceil(SECOND_NANOS).min(OWED_SECS_MAX.into()) as u32;
    }
}

/// How many periods have ended since `end`, inclusive, when one has begun at `begin`.
pub(crate) fn ended(limit: &Limit, end: Timestamp, begin: Timestamp) -> u64 {
    let (since, period) = (u128::from(begin.nanos_since(end)), u128::from(limit.period_nanos()));
    1 + ((2 * since + period) / (2 * period)) as u64
}

/// How long such hits wait at `latest` in a period with this end, in nanoseconds. Its end takes N from the count, as later
/// ones do. Hits that never fit wait for its end.
pub(super) fn wait_nanos(limit: &Limit, (latest, count, end): (Timestamp, u64, Timestamp), hits: u64) -> u64 {
    let capacity = limit.capacity();
    let periods = match limit.carries_debt() {
        true => {
            count.saturating_add(hits.min(capacity)).saturating_sub(capacity).div_ceil(limit.paid_at_once())
        }
        false => 1,
    };
    let end = (1..periods.min(1 + DEBT_WINDOWS)).fold(end, |end, _| limit.period_around(end).1);
    end.nanos_since(latest)
}

impl Counter for Calendar {
    #[inline]
    fn advance(&mut self, limit: &Limit, now: Timestamp) {
        self.latest = self.latest.max(now);
        if self.count == 0 {
            *self = Self { latest: self.latest, end: limit.period_around(self.latest).1, ..Self::default() };
        } else if { self.end } <= { self.latest } {
            self.begin(limit);
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
        if limit.carries_debt() {
            self.paid = self.paid.max(limit.requests());
            self.note_debt(limit);
        }
    }

    fn report_max(&self, limit: &Limit, pending: Pending) -> u64 {
        if limit.carries_debt() { limit.debt_room(pending.on(self.count)) } else { u64::MAX }
    }

    fn refund(&mut self, _limit: &Limit, hits: u64) {
        self.count = self.count.saturating_sub(hits);
    }

    #[inline]
    fn wait_nanos(&self, limit: &Limit, hits: u64) -> u64 {
        // As many as if N had been the same all the time.
        let more = self.paid_at_end(limit) - limit.paid_at_once();
        wait_nanos(limit, (self.latest, self.count.saturating_sub(more), self.end), hits)
    }

    #[inline]
    fn reset_nanos(&self, limit: &Limit, _now: Preview, hits: u64, over: bool) -> u64 {
        if over { self.wait_nanos(limit, hits.max(1)) } else { self.end.nanos_since(self.latest) }
    }

    fn expires_at(&self) -> Timestamp {
        match self.count {
            0 => Timestamp::default(),
            _ => self.end.plus(u64::from(self.owed_secs) * SECOND_NANOS),
        }
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u64({ self.latest }.as_nanos());
        // No count is 0: it says that debts are carried.
        let carries = self.paid > 0 || self.owed_secs > 0;
        if carries {
            out.u64(0);
        }
        out.u64(self.count);
        out.u64({ self.end }.as_nanos());
        if carries {
            let more = (self.paid >> 32) as u32;
            out.u32(self.paid as u32);
            out.u32(self.owed_secs | if more > 0 { HAS_PAID_MORE } else { 0 });
            if more > 0 {
                out.u32(more);
            }
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let latest = Timestamp::from_nanos(bytes.u64()?);
        let first = bytes.u64()?;
        let carries = first == 0;
        let count = if carries { bytes.u64()? } else { first };
        let end = Timestamp::from_nanos(bytes.u64()?);
        let (paid, owed) = if carries { (bytes.u32()?, bytes.u32()?) } else { (0, 0) };
        let more = if owed & HAS_PAID_MORE != 0 { bytes.u32()? } else { 0 };
        let (paid, owed_secs) = (u64::from(more) << 32 | u64::from(paid), owed & !HAS_PAID_MORE);
        match count {
            0 => Err("a period without hits"),
            _ => Ok(Self { latest, count, end, paid, owed_secs }),
        }
    }

    fn invariants(&self, _limit: &Limit) -> Result<(), &'static str> {
        // Nothing is later than the end of time.
        let (latest, end) = (self.latest, self.end);
        let is_running = latest < end || end == Timestamp::MAX;
        if is_running { Ok(()) } else { Err("the period is over") }
    }
}
