//! Calendar periods: tables of the moments at which they begin, each kept once for the life of the process.
//!
//! In: a name and the moments, which `rules/calendar` computes when rules are loaded. Out: the period that holds a
//! time, in a few nanoseconds. No clock, no zone data.
//!
//! A limit holds the number of its table, so it stays small and can be copied. A table is never dropped, because limits
//! of old rule sets may still name it. So there is room for [`TABLES_MAX`] of them. Rules that need one more are refused.

use std::fmt;
use std::sync::OnceLock;

use crate::limit::divisor::Divisor;
use crate::time::{SECOND_NANOS, Timestamp};

/// The most tables of a process: each takes up to 160 KB, for days of 110 years.
pub const TABLES_MAX: usize = 256;

static TABLES: [OnceLock<Table>; TABLES_MAX] = [const { OnceLock::new() }; TABLES_MAX];

/// The periods of a calendar: the number of their table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Periods(u8);

/// The periods of a calendar, one after the other. The first one begins at the beginning of time and ends where the
/// second begins; the last never ends.
#[derive(Debug)]
struct Table {
    /// What distinguishes it from others, for people too: `month (Europe/Berlin, from day 15)`.
    name: Box<str>,
    /// When all but the first begin, in seconds of unix time, in order.
    begins: Box<[u32]>,
    /// From the first of these to the last, in seconds.
    span: Divisor,
}

impl Periods {
    /// The table of this name. If there is none yet, it is made of the moments that `begins` returns, in seconds of unix
    /// time and in order. `None`: there is no room for another table.
    pub fn named(name: &str, begins: impl FnOnce() -> Vec<u32>) -> Option<Self> {
        let mut begins = Some(begins);
        let numbered = (0..=u8::MAX).zip(&TABLES);
        let mut named = numbered.map(|(number, table)| {
            // Another thread may take this place for another table at the same time.
            let table = table
                .get_or_init(|| Table::new(name, begins.take().map(|begins| begins()).unwrap_or_default()));
            (Self(number), table)
        });
        named.find(|(_, table)| *table.name == *name).map(|(periods, _)| periods)
    }

    /// The number of its table, by which this process finds it again.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The table of this number, if there is one.
    pub fn numbered(number: u8) -> Option<Self> {
        Some(Self(number)).filter(|periods| periods.table().is_some())
    }

    /// When the period that holds `at` begins, and when the next one does.
    #[inline]
    pub(crate) fn around(self, at: Timestamp) -> (Timestamp, Timestamp) {
        self.table().map_or((Timestamp::default(), Timestamp::MAX), |table| table.around(at))
    }

    fn table(self) -> Option<&'static Table> {
        TABLES[usize::from(self.0)].get()
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
}
