//! Times as operators type them: `--until Monday`, `--until '2026-11-30 08:00'`, `--for 2h`.
//!
//! In: a text, and the time now in the operator's zone. Out: a time, and a text that shows it with its zone, because
//! a machine may be in another zone than its operator.

use clap::{Arg, ArgMatches};
use jiff::civil::{DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, ToSpan, ZonedDateTime};

use super::given;
use crate::settings::Problem;
use tidegate_engine::Timestamp;
use tidegate_engine::rules::{Unit, parse_duration_nanos};

const FROM: &str = "from";
const UNTIL: &str = "until";
const FOR: &str = "for";

const EXPECTED: &str =
    "such as Monday, tomorrow, 18:00, 2026-11-30, '2026-11-30 08:00' in local time, or 2026-11-30T08:00:00Z";

pub(super) fn arguments() -> [Arg; 3] {
    let time = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    [
        time(FROM, "TIME", "when it begins, as --until; without it: now"),
        time(
            UNTIL,
            "TIME",
            "when it ends: Monday, tomorrow, 18:00, 2026-11-30, '2026-11-30 08:00', or with a zone as \
              2026-11-30T08:00:00Z; else when somebody ends it",
        ),
        time(FOR, "DURATION", "how long it lasts, such as 30m, 2h, 3d; instead of --until")
            .conflicts_with(UNTIL),
    ]
}

/// When something begins and ends, as the options say, in whole seconds.
pub(super) fn given_times(own: &ArgMatches, now: Timestamp) -> Result<[Option<Timestamp>; 2], Vec<Problem>> {
    let now = local(now);
    let mut problems = Vec::new();
    let mut problem = |name: &str, what: String| {
        problems.push(Problem { name: format!("--{name}"), what });
        None
    };
    let mut time = |name: &str| {
        let text: &String = given(own, name)?;
        read(text, &now).or_else(|| problem(name, format!("{text:?} is no time (expected one {EXPECTED})")))
    };
    let (from, mut until) = (time(FROM), time(UNTIL));
    if let Some(text) = given::<String>(own, FOR) {
        let nanos = duration_nanos(text).filter(|nanos| *nanos > 0);
        let nanos = nanos.and_then(|nanos| i64::try_from(nanos).ok()).map(SignedDuration::from_nanos);
        let end = nanos.and_then(|nanos| from.as_ref().unwrap_or(&now).checked_add(nanos).ok());
        until =
            end.or_else(|| problem(FOR, format!("{text:?} is no duration (expected such as 30m, 2h, 3d)")));
    }
    // A time before 1970 is past, and so is the first second of 1970.
    let at =
        |at: ZonedDateTime| Timestamp::from_secs(at.timestamp().as_second().try_into().unwrap_or_default());
    if problems.is_empty() { Ok([from, until].map(|time| time.map(at))) } else { Err(problems) }
}

/// A time of the API, for people: `Monday 2026-11-30 00:00 CET`. A text that is no time stays as it is.
pub(super) fn shown(stamp: &str) -> String {
    let at = stamp.parse::<jiff::Timestamp>().map(|at| at.to_zoned_datetime(TimeZone::system()));
    at.map_or_else(|_| stamp.to_owned(), |at| at.strftime("%A %Y-%m-%d %H:%M:%S %Z").to_string())
}

/// A time of the API in a table: `2026-11-30 00:00:00 CET`.
pub(super) fn short(stamp: &str) -> String {
    let shown = shown(stamp);
    shown.split_once("day ").map_or(shown.clone(), |(_, rest)| rest.to_owned())
}

/// A duration as rules have it, after a number of days if there are any: `90m`, `3d`, `1d12h`.
fn duration_nanos(text: &str) -> Option<u64> {
    let Some((days, rest)) = text.split_once('d') else { return parse_duration_nanos(text) };
    let days = days.parse::<u64>().ok()?.checked_mul(Unit::Day.nanos())?;
    let rest = if rest.is_empty() { 0 } else { parse_duration_nanos(rest)? };
    days.checked_add(rest)
}

fn local(now: Timestamp) -> ZonedDateTime {
    let at = jiff::Timestamp::from_nanosecond(i128::from(now.as_nanos())).unwrap_or_default();
    at.to_zoned_datetime(TimeZone::system())
}

/// The time that a text means; for a part of a date, the next such time after now.
fn read(text: &str, now: &ZonedDateTime) -> Option<ZonedDateTime> {
    let (text, zone) = (text.trim(), now.time_zone());
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Some(at.to_zoned_datetime(zone.clone()));
    }
    if let Ok(at) = text.parse::<DateTime>() {
        return at.to_zoned_datetime(zone.clone()).ok();
    }
    if let Ok(time) = text.parse::<Time>() {
        let today = now.with().time(time).build().ok()?;
        return if today > *now { Some(today) } else { today.checked_add(1.day()).ok() };
    }
    match text.to_ascii_lowercase().as_str() {
        "tomorrow" => now.tomorrow().ok()?.start_of_day().ok(),
        word => now.nth_weekday(1, weekday(word)?).ok()?.start_of_day().ok(),
    }
}

fn weekday(word: &str) -> Option<Weekday> {
    let days = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
    let at = days.iter().position(|day| word.len() >= 3 && day.starts_with(word))?;
    Weekday::from_monday_one_offset(i8::try_from(at).ok()? + 1).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_may_have_days() {
        let hours = |text| duration_nanos(text).map(|nanos| nanos / Unit::Hour.nanos());
        assert_eq!(["2h", "3d", "1d12h"].map(hours), [Some(2), Some(72), Some(36)]);
        assert_eq!(["d", "3dd", "-1d", "3d ages", "days"].map(hours), [None; 5]);
    }

    #[test]
    fn a_part_of_a_time_is_the_next_one_in_the_local_zone() {
        // A Tuesday; the clocks of this zone go back on the following Sunday.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        let now = "2026-10-20T12:00:00Z".parse::<jiff::Timestamp>().expect("a time").to_zoned_datetime(zone);
        let read = |text: &str| read(text, &now).map(|at| at.timestamp().to_string());
        for (text, expected) in [
            ("Monday", "2026-10-25T23:00:00Z"),
            ("mon", "2026-10-25T23:00:00Z"),
            ("tuesday", "2026-10-26T23:00:00Z"),
            ("Wednesday", "2026-10-20T22:00:00Z"),
            ("tomorrow", "2026-10-20T22:00:00Z"),
            ("18:00", "2026-10-20T16:00:00Z"),
            ("13:59", "2026-10-21T11:59:00Z"),
            ("2026-10-26", "2026-10-25T23:00:00Z"),
            ("2026-10-21 08:30", "2026-10-21T06:30:00Z"),
            ("2026-10-21T08:30:00Z", "2026-10-21T08:30:00Z"),
            ("2026-10-21T08:30:00+05:00", "2026-10-21T03:30:00Z"),
        ] {
            assert_eq!(read(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "mo", "someday", "25:00", "2026-13-01", "next week", "*"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
