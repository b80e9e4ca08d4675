//! The clocks of the program: those of the engine, and the one that its runtime's timers go by.

#![allow(clippy::disallowed_methods, reason = "a clock is read in files of this name only")]

use std::time::Instant;

pub use tidegate_engine::clock::{Clock, monotonic, nanos_since};

/// A monotonic reading as the runtime's timers have it. It differs from [`monotonic`] only in tests that stop them.
pub fn timer() -> Instant {
    tokio::time::Instant::now().into_std()
}
