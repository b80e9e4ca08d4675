//! What a record says, and the checks that it passes: those of a rule's limit, as far as a record can be judged without its
//! rule.

use tidegate_engine::Algorithm;
use tidegate_engine::limit::{BUCKETS_MAX, FILL_NANOS_MAX, LOG_REQUESTS_MAX, WINDOW_NANOS_MAX};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_engine::unit::Unit;

/// The limit of one key. What it leaves out is as the rule says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// N. 0 if it is unlimited, where it means nothing.
    pub requests: u32,
    /// The capacity, if the limit is a bucket.
    pub burst: Option<u32>,
    /// Another window than the rule's.
    pub window: Option<Window>,
    /// Another algorithm than the rule's.
    pub algorithm: Option<Algorithm>,
    /// Another width of the buckets of `sliding_window`, in nanoseconds.
    pub granularity_nanos: Option<u64>,
    /// Count and report, never deny; or deny, although the rule does not.
    pub shadow: Option<bool>,
    /// Counted, and never denied.
    pub unlimited: bool,
}

/// A window: so many units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The unit, as in answers.
    pub unit: Unit,
    /// At least 1.
    pub multiplier: u32,
}

/// What is wrong with a record: the field, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadRecord(pub(crate) String);

pub(crate) fn bad<T>(what: impl Into<String>) -> Result<T, BadRecord> {
    Err(BadRecord(what.into()))
}

impl Window {
    /// Its length. At most 366 days if a record has it.
    pub fn nanos(self) -> u64 {
        self.unit.nanos().saturating_mul(u64::from(self.multiplier))
    }

    /// A window of this many nanoseconds, in its largest unit of second, minute, hour and day. `None`: it is no whole
    /// number of seconds, or too long.
    pub(crate) fn of_nanos(nanos: u64) -> Option<Self> {
        let units = [Unit::Day, Unit::Hour, Unit::Minute, Unit::Second];
        let unit = units.into_iter().find(|unit| nanos.is_multiple_of(unit.nanos()))?;
        Some(Self { unit, multiplier: u32::try_from(nanos / unit.nanos()).ok()? })
    }
}

impl Record {
    /// A record of N alone.
    pub fn of_requests(requests: u32) -> Self {
        Self { requests, ..Self::default() }
    }

    /// Whether it counts apart from the rule's own limit: only N, `burst` and the modes leave the counter as it is.
    pub fn has_own_counter(&self) -> bool {
        self.window.is_some() || self.algorithm.is_some() || self.granularity_nanos.is_some()
    }

    /// The record, if its parts go together.
    ///
    /// # Errors
    /// The first part that is wrong. What depends on the rule (`burst` without `algorithm`, `granularity` without a window)
    /// is not judged here.
    pub fn checked(self) -> Result<Self, BadRecord> {
        if self.unlimited {
            return self.checked_unlimited();
        }
        self.check_window()?;
        self.check_granularity()?;
        self.check_burst()?;
        if self.algorithm == Some(Algorithm::SlidingLog) && self.requests > LOG_REQUESTS_MAX {
            return bad(format!(
                "{} requests with sliding_log (expected at most {LOG_REQUESTS_MAX}, or sliding_window)",
                self.requests
            ));
        }
        Ok(self)
    }

    fn checked_unlimited(self) -> Result<Self, BadRecord> {
        let parts = [
            ("burst", self.burst.is_some()),
            ("unit", self.window.is_some()),
            ("algorithm", self.algorithm.is_some()),
            ("granularity", self.granularity_nanos.is_some()),
        ];
        match parts.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => bad(format!("`{name}` with `unlimited: true` (expected one of the two)")),
            None => Ok(Self { requests: 0, ..self }),
        }
    }

    fn check_window(&self) -> Result<(), BadRecord> {
        let Some(window) = self.window else { return Ok(()) };
        if !(1..=WINDOW_NANOS_MAX).contains(&window.nanos()) {
            let secs = window.nanos() / SECOND_NANOS;
            return bad(format!("a window of {secs} seconds (expected 1 second to 366 days)"));
        }
        Ok(())
    }

    fn check_granularity(&self) -> Result<(), BadRecord> {
        let Some(nanos) = self.granularity_nanos else { return Ok(()) };
        if let Some(algorithm) = self.algorithm.filter(|&algorithm| algorithm != Algorithm::SlidingWindow) {
            let name = algorithm.name();
            return bad(format!("`granularity` on {name} (expected `algorithm: sliding_window`)"));
        }
        let window = self.window.map(Window::nanos);
        if nanos == 0 {
            return bad("`granularity` is 0 (expected a time above 0, such as `1s` or `500ms`)");
        }
        if nanos > window.unwrap_or(WINDOW_NANOS_MAX) {
            return bad("`granularity` is too long (expected no more than the window)");
        }
        if window.is_some_and(|window| window > nanos.saturating_mul(BUCKETS_MAX)) {
            return bad(format!(
                "`granularity` is too short (expected at least 1/{BUCKETS_MAX} of the window)"
            ));
        }
        Ok(())
    }

    fn check_burst(&self) -> Result<(), BadRecord> {
        if self.burst == Some(0) {
            return bad("`burst` is 0 (expected 1 or more)");
        }
        let Some(algorithm) = self.algorithm else { return Ok(()) };
        if !algorithm.is_bucket() {
            return match self.burst {
                Some(_) => {
                    let name = algorithm.name();
                    bad(format!("`burst` on {name} (expected token_bucket or leaky_bucket)"))
                }
                None => Ok(()),
            };
        }
        let (burst, requests) = (self.burst.unwrap_or(self.requests), self.requests);
        let window = self.window.map_or(0, Window::nanos);
        let fill_nanos = u128::from(burst) * u128::from(window) / u128::from(requests.max(1));
        if requests > 0 && fill_nanos > FILL_NANOS_MAX {
            return bad(format!(
                "a `burst` of {burst} takes over 500 years to refill (expected a smaller one)"
            ));
        }
        Ok(())
    }
}
