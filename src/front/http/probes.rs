//! What orchestrators and load balancers ask: does it run, should it be sent requests?

use http::StatusCode;

use super::page::{Page, text};
use crate::health::Status;

/// Readiness: 200 `OK`, or 500 and why not.
pub(super) fn ready(status: &Status) -> Page {
    match status {
        Status::Serving => text(StatusCode::OK, "OK"),
        Status::NotServing(reason) => text(StatusCode::INTERNAL_SERVER_ERROR, reason.to_string()),
        Status::Draining => text(StatusCode::INTERNAL_SERVER_ERROR, "draining"),
    }
}

/// Liveness: 200 while the process runs, whatever else is wrong.
pub(super) fn live() -> Page {
    text(StatusCode::OK, "OK")
}
