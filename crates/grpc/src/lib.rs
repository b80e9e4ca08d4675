//! HTTP/2 for the gRPC port, at the speed of frames: the formats, and one connection as a state machine without I/O.
//!
//! Every call that a limiter gets is small, unary and like the one before it, on a few long connections. Written for
//! exactly that, HTTP/2 costs a small part of what a general server pays.
//!
//! In: bytes and times. Out: bytes, and calls by number. It knows no service: the paths that are served are a table that
//! a [`Connection`](connection::Connection) is given, and a call's [`Route`] is a place in it. It opens no socket, reads
//! no clock and starts no task; whoever drives it does.
//!
//! - `frames`, `huffman`, `hpack`: the formats
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

pub use hpack::Route;
