//! The paths that the tests' server serves.

/// The path of the tests' calls.
pub(crate) const CALL: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// All paths that are served.
pub(crate) const ROUTES: &[&str] = &[CALL, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"];
