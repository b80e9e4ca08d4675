//! Windows as people write them: so many of a unit.

mod anchor;

pub use anchor::{Anchor, AnchorKind, WEEKDAYS};

use std::fmt;

use crate::named;
use crate::time::SECOND_NANOS;

named! {
    /// The unit of a window, with the numbers of `envoy.service.ratelimit.v3`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[allow(missing_docs)]
    pub enum Unit {
        Second(1) = "second",
        Minute(2) = "minute",
        Hour(3) = "hour",
        Day(4) = "day",
        Week(7) = "week",
        /// 30 days.
        Month(5) = "month",
        /// 365 days.
        Year(6) = "year",
    }
}

named! {
    /// What the periods of a calendar budget are called in rule files.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[allow(missing_docs)]
    pub enum CalendarUnit {
        Day = "day",
        Week = "week",
        Month = "month",
        Quarter = "quarter",
        Year = "year",
    }
}

/// A window: so many of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The unit, as in answers.
    pub unit: Unit,
    /// How many of it; at least 1.
    pub multiplier: u32,
}

impl Window {
    /// One of this unit.
    pub const fn of(unit: Unit) -> Self {
        Self { unit, multiplier: 1 }
    }

    /// The window of this many nanoseconds, in its largest unit of second, minute, hour and day. `None`: it is no whole
    /// number of seconds, too long, or 0.
    pub fn of_nanos(nanos: u64) -> Option<Self> {
        if nanos == 0 {
            return None;
        }
        let units = [Unit::Day, Unit::Hour, Unit::Minute, Unit::Second];
        let unit = units.into_iter().find(|unit| nanos.is_multiple_of(unit.nanos()))?;
        Some(Self { unit, multiplier: u32::try_from(nanos / unit.nanos()).ok()? })
    }

    /// Its length in nanoseconds, or `u64::MAX` if it is longer than that.
    pub const fn nanos(self) -> u64 {
        self.unit.nanos().saturating_mul(self.multiplier as u64)
    }
}

/// `minute`, `5 minutes`.
impl fmt::Display for Window {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.multiplier {
            1 => out.write_str(self.unit.name()),
            several => write!(out, "{several} {}s", self.unit.name()),
        }
    }
}

impl CalendarUnit {
    /// Its window in answers, for which Envoy has no quarter.
    pub const fn window(self) -> Window {
        match self {
            Self::Day => Window::of(Unit::Day),
            Self::Week => Window::of(Unit::Week),
            Self::Month => Window::of(Unit::Month),
            Self::Quarter => Window { unit: Unit::Month, multiplier: 3 },
            Self::Year => Window::of(Unit::Year),
        }
    }

    /// The length of a long one in nanoseconds. A day on which clocks go back is longer.
    pub const fn nanos_max(self) -> u64 {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 31,
            Self::Quarter => 92,
            Self::Year => 366,
        };
        days * Unit::Day.nanos()
    }
}

impl Unit {
    /// The unit with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|&unit| unit as u64 == number)
    }

    /// The unit of this name, in any letter case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// Its length in nanoseconds.
    pub const fn nanos(self) -> u64 {
        const DAY: u64 = 86_400 * SECOND_NANOS;
        match self {
            Self::Second => SECOND_NANOS,
            Self::Minute => 60 * SECOND_NANOS,
            Self::Hour => 3_600 * SECOND_NANOS,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        }
    }
}
