//! The methods of gRPC that metrics tell apart.

/// The gRPC methods that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcMethod {
    /// The decision.
    ShouldRateLimit,
    /// The health service's `Check`.
    Check,
}

impl GrpcMethod {
    pub(super) const ALL: [Self; 2] = [Self::ShouldRateLimit, Self::Check];

    /// Its name, without that of its service.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ShouldRateLimit => "ShouldRateLimit",
            Self::Check => "Check",
        }
    }
}
