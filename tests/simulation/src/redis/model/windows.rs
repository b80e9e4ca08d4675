//! Counts of aligned windows: fixed ones, and the weighted sum of two. And the count of a calendar's period.

use super::check::{Check, DEBT_WINDOWS, MOST, Stamp, ceil, div_ceil, muldiv};
use super::counter::{Ahead, Kind, Look, room_of_count};

/// The count of a fixed window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fixed {
    pub(super) latest: i64,
    pub(super) count: i64,
}

impl Fixed {
    fn window_end(&self, check: &Check<'_>) -> i64 {
        self.latest - self.latest % check.window + check.window
    }
}

impl Kind for Fixed {
    fn latest(&self) -> i64 {
        self.latest
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn advance(&mut self, check: &Check<'_>, now: i64) -> Option<i64> {
        if now <= self.latest {
            return None;
        }
        if self.window_end(check) <= now {
            self.count = 0;
        }
        self.latest = now;
        None
    }

    fn look(&self, check: &Check<'_>, hits: i64, ahead: Ahead) -> Look {
        let before = ahead.after(self.count).min(MOST);
        let left = (check.requests - before).max(0);
        Look { over: before + hits > check.requests, left, before }
    }

    fn report_max(&self, _: &Check<'_>, _: Ahead) -> i64 {
        unreachable!("a fixed window takes all hits")
    }

    fn charge(&mut self, check: &Check<'_>, hits: i64) -> Option<i64> {
        let kept = (self.count == 0).then(|| self.window_end(check));
        self.count = (self.count + hits).min(MOST);
        kept
    }

    fn charge_at(&mut self, check: &Check<'_>, time: i64, hits: i64, _: Ahead) -> Option<i64> {
        let is_of_this_window = time / check.window >= self.latest / check.window;
        if is_of_this_window { self.charge(check, hits) } else { None }
    }

    fn refund(&mut self, _: &Check<'_>, hits: i64) -> Option<i64> {
        self.count = (self.count - hits).max(0);
        None
    }

    fn give_back(&mut self, check: &Check<'_>, stamp: Stamp) -> Option<i64> {
        if self.latest / check.window == stamp.at { self.refund(check, check.hits) } else { None }
    }

    fn state(&self, _: &Check<'_>, _: i64, _: bool) -> [Option<i64>; 3] {
        [Some(self.count), Some(0), None]
    }
}

/// The count of a calendar's running period. The window of a check is the begin of a period, its denominator the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    pub(super) latest: i64,
    pub(super) count: i64,
    pub(super) ends: i64,
    /// What the end pays at least.
    pub(super) paid: i64,
}

/// The mean length of a day, week, month, quarter and year, in microseconds.
const MEANS: [i64; 5] = [86_400, 604_800, 2_629_746, 7_889_238, 31_556_952];

impl Budget {
    fn mean(check: &Check<'_>) -> i64 {
        let number = usize::try_from(check.numerator - 1).ok();
        let known = number.and_then(|number| MEANS.get(number)).map(|secs| secs * 1_000_000);
        known.unwrap_or(check.denominator - check.window)
    }

    /// The count after the ends that have passed.
    fn owed(&self, check: &Check<'_>, pays: i64) -> i64 {
        let (since, mean) = ((check.window - self.ends).max(0), Self::mean(check));
        let further = (2 * since + mean) / (2 * mean) - i64::from(self.latest < check.window);
        (self.count - self.paid.max(pays) - pays * further.max(0)).max(0)
    }

    fn kept(&self, check: &Check<'_>) -> Option<i64> {
        let periods = |pays: i64| div_ceil((self.count - self.paid.max(pays)).max(0), pays).min(DEBT_WINDOWS);
        let periods = check.pays.map_or(0, periods);
        Some(self.ends + if periods > 0 { (periods + 1) * Self::mean(check) } else { 0 })
    }

    /// The end of the period of the check.
    fn own_end(&self, check: &Check<'_>) -> i64 {
        if self.latest < check.window { check.window } else { check.denominator }
    }
}

