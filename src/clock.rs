//! The clocks of the program: those of a node, the CPU time of the process, and the time since the boot.

#![allow(clippy::disallowed_methods, reason = "a clock is read in files of this name only")]

use rustix::time::{ClockId, Timespec, clock_gettime};

pub use tidegate_serve::clock::{Clock, monotonic, nanos_since, timer, wall};

/// CPU time that all threads of the process have taken, in nanoseconds.
pub fn cpu_nanos() -> u64 {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// Nanoseconds since the machine was booted, its sleep included: the same clock for all processes of a boot.
pub fn since_boot() -> u64 {
    nanos(clock_gettime(ClockId::Boottime))
}

fn nanos(Timespec { tv_sec, tv_nsec }: Timespec) -> u64 {
    let [seconds, nanos] = [tv_sec, tv_nsec].map(|part| u64::try_from(part).unwrap_or_default());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
