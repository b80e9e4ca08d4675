//! `cargo bench --bench records`: limits for single keys in a folder, at the program as people run it.
//!
//! - `store` (the default): records are loaded by `tidegate limit load`, then asked about over gRPC, one call at a time: keys
//!   that are known, keys without a record, keys with one that has to come from the disk. Beside them, in turn, random reads
//!   of 4 KiB from a file of the same size.
//! - `tenants`: the same limits as records and as rules in YAML: memory, start, how long a change takes.
//! - `hostile`: keys that come once each, as an attacker sends them to fill memory, mixed with keys that are in use.
//!
//! All of it runs in a cgroup with little memory, the page cache included. `-- --check` makes a figure that is too bad an
//! error. `-- --help` shows the options. Linux only, as root.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads real clocks")]
#![allow(dead_code, reason = "the benchmark of the fronts uses more of what they share")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

#[path = "front/answer_head.rs"]
mod answer_head;
#[path = "records/cap.rs"]
mod cap;
#[path = "front/client.rs"]
mod client;
#[path = "front/echo.rs"]
mod echo;
#[path = "front/frame.rs"]
mod frame;
#[path = "records/hostile.rs"]
mod hostile;
#[path = "front/hpack.rs"]
mod hpack;
#[path = "front/huffman.rs"]
mod huffman;
#[path = "records/limiter.rs"]
mod limiter;
#[path = "front/load.rs"]
mod load;
#[path = "front/peer.rs"]
mod peer;
#[path = "front/request.rs"]
mod request;
#[path = "front/request_head.rs"]
mod request_head;
#[path = "front/server.rs"]
mod server;
#[path = "front/socket.rs"]
mod socket;
#[path = "records/store.rs"]
mod store;
#[path = "records/tenants.rs"]
mod tenants;

use cap::Cap;
use echo::Echo;
use tidegate::proto;

/// Limits for single keys.
#[derive(Parser)]
#[command(bin_name = "cargo bench --bench records --")]
struct Args {
    /// What is measured
    #[arg(value_enum, default_value_t = Part::Store)]
    part: Part,
    /// Records to load
    #[arg(long, default_value_t = 10_000_000)]
    records: u64,
    /// Formats to load them from; the last one is asked about
    #[arg(long, value_delimiter = ',', default_value = "json,csv")]
    formats: Vec<String>,
    /// Keys that come once
    #[arg(long, default_value_t = 10_000_000)]
    keys: u64,
    /// Tenants
    #[arg(long, default_value_t = 100_000)]
    tenants: u64,
    /// Memory for the limiter, this program and the page cache, in MiB
    #[arg(long, default_value_t = 2_048)]
    memory: u64,
    /// A folder on the disk to measure
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    /// Fail if a figure is worse than it should be
    #[arg(long)]
    check: bool,
    /// The core that Tidegate runs on
    #[arg(long, default_value = "1")]
    server_core: String,
    /// The core that the load generator runs on
    #[arg(long, default_value = "0")]
    generator_core: String,
    /// Another binary than the one that was just built
    #[arg(long, default_value = env!("CARGO_BIN_EXE_tidegate"))]
    tidegate: PathBuf,
    #[arg(long, hide = true, requires = "port")]
    echo: Option<Echo>,
    #[arg(long, hide = true)]
    port: Option<u16>,
    /// `cargo bench` passes this; without it (`cargo test --all-targets`) nothing is measured
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Part {
    Store,
    Tenants,
    Hostile,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !args.bench {
        return ExitCode::SUCCESS;
    }
    match measure(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<(), String> {
    let folder = tempfile::tempdir_in(&args.folder).map_err(|error| error.to_string())?;
    let cap = Cap::enter(args.memory << 20)?;
    let missed = match args.part {
        Part::Store => store::measure(args, folder.path(), &cap)?,
        Part::Tenants => tenants::measure(args, folder.path())?,
        Part::Hostile => hostile::measure(args, folder.path())?,
    };
    match missed.is_empty() || !args.check {
        true => Ok(()),
        false => Err(format!("worse than it should be:\n{}", missed.join("\n"))),
    }
}

/// What to say of a figure that is less than it should be.
fn below(what: &str, is: f64, least: f64) -> Option<String> {
    (is < least).then(|| format!("{what}: {is:.2} (expected at least {least:.2})"))
}

/// What to say of a figure that is more than it should be.
fn above(what: &str, is: f64, most: f64) -> Option<String> {
    (is > most).then(|| format!("{what}: {is:.2} (expected at most {most:.2})"))
}

/// Bytes of all files below a folder.
fn bytes_below(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(about) if about.is_dir() => bytes_below(&entry.path()),
        Ok(about) => about.len(),
        Err(_) => 0,
    });
    bytes.sum()
}
