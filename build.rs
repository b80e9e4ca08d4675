//! Compiles `proto/` to Rust without a `protoc` on the machine.
//!
//! Out, in `OUT_DIR`: `proto.rs`, the tree of modules with all messages, the server's trait and the client (which
//! tests and benchmarks use); and `descriptors.bin`, the same files as a descriptor set, for server reflection and
//! for protobuf JSON.

#![allow(clippy::disallowed_methods, reason = "Cargo speaks to build scripts through the environment")]

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const FILES: [&str; 1] = ["envoy/service/ratelimit/v3/rls.proto"];

#[expect(clippy::disallowed_methods, reason = "cargo tells build scripts what they need by variables")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile(FILES, ["proto"])?;
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().include_file("proto.rs").compile_fds(descriptors)?;
    Ok(())
}
