//! Records: where they are at the start, and their metrics.

use std::path::Path;
use std::sync::Arc;

use super::control::lower_priority;
use crate::app::{AppError, CONTROL_NICENESS};
use crate::metrics::{Kind, Metrics};
use crate::records::Records;

/// The records in this folder. Waits for the disk.
pub(super) fn open(folder: &Path) -> Result<Arc<Records>, AppError> {
    let records = Records::in_folder(folder, || lower_priority(CONTROL_NICENESS))?;
    tracing::info!("records: in {} (LIMITS_DIR)", folder.display());
    Ok(Arc::new(records))
}

/// Shows records in metrics.
pub(super) fn register(metrics: &Metrics, records: &Arc<Records>) {
    let records = Arc::clone(records);
    let help = "Records that LIMITS_DIR holds, roughly: what was replaced or removed of late may count too.";
    metrics.register("tidegate_records", help, Kind::Gauge, move |samples| {
        records.count().iter().for_each(|count| samples.push(&[], *count));
    });
}
