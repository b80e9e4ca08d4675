//! Records: where they are, how they are opened and followed, and their metrics.

use std::sync::Arc;

use super::control::lower_priority;
use super::shared::server_options;
use crate::app::{AppError, CONTROL_NICENESS, Essential, spawn_forever};
use crate::configuration::Limits;
use tidegate_operate::records::{Follower, RecordStore};
use tidegate_redis::RedisStore;
use tidegate_serve::metrics::{MetricType, Metrics};

/// The store of records, if there is one. A folder is not opened yet.
pub(super) fn store(limits: &Limits, metrics: &Metrics) -> Result<Option<Arc<RecordStore>>, AppError> {
    let records = match (&limits.folder, &limits.redis) {
        (Some(folder), _) => RecordStore::in_folder(folder, || lower_priority(CONTROL_NICENESS))?,
        (None, Some(redis)) => {
            let options = server_options(redis.server.clone(), &redis.tls, redis.tls_any_name)?;
            tracing::info!("records: in Redis (LIMITS_URL)");
            RecordStore::in_redis(RedisStore::new(options))
        }
        (None, None) => return Ok(None),
    };
    let records = Arc::new(records);
    register(metrics, &records);
    Ok(Some(records))
}

/// Opens them. Without them the first decisions would use the limits of rules, so the start waits.
pub(super) async fn open(records: Option<&Arc<RecordStore>>) {
    if let Some(records) = records {
        records.open().await;
    }
}

/// Keeps the store open, and follows the changes of other nodes.
pub(super) fn keep(tasks: &mut Essential, records: Option<Arc<RecordStore>>, follower: Option<Follower>) {
    if let Some(records) = records {
        spawn_forever(tasks, async move { records.keep().await });
    }
    if let Some(follower) = follower {
        spawn_forever(tasks, follower.follow());
    }
}

fn register(metrics: &Metrics, records: &Arc<RecordStore>) {
    let help = "Records that LIMITS_DIR holds, roughly: what was replaced or removed of late may count too.";
    metrics.of(records).samples(MetricType::Gauge, "tidegate_records", help, |records, samples| {
        records.count().iter().for_each(|count| samples.push(&[], *count));
    });
}
