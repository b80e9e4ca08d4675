//! Why the shared store has no answer.

/// The shared store has no answer, and the rule asks for an error in that case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared store does not answer: {0}")]
pub struct StoreError(pub Failure);

tidegate_engine::named! {
    /// Why a call to the shared store has no answer. Names are those of metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    #[non_exhaustive]
    pub enum Failure {
        /// The answer was not there in time.
        #[error("it did not answer in time")]
        Timeout = "timeout",
        /// The call reached the server after its deadline and did nothing.
        #[error("the call reached it too late")]
        Late = "late",
        /// There is no connection. The call was not sent.
        #[error("there is no connection")]
        Down = "down",
        /// Too many decisions wait already. The call was not sent.
        #[error("too many requests are waiting for it")]
        Overloaded = "overloaded",
        /// The connection ended.
        #[error("the connection ended")]
        Closed = "closed",
        /// The counter has moved to another server.
        #[error("the counter is moving")]
        Moved = "moved",
        /// The server is a replica.
        #[error("the server is a replica")]
        ReadOnly = "readonly",
        /// The server is still loading its data.
        #[error("the server is loading")]
        Loading = "loading",
        /// The Cluster does not serve the slot, or the master is down.
        #[error("the cluster is down")]
        ClusterDown = "clusterdown",
        /// The server's memory is full.
        #[error("the server's memory is full")]
        Full = "full",
        /// The hits were charged, but too few replicas acknowledged them in time.
        #[error("too few replicas acknowledged it")]
        Unreplicated = "unreplicated",
        /// The server answered with another error.
        #[error("the server refused the call")]
        Refused = "refused",
        /// The reply is malformed.
        #[error("the answer cannot be read")]
        Garbage = "garbage",
    }
}

impl Failure {
    /// Whether the call certainly changed nothing, and never will.
    pub const fn did_nothing(self) -> bool {
        match self {
            Self::Late | Self::Down | Self::Overloaded | Self::Moved | Self::Full => true,
            Self::ReadOnly | Self::Loading | Self::ClusterDown => true,
            Self::Timeout | Self::Closed | Self::Unreplicated | Self::Refused | Self::Garbage => false,
        }
    }
}
