//! The generic cell rate algorithm, on which `token_bucket` and `leaky_bucket` are built.
//!
//! A bucket has a level of at most `burst` hits and drains continuously at N hits per W. The level is kept in units: a
//! hit is W units, and a nanosecond drains N. So every N is exact, in integers, and nothing is lost to rounding.
//!
//! # When N or `burst` changes
//! The level is hits, so it needs no limit to be read: what was spent stays spent, and the capacity is the `burst` in
//! force. (Another W is another counter: W is part of its key.) Two rules say how fast the level drains:
//!
//! - **The N in force.** A counter learns of another N when it is asked. What drained since it was asked last is
//!   computed with the smaller of the two. So a bucket that nobody asks refills by neither more than the old limit nor
//!   more than the new one would allow.
//! - **What lies above `burst`** drains by the largest N since the level was last within `burst`. Nothing is admitted
//!   until it has drained, so this admits nothing more. By the N in force, a key that has spent 10,000 a day and is
//!   lowered to 100 a day would be locked for 99 days. So it is locked for less than one, as by a window.
//!
//! N = 0 changes nothing here: it admits nothing, and the bucket drains by the N before it.
//!
//! A class of importance has less room, and changes nothing else: it is admitted up to its share of `burst`, and what
//! lies above `burst` is what lies above all of it.
//!
//! - **Invariant:** `level` is the level at `latest` in units. It is at most `burst` × W, plus what drains in
//!   [`DEBT_WINDOWS`] × W where costs are reported, by the largest limit so far: less than 2^95.
//! - **Source:** ITU-T I.371, in its continuous-state leaky bucket form: the level instead of the theoretical arrival
//!   time, which is `latest` + level / N.

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending};
use crate::limit::debt::DEBT_WINDOWS;
use crate::limit::{Limit, Preview};
use crate::time::Timestamp;

/// The state: 28 bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(Rust, packed(4))]
pub(crate) struct Gcra {
    latest: Timestamp,
    level_low: u64,
    level_high: u32,
    /// The N at which the level drains: the last that was in force and not 0.
    requests: u32,
    /// The larger N at which the part above `burst` drains; 0: there is none.
    requests_above: u32,
}

/// Files contain [`Gcra::requests_above`] only if this bit of the level is set. No level is so high.
const HAS_REQUESTS_ABOVE: u32 = 1 << 31;

/// Redis counts in microseconds. Only the end of the time above `burst` is rounded to them: everything else is exact
/// in both.
const MICRO_NANOS: u64 = 1_000;

const LEVEL_MAX: u128 = (1 << 95) - 1;

