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
    /// The N that was in force last.
    pub(super) requests: i64,
    pub(super) taken_back: i64,
    /// The larger N by which what is above `burst` drains; 0: there is none.
    pub(super) requests_above: i64,
}

impl Bucket {
    fn count_taken_back(&mut self, hits: i64) {
        self.taken_back = (self.taken_back + hits.min(ROUND / 2)) % ROUND;
    }

    /// Adopts N. No stamp knows how much has drained meanwhile, so none of the hits in it can go back any more.
    fn adopt(&mut self, check: &Check<'_>) -> Option<i64> {
        if check.requests == 0 {
            return None;
        }
        let largest = self.requests.max(self.requests_above).max(check.requests);
        let is_larger = self.is_above(check) && largest > check.requests;
        self.requests_above = if is_larger { largest } else { 0 };
        if self.requests != check.requests && self.requests > 0 {
            self.count_taken_back(self.hits + 1);
        }
        self.requests = check.requests;
        if self.is_empty() { None } else { self.kept(check) }
    }

    fn drain(&mut self, check: &Check<'_>, requests: i64, micros: i64) {
        let windows = micros / check.window;
        let (hits, rest) = muldiv(micros % check.window, requests, check.window);
        let all = i128::from(windows) * i128::from(requests) + i128::from(hits);
        let (mut left, mut units) = (i128::from(self.hits) - all, self.rest);
        if rest > units {
            (left, units) = (left - 1, units + check.window);
        }
        (self.hits, self.rest) = if left < 0 { (0, 0) } else { (left as i64, units - rest) };
    }

    /// N has changed, or something may be above `burst`.
    fn drain_changed(&mut self, check: &Check<'_>, micros: i64) {
        if check.requests == 0 || self.requests == 0 {
            return self.drain(check, self.requests, micros);
        }
        let (requests, above_micros) = self.above(check);
        if micros < above_micros {
            return self.drain(check, requests, micros);
        }
        if above_micros > 0 {
            (self.hits, self.rest) = (check.burst(), 0);
        }
        self.drain(check, check.requests.min(self.requests), micros - above_micros);
    }

    fn is_above(&self, check: &Check<'_>) -> bool {
        (self.hits, self.rest) > (check.burst(), 0)
    }

    /// The N by which what is above `burst` drains, and how long that takes.
    fn above(&self, check: &Check<'_>) -> (i64, i64) {
        let requests = self.requests.max(self.requests_above);
        if !self.is_above(check) || requests == 0 {
            return (requests, 0);
        }
        (requests, micros_of((self.hits - check.burst(), self.rest), check, requests))
    }

    fn without(&self, hits: i64) -> (i64, i64) {
        if hits > self.hits { (0, 0) } else { (self.hits - hits, self.rest) }
    }

    fn kept(&self, check: &Check<'_>) -> Option<i64> {
        if self.requests == 0 {
            return None;
        }
        Some(self.latest + micros_of((self.hits, self.rest), check, self.requests))
    }
}

/// How long these hits and this rest take to drain, rounded up.
fn micros_of((hits, rest): (i64, i64), check: &Check<'_>, requests: i64) -> i64 {
    let (micros, left) = muldiv(hits, check.window, requests);
    micros + div_ceil(left + rest, requests)
}

impl Kind for Bucket {
    fn latest(&self) -> i64 {
        self.latest
    }

    fn is_empty(&self) -> bool {
        self.hits == 0 && self.rest == 0
    }

    fn advance(&mut self, check: &Check<'_>, now: i64) -> Option<i64> {
        let micros = (now - self.latest).max(0);
        let is_changed = self.requests != check.requests || self.requests_above > 0;
        if is_changed {
            self.drain_changed(check, micros);
        } else {
            self.drain(check, self.requests, micros);
        }
        self.latest = self.latest.max(now);
        if is_changed { self.adopt(check) } else { None }
    }

    fn look(&self, check: &Check<'_>, hits: i64, ahead: Ahead) -> Look {
        let (whole, rest) = self.without(ahead.given);
        let before = (whole + ahead.taken).min(MOST) + i64::from(rest > 0);
        let left = if check.requests == 0 { 0 } else { (check.capacity - before).max(0) };
        Look { over: hits.max(1) > left, left, before }
    }

    fn report_max(&self, check: &Check<'_>, ahead: Ahead) -> i64 {
        if check.requests == 0 {
            return 0;
        }
        let (whole, rest) = self.without(ahead.given);
        let most = check.burst() + DEBT_WINDOWS * check.requests;
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
        if !self.is_above(check) {
            self.requests_above = 0;
        }
        self.kept(check)
    }

    /// All of the hits go back, unless less than that is left of the level that they brought about.
    fn give_back(&mut self, check: &Check<'_>, stamp: Stamp) -> Option<i64> {
        if self.requests != check.requests || self.requests_above > 0 {
            return None;
        }
        let mut left = Self { hits: stamp.level, rest: stamp.rest, ..self.clone() };
        left.drain(check, self.requests, (self.latest - stamp.at).max(0));
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

    /// What is above `burst` is reported as the level that drains by N in the same time.
    fn state(&self, check: &Check<'_>, _: i64, _: bool) -> [Option<i64>; 3] {
        let (mut hits, mut rest) = (self.hits, self.rest);
        let (_, micros) = self.above(check);
        if self.requests_above > 0 && check.requests > 0 && micros > 0 {
            let (more, units) = muldiv(micros, check.requests, check.window);
            (hits, rest) = ((check.burst() + more).min(MOST), units);
        }
        [Some(hits), Some(rest), Some(self.taken_back)]
    }
}
