//! The generic cell rate algorithm, on which `token_bucket` and `leaky_bucket` are built.
//!
//! A bucket has a level of at most `burst` hits and drains continuously at N hits per W. The level is kept in units: a
//! hit is W units, and a nanosecond drains N. So every N is exact, in integers, and nothing is lost to rounding.
//!
//! - **Invariant:** `level` is the level at `latest` in those units, for the N in `requests`. It is at most `burst` ×
//!   W, plus what drains in [`DEBT_WINDOWS`] × W where costs are reported: less than 2^96.
//! - **Source:** ITU-T I.371, in its continuous-state leaky bucket form: the level instead of the theoretical arrival
//!   time, which is `latest` + level / N.

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending};
use crate::limit::{Limit, Preview};
use crate::time::Timestamp;

/// The state: 24 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(4))]
pub(crate) struct Gcra {
    latest: Timestamp,
    level_low: u64,
    level_high: u32,
    /// The N that `level` is for.
    requests: u32,
}

const LEVEL_MAX: u128 = (1 << 96) - 1;

/// A reported cost raises the level above `burst` by what drains in this many windows at most. More is dropped: a cost
/// that was reported by mistake could take a lifetime to drain.
const DEBT_WINDOWS: u128 = 16;

impl Gcra {
    /// A counter with this state, to compute its reset time.
    pub(super) fn from_parts(latest: Timestamp, level: u128, requests: u32) -> Self {
        let mut counter = Self { latest, requests, ..Self::default() };
        counter.set_level(level);
        counter
    }

    #[inline]
    fn level(&self) -> u128 {
        u128::from(self.level_high) << 64 | u128::from(self.level_low)
    }

    #[inline]
    fn set_level(&mut self, level: u128) {
        let level = level.min(LEVEL_MAX);
        (self.level_low, self.level_high) = (level as u64, (level >> 64) as u32);
    }

    /// Adopts a changed N: the time until the bucket is empty stays the same (rounded up, by less than a unit).
    #[inline]
    fn rescale(&mut self, requests: u32) {
        if self.requests != requests && requests > 0 {
            if self.requests > 0 {
                let scaled = (self.level() * u128::from(requests)).div_ceil(u128::from(self.requests));
                self.set_level(scaled);
            }
            self.requests = requests;
        }
    }

    /// The level after the pending hits, in units.
    #[inline]
    fn level_after(&self, limit: &Limit, pending: Pending) -> u128 {
        let hit = u128::from(limit.window_nanos());
        let left = self.level().saturating_sub(hit * u128::from(pending.given_back));
        left.saturating_add(hit * u128::from(pending.taken))
    }
}

impl Counter for Gcra {
    #[inline]
    fn advance(&mut self, limit: &Limit, now: Timestamp) {
        self.rescale(limit.requests());
        let latest = self.latest;
        if now <= latest {
            return;
        }
        let drained = u128::from(now.nanos_since(latest)) * u128::from(self.requests);
        self.set_level(self.level().saturating_sub(drained));
        self.latest = now;
    }

    #[inline]
    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview {
        let level = self.level_after(limit, pending);
        let room = capacity(limit).saturating_sub(level);
        let fitting = whole_hits(limit, room);
        let left = if limit.requests() == 0 { 0 } else { fitting };
        let before = if level > capacity(limit) {
            div_ceil(level, limit.window_nanos())
        } else {
            u64::from(limit.burst()) - fitting
        };
        Preview { over: hits.max(1) > left, left, before }
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, hits: u64) {
        self.set_level(self.level().saturating_add(u128::from(hits) * u128::from(limit.window_nanos())));
    }

    fn report_max(&self, limit: &Limit, pending: Pending) -> u64 {
        let requests = u128::from(limit.requests());
        if requests == 0 {
            return 0; // It would never drain.
        }
        let most = capacity(limit) + DEBT_WINDOWS * requests * u128::from(limit.window_nanos());
        whole_hits(limit, most.saturating_sub(self.level_after(limit, pending)))
    }

    fn refund(&mut self, limit: &Limit, hits: u64) {
        self.set_level(self.level().saturating_sub(u128::from(hits) * u128::from(limit.window_nanos())));
    }

    #[inline]
    fn wait_nanos(&self, limit: &Limit, hits: u64) -> u64 {
        if hits > u64::from(limit.burst()) || limit.requests() == 0 {
            return limit.window_nanos();
        }
        let wanted = u128::from(hits) * u128::from(limit.window_nanos());
        let too_much = (self.level() + wanted).saturating_sub(capacity(limit));
        div_ceil(too_much, u64::from(limit.requests()))
    }

    fn expires_at(&self) -> Timestamp {
        let nanos = div_ceil(self.level(), u64::from({ self.requests }.max(1)));
        if nanos == 0 { Timestamp::default() } else { { self.latest }.plus(nanos) }
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u64({ self.latest }.as_nanos());
        out.u64(self.level_low);
        out.u32(self.level_high);
        out.u32(self.requests);
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let latest = Timestamp::from_nanos(bytes.u64()?);
        let (level_low, level_high, requests) = (bytes.u64()?, bytes.u32()?, bytes.u32()?);
        let counter = Self { latest, level_low, level_high, requests };
        match (counter.level(), requests) {
            (0, _) => Err("an empty bucket"),
            (_, 0) => Err("a bucket that never drains"),
            _ => Ok(counter),
        }
    }
}

/// `burst` in units.
fn capacity(limit: &Limit) -> u128 {
    u128::from(limit.burst()) * u128::from(limit.window_nanos())
}

/// ⌊units / W⌋, of at most 2^37 hits.
#[inline]
fn whole_hits(limit: &Limit, units: u128) -> u64 {
    match u64::try_from(units) {
        Ok(units) => limit.windows_in(units),
        Err(_) => (units / u128::from(limit.window_nanos())) as u64,
    }
}

/// ⌈units / divisor⌉; saturates.
#[inline]
fn div_ceil(units: u128, divisor: u64) -> u64 {
    match u64::try_from(units) {
        Ok(units) => units.div_ceil(divisor),
        Err(_) => u64::try_from(units.div_ceil(u128::from(divisor))).unwrap_or(u64::MAX),
    }
}
