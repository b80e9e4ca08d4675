//! Calendar periods: tables of the moments at which they begin, each kept once for the life of the process.
//!
//! In: a name and the moments, which `rules/calendar` computes when rules are loaded. Out: the period that holds a
//! time, in a few nanoseconds. No clock, no zone data.
//!
//! A calendar has a table for each anchor: rules use some of them, and records may use all. A limit holds the number of
//! its table in two bytes, so it stays small and can be copied. A calendar is never dropped, because limits of old rule
//! sets may still name it. So there is room for [`CALENDARS_MAX`] of them. Rules that need one more are refused.

use std::fmt;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use crate::limit::divisor::Divisor;
use crate::time::{SECOND_NANOS, Timestamp};

/// The most calendars of a process: each takes up to 170 KB, for days of 110 years, or for months with all anchors.
pub const CALENDARS_MAX: usize = 127;

/// Bits of the number of a table that are its place in its calendar.
const PLACE_BITS: u32 = 9;
const PLACES: u16 = 1 << PLACE_BITS;

static CALENDARS: [OnceLock<Calendar>; CALENDARS_MAX] = [const { OnceLock::new() }; CALENDARS_MAX];

/// The periods of a calendar with an anchor: the place of the calendar from 1, and that of the table in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Periods(NonZeroU16);

/// The tables of a calendar.
#[derive(Debug)]
struct Calendar {
    /// What distinguishes it from others: `month (Europe/Berlin)`.
    name: Box<str>,
    /// The number of the anchor of its first table.
    first_anchor: u16,
    /// A table for each anchor, once rules need it.
    tables: Box<[OnceLock<Table>]>,
}

/// The periods of a calendar, one after the other. The first one begins at the beginning of time and ends where the
/// second begins; the last never ends.
#[derive(Debug)]
struct Table {
    /// For people: `month (Europe/Berlin, from day 15)`.
    name: Box<str>,
    /// When all but the first begin, in seconds of unix time, in order.
    begins: Box<[u32]>,
    /// From the first of these to the last, in seconds.
    span: Divisor,
}

impl Periods {
    /// The table of the only anchor of the calendar of this name. If there is none yet, it is made of the moments that
    /// `begins` returns, in seconds of unix time and in order. `None`: there is no room for another calendar.
    pub fn named(name: &str, begins: impl FnOnce() -> Vec<u32>) -> Option<Self> {
        Self::anchored(name, 0..=0, 0, || (name.to_owned(), begins()))
    }

    /// The table of an anchor of the calendar of this name, which has these anchors, by their numbers. If there is none
    /// yet, it is made of the name for people and the moments that `table` returns, in seconds of unix time and in order.
    /// `None`: there is no room for another calendar, or it has no such anchor.
    pub fn anchored(
        name: &str,
        anchors: RangeInclusive<u16>,
        anchor: u16,
        table: impl FnOnce() -> (String, Vec<u32>),
    ) -> Option<Self> {
        let mut numbered = (1..).zip(&CALENDARS);
        let (number, calendar) = numbered.find_map(|(number, calendar)| {
            // Another thread may take this place for another calendar at the same time.
            let calendar = calendar.get_or_init(|| Calendar::new(name, anchors.clone()));
            (*calendar.name == *name).then_some((number, calendar))
        })?;
        let place = calendar.place(anchor)?;
        calendar.tables.get(usize::from(place))?.get_or_init(|| {
            let (name, begins) = table();
            Table::new(&name, begins)
        });
        Self::of(number, place)
    }

    /// The same calendar with another anchor. `None`: it has no such anchor, or no rule has needed it.
    pub(crate) fn with_anchor(self, anchor: u16) -> Option<Self> {
        let place = self.calendar()?.place(anchor)?;
        Self::of(self.0.get() >> PLACE_BITS, place).filter(|periods| periods.table().is_some())
    }

    /// Whether its calendar has this anchor.
    pub(crate) fn has_anchor(self, anchor: u16) -> bool {
        self.calendar().is_some_and(|calendar| calendar.place(anchor).is_some())
    }

    /// The number of its table, by which this process finds it again. Above 0.
    pub fn number(self) -> u16 {
        self.0.get()
    }

    /// The table of this number, if there is one.
    pub fn numbered(number: u16) -> Option<Self> {
        NonZeroU16::new(number).map(Self).filter(|periods| periods.table().is_some())
    }

    /// When the period that holds `at` begins, and when the next one does.
    #[inline]
    pub(crate) fn around(self, at: Timestamp) -> (Timestamp, Timestamp) {
        self.table().map_or((Timestamp::default(), Timestamp::MAX), |table| table.around(at))
    }

    fn of(calendar: u16, place: u16) -> Option<Self> {
        NonZeroU16::new(calendar << PLACE_BITS | place).map(Self)
    }

