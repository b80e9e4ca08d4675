//! Calendar budgets: N hits in a period that ends when clients have asked everything, or while they ask.
//!
//! In: a scenario that was drawn. Out: the same with a budget in place of one of its limits.

use super::{Layout, LimitSpec, Scenario, What};
use crate::random::Random;
use crate::redis::server::EPOCH_MICROS;
use crate::world::{MICRO, SECOND, Time};
use tidegate_engine::limit::Algorithm;

/// A day, of UTC.
pub const DAY_SECS: u64 = 86_400;
/// When the day ends in which clients ask. Every world begins in it: on a Monday, the 21st.
pub const DAY_ENDS: Time = 40 * SECOND;
/// How much later than usual clients ask where it ends meanwhile.
const LATER: Time = 30 * SECOND;

/// A period that ends with the day in which the world begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// As rules write it.
    pub period: &'static str,
    /// How many days such a period has at most.
    days_max: u64,
    /// How many days the next one has.
    days: u64,
}

impl Ending {
    const fn new(period: &'static str, days_max: u64, days: u64) -> Self {
        Self { period, days_max, days }
    }
}

/// In three time zones that have the hour of UTC.
const ENDINGS: [Ending; 5] = [
    Ending::new("{calendar: day, tz: UTC}", 1, 1),
    Ending::new("{calendar: day, tz: Atlantic/Reykjavik}", 1, 1),
    Ending::new("{calendar: week, tz: Africa/Abidjan, anchor: tuesday}", 7, 7),
    Ending::new("{calendar: month, tz: UTC, anchor: 22}", 31, 30),
    Ending::new("{calendar: month, tz: Africa/Abidjan, anchor: 22}", 31, 30),
];

/// A tenth of all scenarios have a budget.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let may = |limit: &&mut LimitSpec| {
        let is_changed = limit.burst.or(limit.candidate).or(limit.recorded).is_some();
        !limit.is_override && !limit.algorithm.is_bucket() && !is_changed
    };
    let is_wanted = random.one_in(10);
    let Some(limit) = scenario.limits.iter_mut().find(may).filter(|_| is_wanted) else { return };
    let days = random.pick(&[1, 10, 50]);
    (limit.algorithm, limit.is_leased) = (Algorithm::Calendar, false);
    limit.window_secs = [DAY_SECS; 2];
    limit.requests = limit.requests.map(|requests| requests * days);
    if let (Layout::Alone(alone), true) = (&mut scenario.layout, random.one_in(2)) {
        alone.cold_max = 2 * DAY_SECS * SECOND;
    }
}

/// A sixth of the scenarios without one get a budget whose period ends while clients ask.
pub(super) fn end(random: &mut Random, scenario: &mut Scenario) {
    let has_budget = scenario.limits.iter().any(|limit| limit.algorithm == Algorithm::Calendar);
    // Where wall clocks step, nobody knows when the period ends.
    let steps = |what| matches!(what, What::StepWall { .. } | What::StepServers { .. });
    let is_steady = scenario.replicas_ahead == 0 && !scenario.faults.iter().any(|fault| steps(fault.what));
    let is_wanted = random.one_in(6) && is_steady && !has_budget;
    let may = |limit: &&mut LimitSpec| {
        let is_window = !limit.algorithm.is_bucket() && !limit.is_slots();
        let is_changed = limit.has_another_n() || limit.burst.is_some() || limit.further.is_some();
        let shape = &limit.shape;
        let is_plain =
            shape.reserve.is_none() && shape.ban.is_none() && !shape.carries_debt && !shape.has_prefix;
        is_window && is_plain && !limit.is_override && !is_changed
    };
    let Some(limit) = scenario.limits.iter_mut().find(may).filter(|_| is_wanted) else { return };
    let ending = random.pick(&ENDINGS);
    (limit.algorithm, limit.is_leased, limit.shape.ending) = (Algorithm::Calendar, false, Some(ending));
    limit.window_secs = [ending.days_max * DAY_SECS; 2];
    let times = random.pick(&[1, 1, 5]);
    limit.requests = limit.requests.map(|requests| requests * times);
    scenario.later = LATER;
    scenario.asks.iter_mut().for_each(|ask| ask.at += LATER);
    scenario.faults.iter_mut().for_each(|fault| fault.at += LATER);
}

impl LimitSpec {
    /// The aligned window or period around a time: its begin, as far as the world goes back, and its end.
    pub fn window_around(&self, window: Time, time: Time) -> [Time; 2] {
        if self.algorithm == Algorithm::Calendar {
            let next = self.shape.ending.map_or(1, |ending| ending.days) * DAY_SECS * SECOND;
            let Some(after) = time.checked_sub(DAY_ENDS) else { return [0, DAY_ENDS] };
            let begins = DAY_ENDS + after / next * next;
            return [begins, begins + next];
        }
        let since = (EPOCH_MICROS * MICRO + time) % window;
        [time.saturating_sub(since), time + window - since]
    }
}
