//! Calls in flight: they take a slot, hold it, and are released, or not.
//!
//! In: a scenario that was drawn. Out: the same with slots for one of its limits, ids in the descriptors that ask it, and what becomes
//! of its calls. Few ids are drawn, so that many calls are repeated while they run.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::{LimitSpec, Scenario, Shape};
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

/// Makes the draws of this file others than those of the rest.
pub(super) const OWN: u64 = 0x736c_6f74_7330_3031;
/// Ids of calls.
pub const IDS: u64 = 12;
/// A second release comes so much later at most.
const AGAIN_MAX: Time = 2 * SECOND;

/// How the end of a call is reported.
#[derive(Clone, Copy, Debug)]
pub struct Release {
    /// So long after the answer.
    pub after: Time,
    /// To this node.
    pub node: usize,
    /// What comes before: other texts than the token.
    pub is_guessed: bool,
    /// The same token comes once more, so much later.
    pub again: Option<Time>,
}

/// A third of all scenarios have slots.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let is_free = |limit: &LimitSpec| !limit.is_override && limit.recorded.is_none();
    let Some(number) = scenario.limits.iter().position(is_free).filter(|_| random.one_in(3)) else { return };
    let limit = &mut scenario.limits[number];
    let slots = random.pick(&[1, 2, 3, 5, 10]);
    let other = if random.one_in(4) { random.pick(&[1, 2, 5]) } else { slots };
    let ttl = 1 + random.below(3);
    *limit = LimitSpec {
        algorithm: Algorithm::Concurrency,
        requests: [slots, other],
        window_secs: [ttl, if random.one_in(6) { 1 + random.below(3) } else { ttl }],
        is_leased: false,
        is_reported: false,
        // No node knows the calls of others.
        failure: if limit.failure == StoreFailure::Local { StoreFailure::Deny } else { limit.failure },
        burst: None,
        candidate: None,
        shape: Shape { is_quota: false, classes: None, ..limit.shape },
        ..*limit
    };
    let (nodes, never) = (scenario.clocks.len() as u64, random.pick(&[4, 20, 100]));
    let holds = random.pick(&[MILLI, 10 * MILLI, 100 * MILLI, SECOND]);
    for ask in &mut scenario.asks {
        for item in ask.items.iter_mut().filter(|item| item.limit == number) {
            item.hits = random.pick(&[0, 1, 1, 1, 1, 2]);
            item.last = (!random.one_in(4)).then(|| random.below(IDS) as u8);
        }
        if ask.items.iter().any(|item| item.limit == number) && !random.one_in(never) {
            ask.released = Some(Release {
                after: random.below(2 * holds) * random.pick(&[1, 1, 1, 10]),
                node: random.below(nodes) as usize,
                is_guessed: random.one_in(6),
                again: random.one_in(6).then(|| random.below(AGAIN_MAX)),
            });
        }
    }
}
