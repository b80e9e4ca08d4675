//! Logs of many hits, each at a time of its own: more than one block of memory holds.
//!
//! In: a scenario that was drawn. Out: the same with a large N for one of its logs, for which clients also ask hit by hit.

use tidegate_engine::limit::Algorithm;

use super::{ASKED, Ask, Item, Layout, LimitSpec, Scenario, Shape};
use crate::random::Random;
use crate::world::{MILLI, SECOND};

/// A block has 512 timestamps.
const REQUESTS: [u32; 3] = [600, 900, 1_500];
const SECS: u64 = 15;
const MEMORY_BYTES: u64 = 1 << 20;

/// A sixth of the scenarios with a plain log have a long one.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let is_plain = |limit: &LimitSpec| {
        let Shape { is_quota, has_nodes, below, replaces, .. } = limit.shape;
        limit.algorithm == Algorithm::SlidingLog
            && limit.shape == Shape { is_quota, has_nodes, below, replaces, ..Shape::default() }
            && !limit.is_leased
            && !limit.has_another_n()
    };
    let has_further = scenario.limits.iter().any(|limit| limit.further.is_some());
    let is_wanted = random.one_in(6) && !has_further;
    let Some(number) = scenario.limits.iter().position(is_plain).filter(|_| is_wanted) else { return };
    let limit = &mut scenario.limits[number];
    (limit.requests, limit.window_secs) = ([random.pick(&REQUESTS); 2], [SECS; 2]);
    if let Layout::Alone(alone) = &mut scenario.layout {
        alone.max_bytes = MEMORY_BYTES;
    }
    let (nodes, mut at) = (scenario.clocks.len(), SECOND);
    while at < ASKED {
        scenario.asks.push(Ask::new(at, random.index(nodes), vec![Item::new(number, 0, 1)]));
        at += random.below(20 * MILLI);
    }
    scenario.asks.sort_by_key(|ask| ask.at);
}
