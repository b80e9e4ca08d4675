//! Bans: a key that a limit denied too often is denied for a while.
//!
//! In: a scenario that was drawn. Out: the same with a ban in the rule of one of its limits: short ones, so that many begin and end while
//! clients ask. Operators of some begin and lift bans too.

use tidegate_engine::rules::StoreFailure;

use super::{ASKED, Fault, Layout, LimitSpec, Scenario, What};
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

/// A ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// So many denials…
    pub after: u64,
    /// …within this time begin it.
    pub within: Time,
    /// A denial within this time of one that counted does not count.
    pub every: Time,
    /// How long the first one lasts.
    pub first: Time,
    /// How long each lasts at most.
    pub longest: Time,
    /// `on`: the limit whose key names who is banned. `None`: all entries of the descriptor do.
    pub on: Option<usize>,
}

impl Ban {
    /// The length of a ban after so many in a row.
    pub fn lasts(&self, level: u32) -> Time {
        (self.first << level).min(self.longest)
    }

    /// The level from which on bans do not become longer.
    pub fn last_level(&self) -> u32 {
        (0..).find(|&level| self.lasts(level) == self.longest).unwrap_or(0)
    }
}

/// A quarter of all scenarios have a ban.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let may = |limit: &LimitSpec| {
        let is_rate = !limit.is_override && !limit.is_slots();
        // With QUOTA_MODE the limit of a rule may pass what its ban denies without an answer.
        let is_seen = !scenario.modes.quota || limit.failure != StoreFailure::Deny;
        is_rate && is_seen && !limit.shape.is_quota && limit.shape.classes.is_none()
    };
    let is_wanted = random.one_in(4);
    let Some(number) = scenario.limits.iter().position(may).filter(|_| is_wanted) else { return };
    let first = random.pick(&[1, 2, 3, 5]) * SECOND;
    let above = scenario.limits[number].shape.below;
    // The reset of one counter resets a ban that other counters share.
    let is_reset = scenario.faults.iter().any(|fault| matches!(fault.what, What::Reset { key: Some(_), .. }));
    let (after, every) = (1 + random.below(5), random.pick(&[0, 500 * MILLI, SECOND]));
    let ban = Ban {
        after,
        within: (after * every).div_ceil(SECOND) * SECOND + random.pick(&[1, 3, 10, 60]) * SECOND,
        every,
        first,
        longest: first * random.pick(&[1, 2, 3, 8]),
        on: above.filter(|_| !is_reset).map(|above| random.pick(&[above, number])),
    };
    let keeps_shape = random.one_in(6);
    let limit = &mut scenario.limits[number];
    limit.is_leased = false;
    if random.one_in(2) && limit.burst.or(limit.candidate).is_none() {
        limit.requests = [random.pick(&[1, 2, 5]); 2];
    }
    if !keeps_shape {
        (limit.is_shadow, limit.is_reported) = (false, false);
    }
    if scenario.layout == Layout::PerSecond {
        // In another unit it would be at another server.
        limit.window_secs[1] = limit.window_secs[0];
    }
    limit.shape.ban = Some(ban);
}

/// Operators of three quarters of the scenarios with a ban begin and lift bans: now and then, at the very time of a request, or right
/// after each other.
pub(super) fn operate(random: &mut Random, scenario: &mut Scenario) {
    let has_ban = |limit: &LimitSpec| limit.shape.ban.is_some();
    let Some(limit) = scenario.limits.iter().position(has_ban).filter(|_| !random.one_in(4)) else { return };
    let of_limit = scenario.asks.iter().filter(|ask| ask.items.iter().any(|item| item.limit == limit));
    let asked: Vec<Time> = of_limit.map(|ask| ask.at).collect();
    let mut last = scenario.later + SECOND;
    for _ in 0..random.pick(&[1, 2, 4, 8, 16]) {
        last = match random.below(3) {
            0 if !asked.is_empty() => random.pick(&asked) + random.below(2 * MILLI),
            1 => last + random.pick(&[MILLI, 50 * MILLI, SECOND]).min(random.below(2 * SECOND)),
            _ => scenario.later + SECOND + random.below(ASKED - SECOND),
        };
        let what = What::Ban {
            node: random.index(scenario.clocks.len()),
            limit,
            key: random.pick(&[0, 0, 0, 1]),
            lasts: (!random.one_in(3)).then(|| random.pick(&[1, 2, 3, 5, 10]) * SECOND),
        };
        scenario.faults.push(Fault { at: last, what });
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}
