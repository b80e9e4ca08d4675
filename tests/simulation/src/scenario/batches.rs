//! Requests that a worker reads together, and nodes of several workers.
//!
//! In: a scenario that was drawn. Out: more requests in it, at the times of others: for the same counters and for others, with
//! several descriptors, refused ones and missing ones in between. What belongs to one request of a batch and is given to
//! another shows where they ask different counters.

use super::{Ask, Form, LimitSpec, Scenario, drawn, operators, records};
use crate::random::Random;

/// Counters of each limit that are asked for together. Two of them may have records and exceptions of their own.
const KEYS: u64 = 3;
/// Requests that come together with another one at most: all of them are one batch.
const MORE_MAX: u64 = 7;

/// Half of all scenarios have batches.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario, is_staged: bool) {
    if random.one_in(2) {
        return;
    }
    (scenario.workers, scenario.pool_size) = (random.pick(&[1, 1, 2, 3]), random.pick(&[1, 10]));
    let (seldom, unusual) = (random.pick(&[4, 20, 100]), random.pick(&[3, 6, 1_000]));
    let mut asks = Vec::with_capacity(2 * scenario.asks.len());
    for (number, mut ask) in (0..).zip(std::mem::take(&mut scenario.asks)) {
        ask.worker = random.index(scenario.workers);
        if !random.one_in(seldom) {
            asks.push(ask);
            continue;
        }
        ask.batch = Some(number);
        let (first, more) = (asks.len(), 1 + random.below(MORE_MAX));
        asks.extend((0..more).map(|_| another(random, scenario, &ask, unusual)));
        asks.insert(first + random.below(more + 1) as usize, ask);
    }
    scenario.asks = asks;
    if !is_staged && random.one_in(2) {
        set_apart(random, scenario);
    }
}

/// Counters of a limit get records or exceptions of their own. Those of another request show where a node decides by a lease:
/// a limit that has leases is chosen, if there is one.
fn set_apart(random: &mut Random, scenario: &mut Scenario) {
    let (limits, is_free) =
        (&scenario.limits, |limit: &LimitSpec| !limit.is_override && limit.recorded.is_none());
    let leased = limits.iter().position(|limit| limit.is_leased && is_free(limit));
    let Some(limit) = leased.or_else(|| limits.iter().position(is_free)) else { return };
    match random.one_in(2) {
        true => records::of_limit(random, scenario, limit),
        false => (0..2).for_each(|_| operators::except_of_limit(random, scenario, limit)),
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}

/// Another request of the same batch.
fn another(random: &mut Random, scenario: &Scenario, ask: &Ask, unusual: u64) -> Ask {
    let count = random.pick(&[1, 1, 1, 2, 3]);
    let items = match random.one_in(4) {
        // The same counter twice.
        true => ask.items.clone(),
        false => (0..count).map(|_| drawn::item(random, &scenario.limits, KEYS)).collect(),
    };
    let form = match random.one_in(unusual) {
        true => random.pick(&[Form::Elsewhere, Form::Refused, Form::Nothing]),
        false => Form::Usual,
    };
    Ask { worker: ask.worker, batch: ask.batch, form, ..Ask::new(ask.at, ask.node, items) }
}
