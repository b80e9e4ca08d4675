//! The clocks of a node: those of the engine, and the clock of the runtime's timers.

#![allow(clippy::disallowed_methods, reason = "a clock is read in files of this name only")]

use std::time::Instant;

pub use tidegate_engine::clock::{Clock, monotonic, nanos_since, wall};

/// The time by the clock of the runtime's timers. It differs from [`monotonic`] only in tests that pause that clock.
pub fn timer() -> Instant {
    tokio::time::Instant::now().into_std()
}
