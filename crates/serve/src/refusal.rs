//! The bounds of a request, and the reasons for which a request gets no answer.

use crate::service::ServiceError;
use tidegate_engine::text::one_line;

/// Bounds of one request.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Descriptors of a request.
    pub descriptors_max: usize,
    /// Entries of one descriptor.
    pub entries_max: usize,
    /// Bytes of a request, before decoding.
    pub request_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { descriptors_max: 64, entries_max: 32, request_bytes_max: 65_536 }
    }
}

impl Bounds {
    /// Checks a request whose descriptors have so many entries each.
    /// Fails when there are too many descriptors, or entries of one.
    pub fn check(&self, entries: impl ExactSizeIterator<Item = usize>) -> Result<(), Refusal> {
        let (count, max) = (entries.len(), self.descriptors_max);
        if count > max {
            return Err(Refusal::invalid(format!("{count} descriptors are too many (at most {max})")));
        }
        let max = self.entries_max;
        match entries.enumerate().find(|&(_, count)| count > max) {
            Some((index, count)) => Err(Refusal::invalid(format!(
                "descriptor {index}: {count} entries are too many (at most {max})"
            ))),
            None => Ok(()),
        }
    }
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Who is at fault.
    pub code: RefusalCode,
    /// What is wrong, for the client.
    pub message: String,
}

/// The kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The request can never be answered.
    InvalidArgument,
    /// The request took too long to arrive.
    DeadlineExceeded,
    /// The request is too large.
    ResourceExhausted,
    /// The request has a form that is not supported here.
    Unimplemented,
    /// The request may be answered later.
    Unavailable,
    /// The request may be answered later: the shared store does not answer now.
    StoreFailure,
}

impl Refusal {
    /// The request can never be answered, because of `message`.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::of(RefusalCode::InvalidArgument, &message.into())
    }

    /// A part of the request that has to be UTF-8 is not.
    pub fn not_utf8(name: &str) -> Self {
        Self::invalid(format!("{name} is not UTF-8"))
    }

    /// The request did not arrive in time, as `message` says.
    pub fn late(message: impl Into<String>) -> Self {
        Self::of(RefusalCode::DeadlineExceeded, &message.into())
    }

    /// The request is of a form that is not supported, as `message` says.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self::of(RefusalCode::Unimplemented, &message.into())
    }

    /// Messages hold parts of requests and go to people and logs, so each is made one line.
    fn of(code: RefusalCode, message: &str) -> Self {
        Self { code, message: one_line(message).into_owned() }
    }

    /// The request has more bytes than `bounds` allow.
    #[must_use]
    pub fn too_large(bounds: &Bounds) -> Self {
        let message = format!("request is larger than {} bytes", bounds.request_bytes_max);
        Self { code: RefusalCode::ResourceExhausted, message }
    }
}

impl From<ServiceError> for Refusal {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::NoRules => Self::of(RefusalCode::Unavailable, &error.to_string()),
            ServiceError::Store(_) => Self::of(RefusalCode::StoreFailure, &error.to_string()),
            ServiceError::CallId(_) => Self::of(RefusalCode::InvalidArgument, &error.to_string()),
        }
    }
}
