//! Records by the million: how fast they are loaded, and what a call costs whose key has to be looked up.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use hdrhistogram::Histogram;
use rustix::fs::{Advice, fadvise};

use super::cap::Cap;
use super::limiter::{Limiter, With};
use super::request::{DOMAIN, KEY, Keys, Random, value_of};
use super::{Args, above, below, bytes_below, server};

/// Every second of so many numbers has a record, those between have none.
const NUMBERS: u64 = 10_000_000;
/// What the key of all other records is: they stand behind these in the store.
const OTHER: &str = "other";
/// Half of what is asked about has to come from the disk in each round.
const CALLS: u64 = 20_000;
const ROUNDS: u64 = 3;
/// Keys that are in memory.
const KNOWN: u64 = 100;
/// What the cache holds: little, so that each key has to be looked up.
const CACHE: &str = "1000";
const BLOCK_BYTES: u64 = 4_096;

/// What may be at most or at least, in records a second, in microseconds, and as a ratio.
const LOADED_MIN: f64 = 200_000.0;
const MISS_MAX: f64 = 50.0;
const HIT_MAX: f64 = 2.5;

/// Measures, and returns what is worse than it should be.
pub(crate) fn measure(args: &Args, folder: &Path, cap: &Cap) -> Result<Vec<String>, String> {
    let mut missed = Vec::new();
    let mut last = None;
    for format in &args.formats {
        // One folder at a time: the disk may be small.
        drop(last.take());
        let path = folder.join(format);
        fs::create_dir(&path).map_err(|error| error.to_string())?;
        let file = path.join(format!("records.{format}"));
        write(&file, format, args.records).map_err(|error| error.to_string())?;
        let limiter = start(args, &path)?;
        let took = limiter.load(&file)?.as_secs_f64();
        let _ = fs::remove_file(&file);
        let rate = args.records as f64 / took;
        println!(
            "{} records from {format}: {took:.1} s, {rate:.0} a second; {} MiB on the disk, {} MiB resident",
            args.records,
            bytes_below(&path.join("limits")) >> 20,
            limiter.server.resident_bytes() >> 20,
        );
        missed.extend(below(&format!("loaded from {format}, a second"), rate, LOADED_MIN));
        last = Some((limiter, path));
    }
    let Some((limiter, path)) = last else { return Ok(missed) };
    drop(limiter);
    let began = Instant::now();
    let limiter = start(args, &path)?;
    limiter.answered()?;
    println!("started and answered within {:.2} s", began.elapsed().as_secs_f64());
    limiter.settled();
    // What else was written must not be on its way to the disk either.
    rustix::fs::sync();
    missed.extend(lookups(args, &path, &limiter)?);
    println!(
        "{} MiB resident; {} MiB at most in the cgroup",
        limiter.server.resident_bytes() >> 20,
        cap.peak_bytes() >> 20
    );
    Ok(missed)
}

fn start(args: &Args, folder: &Path) -> Result<Limiter, String> {
    let variables = vec![("LIMITS_CACHE_SIZE", CACHE.to_owned()), ("LIMITS_TIMEOUT", "5s".to_owned())];
    let rate_limit = "{unit: hour, requests_per_unit: 1000000}, limits_from: store";
    Limiter::start(args, With { rate_limit, folder, has_records: true, variables })
}

/// Writes a file of records in the order of their keys.
fn write(path: &Path, format: &str, records: u64) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let of_key = records.min(NUMBERS / 2);
    let is_csv = format == "csv";
    if is_csv {
        writeln!(out, "domain,entry.{KEY},entry.{OTHER},requests_per_unit")?;
    }
    for at in 0..records {
        let (value, requests) = (at * 2, 1_000_000 + at % 1_000);
        match (is_csv, at < of_key) {
            (true, true) => writeln!(out, "{DOMAIN},{},,{requests}", value_of(value))?,
            (true, false) => writeln!(out, "{DOMAIN},{OTHER},{value:010},{requests}")?,
            (false, is_asked) => {
                let (key, value) =
                    if is_asked { (KEY, value_of(value)) } else { (OTHER, format!("{value:010}")) };
                writeln!(
                    out,
                    "{{\"domain\":\"{DOMAIN}\",\"entries\":[{{\"key\":\"{key}\",\"value\":\"{value}\"}}],\
                     \"requests_per_unit\":{requests}}}"
                )?;
            }
        }
    }
    out.flush()
}

