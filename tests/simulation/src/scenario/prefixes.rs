//! Addresses of one prefix, which share a counter.
//!
//! In: a scenario that was drawn. Out: the same with a prefix for one of its limits, whose counters are asked for by several addresses
//! each.

use super::{LimitSpec, Scenario};
use crate::random::Random;

/// Addresses of each counter.
pub const ADDRESSES: u64 = 4;

/// A quarter of all scenarios have a prefix. Exceptions for one address are for that address alone, and records do not go with it.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    let limits = &scenario.limits;
    let is_above = |number: usize| limits.iter().any(|limit| limit.shape.below == Some(number));
    let is_free = |limit: &LimitSpec| {
        let is_plain = !limit.is_operated() && !limit.is_override;
        is_plain && !limit.shape.has_nodes && limit.shape.below.is_none()
    };
    let number = (0..limits.len()).find(|&number| is_free(&limits[number]) && !is_above(number));
    let Some(number) = number.filter(|_| random.one_in(4)) else { return };
    scenario.limits[number].shape.has_prefix = true;
    for item in scenario.items_of(number) {
        item.address = random.below(ADDRESSES) as u8;
    }
}
