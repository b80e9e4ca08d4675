//! `sliding_window_weighted`: the current aligned window, and a share of the previous one. An estimate in 16 bytes.
//!
//! The count at t is `current + previous × (W − elapsed) / W`, `elapsed` being the time since the current window
//! began. Hits pass while the count, after adding them, is at most N. Only admitted hits count.
//!
//! - **Invariant:** `current` and `previous` are the admitted hits (less those given back) of the aligned window of
//!   `latest` and of the one before; each is at most the N in force when it grew, plus reported costs. The share is
//!   compared in integers, so rounding favours nobody.
//! - **Error:** it assumes that the previous window's hits came evenly. Too many: less than 2N in a window W, and
//!   almost that (all of N at the end of one window, almost all of N at the end of the next). Too few: after N at the
//!   start of a window, N/4 a quarter into the next one, where an exact window admits N.
//! - **Source:** "How we built rate limiting capable of scaling to millions of domains", Cloudflare, 2017.
//!
//! ```
//! # use tidegate_engine::key::Key;
//! # use tidegate_engine::limit::{Algorithm, Limit};
//! # use tidegate_engine::time::{SECOND_NANOS, Timestamp};
//! # use tidegate_engine::memory::{MemoryOptions, MemoryStore};
//! # let store = MemoryStore::new(MemoryOptions::new(1 << 20));
//! # let nanos = |second: f64| Timestamp::from_nanos((second * 1e9).round() as u64);
//! # let passed = |limit, hits, second| (0..hits).filter(|_| !store.take(&limit, Key(1), 1, nanos(second)).over).count();
//! // A hundred a minute. It assumes that the past was even: too few pass here, where an exact window lets 100 pass …
//! let limit = Limit::new(Algorithm::SlidingWindowWeighted, 100, 60 * SECOND_NANOS);
//! assert_eq!([passed(limit, 100, 0.0), passed(limit, 100, 75.0)], [100, 25]);
//! // … and too many here, where an exact window lets none pass.
//! assert_eq!([passed(limit, 100, 299.9), passed(limit, 100, 359.8)], [100, 99]);
//! ```

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending, look_at_count, report_max_of_count};
use crate::limit::expiry::Expiry;
use crate::limit::{Limit, Preview};
use crate::time::Timestamp;

/// The state: 16 bytes, and 4 for its expiry.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(4))]
pub(crate) struct SlidingWindowWeighted {
    latest: Timestamp,
    current: u32,
    previous: u32,
    expiry: Expiry,
}

impl SlidingWindowWeighted {
    /// A counter with this state, to compute its reset time.
    pub(super) fn from_parts(latest: Timestamp, current: u32, previous: u32) -> Self {
        Self { latest, current, previous, expiry: Expiry::default() }
    }

    fn elapsed(&self, limit: &Limit) -> u64 {
        limit.elapsed_nanos(self.latest)
    }

    /// The two counts without `hits`, which are removed from the current window first.
    fn without(&self, hits: u64) -> (u64, u64) {
        let (current, previous) = (u64::from(self.current), u64::from(self.previous));
        let older = hits.saturating_sub(current);
        (current.saturating_sub(hits), previous.saturating_sub(older))
    }

    fn note_expiry(&mut self, limit: &Limit) {
        let windows = if self.current > 0 { 2 } else { 1 };
        let until = { self.latest }.plus(windows * limit.window_nanos() - self.elapsed(limit));
        self.expiry = Expiry::at(until);
    }
}

impl Counter for SlidingWindowWeighted {
    #[inline]
    fn advance(&mut self, limit: &Limit, now: Timestamp) {
        let latest = self.latest;
        if now <= latest {
            return;
        }
        self.latest = now;
        let into_window = now.nanos_since(latest).saturating_add(limit.elapsed_nanos(latest));
        if into_window < limit.window_nanos() {
            return;
        }
        self.previous = if into_window / limit.window_nanos() == 1 { self.current } else { 0 };
        self.current = 0;
    }

    #[inline]
    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview {
        let (current, previous) = self.without(pending.given_back);
        let window = limit.window_nanos();
        let count = current + share_ceil(previous, window - self.elapsed(limit), window);
        look_at_count(limit.capacity(), count.saturating_add(pending.taken), hits)
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, hits: u64) {
        let newly = self.current == 0;
        self.current = { self.current }.saturating_add(u32::try_from(hits).unwrap_or(u32::MAX));
        if newly {
            self.note_expiry(limit);
        }
    }

    fn report_max(&self, _limit: &Limit, pending: Pending) -> u64 {
        report_max_of_count(self.without(pending.given_back).0.saturating_add(pending.taken))
    }

    fn refund(&mut self, limit: &Limit, hits: u64) {
        let (current, previous) = self.without(hits);
        (self.current, self.previous) = (current as u32, previous as u32);
        self.note_expiry(limit);
    }

    /// In this window the previous window's share falls. If that is not enough, the current window's share falls in
    /// the next one.
    #[inline]
    fn wait_nanos(&self, limit: &Limit, hits: u64) -> u64 {
        let (window, elapsed) = (limit.window_nanos(), self.elapsed(limit));
        let Some(room) = limit.capacity().checked_sub(hits) else { return window };
        let (current, previous) = self.without(0);
        match room.checked_sub(current) {
            Some(room) => falls_to(previous, room, window).saturating_sub(elapsed),
            None => window - elapsed + falls_to(current, room, window),
        }
    }

    fn expires_at(&self) -> Timestamp {
        if self.current == 0 && self.previous == 0 {
            return Timestamp::default();
        }
        { self.expiry }.time(self.latest)
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u64({ self.latest }.as_nanos());
        out.u32(self.current);
        out.u32(self.previous);
        out.u32({ self.expiry }.bits());
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let latest = Timestamp::from_nanos(bytes.u64()?);
        let (current, previous) = (bytes.u32()?, bytes.u32()?);
        let expiry = Expiry::from_bits(bytes.u32()?);
        if current == 0 && previous == 0 {
            return Err("two windows without hits");
        }
        Ok(Self { latest, current, previous, expiry })
    }
}

/// ⌈count × left / window⌉.
fn share_ceil(count: u64, left: u64, window: u64) -> u64 {
    if count == 0 {
        return 0;
    }
    match count.checked_mul(left) {
        Some(product) => product.div_ceil(window),
        None => (u128::from(count) * u128::from(left)).div_ceil(u128::from(window)) as u64,
    }
}

/// The least elapsed time at which the share of `count` is at most `room`: W − ⌊room × W / count⌋.
fn falls_to(count: u64, room: u64, window: u64) -> u64 {
    if room >= count {
        return 0;
    }
    window - (u128::from(room) * u128::from(window) / u128::from(count)) as u64
}
