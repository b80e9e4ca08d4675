//! `period`: a calendar in a time zone, and the moments at which its periods begin.
//!
//! In: a unit, a zone and an anchor. Out: the periods from 1990 to 2100, and their name for people. Zone data is part of
//! the program, so the same rules mean the same periods on every machine.

use std::fmt;

use jiff::civil::{Date, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};

use crate::limit::Periods;
use crate::unit::{Anchor, AnchorKind, CalendarUnit};

/// The years whose periods have a begin and an end.
const YEARS: std::ops::RangeInclusive<i16> = 1990..=2100;

/// A calendar, as a rule says it.
#[derive(Clone, Debug)]
pub(super) struct Calendar {
    pub(super) unit: CalendarUnit,
    pub(super) zone: TimeZone,
    /// Where periods begin. `None`: the first day of the month, quarter or year, or Monday.
    pub(super) anchor: Option<Anchor>,
}

/// Names in zone data that mean that the zone is not known.
const NO_ZONES: [&str; 2] = ["Etc/Unknown", "Factory"];

/// The zone of this name. `Err`: there is none, and the name that is closest.
pub(super) fn zone(name: &str) -> Result<TimeZone, String> {
    let zones = TimeZoneDatabase::bundled();
    let zone = zones.get(name).ok().filter(|_| !NO_ZONES.iter().any(|none| name.eq_ignore_ascii_case(none)));
    zone.ok_or_else(|| {
        // The name may be of any length.
        let wanted: String = name.chars().take(64).flat_map(char::to_lowercase).collect();
        let distance = |name: &str| strsim::damerau_levenshtein(&name.to_lowercase(), &wanted);
        let names =
            zones.available().map(|name| name.to_string()).filter(|name| !NO_ZONES.contains(&&**name));
        names.min_by_key(|name| distance(name)).unwrap_or_else(|| "UTC".to_owned())
    })
}

impl Calendar {
    /// Its periods. `None`: the process has no room for another calendar.
    pub(super) fn periods(&self) -> Option<Periods> {
        let first = Self { anchor: None, ..self.clone() };
        let anchors = self.unit.anchors();
        let anchor = self.anchor.map_or(*anchors.start(), Anchor::number);
        Periods::anchored(&first.to_string(), anchors, anchor, || (self.to_string(), self.begins()))
    }

    /// Makes its periods with every anchor, for records.
    pub(super) fn make_anchored(&self) {
        for number in self.unit.anchors() {
            Self { anchor: Anchor::numbered(number), ..self.clone() }.periods();
        }
    }

    /// When its periods begin, in seconds of unix time.
    fn begins(&self) -> Vec<u32> {
        let mut begins: Vec<u32> = self.dates().filter_map(|date| self.start_of(date)).collect();
        // A day that a zone skipped begins with the next one.
        begins.dedup();
        begins
    }

    /// The first days of its periods.
    fn dates(&self) -> Box<dyn Iterator<Item = Date> + '_> {
        let (first, last) = (*YEARS.start(), *YEARS.end());
        let days =
            |from: Date, days: i32| from.series(days.days()).take_while(move |date| date.year() <= last + 1);
        let months = move |step: usize, month: i8, day: i8| {
            (first..=last + 1).flat_map(move |year| {
                (month..=12).step_by(step).filter_map(move |month| clamped(year, month, day))
            })
        };
        let start = Date::constant(first, 1, 1);
        match (self.unit, self.kind()) {
            (CalendarUnit::Week, AnchorKind::Weekday(weekday)) => {
                let weekday = Weekday::from_monday_one_offset(weekday as i8).unwrap_or(Weekday::Monday);
                // The first such weekday after this one.
                let eve = Date::constant(first - 1, 12, 31);
                Box::new(days(eve.nth_weekday(1, weekday).unwrap_or(start), 7))
            }
            (CalendarUnit::Month, AnchorKind::Day(day)) => Box::new(months(1, 1, day as i8)),
            (CalendarUnit::Quarter, AnchorKind::Day(day)) => Box::new(months(3, 1, day as i8)),
            (CalendarUnit::Year, AnchorKind::Date { month, day }) => {
                Box::new(months(12, month as i8, day as i8))
            }
            // Days have no anchor, and the others have one of their own kind.
            _ => Box::new(days(start, 1)),
        }
    }

    /// Where its periods begin.
    fn kind(&self) -> AnchorKind {
        let first = Anchor::numbered(*self.unit.anchors().start());
        self.anchor.or(first).map_or(AnchorKind::Day(1), Anchor::kind)
    }

    /// The first moment at which clocks of the zone show this date, or a later one if they skip it. In seconds.
    fn start_of(&self, date: Date) -> Option<u32> {
        let midnight = self.zone.to_ambiguous_timestamp(date.at(0, 0, 0, 0));
        let start: Timestamp = match midnight.offset() {
            AmbiguousOffset::Gap { .. } => {
                // Clocks go forward over midnight. Read with the offset from before, midnight is that moment or later.
                let after = midnight.later().ok()?;
                let transition = self.zone.preceding(after.checked_add(1.nanosecond()).ok()?).next();
                transition.map_or(after, |transition| transition.timestamp())
            }
            _ => midnight.compatible().ok()?,
        };
        u32::try_from(start.as_second()).ok()
    }
}

