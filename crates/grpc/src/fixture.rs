//! The paths that the tests' server knows.

/// What is called.
pub(crate) const CALL: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// All that is served.
pub(crate) const ROUTES: &[&str] = &[CALL, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"];
