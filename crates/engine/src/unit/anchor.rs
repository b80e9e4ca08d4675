//! Anchors: where the periods of a calendar begin, as rules and records write it.
//!
//! In: a text, or a number that a store kept. Out: an anchor. Each has a number, so a record can keep it in two bytes.

use std::fmt;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;

use super::CalendarUnit;

/// A day of the month, a weekday, or a date of the year.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor(NonZeroU16);

/// What an anchor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnchorKind {
    /// Of the month, from 1: its last day, if the month is shorter.
    Day(u8),
    /// From 1, which is Monday.
    Weekday(u8),
    /// Of the year. The 29th of February is the 28th in other years.
    #[allow(missing_docs)]
    Date { month: u8, day: u8 },
}

/// The weekdays, by their names in rule files.
pub const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// The days of each month of a leap year.
const MONTHS: [u16; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

const DAYS: RangeInclusive<u16> = 1..=31;
const FIRST_WEEKDAY: u16 = *DAYS.end() + 1;
const FIRST_DATE: u16 = FIRST_WEEKDAY + WEEKDAYS.len() as u16;
const LAST: u16 = FIRST_DATE + 365;

impl Anchor {
    /// What an error says that was expected of an anchor for any calendar.
    pub const EXPECTED: &str =
        "expected a day of the month from 1 to 31, a weekday such as `sunday`, or a date such as `04-06`";

    /// The anchor with this number.
    pub fn numbered(number: u16) -> Option<Self> {
        NonZeroU16::new(number).filter(|number| number.get() <= LAST).map(Self)
    }

    /// A day of the month, from 1 to 31.
    pub fn day(day: u16) -> Option<Self> {
        Self::numbered(day).filter(|_| DAYS.contains(&day))
    }

    /// The weekday of this name, in any letter case.
    pub fn weekday(name: &str) -> Option<Self> {
        let place = WEEKDAYS.iter().position(|weekday| weekday.eq_ignore_ascii_case(name))?;
        Self::numbered(FIRST_WEEKDAY + place as u16)
    }

    /// A date as `MM-DD`.
    pub fn date(text: &str) -> Option<Self> {
        let (month, day) = text.split_once('-')?;
        let before = two_digits(month)?.checked_sub(1)?;
        let day = two_digits(day)?;
        let days = *MONTHS.get(usize::from(before))?;
        let days_before: u16 = MONTHS[..usize::from(before)].iter().sum();
        Self::numbered(FIRST_DATE + days_before + day - 1).filter(|_| (1..=days).contains(&day))
    }

    /// An anchor of any calendar.
    pub fn parse(text: &str) -> Option<Self> {
        let day = || text.parse().ok().and_then(Self::day).filter(|_| !text.starts_with(['+', '0']));
        day().or_else(|| Self::weekday(text)).or_else(|| Self::date(text))
    }

    /// Its number: others have others.
    pub fn number(self) -> u16 {
        self.0.get()
    }

    /// What it is.
    pub fn kind(self) -> AnchorKind {
        match self.number() {
            number if DAYS.contains(&number) => AnchorKind::Day(number as u8),
            number if number < FIRST_DATE => AnchorKind::Weekday((number - FIRST_WEEKDAY + 1) as u8),
            number => {
                let (mut month, mut day) = (0, number - FIRST_DATE);
                while month < MONTHS.len() - 1 && day >= MONTHS[month] {
                    (month, day) = (month + 1, day - MONTHS[month]);
                }
                AnchorKind::Date { month: month as u8 + 1, day: day as u8 + 1 }
            }
        }
    }
}

impl CalendarUnit {
    /// The numbers of the anchors of such a calendar, of which the first is the default. A day has none: that is 0.
    pub const fn anchors(self) -> RangeInclusive<u16> {
        match self {
            Self::Day => 0..=0,
            Self::Week => FIRST_WEEKDAY..=FIRST_DATE - 1,
            Self::Month | Self::Quarter => DAYS,
            Self::Year => FIRST_DATE..=LAST,
        }
    }
}

fn two_digits(text: &str) -> Option<u16> {
    match text.as_bytes() {
        [b'0'..=b'9', b'0'..=b'9'] => text.parse().ok(),
        _ => None,
    }
}

/// As it is written: `15`, `sunday`, `04-06`.
impl fmt::Display for Anchor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            AnchorKind::Day(day) => write!(out, "{day}"),
            AnchorKind::Weekday(weekday) => {
                out.write_str(WEEKDAYS.get(usize::from(weekday) - 1).copied().unwrap_or_default())
            }
            AnchorKind::Date { month, day } => write!(out, "{month:02}-{day:02}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_an_anchor_that_is_read_as_it_is_written() {
        let anchors: Vec<Anchor> = (0..1_000).filter_map(Anchor::numbered).collect();
        assert_eq!(anchors.len(), 31 + 7 + 366);
        for anchor in &anchors {
            assert_eq!(Anchor::parse(&anchor.to_string()), Some(*anchor));
            let of = CalendarUnit::ALL.into_iter().filter(|unit| unit.anchors().contains(&anchor.number()));
            assert_eq!(of.count(), if matches!(anchor.kind(), AnchorKind::Day(_)) { 2 } else { 1 });
        }
        let written = [0, 30, 31, 37, 38, 96, 97, 403].map(|place| anchors[place].to_string());
        assert_eq!(written, ["1", "31", "monday", "sunday", "01-01", "02-28", "02-29", "12-31"]);
        for wrong in ["", "0", "32", "+5", "05", "mon", "00-01", "13-01", "02-30", "04-31", "4-6", "01-00"] {
            assert_eq!(Anchor::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Anchor::parse("Sunday"), Anchor::weekday("sunday"));
    }
}
