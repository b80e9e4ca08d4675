//! The time at which a counter expires, in four bytes.
//!
//! A sweep does not know the limit, so the time is noted when hits are charged. It is rounded up to whole ticks of
//! 2^26 ns (67 ms) and kept modulo 2^32 ticks. The counter's latest time, which every state holds anyway, says which
//! of the possible times is meant: the one within 4.5 years. Windows are at most a year long, and hits count for at
//! most two of them.

use crate::time::Timestamp;

const TICK_BITS: u32 = 26;

/// The time at which a counter expires. To read it, the counter's latest time is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Expiry(u32);

impl Expiry {
    /// This time, rounded up to a whole tick.
    pub(crate) fn at(time: Timestamp) -> Self {
        Self(time.as_nanos().div_ceil(1 << TICK_BITS) as u32)
    }

    /// As a number that [`from_bits`](Self::from_bits) takes back.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The time, given the counter's latest time.
    pub(crate) fn time(self, latest: Timestamp) -> Timestamp {
        let tick = latest.as_nanos() >> TICK_BITS;
        let ahead = self.0.wrapping_sub(tick as u32) as i32;
        let nanos = u128::from(tick.saturating_add_signed(i64::from(ahead))) << TICK_BITS;
        Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_back_rounded_up_to_a_tick() {
        for latest in [0, 1, 1_790_000_000_000_000_000, u64::MAX - (1 << 60)] {
            for after in [0, 1, 1 << 26, 63_244_800_000_000_000] {
                let until = Timestamp::from_nanos(latest + after);
                let read = Expiry::at(until).time(Timestamp::from_nanos(latest));
                assert!(read >= until && read.nanos_since(until) < 1 << 26, "{latest} + {after}: {read:?}");
            }
        }
    }

    #[test]
    fn a_time_that_is_over_is_read_back_too() {
        let until = Timestamp::from_secs(1_000_000);
        let read = Expiry::at(until).time(Timestamp::from_secs(1_000_000 + 86_400 * 366));
        assert!(read >= until && read.nanos_since(until) < 1 << 26);
    }

    #[test]
    fn the_end_of_time_does_not_overflow() {
        assert_eq!(Expiry::at(Timestamp::MAX).time(Timestamp::MAX), Timestamp::MAX);
    }
}
