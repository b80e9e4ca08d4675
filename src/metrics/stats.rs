//! Counters as lines of text, `name: value`, under the names of StatsD: what operators of `envoyproxy/ratelimit` read on
//! its debug port. Piece by piece, as a scrape. Names hold values of requests, so
//! each is escaped to be one line.

use std::fmt::Write as _;
use std::sync::Arc;

use super::Metrics;
use super::counts::Stat;
use super::stat_name::StatName;
use tidegate_engine::text::one_line;

/// Series a piece.
const BATCH: usize = 512;

/// The pieces, in order. A counter of a limit is told once it has counted something.
pub struct Stats {
    metrics: Arc<Metrics>,
    /// Series of limits that were told; `None` before everything else was.
    told: Option<usize>,
}

impl Metrics {
    /// Begins to tell all counters.
    pub fn stats(self: &Arc<Self>) -> Stats {
        Stats { metrics: Arc::clone(self), told: None }
    }
}

impl Iterator for Stats {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let metrics = &self.metrics;
        let mut lines = String::new();
        let mut tell = |name: StatName<'_>, count| {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{}: {count}", one_line(&name.to_string()));
        };
        let Some(told) = self.told else {
            metrics.named_apart().for_each(|counter| tell(counter.name, metrics.count(&counter)));
            self.told = Some(0);
            return Some(lines);
        };
        let mut batch = metrics.named_limits(told).take(BATCH * Stat::ALL.len()).peekable();
        batch.peek()?;
        for counter in batch {
            match metrics.count(&counter) {
                0 => {}
                count => tell(counter.name, count),
            }
        }
        self.told = Some(told + BATCH);
        Some(lines)
    }
}