/// This day of the month, or the last one if the month is shorter.
fn clamped(year: i16, month: i8, day: i8) -> Option<Date> {
    let first = Date::new(year, month, 1).ok()?;
    Date::new(year, month, day.min(first.days_in_month())).ok()
}

/// `month (Europe/Berlin, from day 15)`.
impl fmt::Display for Calendar {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({}", self.unit.name(), self.zone.iana_name().unwrap_or("UTC"))?;
        let is_first = |anchor: &Anchor| anchor.number() == *self.unit.anchors().start();
        if let Some(anchor) = self.anchor.filter(|anchor| !is_first(anchor)) {
            let day = if matches!(anchor.kind(), AnchorKind::Day(_)) { "day " } else { "" };
            write!(out, ", from {day}{anchor}")?;
        }
        out.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::limit::Limit;
    use crate::limit::calendar::ended;
    use crate::time::Timestamp;

    /// What another implementation says. See `periods.py` in the same folder.
    const EXPECTED: &str = include_str!("calendar/periods.txt");

    fn anchors(unit: CalendarUnit) -> Vec<Option<Anchor>> {
        match unit {
            CalendarUnit::Day => vec![None],
            CalendarUnit::Year => ["01-01", "02-28", "02-29", "03-31", "04-06", "10-25", "12-31"]
                .map(|date| Some(Anchor::date(date).expect("a date")))
                .to_vec(),
            _ => unit.anchors().map(Anchor::numbered).collect(),
        }
    }

    #[test]
    fn periods_begin_when_another_library_says() {
        for line in EXPECTED.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let &[name, calendar, count, hash] = fields.as_slice() else { panic!("{line}") };
            let unit = CalendarUnit::ALL.into_iter().find(|unit| unit.name() == calendar).expect("a unit");
            let zone = zone(name).expect("a zone");
            let calendars =
                anchors(unit).into_iter().map(|anchor| Calendar { unit, zone: zone.clone(), anchor });
            let begins: Vec<u32> = calendars.flat_map(|calendar| calendar.begins()).collect();
            let bytes: Vec<u8> = begins.iter().flat_map(|begin| begin.to_le_bytes()).collect();
            let digest =
                Sha256::digest(&bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            assert_eq!(
                (begins.len().to_string().as_str(), digest.as_str()),
                (count, hash),
                "{name} {calendar}"
            );
        }
        assert_eq!(EXPECTED.lines().count(), 40 * CalendarUnit::ALL.len());
    }

    /// Where nobody counts the ends of periods, their number follows from the time that has passed: see
    /// `limit/calendar.rs`. It is exact for as long as a debt lasts.
    #[test]
    fn the_ends_that_have_passed_follow_from_the_time() {
        let names: BTreeSet<_> = EXPECTED.lines().filter_map(|line| line.split(' ').next()).collect();
        for (unit, step) in CalendarUnit::ALL.into_iter().zip([61, 23, 11, 5, 1]) {
            let utc = Calendar { unit, zone: TimeZone::UTC, anchor: None };
            let limit = Limit::calendar(1, unit.nanos_max(), utc.periods().expect("there is room"));
            for (name, anchor) in
                names.iter().flat_map(|name| anchors(unit).into_iter().map(move |it| (name, it)))
            {
                let begins = Calendar { unit, zone: zone(name).expect("a zone"), anchor }.begins();
                let time = |place: usize| Timestamp::from_secs(begins[place].into());
                for (end, further) in
                    (0..begins.len() - 17).step_by(step).flat_map(|end| (0..17).map(move |it| (end, it)))
                {
                    let ended = ended(&limit, time(end), time(end + further));
                    assert_eq!(ended, further as u64 + 1, "{name} {unit:?} {anchor:?} from {end}");
                }
            }
        }
    }

    #[test]
    fn a_zone_that_does_not_exist_has_a_closest_one() {
        assert_eq!(zone("Europe/Berln").expect_err("no zone"), "Europe/Berlin");
        assert_eq!(zone("america/new_york").expect("a zone").iana_name(), Some("America/New_York"));
        assert!(zone(&"x".repeat(100_000)).is_err());
    }
}
