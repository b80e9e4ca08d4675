//! Resets of counters: those of the previous process, and those of other nodes.

use std::path::Path;
use std::sync::Arc;

use crate::app::{AppError, Essential, spawn_forever};
use tidegate_operate::resets::Resets;
use tidegate_serve::service::Service;

/// Resets of whole rules, kept in this folder if there is one.
pub(super) fn open(service: &Arc<Service>, folder: Option<&Path>) -> Result<Arc<Resets>, AppError> {
    let resets = Resets::new(Arc::clone(service));
    Ok(Arc::new(match folder {
        Some(folder) => resets.kept_in(folder.join("resets"))?,
        None => resets,
    }))
}

/// Follows the resets of other nodes, if they share a store.
pub(super) fn keep(tasks: &mut Essential, resets: &Arc<Resets>, service: &Service) {
    if service.counters().shared().is_some() {
        let resets = Arc::clone(resets);
        spawn_forever(tasks, async move { resets.follow().await });
    }
}
