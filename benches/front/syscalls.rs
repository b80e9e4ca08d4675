//! System calls per call: one connection, one call at a time, counted by `strace` on the threads that answer.
//! (Tidegate's control thread is left out: it sweeps four times a second, with or without calls.)

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::args::Args;
use super::load::{Pace, Run, Workload};
use super::request::Keys;
use super::server::{self, Server, Subject};
use super::{drive, start};

const CALLS: u64 = 5_000;
/// System calls that are rarer than this per call are not shown. They come from timers and the like.
const SHOWN_MIN: f64 = 0.01;
const ATTACH_MAX: Duration = Duration::from_secs(5);

/// Counts for every server and prints a table.
pub(crate) fn measure(args: &Args) -> Result<(), String> {
    server::pin_self(&args.generator_core)?;
    println!("\nsystem calls a call, 1 connection × 1 stream, {CALLS} calls (strace -c)");
    for server in
        start(args, &args.server_core, |subject| !matches!(subject, Subject::Peer(_)) && !subject.is_tls())?
    {
        let counts = counts(args, &server)?;
        let total: f64 = counts.iter().map(|(_, count)| count).sum();
        let shown = counts.iter().filter(|(_, count)| *count >= SHOWN_MIN);
        let shown: Vec<_> = shown.map(|(name, count)| format!("{name} {count:.2}")).collect();
        println!("{:<28} {total:>6.2}   {}", server.subject.name(), shown.join(", "));
    }
    Ok(())
}

/// The number of each system call per call, the most frequent first.
fn counts(args: &Args, server: &Server) -> Result<Vec<(String, f64)>, String> {
    let report = server.folder().join("strace");
    let strace = attach(&threads(server), &report)?;
    let run = Run {
        connections: 1,
        pace: Pace::Closed { streams: 1 },
        ids: false,
        warm_up: Duration::ZERO,
        measured: Duration::from_secs(60),
        calls_max: CALLS,
        sleeps: false,
    };
    let driven = drive(server, &run, Workload::new(Keys::Random(args.keys), 0));
    detach(strace)?;
    driven?;
    let report = fs::read_to_string(&report).map_err(|error| format!("strace's report: {error}"))?;
    let mut counts: Vec<_> = report.lines().filter_map(row).collect();
    counts.sort_by(|one, other| other.1.total_cmp(&one.1));
    Ok(counts)
}

/// Name and number per call, from a row `% time, seconds, usecs/call, calls, [errors], syscall`.
fn row(line: &str) -> Option<(String, f64)> {
    let columns: Vec<_> = line.split_whitespace().collect();
    let (name, calls) = (columns.last()?, columns.get(3)?.parse::<u64>().ok()?);
    (*name != "total").then(|| (name.to_string(), calls as f64 / CALLS as f64))
}

/// The threads that answer: all threads of an echo, the workers of Tidegate.
fn threads(server: &Server) -> Vec<u32> {
    let tasks = format!("/proc/{}/task", server.id());
    let ids = fs::read_dir(&tasks).into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let answers = |id: &u32| {
        let name = fs::read_to_string(format!("{tasks}/{id}/comm")).unwrap_or_default();
        server.subject.grpc_front().is_none() || name.starts_with("worker-")
    };
    ids.filter(answers).collect()
}

/// Starts strace on these threads and waits until it is attached.
fn attach(threads: &[u32], report: &Path) -> Result<Child, String> {
    let mut command = Command::new("strace");
    command.arg("-c").arg("-o").arg(report).stderr(Stdio::null());
    for id in threads {
        command.args(["-p", &id.to_string()]);
    }
    let strace = command.spawn().map_err(|error| format!("strace: {error}"))?;
    let tracer = format!("TracerPid:\t{}", strace.id());
    let is_traced =
        |id: &u32| fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default().contains(&tracer);
    let start = Instant::now();
    while !threads.iter().all(is_traced) {
        if start.elapsed() > ATTACH_MAX {
            return Err("strace does not attach: may this user trace others?".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(strace)
}

fn detach(mut strace: Child) -> Result<(), String> {
    let done = kill_process(Pid::from_child(&strace), Signal::INT).map_err(|error| error.to_string());
    strace.wait().map_err(|error| error.to_string())?;
    done
}
