//! Requests in which several rules have a say: limits that replace each other in a row or in a circle, and descriptors of several
//! kinds in one request.
//!
//! In: a scenario that was drawn. Out: the same with more descriptors in requests of rules whose descriptors depend on each other.

use super::{Form, LimitSpec, Limitless, Scenario, drawn};
use crate::random::Random;

/// Counters of each limit that are asked for together.
const KEYS: u64 = 2;

/// An eighth of all scenarios have limits that replace each other, if there are three; and requests have more descriptors where one
/// depends on the others.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    if random.one_in(8) {
        replace_in_turn(random, scenario);
    }
    let depends = |limit: &LimitSpec| limit.shape.is_quota || limit.shape.replaces.is_some();
    if !scenario.modes.quota && !scenario.limits.iter().any(depends) || random.one_in(2) {
        return;
    }
    let seldom = random.pick(&[2, 5]);
    let is_usual = |form| form == Form::Usual;
    for place in
        (0..scenario.asks.len()).filter(|&place| is_usual(scenario.asks[place].form)).collect::<Vec<_>>()
    {
        if !random.one_in(seldom) {
            continue;
        }
        let item = drawn::item(random, &scenario.limits, KEYS);
        let limitless = random.pick(&[None, Some(Limitless::Unlimited), Some(Limitless::Unmatched)]);
        let ask = &mut scenario.asks[place];
        ask.items.push(item);
        ask.limitless = ask.limitless.or(limitless);
    }
}

/// The first of three limits replaces the second, and that the third, which may replace the first. What replaces is known without what
/// operators do.
fn replace_in_turn(random: &mut Random, scenario: &mut Scenario) {
    let is_plain = |limit: &LimitSpec| !limit.is_override && !limit.is_operated();
    let [first, second, third] = &mut scenario.limits[..] else { return };
    if [&*first, &*second, &*third].into_iter().all(is_plain) {
        (first.shape.replaces, second.shape.replaces) = (Some(1), Some(2));
        third.shape.replaces = random.one_in(3).then_some(0);
    }
}
