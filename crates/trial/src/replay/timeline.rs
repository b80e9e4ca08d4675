//! Requests and denials over time, in a bounded number of bins: the bins grow with the log.
//!
//! In: the time of each request, never earlier than the one before, and whether it was denied. Out: bins of one width.

use tidegate_engine::Timestamp;
use tidegate_engine::time::SECOND_NANOS;

/// Most bins: what a page is wide enough for.
const BINS_MAX: usize = 240;

/// The widths of bins, in seconds: each a multiple of the one before. Beyond the last, they double.
const WIDTHS: &[u64] = &[1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400];

/// One bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Requests in it.
    pub requests: u64,
    /// Of these, the denied ones.
    pub denied: u64,
}

/// Bins from the first request on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// When the first bin begins, in seconds of unix time.
    pub start_secs: u64,
    /// How long a bin is, in seconds.
    pub width_secs: u64,
    /// The bins.
    pub bins: Vec<Bin>,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self { start_secs: 0, width_secs: WIDTHS[0], bins: Vec::new() }
    }

    #[inline]
    pub(super) fn count(&mut self, at: Timestamp, is_denied: bool) {
        let second = at.as_nanos() / SECOND_NANOS;
        if self.bins.is_empty() {
            self.start_secs = second;
        }
        while self.bin_of(second) >= BINS_MAX {
            self.widen();
        }
        let bin = self.bin_of(second);
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, Bin::default());
        }
        self.bins[bin].requests += 1;
        self.bins[bin].denied += u64::from(is_denied);
    }

    #[inline]
    fn bin_of(&self, second: u64) -> usize {
        usize::try_from((second - self.start_secs) / self.width_secs).unwrap_or(usize::MAX)
    }

    /// Merges bins into wider ones, which begin at multiples of their width.
    fn widen(&mut self) {
        let (start, width) = (self.start_secs, self.width_secs);
        let wider = WIDTHS.iter().copied().find(|wider| *wider > width).unwrap_or(width * 2);
        self.width_secs = wider;
        self.start_secs = start / wider * wider;
        for (at, bin) in std::mem::take(&mut self.bins).into_iter().enumerate() {
            let into = self.bin_of(start + at as u64 * width);
            self.bins.resize(self.bins.len().max(into + 1), Bin::default());
            self.bins[into].requests += bin.requests;
            self.bins[into].denied += bin.denied;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bins_are_few_and_hold_every_request(gaps in prop::collection::vec((0_u64..5_000_000, any::<bool>()), 1..400)) {
            let mut timeline = Timeline::new();
            let (mut second, mut times) = (1_000_000_000, Vec::new());
            for (gap, is_denied) in gaps {
                second += gap / 1_000 * (gap % 7);
                timeline.count(Timestamp::from_secs(second), is_denied);
                times.push((second, is_denied));
            }
            prop_assert!(timeline.bins.len() <= BINS_MAX);
            for (at, bin) in timeline.bins.iter().enumerate() {
                let start = timeline.start_secs + at as u64 * timeline.width_secs;
                let within = |time: &&(u64, bool)| (start..start + timeline.width_secs).contains(&time.0);
                prop_assert_eq!(bin.requests, times.iter().filter(within).count() as u64);
                let denied = times.iter().filter(within).filter(|time| time.1).count();
                prop_assert_eq!(bin.denied, denied as u64);
            }
        }
    }

    #[test]
    fn the_widest_log_fits() {
        let mut timeline = Timeline::new();
        timeline.count(Timestamp::default(), true);
        timeline.count(Timestamp::MAX, false);
        assert!(timeline.bins.len() <= BINS_MAX && timeline.bins[0].denied == 1);
    }
}
