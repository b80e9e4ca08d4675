//! `period`: the calendar of a budget.
//!
//! In: the fields of a `rate_limit`. Out: the unit of its calendar, and the periods.

use super::Checker;
use crate::limit::Periods;
use crate::rules::calendar::{Anchor, Calendar, WEEKDAYS, zone};
use crate::rules::fields::{Fields, not_one_of};
use crate::rules::keys::Section;
use crate::rules::quote::quote;
use crate::unit::CalendarUnit;
use tidegate_yaml::Place;

/// The keys of `rate_limit` that mean something only for windows.
const OF_WINDOWS: [&str; 7] =
    ["unit", "unit_multiplier", "window", "algorithm", "granularity", "burst", "sync"];

impl Checker<'_, '_> {
    /// The calendar of a limit with `period`. `None`: it is wrong, which is reported.
    pub(super) fn period(&mut self, fields: &Fields) -> Option<(CalendarUnit, Periods)> {
        for name in OF_WINDOWS {
            self.refuse(fields, name, || format!("`{name}` with `period` (expected one of the two)"));
        }
        let mappings = fields.all("period");
        let period = self.reader.fields(self.since_last_null(&mappings), Section::Period)?;
        if !self.reader.is_given(&period, "calendar") {
            let names = CalendarUnit::ALL.map(CalendarUnit::name).join(", ");
            self.reader.error(period.at, || format!("`calendar` is missing (expected {names})"));
        }
        let unit = self
            .reader
            .word(&period, "calendar", &CalendarUnit::ALL.map(|unit| (unit.name(), unit)))
            .map(|(_, unit)| unit);
        let zone = match self.reader.text(&period, "tz") {
            None => zone("UTC").ok(),
            Some((at, name)) => zone(name)
                .map_err(|closest| {
                    self.reader.error(at, || {
                        format!("`tz` is {} (expected a time zone; the closest is `{closest}`)", quote(name))
                    });
                })
                .ok(),
        };
        let anchor = self.anchor(&period, unit?);
        let calendar = Calendar { unit: unit?, zone: zone?, anchor: anchor? };
        let periods = calendar.periods();
        if periods.is_none() {
            self.reader.error(period.at, || {
                format!("no room for the calendar {calendar} (expected at most 256 different ones until the process restarts)")
            });
        }
        Some((calendar.unit, periods?))
    }

    fn anchor(&mut self, period: &Fields, unit: CalendarUnit) -> Option<Anchor> {
        let first = Anchor::FIRST;
        match unit {
            CalendarUnit::Day => {
                self.refuse(period, "anchor", || "`anchor` with `calendar: day` (expected none)".to_owned());
                Some(first)
            }
            CalendarUnit::Week => match self.reader.text(period, "anchor") {
                None => Some(first),
                Some((at, text)) => self.weekday(at, text),
            },
            CalendarUnit::Month | CalendarUnit::Quarter => {
                let day = self.reader.number(period, "anchor", 1..=31);
                if day.is_none() && self.reader.is_given(period, "anchor") {
                    return None;
                }
                Some(day.map_or(first, |(_, day)| Anchor { day: day as i8, ..first }))
            }
            CalendarUnit::Year => match self.reader.text(period, "anchor") {
                None => Some(first),
                Some((at, text)) => self.day_of_year(at, text),
            },
        }
    }

    fn weekday(&mut self, at: Place, text: &str) -> Option<Anchor> {
        let named = WEEKDAYS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        if named.is_none() {
            self.reader.error(at, || not_one_of("anchor", text, &WEEKDAYS.map(|(name, _)| name)));
        }
        named.map(|&(_, weekday)| Anchor { weekday, ..Anchor::FIRST })
    }

    /// `MM-DD`. The 29th of February begins on the 28th in other years.
    fn day_of_year(&mut self, at: Place, text: &str) -> Option<Anchor> {
        let two_digits = |text: &str| match text.as_bytes() {
            [b'0'..=b'9', b'0'..=b'9'] => text.parse::<i8>().ok(),
            _ => None,
        };
        let parts =
            text.split_once('-').and_then(|(month, day)| Some((two_digits(month)?, two_digits(day)?)));
        let is_date = |&(month, day): &(i8, i8)| match month {
            2 => (1..=29).contains(&day),
            4 | 6 | 9 | 11 => (1..=30).contains(&day),
            _ => (1..=12).contains(&month) && (1..=31).contains(&day),
        };
        let date = parts.filter(is_date);
        if date.is_none() {
            self.reader.error(at, || {
                format!("`anchor` is {} (expected a month and a day, such as `04-06`)", quote(text))
            });
        }
        date.map(|(month, day)| Anchor { month, day, ..Anchor::FIRST })
    }
}
