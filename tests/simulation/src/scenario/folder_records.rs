//! Records in a folder of a node without Redis, and what happens to its disk.
//!
//! In: a scenario that was drawn. Out: the same, in which operators write records to that folder through the node, and the disk
//! is full, slow or broken for a while, often while they do.

use super::{ASKED, DiskTrouble, Fault, Layout, Scenario, StoredIn, Terms, What, records, shared_records};
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

/// In a third of the scenarios without Redis.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let limit = scenario.limits.iter().position(shared_records::is_plain);
    let (Layout::Alone(alone), Some(limit)) = (&mut scenario.layout, limit) else { return };
    if !random.one_in(3) {
        return;
    }
    // The judge does not know whether a request that waited found room in memory.
    alone.max_bytes = 1 << 20;
    records::of_limit(random, scenario, limit);
    scenario.records_in = StoredIn::Folder;
    let times = shared_records::changes(scenario);
    for fault in &mut scenario.faults {
        if let What::RecordsAway { lasts, .. } = fault.what {
            fault.what = What::OfDisk { what: trouble(random), lasts };
        }
    }
    if random.one_in(2) {
        (0..1 + random.below(4)).for_each(|_| add_trouble(random, scenario, &times));
    }
    if random.one_in(2) {
        (0..1 + random.below(3)).for_each(|_| add_return(random, scenario, limit));
    }
    if random.one_in(2) {
        add_death(random, scenario, &times);
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}

fn trouble(random: &mut Random) -> DiskTrouble {
    random.pick(&[DiskTrouble::Full, DiskTrouble::Full, DiskTrouble::Broken, DiskTrouble::Slow])
}

/// Something is the matter with the disk when a record changes.
fn add_trouble(random: &mut Random, scenario: &mut Scenario, times: &[(Time, usize, u64)]) {
    let lasts = random.pick(&[MILLI, 50 * MILLI, 400 * MILLI, SECOND, 3 * SECOND]);
    let what = What::OfDisk { what: trouble(random), lasts };
    scenario.faults.push(Fault { at: near(random, times), what });
}

/// While the disk takes no change, an operator changes a record, and then wants it to be as it was. Another change comes later.
fn add_return(random: &mut Random, scenario: &mut Scenario, limit: usize) {
    let at = SECOND + random.below(ASKED / 2);
    let (key, requests) = (random.pick(&[0, 0, 1]), 1 + random.below(60) as u32);
    let mut add = |at, what| scenario.faults.push(Fault { at, what });
    let record = |terms| What::Record { limit, key, terms, heard_within: 60 * MILLI };
    add(at, record(Some(Terms::of(requests))));
    add(at + 500 * MILLI, What::OfDisk { what: DiskTrouble::Full, lasts: 300 * MILLI });
    add(at + 600 * MILLI, record(Some(Terms::of(requests + 60))));
    add(at + 1_000 * MILLI, record(Some(Terms::of(requests))));
    add(
        at + 2_000 * MILLI,
        What::Record { limit, key: 1 - key, terms: Some(Terms::of(requests)), heard_within: 0 },
    );
    scenario.limits[limit].recorded = scenario.limits[limit].recorded.max(Some(requests + 60));
}

/// The process dies when a record changes.
fn add_death(random: &mut Random, scenario: &mut Scenario, times: &[(Time, usize, u64)]) {
    let (at, lasts) = (random.pick(times).0 + random.below(MILLI), random.pick(&[5, 50, 400]) * MILLI);
    scenario.faults.push(Fault { at, what: What::Crash { node: 0, lasts } });
}

/// Shortly before or after one of these changes.
fn near(random: &mut Random, times: &[(Time, usize, u64)]) -> Time {
    (random.pick(times).0 + random.below(100 * MILLI)).saturating_sub(50 * MILLI)
}
