//! Counters as lines of text, `name: value`, under their StatsD names, as on the debug port of `envoyproxy/ratelimit`.
//! Rendered piece by piece, like a scrape. Names hold values of requests, so each name is escaped to stay on one line.

use std::fmt::Write as _;
use std::sync::Arc;

use super::Metrics;
use super::counts::Stat;
use super::statsd_name::StatsdName;
use tidegate_engine::text::one_line;

/// Series in one piece.
const BATCH: usize = 512;

/// The pieces, in order. A counter of a limit is left out while it is 0.
pub struct Stats {
    metrics: Arc<Metrics>,
    /// Series of limits that are written so far; `None` until all other counters are written.
    limits_written: Option<usize>,
}

impl Metrics {
    /// Begins to write all counters.
    pub fn stats(self: &Arc<Self>) -> Stats {
        Stats { metrics: Arc::clone(self), limits_written: None }
    }
}

impl Iterator for Stats {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let metrics = &self.metrics;
        let mut lines = String::new();
        let mut write = |name: StatsdName<'_>, count| {
            // Writing to a string cannot fail.
            let _ = writeln!(lines, "{}: {count}", one_line(&name.to_string()));
        };
        let Some(written) = self.limits_written else {
            metrics.statsd_other_counters().for_each(|counter| write(counter.name, metrics.count(&counter)));
            self.limits_written = Some(0);
            return Some(lines);
        };
        let mut batch = metrics.statsd_limit_counters(written).take(BATCH * Stat::ALL.len()).peekable();
        batch.peek()?;
        for counter in batch {
            match metrics.count(&counter) {
                0 => {}
                count => write(counter.name, count),
            }
        }
        self.limits_written = Some(written + BATCH);
        Some(lines)
    }
}
