//! The messages of `proto/`, compiled. Only the fronts, tests and benchmarks know them; the engine does not.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used)]

include!(concat!(env!("OUT_DIR"), "/proto.rs"));

/// The compiled files and everything that they import, as an encoded descriptor set.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