impl Gcra {
    /// A counter with this state, to compute its reset time.
    pub(super) fn from_parts(latest: Timestamp, level: u128, limit: &Limit) -> Self {
        let mut counter = Self { latest, requests: requests(limit), ..Self::default() };
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

    /// Drains at another N than before, or from above `burst`, and adopts the N of the limit.
    #[cold]
    fn advance_changed(&mut self, limit: &Limit, now: Timestamp) {
        let (requests, burst) = (requests(limit), burst(limit));
        let mut nanos = now.nanos_since(self.latest);
        if requests == 0 || self.requests == 0 {
            self.drain(self.requests, nanos);
        } else {
            let above_nanos = self.above_nanos(burst);
            if nanos < above_nanos {
                self.drain(self.requests_above(), nanos);
                self.set_level(self.level().max(burst + 1));
            } else {
                if above_nanos > 0 {
                    self.set_level(burst);
                    nanos -= above_nanos;
                }
                self.drain(requests.min(self.requests), nanos);
            }
        }
        self.latest = now.max(self.latest);
        if requests > 0 {
            let largest = self.requests_above().max(requests);
            self.requests_above = if self.level() > burst && largest > requests { largest } else { 0 };
            self.requests = requests;
        }
    }

    #[inline]
    fn drain(&mut self, requests: u32, nanos: u64) {
        self.set_level(self.level().saturating_sub(u128::from(nanos) * u128::from(requests)));
    }

    /// The N at which the part above `burst` drains.
    fn requests_above(&self) -> u32 {
        self.requests.max(self.requests_above)
    }

    /// How long it takes until nothing is above this `burst`, rounded up to a microsecond.
    fn above_nanos(&self, burst: u128) -> u64 {
        let above = self.level().saturating_sub(burst);
        if above == 0 {
            return 0;
        }
        let ends = { self.latest }.plus(div_ceil(above, self.requests_above().max(1).into()));
        ends.as_nanos().div_ceil(MICRO_NANOS).saturating_mul(MICRO_NANOS) - { self.latest }.as_nanos()
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
        if self.requests != requests(limit) || self.requests_above > 0 {
            return self.advance_changed(limit, now);
        }
        let latest = self.latest;
        if now <= latest {
            return;
        }
        self.drain(self.requests, now.nanos_since(latest));
        self.latest = now;
    }

    #[inline]
    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview {
        let level = self.level_after(limit, pending);
        let capacity = units(limit, limit.capacity());
        let left = whole_hits(limit, capacity.saturating_sub(level));
        let before =
            if level > capacity { div_ceil(level, limit.window_nanos()) } else { limit.capacity() - left };
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
        let most = burst(limit) + u128::from(DEBT_WINDOWS) * requests * u128::from(limit.window_nanos());
        whole_hits(limit, most.saturating_sub(self.level_after(limit, pending)))
    }

    fn refund(&mut self, limit: &Limit, hits: u64) {
        self.set_level(self.level().saturating_sub(u128::from(hits) * u128::from(limit.window_nanos())));
        if self.level() <= burst(limit) {
            self.requests_above = 0;
        }
    }

    #[inline]
    fn wait_nanos(&self, limit: &Limit, hits: u64) -> u64 {
        if hits > limit.capacity() || limit.requests() == 0 {
            return limit.window_nanos();
        }
        let wanted = u128::from(hits) * u128::from(limit.window_nanos());
        let (burst, fits) = (burst(limit), units(limit, limit.capacity()) - wanted);
        if self.requests_above > 0 && self.level() > burst {
            // With an overdraft hits may fit while something is above `burst`.
            let below = burst.saturating_sub(fits);
            return div_ceil(below, limit.requests()).saturating_add(self.above_nanos(burst.max(fits)));
        }
        div_ceil(self.level().saturating_sub(fits), limit.requests())
    }

    /// Later than the trait says while something is above `burst`, because the counter does not know `burst`.
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
        let is_above = self.requests_above > 0;
        out.u32(self.level_high | if is_above { HAS_REQUESTS_ABOVE } else { 0 });
        out.u32(self.requests);
        if is_above {
            out.u32(self.requests_above);
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let latest = Timestamp::from_nanos(bytes.u64()?);
        let (level_low, level_high, requests) = (bytes.u64()?, bytes.u32()?, bytes.u32()?);
        let is_above = level_high & HAS_REQUESTS_ABOVE > 0;
        let requests_above = if is_above { bytes.u32()? } else { 0 };
        let level_high = level_high & !HAS_REQUESTS_ABOVE;
        let counter = Self { latest, level_low, level_high, requests, requests_above };
        match (counter.level(), requests) {
            (0, _) => Err("an empty bucket"),
            (_, 0) => Err("a bucket that never drains"),
            _ if is_above && requests_above <= requests => Err("a bucket that drains slower above its burst"),
            _ => Ok(counter),
        }
    }

    fn invariants(&self, _limit: &Limit) -> Result<(), &'static str> {
        let requests_above = self.requests_above;
        let is_larger = requests_above == 0 || requests_above > self.requests;
        if is_larger { Ok(()) } else { Err("what is above burst drains slower than the rest") }
    }
}

/// N, which takes 32 bits in the limits of buckets.
#[inline]
fn requests(limit: &Limit) -> u32 {
    limit.requests() as u32
}

/// `burst` in units.
fn burst(limit: &Limit) -> u128 {
    units(limit, limit.burst())
}

/// Hits in units.
#[inline]
fn units(limit: &Limit, hits: u64) -> u128 {
    u128::from(hits) * u128::from(limit.window_nanos())
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
