//! The timestamps of a log: text in a format of `strftime` ↔ points in time.
//!
//! In: a format (`%d/%b/%Y:%H:%M:%S %z`) once, then the timestamp of each line. Out: nanoseconds of unix time.
//! Formats are those of Envoy (which has `%3f` and `%E3S`) and of web servers. A timestamp without a zone is UTC.

use std::fmt;

use crate::time::{SECOND_NANOS, Timestamp};

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// The timestamp of Apache's and NGINX's logs: `17/May/2015:10:05:03 +0000`.
pub const COMMON: &str = "%d/%b/%Y:%H:%M:%S %z";
/// RFC 3339, with or without a fraction: `2015-05-17T10:05:03.250Z`.
pub const RFC_3339: &str = "%Y-%m-%dT%H:%M:%E*S%z";
/// Seconds since the epoch, with or without a fraction.
pub const EPOCH: &str = "%s%E*f";

/// A format of timestamps, compiled.
#[derive(Clone, Debug)]
pub struct StampFormat(Vec<Item>);

#[derive(Clone, Copy, Debug)]
enum Item {
    Literal(u8),
    Number(Part, u8),
    MonthName,
    /// At most this many digits after the point.
    Fraction(u8),
    /// A point and digits, or nothing.
    PointAndFraction,
    Epoch,
    Zone,
}

#[derive(Clone, Copy, Debug)]
enum Part {
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
}

/// The conversion that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownConversion(String);

impl fmt::Display for UnknownConversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = "%Y %m %b %d %e %H %M %S %T %F %s %f %3f %E3S %E*S %z %Z %%";
        write!(f, "`{}` is not supported in a format of timestamps (expected one of {expected})", self.0)
    }
}

impl std::error::Error for UnknownConversion {}

/// The parts of a timestamp.
#[derive(Clone, Copy, Debug)]
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    seconds: i64,
    nanos: i64,
    epoch: Option<i64>,
}

impl StampFormat {
    /// Compiles a format.
    pub fn parse(text: &str) -> Result<Self, UnknownConversion> {
        let mut items = Vec::new();
        let mut rest = text;
        while let Some(char) = rest.chars().next() {
            rest = &rest[char.len_utf8()..];
            if char != '%' {
                let mut bytes = [0; 4];
                items.extend(char.encode_utf8(&mut bytes).bytes().map(Item::Literal));
                continue;
            }
            let letter =
                rest.find(|char: char| char.is_ascii_alphabetic() && char != 'E').unwrap_or(rest.len());
            let end = rest[letter..].chars().next().map_or(rest.len(), |char| letter + char.len_utf8());
            // `%%` has no letter of its own.
            let end = if rest.starts_with('%') { 1 } else { end };
            let (conversion, after) = rest.split_at(end);
            convert(conversion, &mut items).ok_or_else(|| UnknownConversion(format!("%{conversion}")))?;
            rest = after;
        }
        Ok(Self(items))
    }

    /// The time of a timestamp; `None`: it does not have this format, or is before 1970 or after 2554.
    pub fn read(&self, mut text: &[u8]) -> Option<Timestamp> {
        let mut parts = Parts { year: 1970, month: 1, day: 1, seconds: 0, nanos: 0, epoch: None };
        for item in &self.0 {
            text = item.read(text, &mut parts)?;
        }
        if text.is_empty() { parts.time() } else { None }
    }
}

