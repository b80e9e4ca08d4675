//! Histograms over striped counters: exact counts in fixed buckets, and the exact sum.

use super::striped::{Slot, Striped, Writer};
use super::text::Page;

/// The buckets of a histogram of durations.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Buckets {
    /// Inclusive upper bounds, ascending: in nanoseconds, and in the unit of the output.
    bounds: Box<[(u64, f64)]>,
    /// The unit of the output, in nanoseconds.
    unit_nanos: f64,
}

/// One histogram of durations.
pub(super) struct Histogram {
    buckets: Buckets,
    /// One slot per bucket, one for durations beyond the last bound, one for the sum of nanoseconds.
    first: Slot,
}

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;

/// The buckets of `envoyproxy/ratelimit` from 5 ms up, and finer ones below, where most answers are.
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

impl Buckets {
    /// These bounds, given in nanoseconds; the output is in seconds.
    pub(super) fn seconds(bounds: &[u64]) -> Self {
        Self { bounds: bounds.iter().map(|&nanos| (nanos, nanos as f64 / 1e9)).collect(), unit_nanos: 1e9 }
    }

    /// These bounds, given and written in a unit of this many nanoseconds.
    pub(super) fn in_unit(bounds: impl Iterator<Item = f64>, unit_nanos: f64) -> Self {
        let bounds = bounds.map(|bound| ((bound * unit_nanos).round() as u64, bound));
        Self { bounds: bounds.collect(), unit_nanos }
    }

    /// The same numbers, in a unit of this many nanoseconds.
    pub(super) fn with_unit(self, unit_nanos: f64) -> Self {
        Self::in_unit(self.bounds.iter().map(|&(_, bound)| bound), unit_nanos)
    }

    /// The slots of a histogram with these buckets.
    pub(super) fn slots(&self) -> u32 {
        self.bounds.len() as u32 + 2
    }
}

impl Histogram {
    /// An empty histogram; `None` when there is no room for its slots.
    pub(super) fn new(striped: &Striped, buckets: Buckets) -> Option<Self> {
        let first = striped.reserve(buckets.slots())?;
        Some(Self { buckets, first })
    }

    /// Counts a duration this many times.
    pub(super) fn observe(&self, writer: &Writer<'_>, nanos: u64, times: u64) {
        let bounds = &self.buckets.bounds;
        let bucket = bounds.partition_point(|&(bound, _)| bound < nanos);
        writer.add(self.first.plus(bucket), times);
        writer.add(self.first.plus(bounds.len() + 1), nanos.saturating_mul(times));
    }

    /// Writes the samples with these labels.
    pub(super) fn write(&self, page: &mut Page, striped: &Striped, family: &str, labels: &[(&str, &str)]) {
        let bucket = format!("{family}_bucket");
        let up_to = |page: &Page, le: &str| page.labels(labels.iter().copied().chain([("le", le)]));
        let mut count = 0;
        for (index, (_, bound)) in self.buckets.bounds.iter().enumerate() {
            count += striped.sum(self.first.plus(index));
            let labels = up_to(page, &bound.to_string());
            page.line(&bucket, &labels, count);
        }
        let beyond = up_to(page, "+Inf");
        page.line(&bucket, &beyond, self.count(striped));
        self.write_sum(page, striped, family, labels);
    }

    /// Writes only the sum and the count.
    pub(super) fn write_sum(
        &self,
        page: &mut Page,
        striped: &Striped,
        family: &str,
        labels: &[(&str, &str)],
    ) {
        let labels = page.labels(labels.iter().copied());
        let nanos = self.sum_nanos(striped);
        page.line(&format!("{family}_sum"), &labels, nanos as f64 / self.buckets.unit_nanos);
        page.line(&format!("{family}_count"), &labels, self.count(striped));
    }

    /// The sum of all durations in nanoseconds.
    pub(super) fn sum_nanos(&self, striped: &Striped) -> u64 {
        striped.sum(self.first.plus(self.buckets.bounds.len() + 1))
    }

    /// The number of all durations.
    pub(super) fn count(&self, striped: &Striped) -> u64 {
        (0..=self.buckets.bounds.len()).map(|bucket| striped.sum(self.first.plus(bucket))).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(durations: &[u64], labels: &[(&str, &str)]) -> String {
        let striped = Striped::new(1, 100);
        let histogram = Histogram::new(&striped, Buckets::seconds(&[250, 1_000])).expect("room");
        durations.iter().for_each(|&nanos| histogram.observe(&striped.writer(), nanos, 1));
        let mut page = Page::default();
        histogram.write(&mut page, &striped, "took_seconds", labels);
        page.text
    }

    #[test]
    fn bounds_are_inclusive_and_counts_cumulative() {
        let expected = "took_seconds_bucket{le=\"0.00000025\"} 2\n\
                        took_seconds_bucket{le=\"0.000001\"} 4\n\
                        took_seconds_bucket{le=\"+Inf\"} 5\n\
                        took_seconds_sum 0.00000325\n\
                        took_seconds_count 5\n";
        assert_eq!(written(&[0, 250, 251, 999, 1750], &[]), expected);
    }

    #[test]
    fn labels_stand_before_le() {
        let text = written(&[1], &[("grpc_method", "Check")]);
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
