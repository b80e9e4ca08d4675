//! Calls in flight: they take a slot, hold it, and are released, or not.
//!
//! In: a scenario that was drawn. Out: the same with slots for one of its limits, ids in the descriptors that ask it, and what becomes
//! of its calls. Few ids are drawn, so that many calls are repeated while they run.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::{Ask, LimitSpec, Scenario, Shape};
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

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

/// How clients renew the slots of a call.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    /// So long after the answer, and after each other. Some come when the call has ended.
    pub every: Time,
    /// How often.
    pub times: u64,
    /// At this node.
    pub node: usize,
    /// How long it waits.
    pub deadline: Option<Time>,
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
    for item in scenario.items_of(number) {
        item.hits = random.pick(&[0, 1, 1, 1, 1, 2]);
        item.last = (!random.one_in(4)).then(|| random.below(IDS) as u8);
    }
    report_ends(random, scenario, number);
}

/// Clients report the end of most calls that ask this limit.
pub(super) fn report_ends(random: &mut Random, scenario: &mut Scenario, number: usize) {
    let (nodes, never) = (scenario.clocks.len(), random.pick(&[4, 20, 100]));
    let holds = random.pick(&[MILLI, 10 * MILLI, 100 * MILLI, SECOND]);
    let asks_it = |ask: &&mut Ask| ask.items.iter().any(|item| item.limit == number);
    for ask in scenario.asks.iter_mut().filter(asks_it) {
        if !random.one_in(never) {
            ask.released = Some(Release {
                after: random.below(2 * holds) * random.pick(&[1, 1, 1, 10]),
                node: random.index(nodes),
                is_guessed: random.one_in(6),
                again: random.one_in(6).then(|| random.below(AGAIN_MAX)),
            });
        }
    }
}

/// In a half of the scenarios with slots clients renew the slots of some calls.
pub(super) fn renew(random: &mut Random, scenario: &mut Scenario) {
    let has_slots = scenario.limits.iter().any(|limit| limit.is_slots());
    if !has_slots || random.one_in(2) {
        return;
    }
    let (nodes, some) = (scenario.clocks.len(), random.pick(&[2, 6]));
    let every = random.pick(&[5 * MILLI, 100 * MILLI, 700 * MILLI, 2 * SECOND]);
    for ask in &mut scenario.asks {
        ask.renewed = random.one_in(some).then(|| Renewal {
            every: 1 + random.below(2 * every),
            times: 1 + random.below(4),
            node: random.index(nodes),
            deadline: random.one_in(6).then(|| random.pick(&[1, 5]) * MILLI),
        });
    }
}