/// Adds the items of one conversion, without its `%`.
fn convert(conversion: &str, items: &mut Vec<Item>) -> Option<()> {
    use Part::{Day, Hour, Minute, Month, Second, Year};
    let (date, time) = ([(Year, 4), (Month, 2), (Day, 2)], [(Hour, 2), (Minute, 2), (Second, 2)]);
    let mut joined = |parts: [(Part, u8); 3], by: u8| {
        for (at, (part, digits)) in parts.into_iter().enumerate() {
            items.extend((at > 0).then_some(Item::Literal(by)));
            items.push(Item::Number(part, digits));
        }
    };
    match conversion {
        "F" => joined(date, b'-'),
        "T" => joined(time, b':'),
        "E*S" => items.extend([Item::Number(Second, 2), Item::PointAndFraction]),
        "E*f" => items.push(Item::PointAndFraction),
        "f" => items.push(Item::Fraction(9)),
        "b" | "h" => items.push(Item::MonthName),
        "s" => items.push(Item::Epoch),
        "z" | "Ez" | "Z" => items.push(Item::Zone),
        "%" => items.push(Item::Literal(b'%')),
        "Y" => items.push(Item::Number(Year, 4)),
        "m" => items.push(Item::Number(Month, 2)),
        "d" | "e" => items.push(Item::Number(Day, 2)),
        "H" => items.push(Item::Number(Hour, 2)),
        "M" => items.push(Item::Number(Minute, 2)),
        "S" => items.push(Item::Number(Second, 2)),
        other => {
            let (digits, is_seconds) = match other.strip_suffix('f') {
                Some(digits) => (digits, false),
                None => (other.strip_prefix('E')?.strip_suffix('S')?, true),
            };
            let digits = digits.parse().ok().filter(|digits| (1..=9).contains(digits))?;
            if is_seconds {
                items.extend([Item::Number(Second, 2), Item::Literal(b'.')]);
            }
            items.push(Item::Fraction(digits));
        }
    }
    Some(())
}

impl Item {
    /// Reads this item from the start of `text`. Returns the rest.
    #[inline]
    fn read<'t>(self, text: &'t [u8], parts: &mut Parts) -> Option<&'t [u8]> {
        match self {
            Self::Literal(byte) => {
                text.split_first().filter(|(first, _)| **first == byte).map(|(_, rest)| rest)
            }
            Self::Number(part, digits) => {
                let (number, rest) = number(text, digits.into())?;
                let most = match part {
                    Part::Year => i64::MAX,
                    Part::Month => 12,
                    Part::Day => 31,
                    Part::Hour => 23,
                    Part::Minute => 59,
                    // A leap second.
                    Part::Second => 60,
                };
                match part {
                    Part::Year => parts.year = number,
                    Part::Month => parts.month = number,
                    Part::Day => parts.day = number,
                    Part::Hour => parts.seconds += number * 3_600,
                    Part::Minute => parts.seconds += number * 60,
                    Part::Second => parts.seconds += number,
                }
                (number <= most).then_some(rest)
            }
            Self::MonthName => {
                let (name, rest) = text.split_first_chunk::<3>()?;
                parts.month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
                Some(rest)
            }
            Self::Fraction(digits) => fraction(text, digits.into(), parts),
            Self::PointAndFraction => match text.split_first() {
                Some((b'.' | b',', digits)) => fraction(digits, 9, parts),
                _ => Some(text),
            },
            Self::Epoch => {
                let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
                let (number, rest) = number(text, digits.clamp(1, 12))?;
                parts.epoch = Some(number);
                Some(rest)
            }
            Self::Zone => zone(text, parts),
        }
    }
}

/// A number of exactly so many digits. A blank may stand for a zero at its start (`%e`).
#[inline]
fn number(text: &[u8], digits: usize) -> Option<(i64, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let mut value = 0;
    for (at, &byte) in number.iter().enumerate() {
        let digit = if byte == b' ' && at == 0 && digits == 2 { 0 } else { byte.wrapping_sub(b'0') };
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some((value, rest))
}

fn fraction<'t>(text: &'t [u8], digits_max: usize, parts: &mut Parts) -> Option<&'t [u8]> {
    let digits = text.iter().take(digits_max).take_while(|byte| byte.is_ascii_digit()).count();
    let (value, rest) = number(text, digits).filter(|_| digits > 0)?;
    parts.nanos = value * 10_i64.pow(9 - digits as u32);
    Some(rest)
}

/// `+0200`, `+02:00`, or letters, which mean UTC.
fn zone<'t>(text: &'t [u8], parts: &mut Parts) -> Option<&'t [u8]> {
    let (&sign, rest) = text.split_first()?;
    let sign = match sign {
        b'+' => 1,
        b'-' => -1,
        _ => {
            let letters = text.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
            return matches!(&text[..letters], b"Z" | b"UTC" | b"GMT").then_some(&text[letters..]);
        }
    };
    let (hours, rest) = number(rest, 2)?;
    let (minutes, rest) = number(rest.strip_prefix(b":").unwrap_or(rest), 2)?;
    parts.seconds -= sign * (hours * 3_600 + minutes * 60);
    Some(rest)
}

