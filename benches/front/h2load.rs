//! h2load, the load generator of nghttp2, which others have written: what it measures is not what we would like to see.
//!
//! In: an address, how many connections, for how long, at which rate. Out: requests a second, and the latencies of all
//! requests of a paced run. A request that fails makes the run fail.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::server::cpu_of_children;

/// What h2load sends, and how fast.
pub(crate) struct Load<'a> {
    /// The core that it runs on.
    pub(crate) core: &'a str,
    /// Connections, each with one request at a time.
    pub(crate) connections: u32,
    pub(crate) pace: Pace,
    /// Arguments that say what is sent and where to.
    pub(crate) sends: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// As fast as answers come, for so many seconds.
    Full { seconds: f64 },
    /// So many requests a second, in all so many.
    #[allow(dead_code, reason = "the benchmark of the fronts has no such run")]
    Steady { per_second: u32, requests: u32 },
}

/// What it measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    /// Its own CPU time, in seconds a second.
    pub(crate) busy: f64,
    /// In microseconds, of a steady run.
    pub(crate) latencies: Vec<u32>,
}

impl Load<'_> {
    /// Does one run. `folder` is for its files.
    pub(crate) fn run(&self, folder: &Path) -> Result<Measured, String> {
        let log = folder.join("h2load.log");
        let mut command = Command::new("taskset");
        command.args(["-c", self.core, "h2load", "-t", "1", "-m", "1", "-c", &self.connections.to_string()]);
        match self.pace {
            Pace::Full { seconds } => {
                command.args(["-D", &format!("{}ms", (seconds * 1e3) as u64)]);
            }
            Pace::Steady { per_second, requests } => {
                let each = f64::from(per_second) / f64::from(self.connections);
                command.args(["-n", &requests.to_string(), "--rps", &each.to_string()]);
                // It appends.
                let _ = fs::remove_file(&log);
                command.arg(format!("--log-file={}", log.display()));
            }
        }
        let before = cpu_of_children();
        let output = command.args(&self.sends).output();
        let output = output.map_err(|error| format!("h2load (apt-get install nghttp2-client): {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let latencies = match self.pace {
            Pace::Full { .. } => Vec::new(),
            Pace::Steady { .. } => latencies(&fs::read_to_string(&log).unwrap_or_default()),
        };
        let wrong = || format!("h2load: {said}{}", String::from_utf8_lossy(&output.stderr));
        read(&said, latencies, cpu_of_children() - before).ok_or_else(wrong)
    }
}

/// What h2load says; `None` if a request failed.
fn read(said: &str, latencies: Vec<u32>, cpu: Duration) -> Option<Measured> {
    let line = |start: &str| said.lines().find_map(|line| line.trim().strip_prefix(start));
    let (took, rate) = line("finished in ")?.split_once(", ")?;
    let busy = cpu.as_secs_f64() / seconds(took)?;
    let rate = rate.split(", ").next()?;
    let per_second = rate.strip_suffix(" req/s")?.parse().ok()?;
    let counts: Vec<_> = line("requests: ")?.split(", ").collect();
    let count = |what: &str| counts.iter().find_map(|count| count.strip_suffix(what)?.trim().parse().ok());
    let (requests, failed): (u64, u64) = (count(" succeeded")?, count(" failed")?);
    let errored: u64 = count(" errored")?;
    let good: u64 = line("status codes: ")?.split(" 2xx").next()?.parse().ok()?;
    let is_good = failed == 0 && errored == 0 && good >= requests && requests > 0;
    is_good.then_some(Measured { requests, per_second, busy, latencies })
}

/// A duration as it writes it, such as `1.50s` or `612.00ms`.
fn seconds(text: &str) -> Option<f64> {
    let units = [("ms", 1e-3), ("us", 1e-6), ("s", 1.0)];
    let (number, unit) = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    Some(number.parse::<f64>().ok()? * unit)
}

/// The third column of its log: microseconds.
fn latencies(log: &str) -> Vec<u32> {
    log.lines().filter_map(|line| line.split('\t').nth(2)?.parse().ok()).collect()
}
