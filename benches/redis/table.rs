//! The results as a table: medians over the rounds, ratios within each round.

use std::time::Duration;

use super::database::Work;
use super::{bare, load};

/// The figures of one run.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    pub(crate) p50_micros: f64,
    pub(crate) p99_micros: f64,
    /// CPU time of the limiter per call.
    pub(crate) limiter_micros: f64,
    /// CPU time of Redis per call.
    pub(crate) redis_micros: f64,
    /// Time of a script by Redis' own figures.
    pub(crate) script_micros: f64,
    /// Scripts that Redis ran.
    pub(crate) scripts: u64,
    calls: u64,
}

impl Figures {
    pub(crate) fn of(outcome: &load::Outcome, redis: Work) -> Figures {
        let latency = |quantile| outcome.tally.latency.value_at_quantile(quantile) as f64 / 1e3;
        let limiter = outcome.server_cpu;
        Self::new(outcome.tally.answers, outcome.elapsed, (latency(0.5), latency(0.99)), limiter, redis)
    }

    pub(crate) fn of_bare(outcome: &bare::Outcome, redis: Work) -> Figures {
        let latency = |quantile| outcome.latency.value_at_quantile(quantile) as f64 / 1e3;
        Self::new(outcome.calls, outcome.elapsed, (latency(0.5), latency(0.99)), Duration::ZERO, redis)
    }

    fn new(
        calls: u64,
        elapsed: Duration,
        (p50_micros, p99_micros): (f64, f64),
        limiter: Duration,
        redis: Work,
    ) -> Figures {
        let a_call = |time: Duration| time.as_secs_f64() * 1e6 / calls as f64;
        Figures {
            per_second: calls as f64 / elapsed.as_secs_f64(),
            p50_micros,
            p99_micros,
            limiter_micros: a_call(limiter),
            redis_micros: a_call(redis.cpu),
            script_micros: redis.call_micros as f64 / redis.calls as f64,
            scripts: redis.calls,
            calls,
        }
    }
}

/// The requirement on a row, relative to the row that it is compared with.
#[derive(Clone, Copy)]
pub(crate) enum Must {
    /// Nothing: it is there to be compared with.
    Nothing,
    /// At least this share of its rate.
    Rate(f64),
    /// At least this share of its rate, without a script in Redis.
    RateAlone(f64),
    /// At most this many microseconds more at the median.
    Added(f64),
}

/// One row, and the index of the row that it is compared with.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) beside: usize,
    pub(crate) must: Must,
    pub(crate) rounds: Vec<Figures>,
}

impl Row {
    fn median(&self, of: impl Fn(&Figures) -> f64) -> f64 {
        median(self.rounds.iter().map(of))
    }
}

pub(crate) fn print(title: &str, rows: &[Row]) {
    println!("\n{title}");
    println!(
        "{:<34} {:>9} {:>6} {:>8} {:>8} {:>11} {:>8} {:>9} {:>8}  must",
        "", "calls/s", "ratio", "p50 µs", "p99 µs", "limiter µs", "Redis µs", "script µs", "scripts"
    );
    for row in rows {
        let base = &rows[row.beside];
        let pairs = || row.rounds.iter().zip(&base.rounds);
        let ratio = median(pairs().map(|(own, base)| own.per_second / base.per_second));
        let added = median(pairs().map(|(own, base)| own.p50_micros - base.p50_micros));
        println!(
            "{:<34} {:>9.0} {:>6.2} {:>8.0} {:>8.0} {:>11.2} {:>8.2} {:>9.2} {:>8.3}  {}",
            row.name,
            row.median(|run| run.per_second),
            ratio,
            row.median(|run| run.p50_micros),
            row.median(|run| run.p99_micros),
            row.median(|run| run.limiter_micros),
            row.median(|run| run.redis_micros),
            row.median(|run| if run.scripts == 0 { 0.0 } else { run.script_micros }),
            row.median(|run| run.scripts as f64 / run.calls as f64),
            verdict(row, base, ratio, added)
        );
    }
}

fn verdict(row: &Row, base: &Row, ratio: f64, added: f64) -> String {
    let holds = |it: bool| if it { "holds" } else { "MISSED" };
    match row.must {
        Must::Nothing => String::new(),
        Must::Rate(least) => format!("≥ {least} × {}: {}", base.name, holds(ratio >= least)),
        Must::RateAlone(least) => {
            let alone = row.rounds.iter().all(|run| run.scripts == 0);
            format!("≥ {least} × {}, no script: {}", base.name, holds(ratio >= least && alone))
        }
        Must::Added(most) => format!("{added:+.0} µs, ≤ {most}: {}", holds(added <= most)),
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
