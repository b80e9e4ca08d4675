//! Exceptions that nodes share through a Redis, and what happens to its server.
//!
//! In: a scenario that was drawn. Out: the same, in which operators send exceptions to single nodes, and all nodes read and follow
//! them in the server of records, or in one of their own.

use super::{ASKED, Fault, Outage, Scenario, StoredIn, What, shared_records};
use crate::random::Random;
use crate::redis::server::Refusal;
use crate::world::{MILLI, SECOND, Time};

/// In half of the scenarios that have exceptions and Redis nodes share them.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let has_exceptions = !changes(scenario).is_empty();
    if scenario.layout.servers() == 0 || !has_exceptions || random.one_in(2) {
        return;
    }
    // A Cluster knows all masters of the world: there is one at most.
    let may_be_cluster = scenario.layout.masters().is_none();
    scenario.exceptions_in = match scenario.records_in {
        StoredIn::List if may_be_cluster && random.one_in(3) => StoredIn::Cluster,
        StoredIn::List => StoredIn::Redis,
        records_in => records_in,
    };
    // Until now each exception was made at all nodes, about at the same time.
    if random.one_in(2) {
        let kept = random.pick(&changes(scenario)).at;
        let is_exception = |what: &What| matches!(what, What::Except { .. });
        scenario.faults.retain(|it| !is_exception(&it.what) || it.at == kept || random.one_in(3));
    }
    (0..random.below(4)).for_each(|_| add_change(random, scenario));
    if random.one_in(2) {
        let times: Vec<Time> = changes(scenario).iter().map(|fault| fault.at).collect();
        (0..1 + random.below(4)).for_each(|_| shared_records::add_outage(random, scenario, &times));
        if random.one_in(3) {
            let what = What::OfRecords { what: Outage::RestartEmpty, lasts: random.pick(&[5, 400]) * MILLI };
            scenario.faults.push(Fault { at: near(random, &times), what });
        }
        if random.one_in(3) {
            let (node, lasts) =
                (random.index(scenario.clocks.len()), random.pick(&[50, 1_000, 3_000]) * MILLI);
            let what = What::RecordsAway { node, lasts };
            scenario.faults.push(Fault { at: near(random, &times), what });
        }
    }
    if random.one_in(3) {
        add_lost_end(random, scenario);
    }
    if random.one_in(6) {
        let (node, lasts) = (random.index(scenario.clocks.len()), random.pick(&[5, 400, 3_000]) * MILLI);
        let times: Vec<Time> = changes(scenario).iter().map(|fault| fault.at).collect();
        let what =
            if random.one_in(2) { What::Crash { node, lasts } } else { What::StopNode { node, lasts } };
        scenario.faults.push(Fault { at: near(random, &times), what });
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}

/// An exception with the id of another one, at about the same time or at some other one.
fn add_change(random: &mut Random, scenario: &mut Scenario) {
    let other = random.pick(&changes(scenario));
    let What::Except { limit, whom, .. } = other.what else { return };
    let of_limit = changes(scenario).into_iter().filter_map(|fault| match fault.what {
        What::Except { limit: of, effect, .. } if of == limit => Some(effect),
        _ => None,
    });
    let effect = random.pick(&of_limit.collect::<Vec<_>>());
    let node = random.index(scenario.clocks.len());
    let at = match random.one_in(2) {
        true => other.at + random.pick(&[0, 300_000, MILLI, 50 * MILLI]),
        false => SECOND + random.below(ASKED / 2),
    };
    let lasts = random.pick(&[50 * MILLI, SECOND, 5 * SECOND]);
    scenario.faults.push(Fault { at, what: What::Except { node, limit, whom, effect, lasts } });
}

/// The end of an exception, which a failover loses and the server then does not take again for a while. In half of the cases somebody
/// wants to make the exception again meanwhile, at the node that knows of its end.
fn add_lost_end(random: &mut Random, scenario: &mut Scenario) {
    let Fault { at, what } = random.pick(&changes(scenario));
    let What::Except { node, limit, whom, effect, .. } = what else { return };
    let (at, lasts) = (at + 6 * SECOND, 2 * SECOND);
    scenario.faults.push(Fault { at, what: What::Except { node, limit, whom, effect, lasts } });
    let mut of_server =
        |at, what, lasts| scenario.faults.push(Fault { at, what: What::OfRecords { what, lasts } });
    let (ends, lost) = (at + lasts, at + lasts + 50 * MILLI);
    of_server(ends - 50 * MILLI, Outage::FailOver, 100 * MILLI);
    of_server(lost, Outage::Refuse(Refusal::Full), SECOND);
    if random.one_in(2) {
        let (at, lasts) = (lost + random.below(500 * MILLI), 50 * MILLI);
        scenario.faults.push(Fault { at, what: What::Except { node, limit, whom, effect, lasts } });
    }
}

/// Shortly before or after one of these times.
fn near(random: &mut Random, times: &[Time]) -> Time {
    (random.pick(times) + random.below(300 * MILLI)).saturating_sub(50 * MILLI)
}

/// What makes exceptions, by time.
fn changes(scenario: &Scenario) -> Vec<Fault> {
    let is_exception = |fault: &&Fault| matches!(fault.what, What::Except { .. });
    scenario.faults.iter().filter(is_exception).copied().collect()
}
