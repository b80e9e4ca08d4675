//! Rules tried offline: on access logs, in cases, and on the requests that a configuration of Envoy makes. No sockets, no
//! clock, no settings.

pub mod replay;
pub mod cases;
pub mod envoy;
