//! What rules and settings may say in addition to the usual.
//!
//! In: a scenario that was drawn. Out: the same with `on_store_failure: allow`, REDIS_LOCAL_SHARE, weighted windows, buckets of
//! another size, and candidates.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::{LimitSpec, Scenario};
use crate::random::Random;

/// Makes the draws of this file others than those of the rest.
pub(super) const OWN: u64 = 0x7769_6465_6e65_6431;

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
        let candidate = random.pick(&[0, 1, limit.requests[0].div_ceil(2), 2 * limit.requests[0]]);
        // It must not be the limit itself.
        limit.candidate = Some(candidate).filter(|requests| !limit.requests.contains(requests));
    }
}
