//! `cargo bench --bench front`: Tidegate's gRPC front compared with bare echoes of the same call, on pinned cores.
//!
//! Every server is a process of its own on one core; the load generator, written for this, has the other core. The
//! servers are measured in turn, in several rounds, so that a disturbance of the machine affects all of them. With
//! 1,000,000 different keys the limiter really decides. A ratio is calls per second divided by those of tonic's echo
//! on its usual multi-thread runtime. One wrong answer makes the run fail, because measured errors are worthless.
//!
//! Then it measures what large work and bad clients cost other clients, and the system calls per call. Other limiters
//! are measured too where the user has them: see `front/peer.rs`.
//!
//! `cargo bench --bench front -- --help` shows the options. Linux only (`taskset`, `setpriv`, `/proc`).

#![allow(clippy::disallowed_methods, reason = "a benchmark reads real clocks")]

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

#[path = "front/answer_head.rs"]
mod answer_head;
#[path = "front/args.rs"]
mod args;
#[path = "front/client.rs"]
mod client;
#[path = "front/disturbance.rs"]
mod disturbance;
#[path = "front/echo.rs"]
mod echo;
#[path = "front/frame.rs"]
mod frame;
#[path = "front/h2load.rs"]
mod h2load;
#[path = "front/hpack.rs"]
mod hpack;
#[path = "front/huffman.rs"]
mod huffman;
#[path = "front/load.rs"]
mod load;
#[path = "front/memory.rs"]
mod memory;
#[path = "front/peer.rs"]
mod peer;
#[path = "front/request.rs"]
mod request;
#[path = "front/request_head.rs"]
mod request_head;
#[path = "front/scenario.rs"]
mod scenario;
#[path = "front/server.rs"]
mod server;
#[path = "front/socket.rs"]
mod socket;
#[path = "front/starvation.rs"]
mod starvation;
#[path = "front/syscalls.rs"]
mod syscalls;
#[path = "front/table.rs"]
mod table;

use args::Args;
use h2load::Load;
use load::{Outcome, Pace, Run, Workload};
use request::{Descriptors, Keys, Random, RequestMessage};
use scenario::Scenario;
use server::{Server, Subject};
use table::Section;
use tidegate::proto;

