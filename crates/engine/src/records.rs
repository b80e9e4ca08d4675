//! Records: limits for single keys, in place of the limits of their rules.
//!
//! In: a request with its plan, and the records of its descriptors, found somewhere else. Out: the same plan under the
//! records. A record with the window, algorithm and granularity of its rule changes N, and never the counter. With others
//! it is another counter: then a rule of its own stands in for the rule, which is the same but for its limit and its keys.
//!
//! Of what holds for a descriptor, a record comes after exceptions: they change a plan that is under its records already.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::key::SharedId;
use crate::limit::{Algorithm, FILL_NANOS_MAX, LOG_REQUESTS_MAX, Limit};
use crate::plan::{Check, Origin, Plan, Step};
use crate::request::Request;
use crate::rule::Rule;
use crate::unit::Unit;

/// What a record says. What it leaves out is as its rule says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// N; of no meaning if it is unlimited.
    pub requests: u32,
    /// `burst`; `None`: the rule's own, or N where the rule says none.
    pub burst: Option<u32>,
    /// The window: so many of this unit.
    pub window: Option<(u32, Unit)>,
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
    /// The width of the buckets of a `sliding_window`, in nanoseconds.
    pub granularity_nanos: Option<u64>,
    /// Whether it counts and reports, and never denies.
    pub shadow: Option<bool>,
    /// Counted as the rule says, and never denied.
    pub unlimited: bool,
}

impl Terms {
    /// Nothing passes: for keys of which nobody knows what they may.
    pub const NOTHING_PASSES: Self = Self {
        requests: 0,
        burst: Some(0),
        window: None,
        algorithm: None,
        granularity_nanos: None,
        shadow: Some(false),
        unlimited: false,
    };

    /// N of a limit that is as its rule's in all else.
    pub fn of(requests: u32) -> Self {
        Self { requests, burst: None, shadow: None, ..Self::NOTHING_PASSES }
    }

    /// Whether the record says anything that can make its counter another one than the rule's.
    #[inline]
    fn may_count_apart(&self) -> bool {
        self.window.is_some() || self.algorithm.is_some() || self.granularity_nanos.is_some()
    }

    /// Puts the limit of a rule under the record.
    #[inline]
    fn apply(&self, limit: &mut Limit) {
        if self.unlimited {
            return;
        }
        if self.may_count_apart() {
            *limit = self.counting_apart(limit);
        }
        limit.set_numbers(Some(self.requests), self.burst);
        bound(limit);
    }

    /// The limit of a rule with the record's window, algorithm and granularity.
    #[cold]
    fn counting_apart(&self, own: &Limit) -> Limit {
        let window = self.window.map(|(multiplier, unit)| unit.nanos().saturating_mul(multiplier.into()));
        let window = window.unwrap_or(own.window_nanos());
        let algorithm = self.algorithm.unwrap_or(own.algorithm());
        let is_same = (algorithm, window) == (own.algorithm(), own.window_nanos());
        let limit = if is_same { *own } else { Limit::new(algorithm, own.requests(), window) };
        match self.granularity_nanos {
            Some(nanos) if algorithm == Algorithm::SlidingWindow => limit.with_granularity(nanos),
            _ => limit,
        }
    }
}

/// What no counter can hold is cut: a record may stand under a rule that it was not made for.
#[inline]
fn bound(limit: &mut Limit) {
    match limit.algorithm() {
        Algorithm::SlidingLog => *limit = limit.with_requests(limit.requests().min(LOG_REQUESTS_MAX)),
        algorithm if algorithm.is_bucket() => {
            let fitting =
                FILL_NANOS_MAX * u128::from(limit.requests().max(1)) / u128::from(limit.window_nanos());
            *limit = limit.with_burst(limit.burst().min(u32::try_from(fitting).unwrap_or(u32::MAX)));
        }
        _ => {}
    }
}

/// The records of a request's descriptors.
#[derive(Debug, Default)]
pub struct Found {
    found: SmallVec<[OneFound; 1]>,
    /// Descriptors of which the store did not say what record they have, by index. It stays empty while it answers.
    doubts: SmallVec<[(usize, Doubt); 1]>,
}

