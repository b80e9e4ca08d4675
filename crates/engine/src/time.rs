//! Points in time, as the engine sees them: whole nanoseconds of unix time, passed in by the caller.

/// Nanoseconds in one second.
pub const SECOND_NANOS: u64 = 1_000_000_000;

/// A point in time: whole nanoseconds since the unix epoch (good until the year 2554).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last moment that a timestamp can hold.
    pub const MAX: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the unix epoch.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment `seconds` seconds after the unix epoch; saturates.
    #[inline]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(SECOND_NANOS))
    }

    /// Nanoseconds since the unix epoch.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment plus `nanos` nanoseconds; saturates.
    #[must_use]
    #[inline]
    pub const fn plus(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds from `earlier` to this moment; 0 when `earlier` is not earlier.
    #[inline]
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A duration in whole seconds, rounded up: a client that waits for it never waits too short a time.
#[inline]
pub const fn ceil_secs(nanos: u64) -> u64 {
    nanos.div_ceil(SECOND_NANOS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        assert_eq!([0, 1, SECOND_NANOS, SECOND_NANOS + 1].map(ceil_secs), [0, 1, 1, 2]);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::MAX.plus(1), Timestamp::MAX);
        assert_eq!(Timestamp::from_secs(1).nanos_since(Timestamp::from_secs(2)), 0);
    }
}
