//! People who ask a node why: how would a request be answered now?
//!
//! In: a scenario that was drawn. Out: more events in it: questions about what clients ask at about that time.

use super::{Fault, Item, Layout, Scenario, What};
use crate::random::Random;
use crate::world::{MILLI, SECOND};

/// People ask in most scenarios. An answer is made of many calls where there is a Redis.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
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
        let with = ask.items.iter().copied().find(|other| other.limit != item.limit);
        scenario.faults.push(Fault { at, what: What::Explain { node, item, with } });
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}
