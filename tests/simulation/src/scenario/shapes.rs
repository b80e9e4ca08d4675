//! Rules of other shapes: below others, with several nodes, in quota mode, and such as replace others; and the modes of nodes.
//!
//! In: a scenario that was drawn. Out: the same counters under other rules, and descriptors without a limit in some requests.

use tidegate_engine::plan::Modes;

use super::{Ban, Classes, Ending, Reserve, Scenario};
use crate::random::Random;

/// The shape of a limit's rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// `quota_mode`.
    pub is_quota: bool,
    /// It has three nodes: for one value, for a pattern, and for all others.
    pub has_nodes: bool,
    /// Its rule is below that of this limit, which has a limit too.
    pub below: Option<usize>,
    /// It replaces this limit.
    pub replaces: Option<usize>,
    /// It has classes of these shares.
    pub classes: Option<Classes>,
    /// It counts addresses by their prefixes.
    pub has_prefix: bool,
    /// Whom it denies too often is banned.
    pub ban: Option<Ban>,
    /// Hits of it may be held.
    pub reserve: Option<Reserve>,
    /// `carry_debt`.
    pub carries_debt: bool,
    /// Its exceptions deny, and none has another N.
    pub is_denied: bool,
    /// The `period` of a budget, which ends while clients ask.
    pub ending: Option<Ending>,
}

/// A descriptor without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limitless {
    /// Its rule is unlimited.
    Unlimited,
    /// No rule is for it.
    Unmatched,
}

/// Half of all scenarios have rules of other shapes.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    if random.one_in(2) {
        return;
    }
    scenario.modes = Modes {
        shadow: random.one_in(12),
        quota: random.one_in(12),
        stop_increment_when_over: random.one_in(3),
    };
    for limit in scenario.limits.iter_mut().filter(|limit| !limit.is_override) {
        (limit.shape.is_quota, limit.shape.has_nodes) = (random.one_in(4), random.one_in(3));
    }
    if let (true, Some((above, below))) = (random.one_in(2), two(random, scenario)) {
        scenario.limits[below].shape.below = Some(above);
    }
    if let (true, Some((limit, other))) = (random.one_in(3), two(random, scenario)) {
        // What replaces it is known without what operators do.
        let is_plain = !scenario.limits[other].is_operated();
        scenario.limits[limit].shape.replaces = Some(other).filter(|_| is_plain);
        scenario.unlimited_replaces = Some(other).filter(|_| is_plain && random.one_in(2));
    }
    let seldom = random.pick(&[3, 10, 1_000]);
    for ask in &mut scenario.asks {
        let limitless = random.pick(&[Limitless::Unlimited, Limitless::Unmatched]);
        ask.limitless = random.one_in(seldom).then_some(limitless);
    }
}

/// Two limits that rules have.
fn two(random: &mut Random, scenario: &Scenario) -> Option<(usize, usize)> {
    let mut own: Vec<usize> =
        (0..scenario.limits.len()).filter(|&number| !scenario.limits[number].is_override).collect();
    if own.len() < 2 {
        return None;
    }
    let one = own.swap_remove(random.index(own.len()));
    Some((one, random.pick(&own)))
}
