//! People who ask a node why: how would a request be answered now?
//!
//! In: a scenario that was drawn. Out: more events in it: questions about what clients ask at about that time.

use super::fault::MORE_MAX;
use super::{Fault, Item, Layout, Scenario, What};
use crate::random::Random;
use crate::world::{MILLI, SECOND};

/// People ask in most scenarios, also about two limits together.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    ask(random, scenario, |item, all| {
        let other = all.iter().copied().find(|other| other.limit != item.limit);
        [other, None, None]
    });
}

/// And about several descriptors, of one limit or counter perhaps.
pub(super) fn add_larger(random: &mut Random, scenario: &mut Scenario) {
    ask(random, scenario, |_, all| {
        let mut others = all.iter().copied();
        [(); MORE_MAX].map(|()| others.next())
    });
}

/// An answer is made of many calls where there is a Redis.
fn ask(
    random: &mut Random,
    scenario: &mut Scenario,
    with: impl Fn(Item, &[Item]) -> [Option<Item>; MORE_MAX],
) {
    let most = if let Layout::Alone(_) = scenario.layout { 20 } else { 5 };
    if scenario.asks.is_empty() || random.one_in(3) {
        return;
    }
    for _ in 0..1 + random.below(most) {
        let ask = &scenario.asks[random.index(scenario.asks.len())];
        let item = random.pick(&ask.items);
        let item = Item { hits: random.pick(&[item.hits, item.hits, 1, 0]), ..item };
        let later = random.pick(&[0, 0, MILLI, 50 * MILLI, SECOND, 5 * SECOND]);
        let (at, node) = (ask.at + later, random.index(scenario.clocks.len()));
        let with = with(item, &ask.items);
        scenario.faults.push(Fault { at, what: What::Explain { node, item, with } });
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}
