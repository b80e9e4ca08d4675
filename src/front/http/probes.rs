//! Probes of orchestrators and load balancers: does the process run, should it get requests?

use http::StatusCode;

use super::page::{Page, text};
use crate::health::{Health, Status};

/// Readiness: 200 `OK`, or 500 with the reason.
pub(super) fn ready(health: &Health) -> Page {
    match (health.status(), health.degraded()) {
        (Status::Serving, None) => text(StatusCode::OK, "OK"),
        (Status::Serving, Some(why)) => text(StatusCode::OK, format!("OK, degraded: {why}")),
        (Status::NotServing(reason), _) => text(StatusCode::INTERNAL_SERVER_ERROR, reason.to_string()),
        (Status::Draining, _) => text(StatusCode::INTERNAL_SERVER_ERROR, "draining"),
    }
}

/// Liveness: 200 while the process runs, whatever else is wrong.
pub(super) fn live() -> Page {
    text(StatusCode::OK, "OK")
}
