//! The clocks of the program: those of a node, and the time since the boot.

#![allow(clippy::disallowed_methods, reason = "a clock is read in files of this name only")]

use rustix::time::{ClockId, clock_gettime};

use tidegate_serve::clock::nanos;
pub use tidegate_serve::clock::{Clock, monotonic, nanos_since, timer, wall};

/// Nanoseconds since the machine was booted, its sleep included: the same clock for all processes of a boot.
pub fn since_boot() -> u64 {
    nanos(clock_gettime(ClockId::Boottime))
}
