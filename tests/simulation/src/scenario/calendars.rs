//! Calendar budgets: N hits a day, of which the running one ends when clients have asked everything.
//!
//! In: a scenario that was drawn. Out: the same with a budget in place of one of its limits.

use super::{Layout, LimitSpec, Scenario};
use crate::random::Random;
use crate::world::{SECOND, Time};
use tidegate_engine::limit::Algorithm;

/// Makes the draws of this file others than those of the rest.
pub(super) const OWN: u64 = 0x6361_6c65_6e64_6172;
/// A day, of UTC.
pub const DAY_SECS: u64 = 86_400;
/// When the day ends in which clients ask.
pub const DAY_ENDS: Time = 40 * SECOND;

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
