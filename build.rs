//! Compiles `proto/` to Rust without a `protoc` on the machine.
//!
//! Out, in `OUT_DIR`: `proto.rs`, the tree of modules with all messages that are served, the server's trait and the
//! client (which tests and benchmarks use); `descriptors.bin`, the same files as a descriptor set, for server reflection
//! and for protobuf JSON; and `xds/proto.rs`, the client of a control plane with its messages. The latter is not in the
//! descriptor set, because reflection lists what is served here.

#![allow(clippy::disallowed_methods, reason = "Cargo speaks to build scripts through the environment")]

use std::error::Error;
use std::path::PathBuf;

use prost::Message;

const SERVED: [&str; 2] =
    ["envoy/service/ratelimit/v3/rls.proto", "kuadrant/service/ratelimit/v1/ratelimit.proto"];
const XDS: [&str; 2] =
    ["envoy/service/discovery/v3/ads.proto", "ratelimit/config/ratelimit/v3/rls_conf.proto"];

#[expect(clippy::disallowed_methods, reason = "cargo passes variables to build scripts")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile(SERVED, ["proto"])?;
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().include_file("proto.rs").compile_fds(descriptors)?;
    let xds = out.join("xds");
    std::fs::create_dir_all(&xds)?;
    tonic_prost_build::configure()
        .build_server(false)
        .out_dir(xds)
        .include_file("proto.rs")
        .compile_fds(protox::compile(XDS, ["proto/xds"])?)?;
    Ok(())
}
