//! Further limits of a rule: slots in the node of a `rate_limit`, and shorter prefixes.
//!
//! In: a scenario that was drawn. Out: the same with more limits. Nobody asks them by themselves: whoever asks the first limit of their
//! rule asks all of them.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::slots::report_ends;
use super::{IDS, LimitSpec, Scenario, Shape};
use crate::random::Random;

/// What a further limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Further {
    /// Calls in flight.
    Slots,
    /// The addresses of one family by a shorter prefix.
    Shorter {
        /// Of IPv6.
        is_v6: bool,
        /// Its length in bits.
        len: u32,
        /// N is so many times that of the longest prefix.
        factor: u32,
    },
}

impl Further {
    /// Its N is so many times that of the first limit, where it follows that.
    pub fn factor(self) -> u32 {
        if let Self::Shorter { factor, .. } = self { factor } else { 1 }
    }
}

/// A half of the rules with a prefix have several lengths, and a quarter of the scenarios have a rule with a rate and slots.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    for number in 0..scenario.limits.len() {
        let limit = &scenario.limits[number];
        let may = limit.shape.has_prefix && !limit.shape.is_quota && !limit.is_slots();
        if may && is_plain(scenario, number) && random.one_in(2) {
            add_lengths(random, scenario, number);
        }
    }
    let may_have_slots = |&number: &usize| {
        let limit = &scenario.limits[number];
        let is_first = !limit.is_override && limit.further.is_none() && !limit.is_slots();
        let is_usual = !limit.shape.is_quota && limit.shape.classes.is_none();
        is_first && is_usual && is_plain(scenario, number)
    };
    let number = (0..scenario.limits.len()).find(may_have_slots);
    if let Some(number) = number.filter(|_| random.one_in(4)) {
        add_slots(random, scenario, number);
    }
}

/// Whether no operator changes a limit, and no rule replaces another by it.
fn is_plain(scenario: &Scenario, number: usize) -> bool {
    let limit = &scenario.limits[number];
    !limit.is_operated() && limit.shape.replaces.is_none() && !scenario.is_replaced(number)
}

fn add_lengths(random: &mut Random, scenario: &mut Scenario, number: usize) {
    let [first, second] = random.pick(&[[1, 2], [2, 2], [2, 3], [4, 16]]);
    let lengths = [(false, 16, first), (true, 56, first), (true, 48, second)];
    let limit = scenario.limits[number];
    scenario.limits.extend(lengths.map(|(is_v6, len, factor)| LimitSpec {
        requests: limit.requests.map(|requests| requests * factor),
        burst: limit.burst.map(|burst| burst * factor),
        candidate: None,
        shape: Shape { classes: limit.shape.classes, ..Shape::default() },
        further: Some((number, Further::Shorter { is_v6, len, factor })),
        ..limit
    }));
}

fn add_slots(random: &mut Random, scenario: &mut Scenario, number: usize) {
    let limit = scenario.limits[number];
    let (slots, ttl) = (random.pick(&[1, 2, 3, 5]), 1 + random.below(3));
    scenario.limits.push(LimitSpec {
        algorithm: Algorithm::Concurrency,
        requests: [slots; 2],
        window_secs: [ttl; 2],
        is_leased: false,
        failure: random.pick(&[
            StoreFailure::Error,
            StoreFailure::Error,
            StoreFailure::Deny,
            StoreFailure::Allow,
        ]),
        burst: None,
        candidate: None,
        shape: Shape::default(),
        further: Some((number, Further::Slots)),
        ..limit
    });
    for item in scenario.items_of(number) {
        item.last = (!random.one_in(4)).then(|| random.below(IDS) as u8);
    }
    report_ends(random, scenario, number);
}
