//! Fleets whose nodes differ: one with other settings, upgrades of one node after the other, and servers whose clocks step or differ.
//!
//! In: a scenario that was drawn. Out: the same with other settings for some nodes, some of the time.

use super::{ASKED, Fault, Layout, Scenario, What};
use crate::random::Random;
use crate::world::{MILLI, SECOND, Time};

/// The settings in which nodes may differ for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// REDIS_LEASE_TIME.
    pub lease_time: Time,
    /// COLD_START=deny.
    pub denies_cold: bool,
    /// REDIS_LOCAL_SHARE in hundredths.
    pub local_share_percent: u32,
}

/// A quarter of all scenarios have nodes that differ, or are upgraded; in some of them clocks step, or a replica takes over whose clock is ahead.
pub(super) fn add(random: &mut Random, scenario: &mut Scenario) {
    if !random.one_in(4) || matches!(scenario.layout, Layout::Alone(_)) {
        return;
    }
    let nodes = scenario.clocks.len();
    let node = random.index(nodes);
    let usual = scenario.settings;
    let other = Settings {
        lease_time: usual.lease_time / random.pick(&[1, 2, 10]),
        denies_cold: usual.denies_cold ^ random.one_in(3),
        local_share_percent: random.pick(&[usual.local_share_percent, 100, 50, 25]),
    };
    scenario.other = Some((node, other));
    if random.one_in(2) {
        let (at, apart) = (SECOND + random.below(ASKED / 2), random.pick(&[50 * MILLI, SECOND, 2 * SECOND]));
        for (place, node) in (0..).zip(0..nodes) {
            let lasts = random.pick(&[5, 50, 400]) * MILLI;
            scenario.faults.push(Fault { at: at + place * apart, what: What::Upgrade { node, lasts } });
        }
    }
    if random.one_in(3) {
        let by = random.pick(&[MILLI, 20 * MILLI, 300 * MILLI, 2 * SECOND]);
        let at = random.below(ASKED);
        scenario.faults.push(Fault { at, what: What::StepServers { by, is_ahead: random.one_in(2) } });
    }
    if random.one_in(2) {
        scenario.replicas_ahead = random.pick(&[MILLI, 20 * MILLI, 300 * MILLI]);
        let (server, lacks) = (random.index(scenario.layout.servers()), 5 * MILLI);
        scenario.faults.push(Fault {
            at: SECOND + random.below(ASKED - SECOND),
            what: What::FailOver { server, lacks },
        });
    }
    scenario.faults.sort_by_key(|fault| fault.at);
}
