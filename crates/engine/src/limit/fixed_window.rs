//! `fixed_window`: one count for the aligned window, as `envoyproxy/ratelimit` keeps it.
//!
//! Windows are aligned to unix time divided by W. Hits pass while the count, after adding them, is at most N; every
//! hit counts, admitted or not.
//!
//! - **Invariant:** `count` is the number of hits asked in the aligned window of `latest`, less those given back.
//! - **Error:** up to 2N hits pass within less than W, around the end of a window. Denied hits use the window up.
//! - **Source:** `envoyproxy/ratelimit`, `INCRBY` on a key that ends in the start of the window.
//!
//! ```
//! # use tidegate_engine::key::Key;
//! # use tidegate_engine::limit::{Algorithm, Limit};
//! # use tidegate_engine::time::{SECOND_NANOS, Timestamp};
//! # use tidegate_engine::memory::{MemoryOptions, MemoryStore};
//! # let store = MemoryStore::new(MemoryOptions::new(1 << 20));
//! # let nanos = |second: f64| Timestamp::from_nanos((second * 1e9).round() as u64);
//! # let passed = |limit, hits, second| (0..hits).filter(|_| !store.take(&limit, Key(1), 1, nanos(second)).over).count();
//! // Ten a minute; ten at 119 s and ten at 121 s are in two different windows.
//! let limit = Limit::new(Algorithm::FixedWindow, 10, 60 * SECOND_NANOS);
//! assert_eq!([passed(limit, 10, 119.0), passed(limit, 10, 121.0)], [10, 10]);
//! ```

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending};
use crate::limit::expiry::Expiry;
use crate::limit::{Limit, Preview};
use crate::time::Timestamp;

/// The state: 20 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(4))]
pub(crate) struct FixedWindow {
    latest: Timestamp,
    count: u64,
    expiry: Expiry,
}

impl FixedWindow {
    /// A counter with this state, to compute its reset time.
    pub(super) fn from_parts(latest: Timestamp, count: u64) -> Self {
        Self { latest, count, expiry: Expiry::default() }
    }
}

impl Counter for FixedWindow {
    #[inline]
    fn advance(&mut self, limit: &Limit, now: Timestamp) {
        let latest = self.latest;
        if now <= latest {
            return;
        }
        if self.count > 0 && window_end(limit, latest) <= now {
            self.count = 0;
        }
        self.latest = now;
    }

    #[inline]
    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview {
        let (limit, before) = (limit.capacity(), pending.on(self.count));
        Preview { over: before.saturating_add(hits) > limit, left: limit.saturating_sub(before), before }
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, hits: u64) {
        if self.count == 0 {
            self.expiry = Expiry::at(window_end(limit, self.latest));
        }
        self.count = self.count.saturating_add(hits);
    }

    fn refund(&mut self, _limit: &Limit, hits: u64) {
        self.count = self.count.saturating_sub(hits);
    }

    #[inline]
    fn wait_nanos(&self, limit: &Limit, _hits: u64) -> u64 {
        window_end(limit, self.latest).nanos_since(self.latest)
    }

    #[inline]
    fn reset_nanos(&self, limit: &Limit, _now: Preview, hits: u64, _over: bool) -> u64 {
        self.wait_nanos(limit, hits)
    }

    fn expires_at(&self) -> Timestamp {
        if self.count == 0 { Timestamp::default() } else { { self.expiry }.time(self.latest) }
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u64({ self.latest }.as_nanos());
        out.u64(self.count);
        out.u32({ self.expiry }.bits());
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let (latest, count) = (Timestamp::from_nanos(bytes.u64()?), bytes.u64()?);
        let expiry = Expiry::from_bits(bytes.u32()?);
        if count == 0 { Err("a window without hits") } else { Ok(Self { latest, count, expiry }) }
    }
}

/// The end of the aligned window that holds `at`.
fn window_end(limit: &Limit, at: Timestamp) -> Timestamp {
    at.plus(limit.window_nanos() - limit.elapsed_nanos(at))
}
