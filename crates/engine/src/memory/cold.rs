//! A store that lost its counters denies until it cannot admit too much: for each limit, until the process is as old
//! as the lost hits could have counted.
//!
//! In: a limit and a time. Out: for how long its counters still count as full. Limits with long windows are exempt, and
//! so are calendar budgets: denying all hits for a month helps nobody. A ban that was lost is over.

use crate::limit::{Algorithm, Limit, Preview, Verdict};
use crate::memory::shard::Prepared;
use crate::plan::{Check, Hits};
use crate::time::Timestamp;

/// Since when counters count as full, and for which limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cold {
    since: Timestamp,
    /// When it is over for every limit.
    until: Timestamp,
}

impl Cold {
    /// No counter counts as full.
    pub const NEVER: Self = Self { since: Timestamp::from_nanos(0), until: Timestamp::from_nanos(0) };

    /// Every counter was lost at `since`. Limits with windows longer than `window_nanos_max` are exempt.
    pub fn since(since: Timestamp, window_nanos_max: u64) -> Self {
        Self { since, until: since.plus(window_nanos_max) }
    }

    /// When it is over for every limit.
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// For how many more nanoseconds a window of this length is cold at `now`; 0: it is not.
    #[inline]
    pub fn nanos_left(&self, window_nanos: u64, now: Timestamp) -> u64 {
        if now >= self.until || window_nanos > self.until.nanos_since(self.since) {
            return 0;
        }
        self.since.plus(window_nanos).nanos_since(now)
    }

    /// The same for the counters of a limit.
    #[inline]
    pub fn nanos_left_of(&self, limit: &Limit, now: Timestamp) -> u64 {
        if now >= self.until || matches!(limit.algorithm(), Algorithm::Calendar | Algorithm::Ban) {
            return 0;
        }
        self.nanos_left(limit.remembered_nanos(), now)
    }
}

impl Prepared {
    /// Makes the counter full, whatever it contains, if it is cold for so many more nanoseconds.
    #[inline]
    pub(super) fn while_cold(self, check: &Check<'_>, cold_nanos: u64) -> Self {
        if cold_nanos == 0 { self } else { Self { preview: full(check), cold_nanos, ..self } }
    }

    /// The verdict of a counter that is cold, or else this one.
    #[inline]
    pub(super) fn verdict_if_warm(&self, verdict: Verdict) -> Verdict {
        match self.cold_nanos {
            0 => verdict,
            cold => Verdict { remaining: 0, reset_nanos: cold, is_counted: false, ..verdict },
        }
    }
}

/// The verdict of a full counter.
fn full(check: &Check<'_>) -> Preview {
    let over = match check.hits {
        Hits::GiveBack(_) => false,
        Hits::Take(hits) => hits > 0 || check.denied || check.limit.algorithm() != Algorithm::FixedWindow,
    };
    Preview { over, left: 0, before: check.limit.capacity() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SECOND_NANOS;

    const HOUR: u64 = 3_600 * SECOND_NANOS;

    fn seconds_left(cold: &Cold, limit: &Limit, at: u64) -> u64 {
        cold.nanos_left_of(limit, Timestamp::from_secs(at)) / SECOND_NANOS
    }

    #[test]
    fn a_limit_is_cold_for_its_window_and_long_ones_are_exempt() {
        let cold = Cold::since(Timestamp::from_secs(1_000), HOUR);
        let limit = |seconds| Limit::new(Algorithm::SlidingWindow, 5, seconds * SECOND_NANOS);
        assert_eq!(
            [1_000, 1_001, 1_059, 1_060, 5_000].map(|at| seconds_left(&cold, &limit(60), at)),
            [60, 59, 1, 0, 0]
        );
        assert_eq!(seconds_left(&cold, &limit(3_600), 1_000), 3_600);
        assert_eq!(seconds_left(&cold, &limit(3_601), 1_000), 0);
        assert_eq!(seconds_left(&Cold::NEVER, &limit(60), 0), 0);
    }

    #[test]
    fn a_bucket_is_cold_until_a_full_one_would_have_drained() {
        let cold = Cold::since(Timestamp::from_secs(1_000), HOUR);
        let bucket = |requests| Limit::new(Algorithm::TokenBucket, requests, 60 * SECOND_NANOS);
        assert_eq!(seconds_left(&cold, &bucket(5), 1_000), 60);
        assert_eq!(seconds_left(&cold, &bucket(5).with_burst(50), 1_000), 600);
        assert_eq!(seconds_left(&cold, &bucket(5).with_burst(1), 1_000), 60);
        assert_eq!(seconds_left(&cold, &bucket(0), 1_000), 60);
    }
}