/// Asks about keys of each kind in turn, and reads a file for comparison.
fn lookups(args: &Args, folder: &Path, limiter: &Limiter) -> Result<Vec<String>, String> {
    server::pin_self(&args.generator_core)?;
    let limits = folder.join("limits");
    let plain = folder.join("plain");
    fill(&plain, bytes_below(&limits).max(64 << 20)).map_err(|error| error.to_string())?;
    let count = args.records.min(NUMBERS / 2);
    let kinds = [
        ("known", Keys::Spread { below: KNOWN, times: 2, plus: 0 }),
        ("without a record", Keys::Spread { below: count, times: 2, plus: 1 }),
        ("with a record, from the disk", Keys::Spread { below: count, times: 2, plus: 0 }),
    ];
    let mut times = [(); 4].map(|()| Histogram::<u64>::new(3).expect("three digits are allowed"));
    for _ in 0..ROUNDS {
        for ((_, keys), times) in kinds.iter().zip(&mut times) {
            limiter.ask(*keys, CALLS / 10)?;
            evict(&limits).map_err(|error| error.to_string())?;
            times.add(limiter.ask(*keys, CALLS)?.latency).map_err(|error| error.to_string())?;
        }
        evict(folder).and_then(|()| read(&plain, &mut times[3])).map_err(|error| error.to_string())?;
    }
    println!("{:<32} {:>9} {:>9} {:>9}", "microseconds", "mean", "half", "99 %");
    for (name, times) in kinds.iter().map(|(name, _)| *name).chain(["a read of 4 KiB"]).zip(&times) {
        let at = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        println!("{name:<32} {:>9.1} {:>9.1} {:>9.1}", times.mean() / 1e3, at(0.5), at(0.99));
    }
    let [known, miss, hit, plain] = times.map(|times| times.value_at_quantile(0.99) as f64 / 1e3);
    let miss = above("a key without a record, beside a known one, 99 %", miss - known, MISS_MAX);
    let hit = above("a key with a record, by a read, 99 %", hit / plain, HIT_MAX);
    Ok(miss.into_iter().chain(hit).collect())
}

fn fill(path: &Path, bytes: u64) -> io::Result<()> {
    let (mut file, mut random) = (BufWriter::with_capacity(1 << 20, File::create(path)?), Random(7));
    for _ in 0..bytes / 8 {
        file.write_all(&random.next().to_le_bytes())?;
    }
    file.into_inner()?.sync_all()
}

/// Reads at random places.
fn read(path: &Path, times: &mut Histogram<u64>) -> io::Result<()> {
    let (file, mut random, mut block) = (File::open(path)?, Random(11), [0; BLOCK_BYTES as usize]);
    let blocks = file.metadata()?.len() / BLOCK_BYTES;
    fadvise(&file, 0, None, Advice::Random)?;
    for _ in 0..CALLS / 2 {
        let at = random.next() % blocks * BLOCK_BYTES;
        let began = Instant::now();
        file.read_exact_at(&mut block, at)?;
        times.record(began.elapsed().as_nanos() as u64).map_err(io::Error::other)?;
    }
    Ok(())
}

/// What is read from these files next comes from the disk.
fn evict(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // The store may have removed what was there.
        match fs::metadata(&path) {
            Ok(about) if about.is_dir() => evict(&path)?,
            Ok(_) => fadvise(&File::open(&path)?, 0, None, Advice::DontNeed)?,
            Err(_) => {}
        }
    }
    Ok(())
}
