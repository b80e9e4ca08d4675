//! More exceptions: for patterns, of which several fit, and for rules with several limits.
//!
//! In: a scenario that was drawn. Out: more events in it.

use super::{Further, Scenario, Whom, operators};
use crate::random::Random;

/// An eighth of all scenarios have more exceptions.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let Some(number) = (0..scenario.limits.len()).find(|&number| may_have(scenario, number)) else { return };
    if !random.one_in(8) {
        return;
    }
    let has_further = scenario.limits.iter().any(|limit| limit.is_further_of(number));
    let whom = match scenario.limits[number].shape.has_prefix {
        true => &[Whom::All][..],
        false if has_further => &[Whom::All, Whom::Pattern],
        false => &[Whom::All, Whom::Pattern, Whom::Pattern, Whom::One(0)],
    };
    for _ in 0..1 + random.below(3) {
        let whom = random.pick(whom);
        operators::except_whom(random, scenario, number, whom);
    }
    scenario.faults.sort_by_key(|fault| fault.at);
    let most = scenario.limits[number].excepted.unwrap_or(0);
    for limit in scenario.limits.iter_mut().filter(|limit| limit.is_further_of(number)) {
        limit.excepted = Some(match limit.further {
            Some((_, Further::Shorter { factor, .. })) => most * factor,
            _ => 0,
        });
    }
}

/// Whether exceptions may be made for a limit. What is renewed is not asked of its first limit, and so by no exception.
pub(super) fn may_have(scenario: &Scenario, number: usize) -> bool {
    let limit = &scenario.limits[number];
    let is_first = !limit.is_override && limit.further.is_none() && limit.recorded.is_none();
    let is_alone = limit.shape.replaces.is_none() && !scenario.is_replaced(number);
    is_first && is_alone && scenario.asks.iter().all(|ask| ask.renewed.is_none())
}
