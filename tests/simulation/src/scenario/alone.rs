//! A node without Redis: it counts in memory, and its processes leave counters for each other in a folder, or not.
//!
//! In: a scenario that was drawn for a cluster. Out: one of a single node that counts in memory, and dies at any step.

use tidegate_engine::memory::StoreFull;
use tidegate_engine::rules::StoreFailure;

use super::{ASKED, During, Fault, Layout, Scenario, What, batches, drawn, operators, widened};
use crate::node::NodeClock;
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

/// Kinds of what goes wrong.
const KINDS: u64 = 6;
/// More steps than a file of few counters takes.
const STEPS_MAX: u64 = 24;

/// The settings of a node without Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alone {
    /// There is a STATE_DIR.
    pub is_kept: bool,
    /// `tidegate state init` comes first.
    pub is_declared: bool,
    /// STATE_INTERVAL.
    pub interval: Option<Time>,
    /// STATE_SKEW.
    pub skew: Time,
    /// COLD_START_MAX_WINDOW.
    pub cold_max: Time,
    /// MAX_COUNTER_BYTES.
    pub max_bytes: u64,
    /// STORE_FULL_MODE.
    pub full: StoreFull,
}

/// Makes a scenario one of a node without Redis.
pub(super) fn make(random: &mut Random, scenario: &mut Scenario) {
    let skew = random.pick(&[0, 50 * MILLI, 2 * SECOND]);
    scenario.layout = Layout::Alone(Alone {
        is_kept: !random.one_in(4),
        is_declared: random.one_in(2),
        interval: random.pick(&[None, Some(200 * MILLI), Some(SECOND), Some(3 * SECOND)]),
        skew,
        cold_max: random.pick(&[2 * SECOND, 3_600 * SECOND]),
        // A few counters fill the small ones.
        max_bytes: random.pick(&[1 << 20, 1 << 20, 4_096, 2_048, 1_024]),
        full: random.pick(&StoreFull::ALL),
    });
    // Its clock defines the time.
    scenario.clocks = vec![NodeClock { drift_ppm: 0, ..scenario.clocks[0] }];
    (scenario.far, scenario.slow_one_in) = (vec![[0, 0]], None);
    (scenario.settings.lease_time, scenario.deny_cache_bytes) = (0, 0);
    scenario.settings.denies_cold = random.one_in(2);
    for limit in &mut scenario.limits {
        (limit.is_leased, limit.failure) = (false, StoreFailure::Error);
        if !limit.algorithm.is_bucket() && random.one_in(10) {
            limit.requests[random.index(2)] = 0;
        }
    }
    scenario.asks = drawn::asks(random, scenario);
    for item in scenario.asks.iter_mut().flat_map(|ask| &mut ask.items) {
        if random.one_in(30) {
            let most = scenario.limits[item.limit].most();
            item.hits = most + 1 + random.below(most + 1);
        }
    }
    scenario.faults = faults(random, scenario, skew);
    operators::add(random, scenario);
    batches::add(random, scenario, true);
    widened::add(random, scenario);
}

fn faults(random: &mut Random, scenario: &Scenario, skew: Time) -> Vec<Fault> {
    let kinds: Vec<u64> = (0..random.pick(&[1, 2, 20])).map(|_| random.below(KINDS)).collect();
    let count = random.pick(&[0, 1, 2, 4, 8, 16]);
    let wall = if random.one_in(3) { (3_600 * SECOND, false) } else { (skew, true) };
    let mut faults: Vec<Fault> = (0..count)
        .map(|_| {
            let at = match random.one_in(2) {
                true => SECOND + random.below(ASKED - SECOND),
                false => random.pick(&scenario.asks).at + random.below(5 * MILLI),
            };
            let kind = random.pick(&kinds);
            Fault { at, what: what(random, kind, wall) }
        })
        .collect();
    faults.sort_by_key(|fault| fault.at);
    faults
}

fn what(random: &mut Random, kind: u64, (steps_max, machines_die): (Time, bool)) -> What {
    let (node, lasts) = (0, random.pick(&[5 * MILLI, 50 * MILLI, 400 * MILLI, SECOND, 3 * SECOND]));
    match kind {
        0 => What::StopNode { node, lasts },
        1 => What::Crash { node, lasts },
        // Wall clocks of two boots may differ by STATE_SKEW. Where machines die, this one does so too.
        2 => What::StepWall { node, ahead: random.below(steps_max + 1) },
        3 => What::Reload { node, version: random.index(2) },
        _ => What::Die {
            node,
            during: random.pick(&[During::Serving, During::Checkpoint, During::End, During::Start]),
            steps: random.below(STEPS_MAX) as usize,
            with_machine: machines_die && random.one_in(2),
            lasts,
        },
    }
}
