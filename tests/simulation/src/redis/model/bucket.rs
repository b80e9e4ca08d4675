//! Token and leaky buckets: the level in whole hits and a rest, of which a hit has W units and a microsecond drains N.

use super::check::{Check, MOST, Stamp, div_ceil, muldiv};
use super::counter::{Ahead, Kind, Look};

/// A reported cost lifts the level above `burst` by at most what drains in so many windows.
const DEBT_WINDOWS: i64 = 16;
/// Where the number of hits that were taken back begins again.
const ROUND: i64 = 1 << 52;

/// A bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bucket {
    pub(super) latest: i64,
    pub(super) hits: i64,
    pub(super) rest: i64,
    /// The N that the level is computed for.
    pub(super) requests: i64,
    pub(super) taken_back: i64,
}

impl Bucket {
    fn count_taken_back(&mut self, hits: i64) {
        self.taken_back = (self.taken_back + hits.min(ROUND / 2)) % ROUND;
    }

    /// N has changed: the time until the bucket is empty stays the same, rounded up.
    fn follow(&mut self, check: &Check<'_>) {
        if self.requests == check.requests || check.requests == 0 {
            return;
        }
        if self.requests > 0 {
            let (hits, hits_left) = muldiv(self.hits, check.requests, self.requests);
            let (units, units_left) = muldiv(check.window, hits_left, self.requests);
            let (more, more_left) = muldiv(self.rest, check.requests, self.requests);
            let units = units + more + div_ceil(units_left + more_left, self.requests);
            self.hits = (hits + units / check.window).min(MOST);
            self.rest = units % check.window;
            self.count_taken_back(self.hits + 1);
        }
        self.requests = check.requests;
    }

    fn drain(&mut self, check: &Check<'_>, micros: i64) {
        let windows = micros / check.window;
        let (hits, rest) = muldiv(micros % check.window, self.requests, check.window);
        let all = i128::from(windows) * i128::from(self.requests) + i128::from(hits);
        let (mut left, mut units) = (i128::from(self.hits) - all, self.rest);
        if rest > units {
            (left, units) = (left - 1, units + check.window);
        }
        (self.hits, self.rest) = if left < 0 { (0, 0) } else { (left as i64, units - rest) };
    }

    fn without(&self, hits: i64) -> (i64, i64) {
        if hits > self.hits { (0, 0) } else { (self.hits - hits, self.rest) }
    }

    fn kept(&self, check: &Check<'_>) -> Option<i64> {
        if self.requests == 0 {
            return None;
        }
        let (micros, rest) = muldiv(self.hits, check.window, self.requests);
        Some(self.latest + micros + div_ceil(rest + self.rest, self.requests))
    }
}

impl Kind for Bucket {
    fn latest(&self) -> i64 {
        self.latest
    }

    fn is_empty(&self) -> bool {
        self.hits == 0 && self.rest == 0
    }

    fn advance(&mut self, check: &Check<'_>, now: i64) {
        self.follow(check);
        if now > self.latest {
            self.drain(check, now - self.latest);
            self.latest = now;
        }
    }

    fn look(&self, check: &Check<'_>, hits: i64, ahead: Ahead) -> Look {
        let (whole, rest) = self.without(ahead.given);
        let before = (whole + ahead.taken).min(MOST) + i64::from(rest > 0);
        let left = if check.requests == 0 { 0 } else { (check.burst - before).max(0) };
        Look { over: hits.max(1) > left, left, before }
    }

    fn report_max(&self, check: &Check<'_>, ahead: Ahead) -> i64 {
        if check.requests == 0 {
            return 0;
        }
        let (whole, rest) = self.without(ahead.given);
        let most = check.burst + DEBT_WINDOWS * check.requests;
        (most - whole - ahead.taken - i64::from(rest > 0)).max(0)
    }

    fn charge(&mut self, check: &Check<'_>, hits: i64) -> Option<i64> {
        self.hits = (self.hits + hits).min(MOST);
        self.kept(check)
    }

    fn charge_at(&mut self, check: &Check<'_>, _: i64, hits: i64, ahead: Ahead) -> Option<i64> {
        let hits = hits.min(self.report_max(check, ahead));
        if hits > 0 { self.charge(check, hits) } else { None }
    }

    fn refund(&mut self, check: &Check<'_>, hits: i64) -> Option<i64> {
        self.count_taken_back(hits.min(self.hits + 1));
        (self.hits, self.rest) = self.without(hits);
        self.kept(check)
    }

    /// All of the hits go back, unless less than that is left of the level that they brought about.
    fn give_back(&mut self, check: &Check<'_>, stamp: Stamp) -> Option<i64> {
        if self.requests != check.requests {
            return None;
        }
        let mut left = Self { hits: stamp.level, rest: stamp.rest, ..self.clone() };
        left.drain(check, (self.latest - stamp.at).max(0));
        left.hits -= (self.taken_back - stamp.taken_back).rem_euclid(ROUND);
        if left.hits < 0 {
            return None;
        }
        let (hits, units) = if left.hits < check.hits { (left.hits, left.rest) } else { (check.hits, 0) };
        self.count_taken_back(hits + i64::from(units > 0));
        (self.hits, self.rest) = (self.hits - hits, self.rest - units);
        if self.rest < 0 {
            (self.hits, self.rest) = (self.hits - 1, self.rest + check.window);
        }
        if self.hits < 0 {
            (self.hits, self.rest) = (0, 0);
        }
        self.kept(check)
    }

    fn state(&self, _: &Check<'_>, _: i64, _: bool) -> [Option<i64>; 3] {
        [Some(self.hits), Some(self.rest), Some(self.taken_back)]
    }
}
