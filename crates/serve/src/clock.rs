//! The clocks of a node: those of the engine, the clock of the runtime's timers, and the CPU time of the process.

#![allow(clippy::disallowed_methods, reason = "a clock is read in files of this name only")]

use std::time::Instant;

use rustix::time::{ClockId, Timespec, clock_gettime};

pub use tidegate_engine::clock::{Clock, monotonic, nanos_since, wall};

/// The time by the clock of the runtime's timers. It differs from [`monotonic`] only in tests that pause that clock.
pub fn timer() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// CPU time that all threads of the process have taken, in nanoseconds.
pub fn cpu_nanos() -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    let [seconds, nanos] = [tv_sec, tv_nsec].map(|part| u64::try_from(part).unwrap_or_default());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
