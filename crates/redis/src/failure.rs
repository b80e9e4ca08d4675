//! Why a shared store gives no answer.

/// The shared store gave no answer, and its rules say that then there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shared store does not answer: {0}")]
pub struct StoreError(pub Failure);

/// Why a call to a shared store has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Not in time.
    #[error("it took too long")]
    Timeout,
    /// It reached the server when nobody waited any more, and did nothing.
    #[error("it came too late")]
    Late,
    /// There is no connection; it was not sent.
    #[error("there is no connection")]
    Down,
    /// Too many wait already; it was not sent.
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
    /// The server reads its memory.
    #[error("the server is loading")]
    Loading,
    /// The Cluster does not serve, or the master is down.
    #[error("the cluster is down")]
    ClusterDown,
    /// The server's memory is full.
    #[error("the server's memory is full")]
    Full,
    /// It was charged, but too few replicas said in time that they have it.
    #[error("too few replicas have it")]
    Unreplicated,
    /// Any other error of the server's.
    #[error("the server refused the call")]
    Refused,
    /// Something that is no answer.
    #[error("the answer is garbage")]
    Garbage,
}

impl Failure {
    /// All of them.
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

    /// Its name in metrics.
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

    /// Whether the call has certainly changed nothing, and never will.
    pub const fn did_nothing(self) -> bool {
        match self {
            Self::Late | Self::Down | Self::Overloaded | Self::Moved | Self::Full => true,
            Self::ReadOnly | Self::Loading | Self::ClusterDown => true,
            Self::Timeout | Self::Closed | Self::Unreplicated | Self::Refused | Self::Garbage => false,
        }
    }
}