    #[inline]
    fn calendar(self) -> Option<&'static Calendar> {
        let place = usize::from(self.0.get() >> PLACE_BITS).checked_sub(1)?;
        CALENDARS.get(place)?.get()
    }

    #[inline]
    fn table(self) -> Option<&'static Table> {
        self.calendar()?.tables.get(usize::from(self.0.get() % PLACES))?.get()
    }
}

impl Calendar {
    fn new(name: &str, anchors: RangeInclusive<u16>) -> Self {
        let tables = anchors.clone().take(PLACES.into()).map(|_| OnceLock::new()).collect();
        Self { name: name.into(), first_anchor: *anchors.start(), tables }
    }

    /// The place of the table of an anchor.
    fn place(&self, anchor: u16) -> Option<u16> {
        let place = anchor.checked_sub(self.first_anchor)?;
        (usize::from(place) < self.tables.len()).then_some(place)
    }
}

/// `month (Europe/Berlin, from day 15)`.
impl fmt::Display for Periods {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.table().map_or("", |table| &table.name))
    }
}

impl fmt::Debug for Periods {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Periods({self})")
    }
}

impl Table {
    fn new(name: &str, begins: Vec<u32>) -> Self {
        let span = begins.last().zip(begins.first()).map_or(0, |(last, first)| last.saturating_sub(*first));
        Self { name: name.into(), begins: begins.into(), span: Divisor::new(u64::from(span).max(1)) }
    }

    #[inline]
    fn around(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let begun = self.begun(at.as_nanos() / SECOND_NANOS);
        let begin = |place: usize| self.begins.get(place).map(|&begin| Timestamp::from_secs(begin.into()));
        let from = begun.checked_sub(1).and_then(begin).unwrap_or_default();
        (from, begin(begun).unwrap_or(Timestamp::MAX))
    }

    /// How many of the periods have begun at this second. They are nearly equally long, so a guess is at most a few
    /// places off.
    #[inline]
    fn begun(&self, second: u64) -> usize {
        let (Some(&first), last) = (self.begins.first(), self.begins.len().saturating_sub(1)) else {
            return 0;
        };
        let since = second.saturating_sub(first.into()).min(self.span.get());
        let mut begun = self.span.divide(since * last as u64).0 as usize;
        while begun < self.begins.len() && u64::from(self.begins[begun]) <= second {
            begun += 1;
        }
        while begun > 0 && u64::from(self.begins[begun - 1]) > second {
            begun -= 1;
        }
        begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_is_in_the_period_that_has_begun_last() {
        for begins in
            [&[][..], &[7], &[3, 4], &[10, 20, 30, 40], &[1, 2, 3, 100, 101, 500], &[5, 900, 901, 902]]
        {
            let table = Table::new("some", begins.to_vec());
            for second in 0..1_000_u64 {
                let begun = begins.iter().filter(|&&begin| u64::from(begin) <= second).count();
                let begin = |at: Option<&u32>| at.map(|&begin| Timestamp::from_secs(begin.into()));
                let expected = (
                    begin(begun.checked_sub(1).and_then(|place| begins.get(place))).unwrap_or_default(),
                    begin(begins.get(begun)).unwrap_or(Timestamp::MAX),
                );
                for nanos in [0, SECOND_NANOS - 1] {
                    let at = Timestamp::from_secs(second).plus(nanos);
                    assert_eq!(table.around(at), expected, "{second} in {begins:?}");
                }
            }
            assert_eq!(table.around(Timestamp::MAX).1, Timestamp::MAX);
        }
    }

    #[test]
    fn a_name_has_one_table() {
        let first = Periods::named("a test", || vec![1, 2]).expect("there is room");
        assert_eq!(Periods::named("a test", || panic!("it is there")), Some(first));
        assert_ne!(Periods::named("another test", || vec![1, 2]), Some(first));
        assert_eq!(first.to_string(), "a test");
    }

    #[test]
    fn a_calendar_has_a_table_for_each_anchor_that_rules_need() {
        let anchored = |anchor: u16| {
            Periods::anchored("anchored", 5..=7, anchor, || {
                (format!("from {anchor}"), vec![u32::from(anchor)])
            })
        };
        let [first, last] = [5, 7].map(|anchor| anchored(anchor).expect("there is room"));
        assert_eq!((anchored(4), anchored(8)), (None, None));
        assert_eq!([first.to_string(), last.to_string()], ["from 5", "from 7"]);
        assert_eq!((first.with_anchor(7), last.with_anchor(5)), (Some(last), Some(first)));
        assert_eq!((first.with_anchor(6), first.has_anchor(6)), (None, true), "no rule needs it");
        assert!(!first.has_anchor(4) && !first.has_anchor(8));
        for periods in [first, last] {
            assert_eq!(Periods::numbered(periods.number()), Some(periods));
        }
        assert_eq!([0, 1, u16::MAX].map(Periods::numbered), [None; 3]);
    }
}
