//! Reads the mapping file, which gives metrics other names than `envoyproxy/ratelimit` does.

use std::fs;

use crate::app::AppError;
use crate::metrics::{Mapping, Names};

/// The names of metrics: those of the file, or `built_in` if it cannot be read.
pub(super) fn names(path: &str, built_in: Names) -> Result<Names, AppError> {
    match fs::read_to_string(path) {
        Ok(text) => Mapping::parse(path, &text).map(Names::Mapped).map_err(AppError::Mapping),
        Err(error) => {
            tracing::warn!("PROMETHEUS_MAPPER_YAML: cannot read {path}, going on without: {error}");
            Ok(built_in)
        }
    }
}
