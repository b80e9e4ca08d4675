//! The smallest limit that keeps a promise.
//!
//! In: the measurements of a rule in the first half. Out: a limit. For a promise about keys the peaks determine it.
//! For a promise about requests, limits are tried: what a limit denies depends on the order of the requests.

use super::measure::Measured;
use super::statistics::allowed;

/// Limits of a rule that are tried in one reading of the logs.
pub(super) const PROBES: usize = 4;

/// The smallest limit that denies at most this part of all keys; `None`: there are no keys.
///
/// See [`statistics`](super::statistics) for the margin. With too few keys for any margin, it is the greatest peak.
pub(super) fn by_keys(first: &Measured, part: f64) -> Option<u32> {
    let denied_max = allowed(first.keys, part).unwrap_or(0);
    let index = first.peaks.len().checked_sub(1 + usize::try_from(denied_max).unwrap_or(usize::MAX))?;
    first.peaks.get(index).copied().map(as_limit)
}

fn as_limit(peak: u64) -> u32 {
    u32::try_from(peak).unwrap_or(u32::MAX)
}

/// The limits between which the smallest good one is.
#[derive(Debug)]
pub(super) struct Bracket {
    /// Too small: it denies everything, or too much.
    low: u32,
    /// Good: it denies nothing, or little enough. `None`: the rule has no keys.
    high: Option<u32>,
}

impl Bracket {
    /// No limit of at least the greatest peak denies anything.
    pub(super) fn new(first: &Measured) -> Self {
        Self { low: 0, high: first.peaks.last().copied().map(as_limit) }
    }

    /// There is still a limit to try.
    pub(super) fn is_open(&self) -> bool {
        self.high.is_some_and(|high| high - self.low > 1)
    }

    /// The limit to try at this place, of [`PROBES`]. They grow by the same factor, as peaks of traffic do.
    pub(super) fn probe(&self, at: usize) -> Option<u32> {
        let high = self.high.filter(|_| self.is_open())?;
        let between = high - self.low - 1;
        if between as usize <= PROBES {
            return Some(self.low + 1 + (at as u32).min(between - 1));
        }
        let low = f64::from(self.low.max(1));
        let part = (at + 1) as f64 / (PROBES + 1) as f64;
        let probe = low * (f64::from(high) / low).powf(part);
        Some((probe as u32).clamp(self.low + 1, high - 1))
    }

    /// Takes the results of the tries.
    pub(super) fn narrow(&mut self, keeps: impl Fn(usize) -> bool) {
        let probes: Vec<_> = (0..PROBES).map_while(|at| self.probe(at)).collect();
        for (at, probe) in probes.into_iter().enumerate() {
            if keeps(at) {
                self.high = Some(probe);
                return;
            }
            self.low = probe;
        }
    }

    /// The smallest good limit.
    pub(super) fn found(&self) -> Option<u32> {
        self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_good_limit_is_found_in_a_few_tries() {
        for (peak, wanted) in
            [(1, 1), (2, 1), (9, 4), (1_000, 1_000), (1_000_000, 1), (1_000_000, 87_654), (u64::MAX, 3)]
        {
            let mut bracket = Bracket::new(&Measured { peaks: vec![1, peak], ..Measured::default() });
            let mut rounds = 0;
            while bracket.is_open() {
                let probes: Vec<_> = (0..PROBES).filter_map(|at| bracket.probe(at)).collect();
                bracket.narrow(|at| probes[at] >= wanted);
                rounds += 1;
            }
            assert_eq!(bracket.found(), Some(wanted));
            assert!(rounds <= 16, "{rounds} for {wanted} of {peak}");
        }
        assert_eq!(Bracket::new(&Measured::default()).found(), None);
    }

    #[test]
    fn a_limit_by_keys_leaves_out_so_many_peaks_as_the_margin_allows() {
        let measured = |n: u64| Measured { keys: n, peaks: (1..=n).collect(), ..Measured::default() };
        // Wilks: 59 and 93 for 5 %.
        assert_eq!(
            [0, 58, 59, 93].map(|n| by_keys(&measured(n), 0.05)),
            [None, Some(58), Some(59), Some(92)]
        );
    }
}
