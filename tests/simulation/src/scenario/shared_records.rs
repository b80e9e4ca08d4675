//! Records that nodes share through a Redis of their own, and what happens to its server.
//!
//! In: a scenario that was drawn. Out: the same, in which operators write records to that server, and nodes read and follow
//! them there.

use tidegate_engine::limit::Algorithm;

use super::{ASKED, Ask, Fault, Item, LimitSpec, Outage, Scenario, Shape, StoredIn, Terms, What, records};
use crate::random::Random;
use crate::redis::server::Refusal;
use crate::world::{MICRO, MILLI, SECOND, Time};

/// What a record of a plot allows at most.
const REQUESTS_MAX: u32 = 100;

/// In half of the scenarios that have records they are in Redis, and a sixth of the others get some there.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    // The judge of nodes without Redis knows no request that waits.
    if scenario.layout.servers() == 0 {
        return;
    }
    match scenario.limits.iter().any(|limit| limit.recorded.is_some()) {
        true if random.one_in(2) => return,
        true => {}
        false => {
            let Some(limit) = scenario.limits.iter().position(is_plain) else { return };
            if !random.one_in(6) {
                return;
            }
            records::of_limit(random, scenario, limit);
        }
    }
    // A Cluster knows all masters of the world: there is one at most.
    let is_cluster = scenario.layout.masters().is_none() && random.one_in(3);
    scenario.records_in = if is_cluster { StoredIn::Cluster } else { StoredIn::Redis };
    if random.one_in(2) {
        let times = changes(scenario).into_iter().map(|(at, ..)| at).collect::<Vec<_>>();
        (0..1 + random.below(4)).for_each(|_| add_outage(random, scenario, &times));
    }
    if random.one_in(2) {
        (0..1 + random.below(3)).for_each(|_| add_changes(random, scenario));
    }
    if random.one_in(3) {
        add_lost_change(random, scenario);
    }
    if is_cluster {
        add_change_in_part(random, scenario);
    }
    scenario.faults.sort_by_key(|fault| fault.at);
    scenario.asks.sort_by_key(|ask| ask.at);
}

/// A limit that may have records, whatever was added to the scenario before.
pub(super) fn is_plain(limit: &LimitSpec) -> bool {
    let Shape { is_quota, has_nodes, .. } = limit.shape;
    let is_counted = !matches!(limit.algorithm, Algorithm::Calendar | Algorithm::Concurrency);
    let has_more = limit.excepted.or(limit.candidate).or(limit.burst).is_some() || limit.further.is_some();
    is_counted
        && !limit.is_override
        && !has_more
        && limit.shape == Shape { is_quota, has_nodes, ..Shape::default() }
}

/// Something happens to the server, often close to one of these changes.
pub(super) fn add_outage(random: &mut Random, scenario: &mut Scenario, changes: &[Time]) {
    let node = random.index(scenario.clocks.len());
    let lasts = random.pick(&[5, 50, 400, 1_000, 3_000]) * MILLI;
    let what = match random.below(9) {
        0 | 1 => Outage::Stop,
        2 => Outage::Restart,
        3 => Outage::Refuse(random.pick(&[Refusal::Loading, Refusal::ReadOnly, Refusal::Full])),
        4 => Outage::Lose(node),
        5 | 6 => Outage::Flush,
        _ => Outage::FailOver,
    };
    let at = match changes.is_empty() || random.one_in(2) {
        true => scenario.later + random.below(ASKED - 3 * SECOND),
        false => (random.pick(changes) + random.below(300 * MILLI)).saturating_sub(50 * MILLI),
    };
    scenario.faults.push(Fault { at, what: What::OfRecords { what, lasts } });
}

/// Two changes of one counter close to another one: operators who have read the same record, or who have not.
fn add_changes(random: &mut Random, scenario: &mut Scenario) {
    let all = changes(scenario);
    let (at, limit, key) = random.pick(&all);
    let (heard_within, at) = (random.pick(&[0, 50 * MILLI, 500 * MILLI]), at + random.below(50 * MILLI));
    let most = scenario.limits[limit].recorded.filter(|most| *most > 0);
    for _ in 0..2 {
        let terms = most.map(|most| Terms::of(1 + random.below(most.into()) as u32));
        let terms = terms.filter(|_| !random.one_in(3));
        let what = What::Record { limit, key, terms, heard_within };
        scenario.faults.push(Fault { at: at + random.pick(&[0, 0, MICRO, MILLI]), what });
    }
}

/// A change that a node reads and a failover loses, before that node has read that there was a change.
fn add_lost_change(random: &mut Random, scenario: &mut Scenario) {
    let (at, limit, key) = random.pick(&changes(scenario));
    let at = at + SECOND;
    // After the first change nodes know nothing of the key.
    add_change(scenario, at, (limit, key), (1, 0));
    add_change(scenario, at + 520 * MILLI, (limit, key), (REQUESTS_MAX, 0));
    let what = What::OfRecords { what: Outage::FailOver, lasts: 100 * MILLI };
    scenario.faults.push(Fault { at: at + 500 * MILLI, what });
    ask_twice(
        random,
        scenario,
        (limit, key),
        [(at + 521 * MILLI, at + 595 * MILLI), (at + 3 * SECOND, at + 6 * SECOND)],
    );
}

/// A change of a record that nodes know, which a Cluster makes and does not announce, as it refuses from then on. The operator
/// repeats it.
fn add_change_in_part(random: &mut Random, scenario: &mut Scenario) {
    let (at, limit, key) = random.pick(&changes(scenario));
    let (at, thinks) = (at + SECOND, 60 * MILLI);
    add_change(scenario, at, (limit, key), (1 + random.below(REQUESTS_MAX.into()) as u32, thinks));
    let refuses = at + thinks + random.between(500 * MICRO, 1_300 * MICRO);
    let what = What::OfRecords { what: Outage::Refuse(Refusal::Full), lasts: 300 * MILLI };
    scenario.faults.push(Fault { at: refuses, what });
    ask_twice(random, scenario, (limit, key), [(at - 100 * MILLI, at), (at + 3 * SECOND, at + 6 * SECOND)]);
}

/// An operator who thinks for so long gives a key so many requests.
fn add_change(
    scenario: &mut Scenario,
    at: Time,
    (limit, key): (usize, u64),
    (requests, thinks): (u32, Time),
) {
    let what = What::Record { limit, key, terms: Some(Terms::of(requests)), heard_within: thinks };
    scenario.faults.push(Fault { at, what });
    scenario.limits[limit].recorded = scenario.limits[limit].recorded.max(Some(requests));
}

/// Some clients ask a counter at some nodes, and later again.
fn ask_twice(
    random: &mut Random,
    scenario: &mut Scenario,
    (limit, key): (usize, u64),
    times: [(Time, Time); 2],
) {
    for _ in 0..8 {
        let node = random.below(scenario.clocks.len() as u64) as usize;
        for (from, to) in times {
            let at = random.between(from, to);
            scenario.asks.push(Ask::new(at, node, vec![Item::new(limit, key, 1)]));
        }
    }
}

/// When records change, and which.
pub(super) fn changes(scenario: &Scenario) -> Vec<(Time, usize, u64)> {
    let change = |fault: &Fault| match fault.what {
        What::Record { limit, key, .. } => Some((fault.at, limit, key)),
        _ => None,
    };
    scenario.faults.iter().filter_map(change).collect()
}
