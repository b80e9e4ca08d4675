//! HTTP/2 for the gRPC port: the wire formats, and one connection as a state machine without I/O.
//!
//! A limiter gets small unary calls, each like the one before it, on a few long connections. This crate serves only
//! such calls, at a small part of what a general HTTP/2 server costs.
//!
//! In: bytes and times. Out: bytes, and calls by number. It knows no service: a
//! [`Connection`](connection::Connection) is given a table of paths, and a call's [`Route`] is an index into it. It
//! opens no socket, reads no clock and starts no task; its driver does.
//!
//! - `frames`, `huffman`, `hpack`: the wire formats
//! - [`connection`]: one connection as a state machine without I/O
//! - [`status`], [`timeout`], [`message`]: what gRPC writes into headers and trailers

#[doc(hidden)]
pub mod frames;
mod huffman;
#[doc(hidden)]
pub mod hpack;
pub mod message;
pub mod status;
pub mod timeout;
pub mod connection;
#[cfg(test)]
mod fixture;

pub use hpack::{KeptHeaders, Route, Served};
