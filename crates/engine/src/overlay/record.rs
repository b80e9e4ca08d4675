//! Records: limits for single keys, in place of the limits of their rules.
//!
//! In: a rule's limit and a record. Out: the limit under the record. With the window, algorithm and granularity of its rule
//! a record changes N, and never the counter. With others it is another counter: then the limit counts by other keys.

use crate::key::SharedId;
use crate::limit::{Algorithm, FILL_NANOS_MAX, Limit};
use crate::rule::{Counting, Rule};
use crate::unit::{Anchor, Window};

/// The limit of one key. Fields that it leaves out are those of its rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// N; without meaning if it is unlimited.
    pub requests: u64,
    /// `burst`; `None`: the rule's own, or N if the rule has none.
    pub burst: Option<u64>,
    /// The window.
    pub window: Option<Window>,
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
    /// The width of the buckets of a `sliding_window`, in nanoseconds.
    pub granularity_nanos: Option<u64>,
    /// Where the periods of a calendar budget begin.
    pub anchor: Option<Anchor>,
    /// Whether it counts and reports, and never denies.
    pub shadow: Option<bool>,
    /// Counted as the rule counts, and never denied.
    pub unlimited: bool,
}

impl Record {
    /// Nothing passes: for keys whose record is not known.
    pub const NOTHING_PASSES: Self = Self {
        requests: 0,
        burst: Some(0),
        window: None,
        algorithm: None,
        granularity_nanos: None,
        anchor: None,
        shadow: Some(false),
        unlimited: false,
    };

    /// N of a limit that otherwise equals its rule's.
    pub fn of(requests: u64) -> Self {
        Self { requests, ..Self::default() }
    }

    /// Whether the record has a field that can give its key another counter than the rule's.
    #[inline]
    pub(super) fn may_count_apart(&self) -> bool {
        self.window.is_some() || self.algorithm.is_some() || self.granularity_nanos.is_some()
    }

    /// Whether it counts and never denies. `None`: as the rule says.
    #[inline]
    pub(super) fn shadow(&self) -> Option<bool> {
        if self.unlimited { Some(true) } else { self.shadow }
    }

    /// Puts the limit of this rule under the record.
    #[inline]
    pub(super) fn apply(&self, limit: &mut Limit, rule: Option<&Rule>) {
        if self.unlimited {
            return;
        }
        if self.may_count_apart() {
            *limit = self.counting_apart(limit, rule);
        }
        limit.set_numbers(Some(self.requests), self.burst);
        bound(limit);
        self.set_anchor(limit);
    }

    /// Makes the periods of a limit begin where the record says. A record may have been made for another rule: an anchor
    /// that the rule's calendar does not have changes nothing.
    #[inline]
    pub(super) fn set_anchor(&self, limit: &mut Limit) {
        if let Some(anchor) = self.anchor {
            limit.set_anchor(anchor.number());
        }
    }

    /// The limit of a rule with the record's window, algorithm and granularity.
    #[cold]
    fn counting_apart(&self, own: &Limit, rule: Option<&Rule>) -> Limit {
        // A record may have been made for another rule: of a calendar budget and of slots only N changes.
        if !Algorithm::NAMED.contains(&own.algorithm()) {
            return *own;
        }
        let window = self.window.map_or(own.window_nanos(), Window::nanos);
        let goes = |algorithm: &Algorithm| rule.is_none_or(|rule| rule.goes_with(*algorithm));
        let algorithm = self.algorithm.filter(goes).unwrap_or(own.algorithm());
        let limit = own.counting_by(algorithm, window);
        match self.granularity_nanos {
            Some(nanos) if algorithm == Algorithm::SlidingWindow => limit.with_granularity(nanos),
            _ => limit,
        }
    }
}

/// A `burst` that takes too long to drain is cut: a record may apply to a rule that it was not made for.
#[inline]
fn bound(limit: &mut Limit) {
    if limit.algorithm().is_bucket() {
        let fitting = FILL_NANOS_MAX * u128::from(limit.requests().max(1)) / u128::from(limit.window_nanos());
        *limit = limit.with_burst(limit.burst().min(u64::try_from(fitting).unwrap_or(u64::MAX)));
    }
}

/// How the limit of a rule counts under the record. `None`: as it does without a record.
#[inline]
pub(super) fn counting(rule: &Rule, record: &Record) -> Option<Box<Counting>> {
    if record.may_count_apart() { rare_counting(rule, record).map(Box::new) } else { None }
}

#[cold]
fn rare_counting(rule: &Rule, record: &Record) -> Option<Counting> {
    let own = rule.limit?;
    let mut limit = own;
    record.apply(&mut limit, Some(rule));
    let (algorithm, [window, numerator, denominator]) = &limit.counter_parts();
    if limit.counter_parts() == own.counter_parts() {
        return None;
    }
    let parts = [b"record".as_slice(), algorithm.as_bytes(), window, numerator, denominator];
    let Counting { window, seed, shared } = &rule.counting;
    Some(Counting {
        window: record.window.unwrap_or(*window),
        seed: seed.with(parts),
        shared: SharedId::of(parts.into_iter().chain([shared.0.as_slice()])),
    })
}