impl Parts {
    fn time(self) -> Option<Timestamp> {
        let day = days_from_civil(self.year, self.month, self.day);
        if self.month < 1 || civil_from_days(day) != (self.year, self.month, self.day) {
            return None;
        }
        let seconds = self.epoch.unwrap_or(day * 86_400 + self.seconds);
        let nanos = u64::try_from(seconds).ok()?.checked_mul(SECOND_NANOS)?;
        nanos.checked_add(self.nanos as u64).map(Timestamp::from_nanos)
    }
}

/// Days since 1970-01-01 of a date of the Gregorian calendar. Years are counted from March, so that a leap day is last.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The year, month and day of that many days since 1970-01-01.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Reads a time as [`show`] writes it, or in any other zone: RFC 3339.
pub fn rfc_3339(text: &str) -> Option<Timestamp> {
    StampFormat::parse(RFC_3339).ok()?.read(text.as_bytes())
}

/// A time for people and programs: `2015-05-17T10:05:03Z`, with a fraction if it has one.
pub fn show(at: Timestamp) -> String {
    let (seconds, nanos) = (at.as_nanos() / SECOND_NANOS, at.as_nanos() % SECOND_NANOS);
    let (year, month, day) = civil_from_days((seconds / 86_400) as i64);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let fraction = if nanos == 0 { String::new() } else { format!(".{nanos:09}") };
    let fraction = fraction.trim_end_matches('0');
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(format: &str, text: &str) -> Option<String> {
        StampFormat::parse(format).expect("known").read(text.as_bytes()).map(show)
    }

    #[test]
    fn every_format_reads_the_same_moment() {
        for (format, text) in [
            (COMMON, "17/May/2015:10:05:03 +0000"),
            (COMMON, "17/May/2015:12:35:03 +0230"),
            (COMMON, "16/May/2015:23:05:03 -1100"),
            (RFC_3339, "2015-05-17T10:05:03Z"),
            (RFC_3339, "2015-05-17T12:05:03+02:00"),
            ("%Y-%m-%dT%H:%M:%E3SZ", "2015-05-17T10:05:03.000Z"),
            ("%Y/%m/%dT%T %Z", "2015/05/17T10:05:03 UTC"),
            ("%e %b %Y %T", "17 May 2015 10:05:03"),
            (EPOCH, "1431857103"),
            ("%s.%3f", "1431857103.000"),
        ] {
            assert_eq!(read(format, text).as_deref(), Some("2015-05-17T10:05:03Z"), "{format} {text}");
        }
        assert_eq!(read(EPOCH, "1431857103.25").as_deref(), Some("2015-05-17T10:05:03.25Z"));
        assert_eq!(read("%s.%3f", "1431857103.007").as_deref(), Some("2015-05-17T10:05:03.007Z"));
        assert_eq!(read("%F %T.%f", "2016-02-29 00:00:00.1").as_deref(), Some("2016-02-29T00:00:00.1Z"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "17/May/2015:10:05:03",
            "17/May/2015:10:05:03 +0000 ",
            "17/may/2015:10:05:03 +0000",
            "30/Feb/2015:10:05:03 +0000",
            "00/May/2015:10:05:03 +0000",
            "17/May/2015:24:05:03 +0000",
            "17/May/2015:10:60:03 +0000",
            "17/May/1969:10:05:03 +0000",
            "17/May/9999:10:05:03 +0000",
        ] {
            assert_eq!(read(COMMON, text), None, "{text}");
        }
        assert_eq!(StampFormat::parse("%Y %Q").unwrap_err().0, "%Q");
        assert_eq!(StampFormat::parse("%").unwrap_err().0, "%");
        assert_eq!(read(EPOCH, "99999999999999999"), None);
    }

    #[test]
    fn dates_and_days_agree_over_800_years() {
        let mut expected = days_from_civil(1970, 1, 1);
        assert_eq!(expected, 0);
        for year in 1970..2770 {
            for month in 1..=12 {
                let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
                let days = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
                for day in 1..=days[month as usize - 1] {
                    assert_eq!(days_from_civil(year, month, day), expected);
                    assert_eq!(civil_from_days(expected), (year, month, day));
                    expected += 1;
                }
            }
        }
    }
}