fn main() -> ExitCode {
    let args = Args::of_process();
    let done = match (args.echo, args.port) {
        (Some(echo), Some(port)) => echo::serve(echo, port).map_err(|error| error.to_string()),
        _ => measure(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> Result<(), String> {
    table::print_machine();
    let (shared, alone): (Vec<_>, Vec<_>) = args.scenarios().into_iter().partition(|one| one.shares_cores());
    let (tls, alone): (Vec<_>, Vec<_>) = alone.into_iter().partition(|&one| one == Scenario::Tls);
    let alone = measure_on(args, &args.server_core, &args.generator_core, &alone)?;
    let tls = measure_on(args, &args.server_core, &args.generator_core, &tls)?;
    let shared = measure_on(args, &args.all_cores(), &args.all_cores(), &shared)?;
    let section_of = |scenario| alone.iter().find(|section| section.scenario == scenario);
    if let (Some(one_core), Some(two_cores)) = (section_of(Scenario::Batch64), shared.first()) {
        two_cores.print_gain_over(one_core);
    }
    if let Some(one) = section_of(Scenario::Gateway1) {
        let several = [Scenario::Gateway4, Scenario::Gateway8].into_iter().filter_map(section_of);
        several.for_each(|section| section.print_gain_over(one));
    }
    let beside = if args.starvation() { starvation::measure(args)? } else { 0 };
    if args.syscalls() {
        syscalls::measure(args)?;
    }
    if args.memory() {
        memory::measure(args)?;
    }
    match alone.iter().chain(&tls).chain(&shared).map(Section::errors).sum::<u64>() + beside {
        0 => Ok(()),
        errors => Err(format!("{errors} errors")),
    }
}

/// Measures `scenarios`, all with the same servers.
fn measure_on(
    args: &Args,
    server_cores: &str,
    generator_cores: &str,
    scenarios: &[Scenario],
) -> Result<Vec<Section>, String> {
    if scenarios.is_empty() {
        return Ok(Vec::new());
    }
    server::pin_self(generator_cores)?;
    let servers = start(args, server_cores, |subject| scenarios.iter().any(|one| one.takes(subject)))?;
    scenarios.iter().map(|&scenario| section(args, scenario, &servers)).collect()
}

fn start(args: &Args, cores: &str, wanted: impl Fn(Subject) -> bool) -> Result<Vec<Server>, String> {
    let mut servers = Vec::new();
    for subject in args.subjects().into_iter().filter(|&subject| wanted(subject)) {
        let (binary, is_tidegate) = (args.tidegate(subject), subject.grpc_front().is_some());
        if is_tidegate && binary.is_none() {
            println!("!! There is no tidegate binary yet: only echoes are measured.");
            continue;
        }
        let server = Server::start(subject, cores, binary.as_deref().unwrap_or(Path::new("")))?;
        if is_tidegate {
            meet_every_key(&server, args.keys, Descriptors::Plain)?;
        }
        servers.push(server);
    }
    Ok(servers)
}

/// Sends one request for every key, so that the steady state is measured and not the growth of tables.
fn meet_every_key(server: &Server, keys: u64, descriptors: Descriptors) -> Result<(), String> {
    let run = Run {
        connections: 8,
        pace: Pace::Closed { streams: 64 },
        ids: false,
        warm_up: Duration::ZERO,
        measured: Duration::from_secs(120),
        calls_max: keys,
        sleeps: true,
    };
    let outcome = drive(server, &run, Workload { keys: Keys::InTurn(0), descriptors, seed: 0 })?;
    match outcome.tally.first_error {
        Some(error) => Err(server.blame(&error)),
        None => Ok(()),
    }
}

fn section(args: &Args, scenario: Scenario, servers: &[Server]) -> Result<Section, String> {
    let servers: Vec<&Server> = servers.iter().filter(|server| scenario.takes(server.subject)).collect();
    let open_rate = match scenario {
        Scenario::Open => args.rate.map_or_else(|| half_peak(args, servers[0]), Ok)?,
        _ => 0.0,
    };
    let run = scenario.run(args, open_rate);
    let mut section = Section::new(scenario, servers.iter().map(|server| server.subject));
    let descriptors = scenario.descriptors();
    // As many counters in all.
    let keys = args.keys / descriptors.count() as u64;
    if descriptors != Descriptors::Plain {
        servers.iter().try_for_each(|server| meet_every_key(server, keys, descriptors))?;
    }
    for round in 1..=args.rounds {
        let workload = Workload { keys: Keys::Random(keys), descriptors, seed: round as u64 };
        for (at, server) in servers.iter().enumerate() {
            section.add(at, drive(server, &run, workload)?);
        }
    }
    let note = if open_rate > 0.0 { format!(", {open_rate:.0} calls/s") } else { String::new() };
    section.print(&note);
    if scenario.is_of_few_calls() {
        by_h2load(args, &run, descriptors, &servers)?;
    }
    Ok(section)
}

/// The same by h2load, which sends one request for one key.
fn by_h2load(args: &Args, run: &Run, descriptors: Descriptors, servers: &[&Server]) -> Result<(), String> {
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let mut runs = vec![Vec::new(); servers.len()];
    for _ in 0..args.rounds {
        for (runs, server) in runs.iter_mut().zip(servers) {
            let body = server.folder().join("request");
            let mut request = RequestMessage::new(Keys::InTurn(0), descriptors);
            let message = request.next(&mut Random(0)).to_vec();
            std::fs::write(&body, message).map_err(|error| error.to_string())?;
            let mut sends = vec![format!("--data={}", body.display())];
            sends.extend(["-H", "content-type: application/grpc", "-H", "te: trailers"].map(str::to_owned));
            sends.push(format!("http://{}{path}", server.address));
            let load = Load {
                core: &args.generator_core,
                connections: run.connections as u32,
                pace: h2load::Pace::Full { seconds: args.seconds },
                sends,
            };
            let before = server::cpu(server.id());
            let measured = load.run(server.folder()).map_err(|why| server.blame(&why))?;
            runs.push((measured, server::cpu(server.id()) - before));
        }
    }
    table::print_by_h2load(&runs, servers.iter().map(|server| server.subject));
    Ok(())
}

/// Half of the server's highest rate, with 8 connections × 64 streams.
fn half_peak(args: &Args, server: &Server) -> Result<f64, String> {
    let run = Scenario::Batch64.run(args, 0.0);
    let outcome = drive(server, &run, Workload::new(Keys::Random(args.keys), 0))?;
    Ok(outcome.tally.answers as f64 / outcome.elapsed.as_secs_f64() / 2.0)
}

fn drive(server: &Server, run: &Run, workload: Workload) -> Result<Outcome, String> {
    load::drive(server, run, workload).map_err(|why| server.blame(&why))
}
