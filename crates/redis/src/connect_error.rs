//! Why a server cannot be used.

use std::time::Duration;

use redis::{ErrorKind, RedisError};

use crate::address::Address;

/// The oldest version that has all commands that the scripts use.
pub(super) const VERSION_MIN: u64 = 6;

/// Why a server cannot be used. It holds no secrets.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The connection failed, or the server answered with an error.
    #[error("{0}")]
    Redis(RedisError),
    /// The server refused the login, or the login may not do what is needed.
    #[error("{0}")]
    AuthenticationRefused(RedisError),
    /// The connection to a sentinel failed, or the sentinel answered with an error.
    #[error("sentinel: {0}")]
    Sentinel(RedisError),
    /// A sentinel refused the login.
    #[error("sentinel: {0}")]
    SentinelAuthenticationRefused(RedisError),
    /// The server is of another kind than configured.
    #[error("{found}")]
    WrongKind {
        /// The kind of the server.
        found: String,
        /// The kind to configure, as [`RedisUrl::parse`](crate::address::RedisUrl::parse) reads it.
        expected: &'static str,
    },
    /// The server did not answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The server's version is too old.
    #[error("version {0} is too old (expected {VERSION_MIN}.0 or newer)")]
    TooOld(String),
    /// Fewer replicas than REDIS_WAIT_REPLICAS acknowledged the write.
    #[error("fewer than {0} replicas acknowledged a write to {1}")]
    Unreplicated(u32, Address),
    /// Values were changed, all or some of them, but the change could not be announced to other nodes.
    #[error("all or a part of it was changed, but other nodes were not notified: {0}")]
    Unannounced(String),
    /// Several calls in a row had no answer.
    #[error("several calls in a row had no answer")]
    Unanswered,
    /// Too few replicas had what was written, several times in a row.
    #[error("too few replicas acknowledged several writes in a row")]
    ReplicasBehind,
    /// The sentinels do not know this master.
    #[error("the sentinels know no master named {0}")]
    UnknownMaster(String),
    /// The server should be a master, and is not.
    #[error("{0} is no master")]
    NotMaster(Address),
    /// The server does not say which process it is, or does not answer as Redis does.
    #[error("{0} does not show its run_id (INFO), so lost counters would not be noticed")]
    Unmarked(Address),
    /// The server has no epochs, and no other server shows whether there were any.
    #[error("{0} has no resets, and other servers that may have some do not answer")]
    NoEpochs(Address),
    /// The server's key of epochs was written by somebody else.
    #[error("{0} has {1} fields in the key of resets, more than any limiter writes")]
    TooManyEpochs(Address, usize),
    /// The Cluster serves no slots.
    #[error("the cluster serves no slots")]
    NoSlots,
    /// No connection is open now.
    #[error("there is no connection")]
    NoConnection,
    /// No address is configured.
    #[error("no Redis address is configured")]
    NoAddress,
}

impl ConnectError {
    /// The same error, reported as one of a sentinel.
    pub(super) fn of_a_sentinel(self) -> Self {
        match self {
            Self::Redis(error) => Self::Sentinel(error),
            Self::AuthenticationRefused(error) => Self::SentinelAuthenticationRefused(error),
            other => other,
        }
    }

    /// Whether a command may have been done although there is no answer to it.
    pub fn may_be_done(&self) -> bool {
        match self {
            Self::Redis(error) => error.code().is_none(),
            Self::Timeout(_) | Self::Unreplicated(..) | Self::Unannounced(_) => true,
            _ => false,
        }
    }

    /// The code of the server's error.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::Redis(error) | Self::AuthenticationRefused(error) => error.code(),
            _ => None,
        }
    }
}

impl From<RedisError> for ConnectError {
    fn from(error: RedisError) -> Self {
        let refused = error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"));
        if refused {
            return Self::AuthenticationRefused(error);
        }
        let found = error.to_string();
        match found.contains("cluster support disabled") {
            true => Self::WrongKind { found, expected: "single" },
            false => Self::Redis(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(reply: &str) -> ConnectError {
        let reply = redis::parse_redis_value(reply.as_bytes()).expect("a reply");
        reply.extract_error().expect_err("an error").into()
    }

    #[test]
    fn a_refused_login_and_a_wrong_kind_are_recognised() {
        for reply in ["-WRONGPASS no\r\n", "-NOAUTH no\r\n", "-NOPERM no\r\n"] {
            assert!(matches!(error(reply), ConnectError::AuthenticationRefused(_)), "{reply}");
            let of_a_sentinel = error(reply).of_a_sentinel();
            assert!(matches!(of_a_sentinel, ConnectError::SentinelAuthenticationRefused(_)), "{reply}");
        }
        let disabled = error("-ERR This instance has cluster support disabled\r\n");
        assert!(matches!(disabled, ConnectError::WrongKind { expected: "single", .. }), "{disabled:?}");
        let other = error("-MOVED 1 127.0.0.1:7000\r\n");
        assert_eq!((other.code(), matches!(other, ConnectError::Redis(_))), (Some("MOVED"), true));
    }
}
