//! The smallest and the largest that rules, records and requests may say.
//!
//! In: a scenario that was drawn. Out: the same with other granularities, with limits of no hits, and with requests for more than N.

use tidegate_engine::limit::Algorithm;

use super::{LimitSpec, Scenario, What};
use crate::random::Random;

/// The numbers of buckets that a sliding window is cut into. All windows are whole seconds, and these are whole milliseconds of them.
pub(super) const BUCKETS: [u64; 5] = [1, 2, 5, 250, 1_000];

/// A quarter of all scenarios have some of each.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    for number in 0..scenario.limits.len() {
        let limit = &scenario.limits[number];
        let may_be_cut = limit.algorithm == Algorithm::SlidingWindow && limit.further.is_none();
        if may_be_cut && !limit.is_override && random.one_in(4) {
            let (buckets, limits) = (random.pick(&BUCKETS), scenario.limits.iter_mut().enumerate());
            let of_rule = limits.filter(|(other, limit)| *other == number || limit.is_further_of(number));
            of_rule.for_each(|(_, limit)| limit.buckets = buckets);
        }
    }
    if random.one_in(4) {
        close(random, scenario);
    }
    if random.one_in(4) {
        // A call says itself what it reserves, and what it costs.
        let asks = scenario.asks.iter_mut().filter(|ask| ask.reserves.is_none());
        for item in asks.flat_map(|ask| &mut ask.items) {
            let limit = &scenario.limits[item.limit];
            if random.one_in(20) && !limit.is_slots() {
                let most = u64::from(limit.requests[0]);
                item.hits = random.pick(&[most + 1, 2 * most, 10 * most]);
            }
        }
    }
}

/// A limit has no hits from a reload on or all the time, and so do some records.
fn close(random: &mut Random, scenario: &mut Scenario) {
    let closed = random.index(scenario.limits.len());
    let has_further = scenario.limits.iter().any(|limit| limit.is_further_of(closed));
    let limit = &mut scenario.limits[closed];
    if may_be_closed(limit) && !has_further {
        let [own, _] = limit.requests;
        limit.requests = [if random.one_in(3) { 0 } else { own }, 0];
    }
    for fault in &mut scenario.faults {
        if let What::Record { terms: Some(terms), .. } = &mut fault.what
            && random.one_in(4)
        {
            terms.requests = 0;
        }
    }
}

/// What other numbers of a limit are parts or multiples of is not changed.
fn may_be_closed(limit: &LimitSpec) -> bool {
    let has_more = limit.burst.is_some() || limit.candidate.is_some() || limit.further.is_some();
    !limit.is_slots() && !has_more && limit.shape.reserve.is_none()
}
