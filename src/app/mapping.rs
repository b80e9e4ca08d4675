//! From settings to the names of metrics.

use std::fs;

use crate::app::AppError;
use crate::metrics::{Mapping, Names};
use crate::settings::Settings;

/// What metrics are called: as the file of PROMETHEUS_MAPPER_YAML says, if it can be read.
pub(super) fn names(settings: &Settings) -> Result<Names, AppError> {
    let path = settings.prometheus_mapper_yaml.as_deref().filter(|path| !path.is_empty());
    let read = path.map(|path| (path, fs::read_to_string(path)));
    match read {
        Some((path, Ok(text))) => Mapping::parse(path, &text).map(Names::Mapped).map_err(AppError::Mapping),
        unread => {
            if let Some((path, Err(error))) = unread {
                tracing::warn!("PROMETHEUS_MAPPER_YAML: cannot read {path}, going on without: {error}");
            }
            Ok(Names::BuiltIn { response_time_millis: settings.prometheus_response_time_as_milliseconds })
        }
    }
}
