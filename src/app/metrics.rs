//! Makes the metrics. A mapping file gives them other names than `envoyproxy/ratelimit` does.

use std::sync::Arc;

use tidegate_engine::Timestamp;

use crate::app::AppError;
use crate::configuration;
use tidegate_serve::metrics::{Mapping, Metrics, Names};
use tidegate_serve::reload::{Reload, ReloadLog, Subject};

/// Metrics, with the names of the mapping file if there is one and it can be read at `now`.
pub(super) fn start(
    configuration: &configuration::Metrics,
    reloads: &ReloadLog,
    now: Timestamp,
) -> Result<Arc<Metrics>, AppError> {
    let mut options = configuration.options.clone();
    if let Some(path) = &configuration.mapping {
        options.names = names(path, options.names, reloads, now)?;
    }
    Ok(Arc::new(Metrics::new(&options)))
}

/// The names of metrics: those of the file, or `built_in` if it cannot be read at `now`.
fn names(path: &str, built_in: Names, reloads: &ReloadLog, now: Timestamp) -> Result<Names, AppError> {
    let remember = |in_force, what: String| reloads.add(Reload::new(Subject::Mapping, now, in_force, what));
    match tidegate_disk::read_text(path.as_ref()) {
        Ok(text) => {
            let mapping = Mapping::parse(path, &text).map_err(AppError::Mapping)?;
            remember(true, format!("mapping of metrics: {path} in force"));
            Ok(Names::Mapped(mapping))
        }
        Err(error) => {
            let what = format!("PROMETHEUS_MAPPER_YAML: cannot read {path}, going on without: {error}");
            remember(false, what.clone());
            tracing::warn!("{what}");
            Ok(built_in)
        }
    }
}
