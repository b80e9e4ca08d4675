//! The clocks of the program: those of the engine, and what it takes more than the standard library to read.

#![allow(clippy::disallowed_methods, reason = "a clock is read in files of this name only")]

use std::time::{Duration, Instant};

pub use tidegate_engine::clock::{Clock, monotonic, nanos_since};

/// The time since the machine was started, that which it slept included: for what ends elsewhere too.
pub fn since_boot() -> Duration {
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(since).expect("a machine does not start in the future")
}

/// A monotonic reading as the runtime's timers have it. It differs from [`monotonic`] only in tests that stop them.
pub fn timer() -> Instant {
    tokio::time::Instant::now().into_std()
}
