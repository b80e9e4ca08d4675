//! Records for requests: what looks them up and follows the changes of other nodes, and metrics of both.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::configuration::Lookup;
use tidegate_operate::records::{Follower, RecordStore, looked_up};
use tidegate_redis::runtime::Tokio;
use tidegate_serve::metrics::{
    MetricType::{Counter, Gauge},
    Metrics,
};
use tidegate_serve::service::KnownRecords;
use tidegate_state::Author;

/// The records of a store, for decisions; and the follower of changes, if other nodes make any.
pub(super) fn records(
    store: Option<&Arc<RecordStore>>,
    options: &Lookup,
    author: &Author,
    metrics: &Metrics,
) -> (Option<Arc<KnownRecords>>, Option<Follower>) {
    let Some(store) = store else { return (None, None) };
    let records = looked_up(Tokio, store, author.secret.secret(), options.records);
    register(metrics, store, &records);
    let follower = store
        .is_shared()
        .then(|| Follower::new(Tokio, Arc::clone(store), Arc::clone(&records), options.stale_max));
    (Some(records), follower)
}

#[rustfmt::skip]
fn register(metrics: &Metrics, store: &Arc<RecordStore>, records: &Arc<KnownRecords>) {
    metrics
        .of(records)
        .value(Counter, "tidegate_limits_fetches_total", "Keys whose records were asked of the store.", |records| records.stats().fetches.load(Relaxed))
        .value(Counter, "tidegate_limits_fetch_failures_total", "Of these, those that it did not answer for.", |records| records.stats().failures.load(Relaxed))
        .value(Counter, "tidegate_limits_stale_total", "Descriptors that LIMITS_STALE_MODE decided, because the store was away.",
            |records| records.stats().stale.load(Relaxed))
        .value(Gauge, "tidegate_limits_cached", "Keys whose records are known, or that are known to have none (LIMITS_CACHE_SIZE).", KnownRecords::cached);
    metrics.of(store).value(Gauge, "tidegate_limits_up", "1 while the store of records answers.", |store| {
        u64::from(store.is_up())
    });
}
