//! Records that nodes share through a Redis of their own, and what happens to its server.
//!
//! In: a scenario that was drawn. Out: the same, in which operators write records to that server, and nodes read and follow
//! them there.

use super::{ASKED, Fault, Outage, RecordsIn, Scenario, What};
use crate::random::Random;
use crate::redis::server::Trouble;
use crate::world::{MILLI, SECOND, Time};

/// Makes the draws of this file others than those of the rest. Seeds that found a fault with a list keep it by this number.
pub(super) const OWN: u64 = 0x7368_6172_6564_304e;

/// In half of the scenarios that have records they are in Redis.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let has_records = scenario.limits.iter().any(|limit| limit.recorded.is_some());
    if !has_records || random.one_in(2) {
        return;
    }
    // A Cluster knows all masters of the world: there is one at most.
    let is_cluster = scenario.layout.masters().is_none() && random.one_in(3);
    scenario.records_in = if is_cluster { RecordsIn::Cluster } else { RecordsIn::Redis };
    if random.one_in(2) {
        (0..1 + random.below(4)).for_each(|_| add_outage(random, scenario));
    }
    if random.one_in(2) {
        (0..1 + random.below(3)).for_each(|_| add_changes(random, scenario));
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}

/// Something happens to the server, often close to a change.
fn add_outage(random: &mut Random, scenario: &mut Scenario) {
    let node = random.below(scenario.clocks.len() as u64) as usize;
    let lasts = random.pick(&[5, 50, 400, 1_000, 3_000]) * MILLI;
    let what = match random.below(8) {
        0 | 1 => Outage::Stop,
        2 => Outage::Restart,
        3 => Outage::Refuse(random.pick(&[Trouble::Loading, Trouble::ReadOnly, Trouble::Full])),
        4 | 5 => Outage::Lose(node),
        6 => Outage::Flush,
        _ => Outage::FailOver,
    };
    let at = match changes(scenario) {
        all if all.is_empty() || random.one_in(2) => scenario.later + random.below(ASKED - 3 * SECOND),
        all => (random.pick(&all).0 + random.below(300 * MILLI)).saturating_sub(50 * MILLI),
    };
    scenario.faults.push(Fault { at, what: What::OfRecords { what, lasts } });
}

/// Two changes of one counter at nearly the same time, through different nodes perhaps.
fn add_changes(random: &mut Random, scenario: &mut Scenario) {
    let all = changes(scenario);
    let (at, limit, key) = random.pick(&all);
    let heard_within = random.pick(&[0, MILLI, 50 * MILLI, 500 * MILLI]);
    let most = scenario.limits[limit].recorded.filter(|most| *most > 0);
    let terms = most.map(|most| (1 + random.below(most.into()) as u32, None)).filter(|_| !random.one_in(3));
    let what = What::Record { limit, key, terms, heard_within };
    scenario.faults.push(Fault { at: at + random.below(2 * heard_within + 5 * MILLI), what });
}

/// When records change, and which.
fn changes(scenario: &Scenario) -> Vec<(Time, usize, u64)> {
    let change = |fault: &Fault| match fault.what {
        What::Record { limit, key, .. } => Some((fault.at, limit, key)),
        _ => None,
    };
    scenario.faults.iter().filter_map(change).collect()
}
