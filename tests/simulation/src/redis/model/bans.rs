//! A ban: strikes, and when the ban that they begin ends.

use super::check::{Check, Reader, Stamp};
use super::counter::{Ahead, Kind, Look};

/// The strikes of one key. Times are in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ban {
    latest: i64,
    ends: i64,
    /// When bans in a row are forgotten.
    level_ends: i64,
    counts_until: i64,
    /// Bans in a row.
    level: i64,
    strikes: Vec<i64>,
}

impl Ban {
    /// See `ban.lua`.
    pub(super) fn of_text(text: &[u8]) -> Self {
        let mut from = Reader::new(text);
        let mut ban = Self {
            latest: from.double(),
            ends: from.double(),
            level_ends: from.double(),
            counts_until: from.double(),
            level: from.double(),
            strikes: Vec::new(),
        };
        while !from.is_empty() {
            ban.strikes.push(from.double());
        }
        ban
    }

    fn expires(&self, check: &Check<'_>) -> Option<i64> {
        Some((self.ends + check.window).max(self.level_ends).max(self.counts_until))
    }

    fn forget(&mut self) {
        *self = Self { latest: self.latest, ..Self::default() };
    }

    fn begin(&mut self, check: &Check<'_>) {
        let Some((first, longest)) = check.ban_lengths() else { return };
        let doubled = i128::from(first) << self.level.min(40);
        self.ends = self.latest + i64::try_from(doubled.min(longest.into())).unwrap_or(longest);
        if longest > first {
            self.level += 1;
            self.level_ends = self.level_ends.max(self.ends + longest);
        }
        self.counts_until = 0;
        self.strikes.clear();
    }

    /// Counts a strike at this time, unless it is too close to another.
    fn strike(&mut self, check: &Check<'_>, time: i64) -> bool {
        let is_close = self.strikes.iter().any(|strike| (strike - time).abs() < check.denominator);
        if self.ends > time || is_close {
            return false;
        }
        if self.strikes.len() as i64 + 1 >= check.requests {
            self.begin(check);
        } else {
            self.strikes.push(time);
            self.strikes.sort_unstable();
            self.counts_until = self.counts_until.max(time + check.window);
        }
        true
    }
}

/// Whether these are an operator's hits: as many as a ban takes.
fn begins_at_once(check: &Check<'_>, hits: i64) -> bool {
    hits > 1 && hits >= check.requests
}

impl Kind for Ban {
    fn latest(&self) -> i64 {
        self.latest
    }

    fn is_empty(&self) -> bool {
        *self == Self { latest: self.latest, ..Self::default() }
    }

    fn advance(&mut self, check: &Check<'_>, now: i64) -> Option<i64> {
        self.latest = self.latest.max(now);
        let (counts, gone) = (self.counts_until > self.latest, self.latest - check.window);
        self.strikes.retain(|&strike| counts && strike > gone);
        if self.level_ends <= self.latest {
            self.level = 0;
        }
        None
    }

    fn look(&self, check: &Check<'_>, hits: i64, _: Ahead) -> Look {
        let (is_banned, before) = (self.ends > self.latest, self.strikes.len() as i64);
        let left = if is_banned { 0 } else { (check.requests - before).max(1) };
        Look { over: is_banned && !begins_at_once(check, hits), left, before }
    }

    fn report_max(&self, _: &Check<'_>, _: Ahead) -> i64 {
        0
    }

    fn charge(&mut self, check: &Check<'_>, hits: i64) -> Option<i64> {
        let changed = if begins_at_once(check, hits) {
            self.forget();
            self.begin(check);
            true
        } else {
            self.strike(check, self.latest)
        };
        if changed { self.expires(check) } else { None }
    }

    fn charge_at(&mut self, check: &Check<'_>, time: i64, hits: i64, _: Ahead) -> Option<i64> {
        if time <= self.latest - check.window {
            return None;
        }
        let strikes = (0..hits.min(check.requests)).filter(|_| self.strike(check, time)).count();
        if strikes > 0 { self.expires(check) } else { None }
    }

    /// Lifts the ban.
    fn refund(&mut self, check: &Check<'_>, _: i64) -> Option<i64> {
        self.forget();
        self.ends = self.latest;
        self.expires(check)
    }

    fn give_back(&mut self, _: &Check<'_>, _: Stamp) -> Option<i64> {
        None
    }

    fn state(&self, _: &Check<'_>, _: i64, _: bool) -> [Option<i64>; 3] {
        [Some(self.ends), Some(0), None]
    }
}
