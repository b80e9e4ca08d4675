//! The gRPC methods that metrics distinguish.

/// A gRPC method that has metrics of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcMethod {
    /// Asks for a decision.
    ShouldRateLimit,
    /// The health service's `Check`.
    Check,
}

impl GrpcMethod {
    pub(super) const ALL: [Self; 2] = [Self::ShouldRateLimit, Self::Check];

    /// Its name, without the name of its service.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ShouldRateLimit => "ShouldRateLimit",
            Self::Check => "Check",
        }
    }
}
