//! When and where a state was written, and how the clock of decisions continues from there.
//!
//! The clock of decisions starts with a wall clock and then runs by itself. A counter counts correctly only under the
//! clock that it was made with, or a clock that is behind it. On the same boot of the same machine that clock
//! continues exactly, by the time since the boot. Elsewhere only wall clocks are known: they are assumed to differ by
//! at most STATE_SKEW, and the clock continues that much behind.

use std::time::Duration;

use crate::clock::Machine;
use crate::outcome::Distrust;
use tidegate_engine::clock::Clock;
use tidegate_engine::time::Timestamp;

/// One moment, by every clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The boot of the machine; zeros: unknown.
    pub boot_id: [u8; 16],
    /// Since that boot, in nanoseconds.
    pub boot_nanos: u64,
    /// By the clock of decisions.
    pub clock: Timestamp,
    /// By the wall clock.
    pub wall: Timestamp,
}

impl Moment {
    /// Now on this machine, for a process with this clock of decisions.
    pub fn now(machine: &dyn Machine, clock: &Clock) -> Self {
        // In this order the clock that continues is behind by the time between two readings, never ahead.
        let clock = clock.at(machine.monotonic());
        let wall = machine.wall();
        Self { boot_id: machine.boot_id(), boot_nanos: machine.since_boot(), clock, wall }
    }

    /// Whether `now` is on the same boot of the same machine.
    pub fn is_same_boot(&self, now: &Self) -> bool {
        self.boot_id == now.boot_id && self.boot_id != [0; 16] && self.boot_nanos <= now.boot_nanos
    }

    /// # Errors
    /// When this was written later than `now` by more than `skew`, according to the wall clocks.
    pub(super) fn check_past(&self, now: &Self, skew: Duration) -> Result<(), Distrust> {
        let ahead = Duration::from_nanos(self.wall.nanos_since(now.wall));
        if self.is_same_boot(now) || ahead <= skew { Ok(()) } else { Err(Distrust::Ahead(ahead)) }
    }

    /// The time of the clock of decisions at `now` if it continues from this moment. Never before `newest`, the time
    /// at which the last counter was copied, because a new process is later than that.
    pub(super) fn goes_on(&self, now: &Self, newest: Timestamp, skew: Duration) -> Timestamp {
        let clock = i128::from(self.clock.as_nanos());
        let nanos = match self.is_same_boot(now) {
            true => clock + i128::from(now.boot_nanos - self.boot_nanos),
            false => {
                let between = i128::from(now.wall.as_nanos()) - i128::from(self.wall.as_nanos());
                clock + between - skew.as_nanos().min(i128::MAX as u128) as i128
            }
        };
        Timestamp::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX)).max(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::time::SECOND_NANOS;

    const SKEW: Duration = Duration::from_secs(2);

    fn moment(boot: u8, boot_secs: u64, clock: u64, wall: u64) -> Moment {
        let [clock, wall] = [clock, wall].map(Timestamp::from_secs);
        Moment { boot_id: [boot; 16], boot_nanos: boot_secs * SECOND_NANOS, clock, wall }
    }

    fn goes_on(written: &Moment, now: &Moment, newest: u64) -> u64 {
        written.goes_on(now, Timestamp::from_secs(newest), SKEW).as_nanos() / SECOND_NANOS
    }

    #[test]
    fn on_the_same_boot_the_clock_goes_on_whatever_the_wall_clock_did() {
        let written = moment(1, 100, 5_000, 5_007);
        for wall in [0, 4_000, 5_017, 900_000] {
            let now = moment(1, 110, 0, wall);
            assert_eq!(goes_on(&written, &now, 5_000), 5_010);
            assert!(written.check_past(&now, SKEW).is_ok());
        }
    }

    #[test]
    fn elsewhere_it_goes_on_by_the_wall_clock_and_the_skew_behind() {
        let written = moment(1, 100, 5_000, 5_007);
        for now in [moment(2, 500, 0, 5_017), moment(1, 99, 0, 5_017), moment(0, 110, 0, 5_017)] {
            assert_eq!(goes_on(&written, &now, 5_000), 5_008);
        }
        let unknown = moment(0, 100, 5_000, 5_007);
        assert_eq!(goes_on(&unknown, &moment(0, 110, 0, 5_027), 5_000), 5_018, "perhaps another boot");
        let soon = moment(2, 500, 0, 5_006);
        assert_eq!(
            goes_on(&written, &soon, 5_000),
            5_000,
            "no process begins before the one before has ended"
        );
        assert!(goes_on(&moment(0, 0, 0, 0), &moment(0, 0, 0, 0), 0) == 0);
    }

    #[test]
    fn what_lies_ahead_by_more_than_the_skew_is_refused() {
        let written = moment(1, 100, 5_000, 5_007);
        assert!(written.check_past(&moment(2, 0, 0, 5_005), SKEW).is_ok());
        let outcome = written.check_past(&moment(2, 0, 0, 5_004), SKEW).expect_err("3 s ahead").outcome();
        assert_eq!(outcome.name(), "ahead");
    }
}
