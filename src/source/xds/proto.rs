//! The messages of a control plane and the client's half of its service, compiled from `proto/xds`.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used)]

include!(concat!(env!("OUT_DIR"), "/xds/proto.rs"));
