//! The clocks of a machine, by which a process starts and continues.

#![allow(clippy::disallowed_methods, reason = "a clock is read in files of this name only")]

use std::fmt::Debug;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tidegate_engine::clock::Clock;
use tidegate_engine::time::Timestamp;

/// Where the kernel says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The clocks of a machine. A simulated one has its own.
pub trait Machine: Debug + Send + Sync {
    /// A monotonic reading of this process.
    fn monotonic(&self) -> Instant;

    /// The time by the wall clock.
    fn wall(&self) -> Timestamp;

    /// Nanoseconds since the machine was booted, its sleep included: the same clock for all processes of a boot.
    fn since_boot(&self) -> u64;

    /// Which boot this is; zeros: unknown.
    fn boot_id(&self) -> [u8; 16];
}

impl dyn Machine {
    /// A clock of decisions that starts now, by the wall clock.
    pub(crate) fn start_clock(&self) -> Clock {
        // Read in this order, the clock is behind by the time between the two readings, never ahead.
        let time = self.wall();
        Clock::new(self.monotonic(), time)
    }
}

/// The machine that runs this.
#[derive(Debug)]
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn monotonic(&self) -> Instant {
        tidegate_engine::clock::monotonic()
    }

    fn wall(&self) -> Timestamp {
        tidegate_engine::clock::wall()
    }

    fn since_boot(&self) -> u64 {
        let since = Duration::try_from(clock_gettime(ClockId::Boottime));
        since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn boot_id(&self) -> [u8; 16] {
        let id = |text: String| u128::from_str_radix(&text.trim().replace('-', ""), 16).ok();
        std::fs::read_to_string(BOOT_ID).ok().and_then(id).unwrap_or_default().to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_knows_its_boot() {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux has it");
        let own: String = ThisMachine.boot_id().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(own, text.trim().replace('-', ""));
    }

    #[test]
    fn the_time_since_the_boot_is_what_linux_says() {
        let uptime = || {
            let text = std::fs::read_to_string("/proc/uptime").expect("Linux has it");
            text.split(' ').next().and_then(|secs| secs.parse::<f64>().ok()).expect("seconds")
        };
        let (before, own, after) = (uptime(), ThisMachine.since_boot() as f64 / 1e9, uptime());
        assert!(before <= own + 0.02 && own <= after + 0.02, "{before} {own} {after}");
    }
}
