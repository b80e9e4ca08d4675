//! The results as a table: percentiles of all rounds together, beyond those without a limiter; medians of the rest.

use super::h2load::Measured;

/// So many requests make a 99.9th percentile worth printing.
const P999_MIN: usize = 100_000;

/// One run of one contender.
pub(crate) struct Run {
    per_second: f64,
    latencies: Vec<u32>,
    /// Microseconds of CPU a request.
    envoy: f64,
    limiter: f64,
}

impl Run {
    pub(crate) fn of(measured: Measured, envoy_nanos: u64, limiter_nanos: u64) -> Run {
        let a_request = |nanos: u64| nanos as f64 / 1e3 / measured.requests as f64;
        let (envoy, limiter) = (a_request(envoy_nanos), a_request(limiter_nanos));
        Run { per_second: measured.per_second, latencies: measured.latencies, envoy, limiter }
    }
}

/// All runs of one contender.
pub(crate) struct Row {
    name: &'static str,
    pub(crate) rounds: Vec<Run>,
}

impl Row {
    pub(crate) fn new(name: &'static str) -> Row {
        Row { name, rounds: Vec::new() }
    }

    fn median(&self, of: fn(&Run) -> f64) -> f64 {
        let mut figures: Vec<f64> = self.rounds.iter().map(of).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// The latencies of all rounds, in order.
    fn latencies(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.rounds.iter().flat_map(|run| &run.latencies).copied().collect();
        all.sort_unstable();
        all
    }
}

/// Prints the rows; what they add is beyond the first.
pub(crate) fn print(title: &str, rows: &[Row]) {
    let Some(none) = rows.first() else { return };
    println!("\n{title}");
    println!(
        "{:<30} {:>11} {:>10} {:>10} {:>11} {:>14} {:>13} {:>12}",
        "",
        "requests/s",
        "+ p50 µs",
        "+ p99 µs",
        "+ p99.9 µs",
        "limiter CPU µs",
        "Envoy CPU µs",
        "+ Envoy µs"
    );
    let base = none.latencies();
    for row in rows {
        let latencies = row.latencies();
        let added = |quantile: f64, least: usize| match (at(&latencies, quantile), at(&base, quantile)) {
            (Some(own), Some(base)) if latencies.len() >= least => {
                format!("{:.0}", f64::from(own) - f64::from(base))
            }
            _ => String::new(),
        };
        let envoy = row.median(|run| run.envoy);
        println!(
            "{:<30} {:>11.0} {:>10} {:>10} {:>11} {:>14.1} {:>13.1} {:>12.1}",
            row.name,
            row.median(|run| run.per_second),
            added(0.5, 1),
            added(0.99, 1),
            added(0.999, P999_MIN),
            row.median(|run| run.limiter),
            envoy,
            envoy - none.median(|run| run.envoy),
        );
    }
    if let (Some(p50), Some(p99)) = (at(&base, 0.5), at(&base, 0.99)) {
        println!("(without a limiter: p50 {p50} µs, p99 {p99} µs, of {} requests)", base.len());
    }
}

/// The latency at a quantile of sorted latencies.
fn at(sorted: &[u32], quantile: f64) -> Option<u32> {
    sorted.get(((sorted.len() as f64 * quantile) as usize).min(sorted.len().checked_sub(1)?)).copied()
}
