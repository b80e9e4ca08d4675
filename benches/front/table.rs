//! The results as a table: medians over the rounds, ratios within each round.

use std::time::Duration;

use super::h2load::Measured;
use super::load::Outcome;
use super::scenario::Scenario;
use super::server::Subject;

/// A generator that is busier than this may limit the rate.
const GENERATOR_BUSY_MAX: f64 = 0.95;
/// A saturated server that used less of its core than this shared the core with another process.
const SERVER_BUSY_MIN: f64 = 0.9;

/// Prints the machine, because figures mean nothing without it.
pub(crate) fn print_machine() {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("an unknown CPU");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{}, {cores} cores, Linux {}", model.trim_start_matches(['\t', ':', ' ']), kernel.trim());
}

/// The figures of one run.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    cpu_micros: f64,
    p50_micros: f64,
    p99_micros: f64,
    server_busy: f64,
    generator_busy: f64,
}

impl Figures {
    fn of(outcome: &Outcome) -> Figures {
        let seconds = outcome.elapsed.as_secs_f64();
        let micros = |quantile| outcome.tally.latency.value_at_quantile(quantile) as f64 / 1e3;
        Figures {
            per_second: outcome.tally.answers as f64 / seconds,
            cpu_micros: outcome.server_cpu.as_secs_f64() * 1e6 / outcome.tally.answers as f64,
            p50_micros: micros(0.5),
            p99_micros: micros(0.99),
            server_busy: outcome.server_cpu.as_secs_f64() / seconds,
            generator_busy: outcome.busy,
        }
    }
}

/// All runs of one scenario.
pub(crate) struct Section {
    pub(crate) scenario: Scenario,
    /// The others are compared with the first one.
    rows: Vec<Row>,
}

struct Row {
    subject: Subject,
    rounds: Vec<Figures>,
    errors: u64,
    first_error: Option<String>,
}

impl Row {
    fn median(&self, of: fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(of))
    }
}

impl Section {
    pub(crate) fn new(scenario: Scenario, subjects: impl Iterator<Item = Subject>) -> Section {
        let row = |subject| Row { subject, rounds: Vec::new(), errors: 0, first_error: None };
        Section { scenario, rows: subjects.map(row).collect() }
    }

    /// Adds a run of the `at`-th subject.
    pub(crate) fn add(&mut self, at: usize, outcome: Outcome) {
        let row = &mut self.rows[at];
        row.rounds.push(Figures::of(&outcome));
        row.errors += outcome.tally.errors;
        row.first_error = row.first_error.take().or(outcome.tally.first_error);
    }

    pub(crate) fn errors(&self) -> u64 {
        self.rows.iter().map(|row| row.errors).sum()
    }

    /// Prints how much more each server did here than there, which is the gain from more cores. Where the generator
    /// needs part of the cores, the gain would be twice the rate as long as a call costs no more CPU than there.
    pub(crate) fn print_gain_over(&self, other: &Section) {
        for row in &self.rows {
            let Some(there) = other.rows.iter().find(|there| there.subject == row.subject) else { continue };
            let gain = row.median(|run| run.per_second) / there.median(|run| run.per_second);
            let dearer = row.median(|run| run.cpu_micros) / there.median(|run| run.cpu_micros);
            println!(
                "   {}: {gain:.2} × its rate in \"{}\", {dearer:.2} × the CPU a call",
                row.subject.name(),
                other.scenario.title()
            );
        }
    }

    pub(crate) fn print(&self, note: &str) {
        println!("\n{}{note}", self.scenario.title());
        println!(
            "{:<28} {:>10} {:>6} {:>9} {:>9} {:>9} {:>8} {:>10}",
            "server", "calls/s", "ratio", "CPU µs", "p50 µs", "p99 µs", "server %", "generator %"
        );
        for row in &self.rows {
            self.print_row(row);
        }
        for row in &self.rows {
            self.print_doubts(row);
        }
        if self.scenario == Scenario::Open {
            self.print_latencies();
        }
    }

    /// Compared with the first row, within each round, like the ratios.
    fn print_latencies(&self) {
        for row in &self.rows[1..] {
            let ratio = |of: fn(&Figures) -> f64| {
                median(row.rounds.iter().zip(&self.rows[0].rounds).map(|(own, base)| of(own) / of(base)))
            };
            let (p50, p99) = (ratio(|run| run.p50_micros), ratio(|run| run.p99_micros));
            println!("   {}: p50 {p50:.2} ×, p99 {p99:.2} × the first's", row.subject.name());
        }
    }

    fn print_row(&self, row: &Row) {
        println!(
            "{:<28} {:>10.0} {:>6.2} {:>9.2} {:>9.0} {:>9.0} {:>8.0} {:>10.0}",
            row.subject.name(),
            row.median(|run| run.per_second),
            self.ratio(row),
            row.median(|run| run.cpu_micros),
            row.median(|run| run.p50_micros),
            row.median(|run| run.p99_micros),
            row.median(|run| run.server_busy) * 100.0,
            row.median(|run| run.generator_busy) * 100.0,
        );
    }

    /// The median of the ratios within each round: a short disturbance of the machine affects both servers.
    fn ratio(&self, row: &Row) -> f64 {
        let pairs = row.rounds.iter().zip(&self.rows[0].rounds);
        median(pairs.map(|(own, base)| own.per_second / base.per_second))
    }

    fn print_doubts(&self, row: &Row) {
        let name = row.subject.name();
        if let Some(first) = &row.first_error {
            println!("!! {name}: {} errors, the first: {first}. These figures mean nothing.", row.errors);
        }
        if !self.scenario.saturates() || self.scenario.shares_cores() {
            return;
        }
        if row.median(|run| run.generator_busy) > GENERATOR_BUSY_MAX {
            println!("!  {name}: the generator was the bottleneck; compare the CPU a call.");
        } else if row.median(|run| run.server_busy) < SERVER_BUSY_MIN {
            println!("!  {name}: it did not have its core for itself; compare the CPU a call.");
        }
    }
}

/// Prints what h2load measured, and how much CPU time the server took meanwhile. Ratios are to the first server.
pub(crate) fn print_by_h2load(runs: &[Vec<(Measured, Duration)>], subjects: impl Iterator<Item = Subject>) {
    println!("  by h2load:");
    for (own, subject) in runs.iter().zip(subjects) {
        let rate = median(own.iter().map(|(run, _)| run.per_second));
        let ratio =
            median(own.iter().zip(&runs[0]).map(|((own, _), (first, _))| own.per_second / first.per_second));
        let cpu = median(own.iter().map(|(run, cpu)| cpu.as_secs_f64() * 1e6 / run.requests as f64));
        let busy = median(own.iter().map(|(run, _)| run.busy * 100.0));
        println!("  {:<26} {rate:>10.0} {ratio:>6.2} {cpu:>9.2} {busy:>44.0}", subject.name());
    }
}

/// The median; NaN without figures.
pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => figures[middle],
        _ => (figures[middle - 1] + figures[middle]) / 2.0,
    }
}
