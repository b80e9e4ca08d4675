//! The clocks of the machine, for the runtime of production: the engine's clock, and one that also runs while the
//! machine sleeps.

#![allow(clippy::disallowed_methods, reason = "a clock is read in files of this name only")]

use std::time::Duration;

pub(crate) use tidegate_engine::clock::{monotonic, wall};

/// The time since the machine started, including the time that it slept. Leases end by it, because Redis keeps
/// counting while this machine sleeps.
pub(crate) fn since_boot() -> Duration {
    let since = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(since).expect("a machine does not start in the future")
}
