//! `cargo bench --bench state -- --counters 10000000 --folder /var/tmp`: the time to write all counters and to load
//! them, compared with plain files of as many bytes in the same run. And decisions while checkpoints are written,
//! compared with decisions without, in pairs.

// It measures, so it reads a clock.
#![allow(clippy::disallowed_methods)]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use tidegate_engine::clock::Clock;
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::time::SECOND_NANOS;
use tidegate_state::{
    Author, Checkpoints, Folder, KeySource, Outcome, ShardName, StartOptions, ThisMachine, begin,
};

/// How many times each is measured.
const ROUNDS: usize = 3;
/// Pairs of measurements of decisions.
const PAIRS: usize = 15;
/// Decisions of one measurement.
const DECISIONS: usize = 300_000;

#[derive(Parser)]
struct Args {
    /// Counters of sliding_window_weighted.
    #[arg(long, default_value_t = 10_000_000)]
    counters: u64,
    /// A folder on the disk to measure.
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir_in(&args.folder)?;
    let clock = Clock::start();
    let store = Arc::new(filled(args.counters, &clock));
    let author = Author {
        secret: KeySource::random()?,
        members: 0,
        name: ShardName::default(),
        lost_since: None,
        sequence: 1,
        machine: Arc::new(ThisMachine),
    };
    let counts = folder.path().join("state");
    println!(
        "{:>8} {:>12} {:>8} {:>8} {:>8} {:>8}",
        "counters", "bytes each", "write s", "plain s", "read s", "plain s"
    );
    for _ in 0..ROUNDS {
        round(&counts, &store, (author.clone(), clock), args.counters)?;
    }
    let checkpoints = Checkpoints::new(lock(&counts), author, Arc::clone(&store), clock);
    println!("{:>12} {:>12} {:>6}  p99 of decisions, ns", "checkpoints", "none", "ratio");
    let mut ratios: Vec<_> = (0..PAIRS).map(|_| pair(&checkpoints, &store, &clock, args.counters)).collect();
    ratios.sort_by(f64::total_cmp);
    println!("median ratio {:.2} of {PAIRS} pairs", ratios[PAIRS / 2]);
    Ok(())
}

/// The key of this counter.
fn key(number: u64) -> Key {
    let mixed = |seed: u64| {
        let mixed = (number ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    };
    Key(u128::from(mixed(1)) << 64 | u128::from(mixed(2 << 40)))
}

fn limit() -> Limit {
    Limit::new(Algorithm::SlidingWindowWeighted, 1_000_000, 86_400 * SECOND_NANOS)
}

fn options() -> StartOptions {
    StartOptions {
        own_secret: None,
        skew: Duration::from_secs(2),
        members: 0,
        grew_from: 0,
        name: ShardName::default(),
        memory: MemoryOptions::new(16 << 30),
        deny_cold: None,
        machine: Arc::new(ThisMachine),
    }
}

fn filled(counters: u64, clock: &Clock) -> MemoryStore {
    let store = MemoryStore::new(options().memory);
    for number in 0..counters {
        store.take(&limit(), key(number), 1, clock.now());
    }
    store
}

fn lock(path: &Path) -> Folder {
    Folder::lock(path).expect("nobody else has it")
}

fn seconds<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let done = work();
    (began.elapsed().as_secs_f64(), done)
}

/// Writes and reads all counters, and plain files of as many bytes.
fn round(folder: &Path, store: &Arc<MemoryStore>, by: (Author, Clock), counters: u64) -> io::Result<()> {
    let checkpoints = Checkpoints::new(lock(folder), by.0, Arc::clone(store), by.1);
    let (write, written) = seconds(|| checkpoints.finish());
    assert_eq!(written.expect("there is room"), counters);
    drop(checkpoints);
    let path = folder.join("counters");
    let bytes = fs::metadata(&path)?.len();
    let plain = folder.join("plain");
    let (plain_write, done) = seconds(|| write_plain(&plain, bytes));
    done?;
    let (plain_read, done) = seconds(|| read_plain(&path));
    done?;
    let held = lock(folder);
    let (read, begun) = seconds(|| begin(Some(&held), &options()).expect("it is whole"));
    assert_eq!((begun.outcome, begun.store.counters()), (Outcome::Clean, counters));
    let each = bytes as f64 / counters as f64;
    println!("{counters:>8} {each:>12.3} {write:>8.2} {plain_write:>8.2} {read:>8.2} {plain_read:>8.2}");
    fs::remove_file(plain)
}

fn write_plain(path: &Path, bytes: u64) -> io::Result<()> {
    let (mut file, piece) = (File::create(path)?, vec![0x5a; 1 << 20]);
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len() as u64);
        file.write_all(&piece[..now as usize])?;
        left -= now;
    }
    file.sync_all()
}

fn read_plain(path: &Path) -> io::Result<()> {
    let (mut file, mut piece) = (File::open(path)?, vec![0; 1 << 20]);
    while file.read(&mut piece)? > 0 {}
    Ok(())
}

/// The 99th percentile of decisions while checkpoints are written, by the one without.
fn pair(checkpoints: &Checkpoints, store: &MemoryStore, clock: &Clock, counters: u64) -> f64 {
    let without = p99(store, clock, counters);
    checkpoints.start(Duration::ZERO, lower_priority).expect("a thread");
    let with = p99(store, clock, counters);
    checkpoints.stop();
    let ratio = with as f64 / without as f64;
    println!("{with:>12} {without:>12} {ratio:>6.2}");
    ratio
}

/// As the program's own thread.
fn lower_priority() {
    let _ = rustix::process::nice(10);
}

fn p99(store: &MemoryStore, clock: &Clock, counters: u64) -> u64 {
    let mut took = Histogram::<u64>::new(3).expect("three digits");
    for decision in 0..DECISIONS as u64 {
        let key = key(decision.wrapping_mul(0x5851_F42D_4C95_7F2D) % counters);
        let began = Instant::now();
        store.take(&limit(), key, 1, clock.now());
        took.saturating_record(began.elapsed().as_nanos() as u64);
    }
    took.value_at_quantile(0.99)
}
