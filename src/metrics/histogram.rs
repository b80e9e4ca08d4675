//! Histograms over striped counters: exact counts in fixed buckets, and the exact sum.

use std::fmt::Write;

use super::striped::{Slot, Striped, Writer};

/// One histogram of durations.
pub(super) struct Histogram {
    /// Upper bounds of the buckets in nanoseconds, inclusive, ascending.
    bounds: &'static [u64],
    /// A slot a bucket, one for what is beyond the last bound, one for the sum of nanoseconds.
    first: Slot,
}

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;

/// The buckets of `envoyproxy/ratelimit` from 5 ms up, and finer ones below, where the answers are.
pub(super) const RESPONSE_TIME_BOUNDS: [u64; 16] = [
    100 * MICRO,
    250 * MICRO,
    500 * MICRO,
    MILLI,
    2_500 * MICRO,
    5 * MILLI,
    10 * MILLI,
    25 * MILLI,
    50 * MILLI,
    100 * MILLI,
    250 * MILLI,
    500 * MILLI,
    1_000 * MILLI,
    2_500 * MILLI,
    5_000 * MILLI,
    10_000 * MILLI,
];

/// A decision in memory takes well under a microsecond, one through Redis a fraction of a millisecond.
pub(super) const DECISION_BOUNDS: [u64; 14] = [
    100,
    250,
    500,
    MICRO,
    2_500,
    5 * MICRO,
    10 * MICRO,
    25 * MICRO,
    100 * MICRO,
    250 * MICRO,
    MILLI,
    5 * MILLI,
    25 * MILLI,
    100 * MILLI,
];

impl Histogram {
    /// An empty histogram; `None` when there is no room for its slots.
    pub(super) fn new(striped: &Striped, bounds: &'static [u64]) -> Option<Self> {
        let first = striped.reserve(Self::slots(bounds))?;
        Some(Self { bounds, first })
    }

    /// The slots that a histogram with these bounds needs.
    pub(super) const fn slots(bounds: &[u64]) -> u32 {
        bounds.len() as u32 + 2
    }

    /// Counts one duration.
    pub(super) fn observe(&self, writer: &Writer<'_>, nanos: u64) {
        let bucket = self.bounds.partition_point(|&bound| bound < nanos);
        writer.add(self.first.plus(bucket), 1);
        writer.add(self.first.plus(self.bounds.len() + 1), nanos);
    }

    /// Writes its samples; `labels` is `name="value"` with a comma behind, or empty.
    pub(super) fn write(&self, out: &mut String, striped: &Striped, family: &str, labels: &str) {
        let mut count = 0;
        for (bucket, &bound) in self.bounds.iter().enumerate() {
            count += striped.sum(self.first.plus(bucket));
            let le = seconds(bound);
            // Here and below: writing to a string cannot fail.
            let _ = writeln!(out, "{family}_bucket{{{labels}le=\"{le}\"}} {count}");
        }
        count += striped.sum(self.first.plus(self.bounds.len()));
        let _ = writeln!(out, "{family}_bucket{{{labels}le=\"+Inf\"}} {count}");
        let sum = seconds(striped.sum(self.first.plus(self.bounds.len() + 1)));
        let labels = match labels.trim_end_matches(',') {
            "" => String::new(),
            labels => format!("{{{labels}}}"),
        };
        let _ = writeln!(out, "{family}_sum{labels} {sum}\n{family}_count{labels} {count}");
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(durations: &[u64], labels: &str) -> String {
        let striped = Striped::new(1, 100);
        let histogram = Histogram::new(&striped, &[250, 1_000]).expect("room");
        durations.iter().for_each(|&nanos| histogram.observe(&striped.writer(), nanos));
        let mut out = String::new();
        histogram.write(&mut out, &striped, "took_seconds", labels);
        out
    }

    #[test]
    fn bounds_are_inclusive_and_counts_cumulative() {
        let expected = "took_seconds_bucket{le=\"0.00000025\"} 2\n\
                        took_seconds_bucket{le=\"0.000001\"} 4\n\
                        took_seconds_bucket{le=\"+Inf\"} 5\n\
                        took_seconds_sum 0.00000325\n\
                        took_seconds_count 5\n";
        assert_eq!(written(&[0, 250, 251, 999, 1750], ""), expected);
    }

    #[test]
    fn labels_stand_before_le() {
        let text = written(&[1], "grpc_method=\"Check\",");
        assert!(
            text.starts_with("took_seconds_bucket{grpc_method=\"Check\",le=\"0.00000025\"} 1\n"),
            "{text}"
        );
        assert!(text.ends_with("took_seconds_count{grpc_method=\"Check\"} 1\n"), "{text}");
    }

    #[test]
    fn all_bounds_ascend() {
        for bounds in [RESPONSE_TIME_BOUNDS.as_slice(), &DECISION_BOUNDS] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }
}
