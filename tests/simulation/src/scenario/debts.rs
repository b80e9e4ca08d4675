//! Debts: limits that carry what costs charge beyond N, and reservations that hold less than the worst case.
//!
//! In: a scenario that was drawn. Out: the same with `carry_debt` for some limits whose costs may exceed N, and with `hold` and
//! `overdraft` for some of those that have reservations.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::overlay::Effect;

use super::{Hold, LimitSpec, Scenario, Whom, exceptions, operators};
use crate::random::Random;

/// The windows of N hits that a counter may owe, and one for what is added to the newest bucket.
pub const DEBT_WINDOWS: u64 = 18;

/// Half of all limits that can have one of the two have it.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    for number in 0..scenario.limits.len() {
        let (carries, learns) = (random.one_in(2), random.one_in(2));
        let limit = &mut scenario.limits[number];
        if learns {
            learn(random, limit);
        }
        if !carries || !may_carry(limit) {
            continue;
        }
        limit.shape.carries_debt = true;
        (limit.requests[1], limit.window_secs[1]) = (limit.requests[0], limit.window_secs[0]);
        if limit.is_reported {
            ask_more(random, scenario, number);
        }
    }
}

/// Reservations of a limit hold what was learnt.
pub(super) fn learn(random: &mut Random, limit: &mut LimitSpec) {
    if let Some(reserve) = &mut limit.shape.reserve {
        reserve.hold = Some(hold(random, limit.requests[0].max(1).into()));
    }
}

fn hold(random: &mut Random, requests: u64) -> Hold {
    let max = random.pick(&[1, requests.div_ceil(3), requests, 2 * requests]);
    Hold {
        percentile: random.pick(&[50, 90, 99]),
        is_of_counter: random.one_in(2),
        initial: 1 + random.below(max),
        max,
        overdraft: random.pick(&[0, 50, 500, 1_000, 10_000]),
    }
}

/// Whether costs may exceed N of a limit that can carry its debts, and no operator changes it.
fn may_carry(limit: &LimitSpec) -> bool {
    let has_costs = limit.is_reported || limit.shape.reserve.is_some();
    let can_carry = matches!(limit.algorithm, Algorithm::SlidingWindow | Algorithm::SlidingLog);
    has_costs
        && can_carry
        && !limit.is_override
        && !limit.has_another_n()
        && !limit.shape.has_prefix
        && limit.further.is_none()
}

/// Exceptions deny a third of the limits for a while whose counters owe what is reported meanwhile.
pub(super) fn deny(random: &mut Random, scenario: &mut Scenario) {
    for number in 0..scenario.limits.len() {
        let limit = &scenario.limits[number];
        let owes = limit.shape.carries_debt || limit.algorithm.is_bucket() && limit.is_steady();
        let is_usual = limit.is_reported && !limit.has_another_n() && !limit.shape.has_prefix;
        if owes && is_usual && exceptions::may_have(scenario, number) && random.one_in(3) {
            scenario.limits[number].shape.is_denied = true;
            for _ in 0..1 + random.below(2) {
                let whom = random.pick(&[Whom::All, Whom::One(0)]);
                operators::except_by(random, scenario, (number, whom), Effect::Deny);
            }
        }
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}

/// Makes most reports questions: when all were costs, debts would be as large as they can be all the time.
fn ask_more(random: &mut Random, scenario: &mut Scenario, number: usize) {
    let reports = random.pick(&[5, 20, 100]);
    for item in scenario.items_of(number) {
        item.hits *= u64::from(random.one_in(reports));
    }
}
