//! What the tests' server serves.

use crate::hpack::Served;

/// The path of the tests' calls.
pub(crate) const CALL: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A server that keeps one header.
pub(crate) static SERVED: Served = Served {
    calls: &[CALL, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"],
    dialogs: &["/talk"],
    kept: &["x-kept"],
};
