//! Durations.

use std::time::Duration;

use crate::settings::value::Value;
use tidegate_engine::rules::parse_duration_nanos;

impl Value for Duration {
    const NAME: &'static str = "DURATION";
    const EXPECTED: &'static str = "a duration (expected Go's form: 10s, 150ms, 1m30s, 1.5h; units ns us µs ms s m h; a bare number only as 0)";

    fn parse(text: &str) -> Option<Self> {
        parse_duration_nanos(text).map(Self::from_nanos)
    }
}

/// The time between rounds, which go on for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush(pub Duration);

impl Value for Flush {
    const NAME: &'static str = "DURATION";
    const EXPECTED: &'static str =
        "an interval (expected a duration in Go's form of at least 100ms, such as 10s)";

    fn parse(text: &str) -> Option<Self> {
        Duration::parse(text).filter(|interval| *interval >= Duration::from_millis(100)).map(Self)
    }
}

/// How long a thread looks for work before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinTime(pub Duration);

impl Value for SpinTime {
    const NAME: &'static str = "DURATION";
    const EXPECTED: &'static str =
        "a time to spin (expected a duration in Go's form of at most 1ms, such as 50us; or 0)";

    fn parse(text: &str) -> Option<Self> {
        Duration::parse(text).filter(|time| *time <= Duration::from_millis(1)).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        let millis = |text| Duration::parse(text).map(|duration| duration.as_millis());
        assert_eq!(millis("10s"), Some(10_000));
        assert_eq!(millis("1m30s"), Some(90_000));
        assert_eq!(millis("1.5h"), Some(5_400_000));
        assert_eq!(millis("150us"), Some(0));
        assert_eq!(millis("100ms"), Some(100));
        assert_eq!(millis("0"), Some(0));
        for bad in ["", "10", "s", "-1s", "1x", "1s 2s", "+", "1..5s", "99999999999999999999h"] {
            assert_eq!(millis(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_thread_spins_for_a_millisecond_at_most() {
        assert_eq!(SpinTime::parse("50us"), Some(SpinTime(Duration::from_micros(50))));
        assert!(SpinTime::parse("0").is_some() && SpinTime::parse("1ms").is_some());
        assert!(SpinTime::parse("2ms").is_none() && SpinTime::parse("50").is_none());
    }

    #[test]
    fn a_flush_takes_its_time() {
        assert!(Flush::parse("0").is_none() && Flush::parse("99ms").is_none());
        assert!(Flush::parse("100ms").is_some());
    }
}
