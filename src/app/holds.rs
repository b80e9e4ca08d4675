//! The metrics of what reservations hold, by rules that learn it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_engine::held_costs::HeldCostsTotal;
use tidegate_serve::metrics::{MetricType, Metrics, Samples};
use tidegate_serve::service::Service;

/// The most rules that are shown.
const RULES_MAX: usize = 1_000;

/// Shows what the rules with `hold` have learnt.
#[rustfmt::skip]
pub(super) fn register(metrics: &Metrics, service: &Arc<Service>) {
    metrics
        .of(service)
        .samples(MetricType::Gauge, "tidegate_hold", "Hits that a reservation of a rule with `hold` holds now. Counters with enough commits of their own may differ.",
            |service, samples| each(service, samples, |total| total.hold.into()))
        .samples(MetricType::Counter, "tidegate_commits_above_hold_total", "Commits that cost more than what was held at that time for their counter.",
            |service, samples| each(service, samples, |total| total.above_hold))
        .samples(MetricType::Counter, "tidegate_commits_above_max_total", "Commits that cost more than `max` of `hold`: what they cost beyond it may exceed the overdraft.",
            |service, samples| each(service, samples, |total| total.above_max));
}

fn each(service: &Service, samples: &mut Samples<'_>, of: fn(HeldCostsTotal) -> u64) {
    let Ok(live) = service.snapshot() else { return };
    let learning =
        live.rules().rules().iter().filter_map(|rule| Some((rule.path(), rule.held_costs.as_ref()?.total())));
    // Rules may have the same path in metrics: one of them is shown.
    let shown: BTreeMap<String, HeldCostsTotal> = learning.take(RULES_MAX).collect();
    shown.iter().for_each(|(path, total)| samples.push(&[("rule", path)], of(*total)));
}
