//! Probes of orchestrators and load balancers: does the process run, should it get requests?

use http::StatusCode;

use tidegate_engine::rules::parse_duration_nanos;
use tidegate_engine::time::ceil_secs;
use tidegate_operate::page::{Page, parameter, text};
use tidegate_serve::health::{Health, Status};

/// Readiness: 200 `OK`, or 500 with the reason. With `?window=60s` the answer is 503 until lost counters of windows
/// of that length no longer count as full (`cold_nanos_left`).
pub(super) fn ready(health: &Health, query: Option<&str>, cold_nanos_left: impl Fn(u64) -> u64) -> Page {
    let Ok(cold) = cold_seconds(query.unwrap_or_default(), cold_nanos_left) else {
        return text(StatusCode::BAD_REQUEST, "window is no duration (expected for example window=60s)\n");
    };
    match (health.status(), health.degraded()) {
        (Status::NotServing(reason), _) => text(StatusCode::INTERNAL_SERVER_ERROR, reason.to_string()),
        (Status::Draining, _) => text(StatusCode::INTERNAL_SERVER_ERROR, "draining"),
        (Status::Serving, _) if cold > 0 => text(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("cold: lost counters count as full for {cold} s more"),
        ),
        (Status::Serving, None) => text(StatusCode::OK, "OK"),
        (Status::Serving, Some(why)) => text(StatusCode::OK, format!("OK, degraded: {why}")),
    }
}

/// Liveness: 200 while the process runs, whatever else is wrong.
pub(super) fn live() -> Page {
    text(StatusCode::OK, "OK")
}

/// `window` is there, and is not a duration.
struct NoWindow;

/// For how many more seconds the window in this query is cold.
fn cold_seconds(query: &str, cold_nanos_left: impl Fn(u64) -> u64) -> Result<u64, NoWindow> {
    let Some(window) = parameter(query, "window") else { return Ok(0) };
    let nanos = parse_duration_nanos(window).ok_or(NoWindow)?;
    Ok(ceil_secs(cold_nanos_left(nanos)))
}
