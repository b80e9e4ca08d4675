//! `period`: the calendar of a budget.
//!
//! In: the fields of a `rate_limit`. Out: the unit of its calendar, and the periods.

use super::Checker;
use crate::limit::{CALENDARS_MAX, Periods};
use crate::rules::calendar::{Calendar, zone};
use crate::rules::fields::{Fields, not_one_of};
use crate::rules::keys::Section;
use crate::rules::quote::quote;
use crate::unit::{Anchor, CalendarUnit, WEEKDAYS};
use tidegate_yaml::Place;

/// The keys of `rate_limit` that mean something only for windows.
const OF_WINDOWS: [&str; 7] =
    ["unit", "unit_multiplier", "window", "algorithm", "granularity", "burst", "sync"];

impl Checker<'_, '_> {
    /// The calendar of a limit with `period`, and with all anchors if it may have records. `None`: it is wrong, which is
    /// reported.
    pub(super) fn period(&mut self, fields: &Fields, has_records: bool) -> Option<(CalendarUnit, Periods)> {
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
                format!("no room for the calendar {calendar} (expected at most {CALENDARS_MAX} different pairs of `calendar` and `tz` until the process restarts)")
            });
        } else if has_records {
            calendar.make_anchored();
        }
        Some((calendar.unit, periods?))
    }

    /// The anchor of a period. The outer `None`: it is wrong, which is reported.
    fn anchor(&mut self, period: &Fields, unit: CalendarUnit) -> Option<Option<Anchor>> {
        match unit {
            CalendarUnit::Day => {
                self.refuse(period, "anchor", || "`anchor` with `calendar: day` (expected none)".to_owned());
                Some(None)
            }
            CalendarUnit::Week => match self.reader.text(period, "anchor") {
                None => Some(None),
                Some((at, text)) => self.weekday(at, text).map(Some),
            },
            CalendarUnit::Month | CalendarUnit::Quarter => {
                let day = self.reader.number(period, "anchor", 1..=31);
                if day.is_none() && self.reader.is_given(period, "anchor") {
                    return None;
                }
                Some(day.and_then(|(_, day)| Anchor::day(day as u16)))
            }
            CalendarUnit::Year => match self.reader.text(period, "anchor") {
                None => Some(None),
                Some((at, text)) => self.day_of_year(at, text).map(Some),
            },
        }
    }

    fn weekday(&mut self, at: Place, text: &str) -> Option<Anchor> {
        let named = Anchor::weekday(text);
        if named.is_none() {
            self.reader.error(at, || not_one_of("anchor", text, &WEEKDAYS));
        }
        named
    }

    /// `MM-DD`. The 29th of February begins on the 28th in other years.
    fn day_of_year(&mut self, at: Place, text: &str) -> Option<Anchor> {
        let date = Anchor::date(text);
        if date.is_none() {
            self.reader.error(at, || {
                format!("`anchor` is {} (expected a month and a day, such as `04-06`)", quote(text))
            });
        }
        date
    }
}
