//! Scenarios for one plot: with what it needs, and nothing else that fails.
//!
//! In: a scenario without requests. Out: servers and limits with which the plot can go wrong, and which plot that is.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::plots::Plot;
use super::{Layout, LimitSpec, Scenario, Settings};
use crate::random::Random;
use crate::world::MILLI;

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
            let node = random.index(scenario.clocks.len());
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
        is_leased,
        failure: if plot.is_of_denials() { StoreFailure::Error } else { random.pick(&failures) },
        ..LimitSpec::new(algorithm, requests, window)
    }
}
