//! `cargo bench --bench replay`: how many lines of a log `tidegate replay` reads with a second of one core (plain, by gzip
//! and zstd, and as JSON), and how many cases `tidegate test` runs.
//!
//! In: a log that it makes: requests of up to 100,000 addresses, a few of them busy, a little out of order. Out:
//! medians over the rounds: lines for each second of CPU time (user's and system's, with the report); the same by the
//! clock; and, for comparison, reading and unpacking alone, by the same libraries in this process.
//!
//! `cargo bench --bench replay -- --lines 4000000 --rounds 7 --tidegate BINARY`

#![allow(clippy::disallowed_methods, reason = "a benchmark reads real clocks")]

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Parser;
use flate2::read::MultiGzDecoder;

#[path = "replay/log.rs"]
mod log;

use log::{Kind, Shape};

const RULES: &str = "
domain: shop
descriptors:
  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 60, algorithm: sliding_window}}
";

/// A unit of CPU time in `/proc`: USER_HZ is 100 on every architecture that has servers.
const TICK: Duration = Duration::from_millis(10);

/// How fast logs are replayed, and cases tested.
#[derive(Parser)]
#[command(bin_name = "cargo bench --bench replay --")]
struct Args {
    /// Rounds, each of which measures everything once
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Lines of the log
    #[arg(long, default_value_t = 2_000_000)]
    lines: u64,
    /// Lines for each second of the log's time
    #[arg(long, default_value_t = 500)]
    per_second: u64,
    /// Addresses of clients
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Cases for `tidegate test`
    #[arg(long, default_value_t = 20_000)]
    cases: usize,
    /// Only this kind of log
    #[arg(long)]
    only: Option<Kind>,
    /// Another binary than the one that was just built
    #[arg(long, default_value = env!("CARGO_BIN_EXE_tidegate"))]
    tidegate: PathBuf,
    /// `cargo bench` passes this; without it (`cargo test --all-targets`) one short round shows that everything works
    #[arg(long, hide = true)]
    bench: bool,
}

/// What one run took.
#[derive(Clone, Copy)]
struct Took {
    cpu: Duration,
    wall: Duration,
    /// Reading and unpacking alone.
    reading: Duration,
}

fn main() -> io::Result<()> {
    let mut args = Args::parse();
    if !args.bench {
        (args.rounds, args.lines, args.cases) = (1, 20_000, 100);
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let folder = folder.path();
    fs::write(folder.join("rules.yaml"), RULES)?;
    fs::write(folder.join("cases.yaml"), log::cases(args.cases))?;
    let kinds: Vec<_> = Kind::ALL.into_iter().filter(|kind| args.only.is_none_or(|it| it == *kind)).collect();
    for kind in &kinds {
        let shape = Shape { lines: args.lines, per_second: args.per_second, keys: args.keys };
        log::write(*kind, shape, File::create(folder.join(kind.name()))?)?;
    }
    let mut replays = vec![Vec::new(); kinds.len()];
    let mut tests = Vec::new();
    for _ in 0..args.rounds {
        for (kind, runs) in kinds.iter().zip(&mut replays) {
            runs.push(replay(&args, folder, *kind)?);
        }
        tests.push(test(&args, folder)?);
    }
    println!("{:<16} {:>12} {:>12} {:>14}", "", "a CPU second", "a second", "reading alone");
    for (kind, runs) in kinds.iter().zip(&replays) {
        print_row(&format!("lines, {}", kind.name()), args.lines as f64, runs);
    }
    print_row("cases", args.cases as f64, &tests);
    Ok(())
}

/// Replays a log once.
fn replay(args: &Args, folder: &Path, kind: Kind) -> io::Result<Took> {
    let path = folder.join(kind.name());
    let began = Instant::now();
    let bytes = match kind {
        Kind::Plain | Kind::Json => io::copy(&mut File::open(&path)?, &mut io::sink())?,
        Kind::Gzip => {
            io::copy(&mut MultiGzDecoder::new(BufReader::new(File::open(&path)?)), &mut io::sink())?
        }
        Kind::Zstd => io::copy(&mut zstd::Decoder::new(File::open(&path)?)?, &mut io::sink())?,
    };
    let reading = began.elapsed();
    assert!(bytes > args.lines, "a log has bytes");
    let mut command = Command::new(&args.tidegate);
    command.args(["replay", "--rules"]).arg(folder.join("rules.yaml"));
    command.args(["--map", "remote_address=$remote_addr"]).args(kind.flags()).arg(path);
    run(command, reading, &format!("lines {}; requests from ", args.lines))
}

/// Tests the cases once.
fn test(args: &Args, folder: &Path) -> io::Result<Took> {
    let mut command = Command::new(&args.tidegate);
    command.arg("test").arg(folder.join("cases.yaml"));
    run(command, Duration::ZERO, &format!("cases {}, ", args.cases))
}

/// Runs a command, whose output has to hold this text.
fn run(mut command: Command, reading: Duration, expected: &str) -> io::Result<Took> {
    let (before, began) = (cpu_of_children(), Instant::now());
    let output = command.output()?;
    let (cpu, wall) = (cpu_of_children() - before, began.elapsed());
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(expected), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(Took { cpu, wall, reading })
}

/// The CPU time of all children that have ended: fields 16 and 17 of `/proc/self/stat`. Field 2, the name, may contain
/// blanks, so fields are counted from its end.
fn cpu_of_children() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let fields = after_name.split(' ').skip(13).take(2);
    TICK * fields.filter_map(|field| field.parse::<u32>().ok()).sum()
}

fn print_row(name: &str, things: f64, runs: &[Took]) {
    let rate = |of: fn(&Took) -> Duration| {
        let mut rates: Vec<_> = runs.iter().map(|took| things / of(took).as_secs_f64()).collect();
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let (cpu, wall, reading) = (rate(|it| it.cpu), rate(|it| it.wall), rate(|it| it.reading));
    let reading = if reading.is_finite() { format!("{reading:.0}") } else { "-".to_owned() };
    println!("{name:<16} {cpu:>12.0} {wall:>12.0} {reading:>14}");
}
