//! From which share of its limit a key is near it: for each rule, and for limits that requests bring. Pure.
//!
//! The count is not computed ahead, because an exception gives some keys of a rule another limit.

use tidegate_engine::decision::Limited;
use tidegate_engine::plan::Origin;
use tidegate_engine::rule::Rule;

/// The shares, by the number of the rule.
#[derive(Debug, Default)]
pub(super) struct Shares {
    of_rules: Box<[f64]>,
    /// For limits that requests bring.
    of_others: f64,
}

impl Shares {
    /// For these rules; rules without a share of their own have `share`.
    pub(super) fn of(rules: &[Rule], share: f64) -> Self {
        Self { of_rules: rules.iter().map(|rule| rule.near.unwrap_or(share)).collect(), of_others: share }
    }

    /// Whether a key is near its limit, or over it. A bucket is measured by its burst.
    #[inline]
    pub(super) fn reached(&self, limited: &Limited<'_>) -> bool {
        let share = match limited.origin {
            Origin::Rule { rule, .. } => self.of_rules.get(rule.id).copied().unwrap_or(self.of_others),
            Origin::Override { .. } => self.of_others,
        };
        limited.verdict.over || limited.verdict.after as f64 >= limited.limit.capacity() as f64 * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::limit::{Algorithm, Limit, Verdict};
    use tidegate_engine::plan::Hits;
    use tidegate_engine::rules::Unit;
    use tidegate_engine::unit::Window;

    fn limited(limit: Limit, after: u64, over: bool) -> Limited<'static> {
        let verdict = Verdict { over, before: 0, after, remaining: 0, reset_nanos: 0, is_counted: true };
        let origin = Origin::Override { window: Window::of(Unit::Second) };
        Limited { origin, limit, hits: Hits::Take(1), verdict, shadow: false, quota: false }
    }

    /// The first count that is near.
    fn first(limit: Limit, share: f64) -> u64 {
        let shares = Shares::of(&[], share);
        (1..=u64::from(u32::MAX)).find(|&after| shares.reached(&limited(limit, after, false))).expect("N is")
    }

    #[test]
    fn a_key_is_near_when_it_has_used_that_share() {
        let of = |n, share| first(Limit::new(Algorithm::SlidingWindow, n, 1), share);
        assert_eq!([of(10, 0.8), of(11, 0.8), of(1, 0.8), of(10, 1.0), of(10, 0.3)], [8, 9, 1, 10, 3]);
        assert_eq!(first(Limit::new(Algorithm::TokenBucket, 100, 1).with_burst(10), 0.5), 5);
    }

    #[test]
    fn what_is_over_is_near_whatever_it_has_used() {
        let full = Limit::new(Algorithm::SlidingWindow, 10, 1);
        assert!(Shares::of(&[], 0.8).reached(&limited(full, 1, true)), "the memory is full");
    }
}
