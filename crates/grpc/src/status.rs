//! gRPC statuses: a code, and a message for the client.

use std::borrow::Cow;

/// A gRPC status other than OK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The status code.
    pub code: u8,
    /// Why the call failed, for the client.
    pub message: Cow<'static, str>,
}

/// The status codes by gRPC's names.
#[allow(missing_docs)]
pub mod code {
    pub const INVALID_ARGUMENT: u8 = 3;
    pub const DEADLINE_EXCEEDED: u8 = 4;
    pub const NOT_FOUND: u8 = 5;
    pub const RESOURCE_EXHAUSTED: u8 = 8;
    pub const UNIMPLEMENTED: u8 = 12;
    pub const UNAVAILABLE: u8 = 14;
}
