//! The metrics of bans.

use std::sync::Arc;

use tidegate_serve::metrics::{MetricType, Metrics};
use tidegate_serve::service::Service;

/// Shows the bans that this node has seen.
#[rustfmt::skip]
pub(super) fn register(metrics: &Metrics, service: &Arc<Service>) {
    metrics
        .of(service)
        .value(MetricType::Gauge, "tidegate_bans", "Bans that are in force, as far as this node has seen them: at most 10,000.",
            |service| service.bans().totals().known)
        .value(MetricType::Counter, "tidegate_bans_seen_total", "Bans that denied a request of this node for the first time.",
            |service| service.bans().totals().seen)
        .value(MetricType::Counter, "tidegate_bans_not_listed_total", "Bans that are in force and not listed, because the list is full.",
            |service| service.bans().totals().not_listed)
        .value(MetricType::Counter, "tidegate_banned_total", "Descriptors that a ban denied.",
            |service| service.bans().totals().denied);
}
