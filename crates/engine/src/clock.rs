//! The only reader of clocks.
//!
//! A [`Clock`] reads the wall clock once, at its start. From then on, its time is that reading plus the monotonic clock.
//! So steps of the wall clock (NTP, an operator, a leap second) do not exist for decisions: time never stands still, jumps
//! or goes back. [`wall`] reads the wall clock each time, for what is compared with times that people or other machines
//! wrote. Tests pass times of their own to the engine.

#![allow(clippy::disallowed_methods, reason = "this is the one place")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::time::Timestamp;

/// The clock of decisions. Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    unix_nanos_at_start: u64,
    started: Instant,
}

impl Clock {
    /// Reads the wall clock, once.
    pub fn start() -> Self {
        // Read in this order, the clock is behind by the time between the two readings, never ahead.
        let time = wall();
        Self::new(Instant::now(), time)
    }

    /// A clock that shows `time` at this monotonic reading: for programs with clocks of their own, such as simulations.
    pub fn new(started: Instant, time: Timestamp) -> Self {
        Self { unix_nanos_at_start: time.as_nanos(), started }
    }

    /// A clock for tests that stands still: it starts later than any test ends.
    #[doc(hidden)]
    pub fn standing() -> Self {
        Self { started: Instant::now() + Duration::from_secs(86_400), ..Self::start() }
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> Timestamp {
        self.at(monotonic())
    }

    /// The time of a monotonic reading. Readings from before the start count as the start.
    #[inline]
    pub fn at(&self, reading: Instant) -> Timestamp {
        let since_start = reading.saturating_duration_since(self.started);
        Timestamp::from_nanos(self.unix_nanos_at_start).plus(nanos(since_start))
    }
}

/// The time by the wall clock, which may jump or go back: never for decisions. A time before 1970 counts as 1970.
pub fn wall() -> Timestamp {
    Timestamp::from_nanos(nanos(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)))
}

/// A monotonic reading, for measuring how long something takes.
#[inline]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// Nanoseconds since a monotonic reading.
#[inline]
pub fn nanos_since(reading: Instant) -> u64 {
    nanos(monotonic().saturating_duration_since(reading))
}

#[inline]
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_show_the_same_time_and_never_go_back() {
        let clock = Clock::start();
        let copy = clock;
        let first = clock.now();
        let second = copy.now();
        assert!(first <= second);
        assert!(second.nanos_since(first) < 60 * crate::time::SECOND_NANOS);
    }
}