impl Kind for Budget {
    fn latest(&self) -> i64 {
        self.latest
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn advance(&mut self, check: &Check<'_>, now: i64) -> Option<i64> {
        self.latest = self.latest.max(now);
        let own = self.own_end(check);
        if self.ends <= self.latest || self.count == 0 && own > self.latest {
            self.count = check.pays.filter(|_| self.count > 0).map_or(0, |pays| self.owed(check, pays));
            (self.ends, self.paid) = (own, 0);
        }
        if self.count == 0 {
            self.paid = 0;
        }
        self.kept(check)
    }

    fn look(&self, check: &Check<'_>, hits: i64, ahead: Ahead) -> Look {
        Look::at_count(check.requests, ahead.after(self.count).min(MOST), hits)
    }

    fn report_max(&self, check: &Check<'_>, ahead: Ahead) -> i64 {
        check.room_of_debt(ahead.after(self.count).min(MOST)).unwrap_or(MOST)
    }

    fn charge(&mut self, check: &Check<'_>, hits: i64) -> Option<i64> {
        (self.count, self.ends) = ((self.count + hits).min(MOST), self.ends.max(self.own_end(check)));
        self.paid = check.pays.map_or(self.paid, |pays| self.paid.max(pays));
        self.kept(check)
    }

    fn charge_at(&mut self, check: &Check<'_>, time: i64, hits: i64, _: Ahead) -> Option<i64> {
        let is_over = time < check.window && check.window <= self.latest;
        if is_over {
            return None;
        }
        self.charge(check, hits);
        if check.pays.is_some() {
            self.paid = (self.paid + (self.count - self.paid).max(0).min(hits)).min(MOST);
        }
        self.kept(check)
    }

    fn refund(&mut self, _: &Check<'_>, hits: i64) -> Option<i64> {
        self.count = (self.count - hits).max(0);
        None
    }

    fn give_back(&mut self, check: &Check<'_>, stamp: Stamp) -> Option<i64> {
        if self.ends == stamp.at {
            self.count = (self.count - check.hits).max(0);
        }
        None
    }

    fn state(&self, check: &Check<'_>, _: i64, _: bool) -> [Option<i64>; 3] {
        let count = check.pays.map_or(self.count, |pays| (self.count - self.paid.max(pays) + pays).max(0));
        [Some(count), Some(self.ends), None]
    }
}

/// The counts of a window and of the one before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weighted {
    pub(super) latest: i64,
    pub(super) current: i64,
    pub(super) previous: i64,
}

impl Weighted {
    fn without(&self, hits: i64) -> (i64, i64) {
        let more = (hits - self.current).max(0);
        ((self.current - hits).max(0), (self.previous - more).max(0))
    }

    fn kept(&self, check: &Check<'_>) -> Option<i64> {
        let windows = if self.current > 0 { 2 } else { 1 };
        Some(self.latest - self.latest % check.window + windows * check.window)
    }
}

impl Kind for Weighted {
    fn latest(&self) -> i64 {
        self.latest
    }

    fn is_empty(&self) -> bool {
        self.current + self.previous == 0
    }

    fn advance(&mut self, check: &Check<'_>, now: i64) -> Option<i64> {
        if now <= self.latest {
            return None;
        }
        let into = now - self.latest + self.latest % check.window;
        self.latest = now;
        if into >= check.window {
            self.previous = if into < 2 * check.window { self.current } else { 0 };
            self.current = 0;
        }
        None
    }

    fn look(&self, check: &Check<'_>, hits: i64, ahead: Ahead) -> Look {
        let (current, previous) = self.without(ahead.given);
        let share = ceil(muldiv(check.window - self.latest % check.window, previous, check.window));
        Look::at_count(check.requests, current + share + ahead.taken, hits)
    }

    fn report_max(&self, _: &Check<'_>, ahead: Ahead) -> i64 {
        room_of_count(self.without(ahead.given).0 + ahead.taken)
    }

    fn charge(&mut self, check: &Check<'_>, hits: i64) -> Option<i64> {
        let is_first = self.current == 0;
        self.current = (self.current + hits).min(u32::MAX.into());
        if is_first { self.kept(check) } else { None }
    }

    fn charge_at(&mut self, check: &Check<'_>, time: i64, hits: i64, _: Ahead) -> Option<i64> {
        let count = match self.latest / check.window - time / check.window {
            ..1 => &mut self.current,
            1 => &mut self.previous,
            _ => return None,
        };
        *count = (*count + hits).min(u32::MAX.into());
        self.kept(check)
    }

    fn refund(&mut self, check: &Check<'_>, hits: i64) -> Option<i64> {
        (self.current, self.previous) = self.without(hits);
        self.kept(check)
    }

    fn give_back(&mut self, check: &Check<'_>, stamp: Stamp) -> Option<i64> {
        let count = match self.latest / check.window - stamp.at {
            0 => &mut self.current,
            1 => &mut self.previous,
            _ => return None,
        };
        *count = (*count - check.hits).max(0);
        None
    }

    fn state(&self, _: &Check<'_>, _: i64, _: bool) -> [Option<i64>; 3] {
        [Some(self.current), Some(self.previous), None]
    }
}
