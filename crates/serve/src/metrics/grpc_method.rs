//! The gRPC methods that metrics distinguish.

tidegate_engine::named! {
    /// A gRPC method that has metrics of its own. Names are without the name of the service.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum GrpcMethod {
        /// Asks for a decision.
        ShouldRateLimit = "ShouldRateLimit",
        /// The health service's `Check`.
        Check = "Check",
    }
}
