//! Limits of single keys in a store of records: they come, change and go, and nodes cannot always reach the store.
//!
//! In: a scenario that was drawn. Out: a limit with records in it, and more events.

use tidegate_engine::limit::Algorithm;
use tidegate_serve::service::StaleMode;

use super::extremes::BUCKETS;
use super::{ASKED, Fault, Scenario, What};
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// N.
    pub requests: u32,
    /// W in seconds, if it is another than its rule's.
    pub window_secs: Option<u64>,
    /// How it counts, if not as its rule says.
    pub algorithm: Option<Algorithm>,
    /// The size of a bucket, if it is not as its rule says.
    pub burst: Option<u32>,
    /// The width of the buckets of a sliding window, if it is not as its rule says.
    pub granularity: Option<Time>,
    /// Whether it denies. `None`: as its rule says.
    pub shadow: Option<bool>,
    /// Everything is counted as the rule says, and nothing is denied.
    pub is_unlimited: bool,
}

impl Terms {
    /// N, and all else as the rule says.
    pub fn of(requests: u32) -> Self {
        Self {
            requests,
            window_secs: None,
            algorithm: None,
            burst: None,
            granularity: None,
            shadow: None,
            is_unlimited: false,
        }
    }
}

/// All nodes hear of a change within so long.
pub const HEARD_MAX: Time = 500 * MILLI;

/// Some scenarios have records.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let limit = random.index(scenario.limits.len());
    if !scenario.limits[limit].is_override && random.one_in(6) {
        of_limit(random, scenario, limit);
    }
}

/// This limit has records.
pub(super) fn of_limit(random: &mut Random, scenario: &mut Scenario, limit: usize) {
    scenario.stale_mode = random.pick(&[StaleMode::Rule, StaleMode::Last, StaleMode::Deny]);
    scenario.record_cache = random.pick(&[1, 2, 100]);
    scenario.limits[limit].recorded = Some(0);
    let changes = random.pick(&[1, 3, 10, 30]);
    (0..changes).for_each(|_| change(random, scenario, limit));
    if random.one_in(2) {
        (0..1 + random.below(4)).for_each(|_| away(random, scenario));
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}

/// Half of the scenarios with records have an outage right after a node has read a change: then it has no value of that key.
pub(super) fn interrupt(random: &mut Random, scenario: &mut Scenario) {
    let heard = |fault: &Fault| match fault.what {
        What::Record { heard_within, .. } => Some(fault.at + heard_within),
        _ => None,
    };
    let changes: Vec<Time> = scenario.faults.iter().filter_map(heard).filter(|at| *at < ASKED / 2).collect();
    if changes.is_empty() || random.one_in(2) {
        return;
    }
    for node in 0..scenario.clocks.len() {
        let (at, lasts) =
            (random.pick(&changes) + random.below(5 * MILLI), random.pick(&[50, 200, 1_000]) * MILLI);
        scenario.faults.push(Fault { at, what: What::RecordsAway { node, lasts } });
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}

/// A record comes, is another one, or goes; often close to what a client asks.
fn change(random: &mut Random, scenario: &mut Scenario, limit: usize) {
    let terms = (!random.one_in(4)).then(|| {
        let requests = random.pick(&[1, 2, 5, 20, 40, 100, 200]);
        Terms { window_secs: random.one_in(5).then(|| 1 + random.below(5)), ..Terms::of(requests) }
    });
    let most = terms.map_or(0, |terms| terms.requests);
    scenario.limits[limit].recorded = scenario.limits[limit].recorded.max(Some(most));
    let at = match random.one_in(2) {
        true => SECOND + random.below(ASKED - SECOND),
        false => random.pick(&scenario.asks).at + random.below(5 * MILLI),
    };
    let (key, heard_within) = (random.pick(&[0, 0, 1]), random.pick(&[0, MILLI, 50 * MILLI, HEARD_MAX]));
    scenario.faults.push(Fault { at, what: What::Record { limit, key, terms, heard_within } });
}

/// In half of the scenarios with records some say that they deny, or that they do not.
pub(super) fn add_modes(random: &mut Random, scenario: &mut Scenario) {
    let seldom = random.pick(&[2, 5]);
    if random.one_in(2) {
        return;
    }
    for fault in &mut scenario.faults {
        if let What::Record { terms: Some(terms), .. } = &mut fault.what
            && random.one_in(seldom)
        {
            match random.below(4) {
                0 => *terms = Terms { is_unlimited: true, ..Terms::of(0) },
                drawn => terms.shadow = Some(drawn > 1),
            }
        }
    }
}

/// In half of the scenarios with records some have hits counted in another way, or buckets of another size.
pub(super) fn add_algorithms(random: &mut Random, scenario: &mut Scenario) {
    let seldom = random.pick(&[1, 3]);
    if random.one_in(2) {
        return;
    }
    for limit in scenario.limits.iter_mut().filter(|limit| limit.recorded.is_some()) {
        let [requests, reloaded] = limit.requests;
        if limit.algorithm.is_bucket() && requests == reloaded && random.one_in(2) {
            limit.burst = Some(random.pick(&[1, 3, 2 * requests]));
        }
    }
    for fault in &mut scenario.faults {
        let What::Record { limit, terms: Some(terms), .. } = &mut fault.what else { continue };
        let limit = &scenario.limits[*limit];
        // Reservations and debts of records count as their rules say.
        let is_plain = limit.shape.reserve.is_none() && !limit.is_slots();
        if is_plain && !terms.is_unlimited && random.one_in(seldom) {
            terms.algorithm = Some(random.pick(&Algorithm::NAMED)).filter(|_| !random.one_in(4));
            let is_bucket = terms.algorithm.unwrap_or(limit.algorithm).is_bucket();
            terms.burst =
                Some(random.pick(&[1, 7, 2 * terms.requests])).filter(|_| is_bucket && random.one_in(2));
        }
    }
}

/// In half of the scenarios with records some have buckets of another width.
pub(super) fn add_granularities(random: &mut Random, scenario: &mut Scenario) {
    let seldom = random.pick(&[1, 3]);
    if random.one_in(2) {
        return;
    }
    for fault in &mut scenario.faults {
        let What::Record { limit, terms: Some(terms), .. } = &mut fault.what else { continue };
        let limit = &scenario.limits[*limit];
        let slides = terms.algorithm.unwrap_or(limit.algorithm) == Algorithm::SlidingWindow;
        if slides && limit.shape.reserve.is_none() && !terms.is_unlimited && random.one_in(seldom) {
            let window = terms.window_secs.unwrap_or(limit.window_secs[0]) * SECOND;
            terms.granularity = Some(window / random.pick(&BUCKETS));
        }
    }
}

/// A node does not reach the store.
fn away(random: &mut Random, scenario: &mut Scenario) {
    let node = random.index(scenario.clocks.len());
    let lasts = random.pick(&[50 * MILLI, 200 * MILLI, SECOND, 3 * SECOND]);
    let at = random.below(ASKED - 3 * SECOND);
    scenario.faults.push(Fault { at, what: What::RecordsAway { node, lasts } });
}
