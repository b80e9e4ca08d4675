//! What large work and bad clients cost other clients: latencies at half load, without and with them in turn.
//!
//! It measures many short pairs and takes the median difference. So disturbances by a virtual machine's host spoil only
//! a few pairs. The first row has no disturbance: it shows the difference between equal measurements.

use std::path::Path;
use std::time::Duration;

use super::args::Args;
use super::disturbance::Disturbance;
use super::load::{Outcome, Pace, Run, Workload};
use super::request::{Descriptors, Keys};
use super::server::{self, Server, Subject};
use super::table::median;
use super::{drive, half_peak, meet_every_key};

/// The 99th percentile may move by this much, or by a tenth.
const MOVES_MICROS_MAX: f64 = 1_000.0;
const MOVES_MAX: f64 = 0.1;
/// Seconds of a run: long enough for a few large reloads or scrapes in each.
const SECONDS: f64 = 1.5;
/// Pairs per round.
const PAIRS: usize = 2;
/// Runs that search for the rate at which the server's core is busy half of the time.
const CALIBRATIONS: usize = 3;

/// Latencies of one run, in microseconds.
#[derive(Clone, Copy)]
struct Latency {
    p50: f64,
    p99: f64,
}

/// Measures every disturbance, on both of Tidegate's fronts. Returns the number of errors.
pub(crate) fn measure(args: &Args) -> Result<u64, String> {
    let Some(binary) = args.tidegate(Subject::Lane) else { return Ok(0) };
    server::pin_self(&args.generator_core)?;
    [Subject::Tidegate, Subject::Lane].into_iter().map(|subject| measure_one(args, subject, &binary)).sum()
}

fn measure_one(args: &Args, subject: Subject, binary: &Path) -> Result<u64, String> {
    let server = Server::start(subject, &args.server_core, binary)?;
    meet_every_key(&server, args.keys, Descriptors::Plain)?;
    let per_second = half_load(args, &server)?;
    println!(
        "\n{}: latency beside others, 8 connections, open loop at half load, {per_second:.0} calls/s",
        subject.name()
    );
    println!(
        "{:<38} {:>8} {:>8} {:>8} {:>8} {:>10} {:>16} {:>6}",
        "beside", "p50 µs", "then", "p99 µs", "then", "p99 moves", "half of them", "times"
    );
    let mut errors = 0;
    for &disturbance in args.disturbances() {
        disturbance.prepare(&server).map_err(|error| server.blame(&error.to_string()))?;
        errors += row(args, &server, disturbance, per_second)?;
    }
    Ok(errors)
}

/// The calls per second that keep the server's core busy half of the time. It is less than half of the highest rate,
/// because calls that come one by one cost more than calls in batches.
fn half_load(args: &Args, server: &Server) -> Result<f64, String> {
    let mut per_second = half_peak(args, server)? / 2.0;
    for seed in 0..CALIBRATIONS as u64 {
        let outcome = open_loop(args, server, per_second, seed)?;
        per_second *= 0.5 * outcome.elapsed.as_secs_f64() / outcome.server_cpu.as_secs_f64();
    }
    Ok(per_second)
}

fn row(args: &Args, server: &Server, disturbance: Disturbance, per_second: f64) -> Result<u64, String> {
    let (mut quiet, mut beside, mut times, mut errors) = (Vec::new(), Vec::new(), 0, 0);
    for round in 1..=(args.rounds * PAIRS) as u64 {
        quiet.push(latency(args, server, per_second, 2 * round, &mut errors)?);
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| server.blame(&error.to_string());
        let running = disturbance.begin(server).map_err(failed)?;
        let measured = latency(args, server, per_second, 2 * round + 1, &mut errors);
        times += running.end().map_err(failed)?;
        beside.push(measured?);
    }
    let of = |runs: &[Latency], which: fn(&Latency) -> f64| median(runs.iter().map(which));
    let (before, then) = (of(&quiet, |run| run.p99), of(&beside, |run| run.p99));
    let moves: Vec<_> = quiet.iter().zip(&beside).map(|(quiet, beside)| beside.p99 - quiet.p99).collect();
    let (moved, [low, high]) = (median(moves.iter().copied()), middle_half(moves));
    let bad = moved > MOVES_MICROS_MAX && moved > before * MOVES_MAX;
    println!(
        "{:<38} {:>8.0} {:>8.0} {before:>8.0} {then:>8.0} {moved:>+7.0} µs {low:>+7.0} {high:>+8.0} {times:>6}{}",
        disturbance.title(),
        of(&quiet, |run| run.p50),
        of(&beside, |run| run.p50),
        if bad { "  !! over 1 ms and a tenth" } else { "" }
    );
    Ok(errors)
}

/// The two figures between which half of the figures lie.
fn middle_half(mut figures: Vec<f64>) -> [f64; 2] {
    figures.sort_by(f64::total_cmp);
    [figures.len() / 4, figures.len() * 3 / 4].map(|at| figures.get(at).copied().unwrap_or(f64::NAN))
}

fn latency(
    args: &Args,
    server: &Server,
    per_second: f64,
    seed: u64,
    errors: &mut u64,
) -> Result<Latency, String> {
    let outcome = open_loop(args, server, per_second, seed)?;
    *errors += outcome.tally.errors;
    if let Some(first) = &outcome.tally.first_error {
        println!("!! {} errors, the first: {first}", outcome.tally.errors);
    }
    let micros = |quantile| outcome.tally.latency.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Latency { p50: micros(0.5), p99: micros(0.99) })
}

fn open_loop(args: &Args, server: &Server, per_second: f64, seed: u64) -> Result<Outcome, String> {
    let measured =
        Duration::from_secs_f64(if args.is_quick() { args.seconds } else { args.seconds.max(SECONDS) });
    let run = Run {
        connections: 8,
        pace: Pace::Open { per_second },
        ids: false,
        warm_up: measured / 5,
        measured,
        calls_max: u64::MAX,
        sleeps: false,
    };
    drive(server, &run, Workload::new(Keys::Random(args.keys), seed))
}
