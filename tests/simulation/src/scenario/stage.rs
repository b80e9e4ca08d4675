//! Scenarios for one plot: with what it needs, and nothing else that fails.
//!
//! In: a scenario without requests. Out: servers and limits with which the plot can go wrong, and which plot that is.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::{Layout, LimitSpec, Scenario, Settings, Shape};
use crate::random::Random;
use crate::world::MILLI;

/// A few requests and faults that together prepare what goes wrong seldom by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plot {
    /// A lease that is spent as late as it may.
    LateSpender,
    /// A request that one server charged and another denies late.
    LateDenial,
    /// A call that reaches its server when nobody waits for it any more.
    LateCall,
    /// Requests that one server charges and another denies, again and again.
    Denials,
    /// A lease that outlives the memory of its server.
    LostLease,
    /// A master that does not know yet that it is none any more.
    TwoMasters,
}

impl Plot {
    /// All of them.
    pub(super) const ALL: [Self; 6] = [
        Self::LateSpender,
        Self::LateDenial,
        Self::LateCall,
        Self::Denials,
        Self::LostLease,
        Self::TwoMasters,
    ];

    /// Whether it goes wrong by a denial for which there is no reason.
    fn is_of_denials(self) -> bool {
        matches!(self, Self::LateCall | Self::Denials)
    }
}

/// One scenario in three is made for one plot.
pub(super) fn stage(random: &mut Random, scenario: &mut Scenario) -> Option<Plot> {
    if scenario.clocks.len() < 2 || !random.one_in(3) {
        return None;
    }
    let plot = random.pick(&Plot::ALL);
    match plot {
        Plot::LateSpender | Plot::LateCall => {}
        Plot::LateDenial | Plot::Denials => {
            let several = [Layout::PerSecond, Layout::PerSecond, Layout::Cluster(2), Layout::Cluster(3)];
            scenario.layout = random.pick(&several);
            // Connections that broke are there again before the late answer is.
            scenario.timeout = 100 * MILLI;
        }
        Plot::LostLease => {
            scenario.settings.denies_cold = true;
            let node = random.below(scenario.clocks.len() as u64) as usize;
            let lease_time = scenario.settings.lease_time / 10;
            let short = Settings { lease_time, ..scenario.settings };
            scenario.other = random.one_in(2).then_some((node, short));
        }
        Plot::TwoMasters => {
            (scenario.layout, scenario.settings.denies_cold) = (Layout::Sentinel, true);
        }
    }
    // While counters are cold, a denial needs no reason.
    scenario.settings.denies_cold &= !plot.is_of_denials();
    scenario.far.fill([0, 0]);
    scenario.slow_one_in = None;
    scenario.limits =
        (0..random.between(2, 3)).map(|number| limit(random, plot, scenario.layout, number)).collect();
    Some(plot)
}

/// A limit that is judged, with enough hits for a plot.
fn limit(random: &mut Random, plot: Plot, layout: Layout, number: u64) -> LimitSpec {
    let strict = [Algorithm::SlidingWindow, Algorithm::SlidingLog];
    let buckets = [Algorithm::TokenBucket, Algorithm::LeakyBucket];
    let algorithm = match plot {
        Plot::LateDenial | Plot::Denials => random.pick(&[strict, buckets].concat()),
        _ => random.pick(&strict),
    };
    let is_leased = match plot {
        Plot::LateSpender | Plot::LostLease => true,
        Plot::LateDenial | Plot::TwoMasters => algorithm.is_strict() && random.one_in(4),
        Plot::LateCall | Plot::Denials => false,
    };
    // Limits of a minute have a server of their own.
    let window = match layout {
        Layout::PerSecond if number.is_multiple_of(2) => 60,
        Layout::Cluster(_) if plot == Plot::Denials => random.pick(&[2, 60]),
        _ => random.between(1, 3),
    };
    // A few hits that stay have not drained when they are looked for.
    let requests = if plot == Plot::Denials { 40 } else { random.pick(&[40, 100, 200, 1_000]) };
    let failures = [StoreFailure::Error, StoreFailure::Deny];
    LimitSpec {
        algorithm,
        requests: [requests; 2],
        window_secs: [window; 2],
        is_override: false,
        is_shadow: false,
        is_leased,
        is_reported: false,
        failure: if plot.is_of_denials() { StoreFailure::Error } else { random.pick(&failures) },
        burst: None,
        candidate: None,
        excepted: None,
        recorded: None,
        shape: Shape::default(),
        further: None,
    }
}
