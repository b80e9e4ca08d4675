//! What rules and settings may say in addition to the usual.
//!
//! In: a scenario that was drawn. Out: the same with `on_store_failure: allow`, REDIS_LOCAL_SHARE, weighted windows, buckets of
//! another size, and candidates.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::{Ask, Form, LimitSpec, Scenario, What};
use crate::random::Random;
use crate::world::SECOND;

/// Half of all scenarios are wider.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    if random.one_in(2) {
        return;
    }
    scenario.settings.local_share_percent = random.pick(&[100, 100, 50, 25]);
    scenario.limits.iter_mut().filter(|limit| !limit.is_override).for_each(|limit| widen(random, limit));
}

fn widen(random: &mut Random, limit: &mut LimitSpec) {
    if limit.failure != StoreFailure::Error && random.one_in(3) {
        limit.failure = StoreFailure::Allow;
    }
    // Only strict limits are leased.
    if limit.algorithm == Algorithm::SlidingWindow && !limit.is_leased && random.one_in(3) {
        limit.algorithm = Algorithm::SlidingWindowWeighted;
    }
    // When N changes, a level does too.
    if limit.algorithm.is_bucket() && limit.is_steady() && random.one_in(2) {
        limit.burst = Some(random.pick(&[1, 3, limit.requests[0].div_ceil(2), 2 * limit.requests[0]]));
    }
    if random.one_in(6) {
        limit.candidate = candidate(random, limit);
    }
}

/// A reset also sets the counters of candidates to zero, and refunds go to the new counters: half of the scenarios with
/// resets have a candidate, and half of them have more refunds.
pub(super) fn again(random: &mut Random, scenario: &mut Scenario) {
    if !scenario.faults.iter().any(|fault| matches!(fault.what, What::Reset { .. })) {
        return;
    }
    let is_free = |limit: &&mut LimitSpec| !limit.has_another_n() && !limit.is_override && !limit.is_leased;
    if let (true, Some(limit)) = (random.one_in(2), scenario.limits.iter_mut().find(is_free)) {
        limit.candidate = candidate(random, limit);
    }
    let (nodes, has_refunds) = (scenario.clocks.len(), random.one_in(2));
    let is_usual = |ask: &&mut Ask| has_refunds && ask.form == Form::Usual;
    for ask in scenario.asks.iter_mut().filter(is_usual) {
        let refunded = random.one_in(3).then(|| (random.below(SECOND / 2), random.index(nodes)));
        ask.refunded = ask.refunded.or(refunded);
    }
}

/// Another N than that of the limit itself.
fn candidate(random: &mut Random, limit: &LimitSpec) -> Option<u32> {
    let candidate = random.pick(&[0, 1, limit.requests[0].div_ceil(2), 2 * limit.requests[0]]);
    Some(candidate).filter(|requests| !limit.requests.contains(requests))
}
