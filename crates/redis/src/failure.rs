//! Why the shared store has no answer.

/// The shared store has no answer, and the rule wants an error then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared store does not answer: {0}")]
pub struct StoreError(pub Failure);

/// Why a call to the shared store has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The answer was not there in time.
    #[error("it took too long")]
    Timeout,
    /// The call reached the server after its deadline and did nothing.
    #[error("it came too late")]
    Late,
    /// There is no connection. The call was not sent.
    #[error("there is no connection")]
    Down,
    /// Too many decisions wait already. The call was not sent.
    #[error("too many requests are waiting for it")]
    Overloaded,
    /// The connection ended.
    #[error("the connection ended")]
    Closed,
    /// The counter has moved to another server.
    #[error("the counter is moving")]
    Moved,
    /// The server is a replica.
    #[error("the server is a replica")]
    ReadOnly,
    /// The server is still loading its data.
    #[error("the server is loading")]
    Loading,
    /// The Cluster does not serve the slot, or the master is down.
    #[error("the cluster is down")]
    ClusterDown,
    /// The server's memory is full.
    #[error("the server's memory is full")]
    Full,
    /// The hits were charged, but too few replicas acknowledged them in time.
    #[error("too few replicas have it")]
    Unreplicated,
    /// The server answered with another error.
    #[error("the server refused the call")]
    Refused,
    /// The reply is malformed.
    #[error("the answer is garbage")]
    Garbage,
}

impl Failure {
    /// All failures.
    pub const ALL: [Self; 13] = [
        Self::Timeout,
        Self::Late,
        Self::Down,
        Self::Overloaded,
        Self::Closed,
        Self::Moved,
        Self::ReadOnly,
        Self::Loading,
        Self::ClusterDown,
        Self::Full,
        Self::Unreplicated,
        Self::Refused,
        Self::Garbage,
    ];

    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Late => "late",
            Self::Down => "down",
            Self::Overloaded => "overloaded",
            Self::Closed => "closed",
            Self::Moved => "moved",
            Self::ReadOnly => "readonly",
            Self::Loading => "loading",
            Self::ClusterDown => "clusterdown",
            Self::Full => "full",
            Self::Unreplicated => "unreplicated",
            Self::Refused => "refused",
            Self::Garbage => "garbage",
        }
    }

    /// Whether the call certainly changed nothing, and never will.
    pub const fn did_nothing(self) -> bool {
        match self {
            Self::Late | Self::Down | Self::Overloaded | Self::Moved | Self::Full => true,
            Self::ReadOnly | Self::Loading | Self::ClusterDown => true,
            Self::Timeout | Self::Closed | Self::Unreplicated | Self::Refused | Self::Garbage => false,
        }
    }
}