/// What holds for a descriptor while the store does not say what record it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// What was known last: that record, or none.
    KnownLast,
    /// Something else, because nothing is known: the rule's limit, or [`Terms::NOTHING_PASSES`].
    NotKnown,
}

#[derive(Debug)]
struct OneFound {
    /// The index of the descriptor.
    descriptor: usize,
    terms: Terms,
    /// The rule with another counter, if it is another one.
    stand_in: Option<Arc<Rule>>,
}

impl Found {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Adds the record of a descriptor, which meets this rule.
    #[inline]
    pub fn add(&mut self, descriptor: usize, rule: &Rule, terms: Terms) {
        self.found.push(OneFound { descriptor, terms, stand_in: stand_in(rule, &terms) });
    }

    /// Says of a descriptor that the store did not tell its record. What was added for it, if anything, holds instead.
    pub fn doubt(&mut self, descriptor: usize, doubt: Doubt) {
        self.doubts.push((descriptor, doubt));
    }

    /// Adds what holds for a descriptor, which meets this rule: a record if there is one, and whether the store told it.
    #[inline]
    pub fn note(&mut self, descriptor: usize, rule: &Rule, (terms, doubt): (Option<Terms>, Option<Doubt>)) {
        terms.into_iter().for_each(|terms| self.add(descriptor, rule, terms));
        doubt.into_iter().for_each(|doubt| self.doubt(descriptor, doubt));
    }

    /// Whether the store did not tell the record of a descriptor, by its index.
    pub fn doubt_of(&self, descriptor: usize) -> Option<Doubt> {
        self.doubts.iter().find(|(doubted, _)| *doubted == descriptor).map(|&(_, doubt)| doubt)
    }

    /// The record of a descriptor, by its index.
    pub fn of(&self, descriptor: usize) -> Option<&Terms> {
        self.found.iter().find(|found| found.descriptor == descriptor).map(|found| &found.terms)
    }

    /// Puts a plan of the request under these records. It has to be the plan of the rules that they were added with. A
    /// candidate beside a limit that has other numbers now is not asked.
    #[inline]
    pub fn apply<'p>(&'p self, request: &Request<'_>, plan: &mut Plan<'p>) {
        for found in &self.found {
            let Some(Step::Check(check)) = plan.steps.get_mut(found.descriptor) else { continue };
            found.terms.apply(&mut check.limit);
            check.shadow = found.terms.unlimited || found.terms.shadow.unwrap_or(check.shadow);
            if let Some(rule) = &found.stand_in {
                found.stand_in(rule, request, check);
            }
            if !plan.candidates.is_empty() {
                plan.candidates.retain(|candidate| candidate.step != found.descriptor);
            }
        }
    }
}

impl OneFound {
    #[cold]
    fn stand_in<'p>(&self, rule: &'p Rule, request: &Request<'_>, check: &mut Check<'p>) {
        let Some(descriptor) = request.descriptors().nth(self.descriptor) else { return };
        check.origin = Origin::Rule(rule);
        check.key = rule.key(descriptor.entries);
    }
}

/// The rule under the record, if its counters are others.
#[inline]
fn stand_in(rule: &Rule, terms: &Terms) -> Option<Arc<Rule>> {
    if terms.may_count_apart() { rare_stand_in(rule, terms).map(Arc::new) } else { None }
}

#[cold]
fn rare_stand_in(rule: &Rule, terms: &Terms) -> Option<Rule> {
    let own = rule.limit?;
    let mut limit = own;
    terms.apply(&mut limit);
    let (algorithm, [window, numerator, denominator]) = &limit.counter_parts();
    if limit.counter_parts() == own.counter_parts() {
        return None;
    }
    let parts = [b"record".as_slice(), algorithm.as_bytes(), window, numerator, denominator];
    let (unit_multiplier, unit) = terms.window.unwrap_or((rule.unit_multiplier, rule.unit));
    let shared = SharedId::of(parts.into_iter().chain([rule.shared.0.as_slice()]));
    Some(Rule {
        limit: Some(limit),
        candidate: None,
        unit,
        unit_multiplier,
        seed: rule.seed.with(parts),
        shared,
        ..rule.clone()
    })
}
