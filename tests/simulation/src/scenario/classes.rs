//! Classes of importance: requests that may use a share of a limit.
//!
//! In: a scenario that was drawn. Out: the same with classes for some of its limits, and a last entry in the descriptors that ask
//! them: one that names a class, one that names none, or no such entry.

use tidegate_engine::limit::Algorithm;

use super::{LimitSpec, Scenario};
use crate::random::Random;

/// The full share, in millionths.
pub const FULL: u64 = 1_000_000;

/// The shares of three classes, in millionths.
pub type Classes = [u64; 3];

/// Shares that scenarios have. Of small limits some round down to the same threshold, or to none.
const SHARES: [Classes; 4] = [
    [FULL, 850_000, 600_000],
    [FULL, 500_000, 290_000],
    [FULL, 600_000, 10_000],
    [900_000, 333_333, 100_000],
];

/// The places of classes, then that of a name that is none.
const NAMED: [Option<u8>; 6] = [Some(0), Some(0), Some(1), Some(2), Some(3), None];

/// A third of all scenarios have classes.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    if !random.one_in(3) {
        return;
    }
    let may = |limit: &&mut LimitSpec| !limit.is_override && limit.algorithm != Algorithm::FixedWindow;
    for limit in scenario.limits.iter_mut().filter(may) {
        limit.shape.classes = (!random.one_in(4)).then(|| random.pick(&SHARES));
    }
    let named = random.pick(&[&NAMED[..], &NAMED[1..4]]);
    for item in scenario.asks.iter_mut().flat_map(|ask| &mut ask.items) {
        if scenario.limits[item.limit].shape.classes.is_some() {
            item.last = random.pick(named);
        }
    }
}
