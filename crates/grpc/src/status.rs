//! Statuses of gRPC: numbers, each with a text for the one who asked.

use std::borrow::Cow;

/// A status of gRPC that is no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its number.
    pub code: u8,
    /// Why, for the one who asked.
    pub message: Cow<'static, str>,
}

/// What gRPC calls the numbers.
#[allow(missing_docs)]
pub mod code {
    pub const INVALID_ARGUMENT: u8 = 3;
    pub const DEADLINE_EXCEEDED: u8 = 4;
    pub const NOT_FOUND: u8 = 5;
    pub const RESOURCE_EXHAUSTED: u8 = 8;
    pub const UNIMPLEMENTED: u8 = 12;
    pub const UNAVAILABLE: u8 = 14;
}
