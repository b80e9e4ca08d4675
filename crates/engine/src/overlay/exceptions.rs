//! Exceptions: other numbers for requests with certain values, until they end.
//!
//! In: exceptions in the order in which they were made, then a request with its plan. Out: the same plan under the
//! exceptions. An exception changes N, never the counter: its hits stay where they are when it begins and when it ends.
//! A set of exceptions is never changed; a change makes a new one.
//!
//! For one descriptor, the first of these applies: an exception that denies, the limit that the request brings, the
//! newest other exception that matches, the rule.

mod met;

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::HashTable;

use crate::limit::{Algorithm, Limit};
use crate::path::{Path, PathEntry};
use crate::pattern::Matcher;
use crate::plan::{Check, Hits, Origin, Plan, Step};
use crate::request::{Descriptor, Entry, Request};
use crate::rule::Rule;
use crate::time::SECOND_NANOS;

pub use self::met::{Label, Made, Met};

/// An exception for some descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Their domain, and all of their entries in order. An entry without a value matches every value.
    pub path: Path,
    /// Its effect.
    pub effect: Effect,
}

/// The effect of an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Another N, another `burst`, or both.
    Limit {
        /// N; `None`: the rule's.
        requests: Option<u64>,
        /// `burst`; `None`: the rule's own, or N if the rule has none.
        burst: Option<u64>,
    },
    /// Counted as before, and never denied: like a rule in shadow mode.
    Unlimited,
    /// Nothing passes.
    Deny,
}

/// Exceptions in force. The id of each is its index in the list that they were made from.
#[derive(Debug, Default)]
pub struct Exceptions {
    hasher: FixedState,
    /// By domain and keys.
    shapes: HashTable<Shape>,
    /// By id. Empty if they are shown to nobody.
    labels: Vec<Arc<Label>>,
}

/// The exceptions for one domain and one list of keys.
#[derive(Debug)]
struct Shape {
    domain: Arc<str>,
    keys: Box<[Box<str>]>,
    /// Those with an exact value at every level, by their values.
    exact: HashTable<Exact>,
    /// All others, the newest first.
    patterns: Vec<Patterns>,
}

#[derive(Debug)]
struct Exact {
    values: Box<[Box<str>]>,
    deny: Option<ExceptionAt>,
    other: Option<ExceptionAt>,
}

#[derive(Debug)]
struct Patterns {
    levels: Box<[Matcher]>,
    place: ExceptionAt,
}

/// An exception's index, and its effect.
#[derive(Clone, Copy, Debug)]
struct ExceptionAt {
    id: usize,
    effect: Effect,
}

impl Exception {
    /// Whether it has an exact value at every level. Others are compared one after the other, so there may be few of
    /// them.
    pub fn is_exact(&self) -> bool {
        self.path.entries.iter().all(PathEntry::is_exact)
    }
}

impl Effect {
    /// The effect on a further limit, if there is one: the first limit has its numbers, and denies for all.
    fn on_further(self, step: &Step<'_>) -> Option<Self> {
        let times =
            |number: Option<u64>, factor: u32| number.map(|number| number.saturating_mul(factor.into()));
        match self {
            // It asks the counter of the first limit once more.
            Self::Limit { .. } if matches!(step, Step::Check(check) if check.is_bound()) => Some(self),
            Self::Limit { requests, burst } => step
                .rule()?
                .factor
                .map(|factor| Self::Limit { requests: times(requests, factor), burst: times(burst, factor) }),
            Self::Unlimited => Some(self),
            Self::Deny => None,
        }
    }
}

impl Exceptions {
    /// Compiles exceptions, given in the order in which they were made.
    pub fn new<'e>(exceptions: impl IntoIterator<Item = &'e Exception>) -> Self {
        let mut all = Self::default();
        for (id, exception) in exceptions.into_iter().enumerate() {
            all.add(exception, ExceptionAt { id, effect: exception.effect });
        }
        all.shapes.iter_mut().for_each(|shape| shape.patterns.reverse());
        all
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    /// Puts a plan of a request under these exceptions. A candidate whose limit gets other numbers is not checked.
    pub(super) fn apply(&self, request: &Request<'_>, plan: &mut Plan<'_>) {
        for (index, (step, descriptor)) in plan.steps.iter_mut().zip(request.descriptors()).enumerate() {
            if let Some(place) = self.fitting(request.domain(), step, &descriptor) {
                except(step, place.effect, request, &descriptor);
                plan.candidates.retain(|candidate| candidate.step != index);
            }
        }
        if !plan.further.is_empty() {
            self.apply_to_further(request, plan);
        }
    }

    #[cold]
    fn apply_to_further(&self, request: &Request<'_>, plan: &mut Plan<'_>) {
        let first = plan.descriptors();
        for (step, &descriptor) in plan.steps[first..].iter_mut().zip(&plan.further) {
            let Some(descriptor) = request.descriptors().nth(descriptor) else { continue };
            let Some(place) = self.fitting(request.domain(), step, &descriptor) else { continue };
            if let (Step::Check(check), Effect::Limit { .. }) = (&mut *step, place.effect) {
                precede_record(check);
            }
            if let Some(effect) = place.effect.on_further(step) {
                except(step, effect, request, &descriptor);
            }
        }
    }

    /// The exception for a descriptor with this step. The entry that names a class or a call is no part of
    /// its path.
    fn fitting(&self, domain: &str, step: &Step<'_>, descriptor: &Descriptor<'_, '_>) -> Option<ExceptionAt> {
        let rule = step.rule().filter(|rule| !rule.is_plain);
        let entries = rule.map_or(descriptor.entries, |rule| rule.own_entries(descriptor.entries));
        self.find(domain, entries, descriptor.options.limit.is_some())
    }

    fn find(&self, domain: &str, entries: &[Entry<'_>], brings_limit: bool) -> Option<ExceptionAt> {
        let keys = entries.iter().map(|entry| entry.key);
        let shape = self.shapes.find(hash(&self.hasher, domain, keys.clone()), |shape| {
            *shape.domain == *domain && is_same(&shape.keys, keys.clone())
        })?;
        shape.find(&self.hasher, entries, brings_limit)
    }

    fn add(&mut self, exception: &Exception, place: ExceptionAt) {
        let (hasher, path) = (&self.hasher, &exception.path);
        let keys = path.entries.iter().map(|level| level.key.as_str());
        let rehash = |shape: &Shape| hash(hasher, &shape.domain, shape.keys.iter().map(|key| &**key));
        let equal = |shape: &Shape| shape.domain == path.domain && is_same(&shape.keys, keys.clone());
        let hashed = hash(hasher, &path.domain, keys.clone());
        let entry = self.shapes.entry(hashed, equal, rehash).or_insert_with(|| Shape {
            domain: Arc::clone(&path.domain),
            keys: keys.clone().map(Box::from).collect(),
            exact: HashTable::new(),
            patterns: Vec::new(),
        });
        entry.into_mut().add(hasher, exception, place);
    }
}

impl Shape {
    fn add(&mut self, hasher: &FixedState, exception: &Exception, place: ExceptionAt) {
        if !exception.is_exact() {
            let levels = exception.path.entries.iter().map(PathEntry::matcher).collect();
            return self.patterns.push(Patterns { levels, place });
        }
        let values = exception.path.entries.iter().map(|level| level.value.as_deref().unwrap_or_default());
        let rehash = |exact: &Exact| hash(hasher, "", exact.values.iter().map(|value| &**value));
        let equal = |exact: &Exact| is_same(&exact.values, values.clone());
        let entry = self.exact.entry(hash(hasher, "", values.clone()), equal, rehash);
        let new = || Exact { values: values.clone().map(Box::from).collect(), deny: None, other: None };
        let exact = entry.or_insert_with(new).into_mut();
        // A newer one replaces an older one.
        match place.effect {
            Effect::Deny => exact.deny = Some(place),
            Effect::Limit { .. } | Effect::Unlimited => exact.other = Some(place),
        }
    }

    fn find(&self, hasher: &FixedState, entries: &[Entry<'_>], brings_limit: bool) -> Option<ExceptionAt> {
        let values = entries.iter().map(|entry| entry.value);
        let exact =
            self.exact.find(hash(hasher, "", values.clone()), |exact| is_same(&exact.values, values.clone()));
        let fitting =
            || self.patterns.iter().filter(|patterns| patterns.fit(entries)).map(|patterns| patterns.place);
        let denies = |place: &ExceptionAt| place.effect == Effect::Deny;
        let deny = exact.and_then(|exact| exact.deny).or_else(|| fitting().find(denies));
        if deny.is_some() || brings_limit {
            return deny;
        }
        let exact = exact.and_then(|exact| exact.other);
        exact.into_iter().chain(fitting().find(|place| !denies(place))).max_by_key(|place| place.id)
    }
}

impl Patterns {
    fn fit(&self, entries: &[Entry<'_>]) -> bool {
        self.levels.iter().zip(entries).all(|(matcher, entry)| matcher.matches(entry.value))
    }
}

/// Puts one step under an exception.
fn except(step: &mut Step<'_>, effect: Effect, request: &Request<'_>, descriptor: &Descriptor<'_, '_>) {
    match (step, effect) {
        (Step::Check(check), Effect::Limit { requests, burst }) => {
            check.limit = check.limit.with_numbers(requests, burst);
            precede_record(check);
        }
        (Step::Check(check), Effect::Unlimited) => check.shadow = true,
        (Step::Check(check), Effect::Deny) => deny(check),
        (step, Effect::Deny) => {
            if let Step::Unlimited(rule) | Step::Replaced(rule) = *step {
                *step = denied(rule, request, descriptor);
            }
        }
        _ => {}
    }
}

/// Makes a check deny as its rule does: the exception stands before the record, which may admit everything.
fn precede_record(check: &mut Check<'_>) {
    check.denied = false;
    if let Some(rule) = check.origin.rule() {
        check.shadow = rule.shadow_mode;
    }
}

fn deny(check: &mut Check<'_>) {
    check.limit = check.limit.with_requests(0).with_burst(0);
    (check.shadow, check.quota) = (false, false);
    check.deny_question();
}

/// The check of a limit of 0, for a rule that has no limit in force.
fn denied<'p>(rule: &'p Rule, request: &Request<'_>, descriptor: &Descriptor<'_, '_>) -> Step<'p> {
    let limit = rule.limit.unwrap_or_else(|| Limit::new(Algorithm::SlidingWindow, 0, SECOND_NANOS));
    let hits = request.hits_of(&descriptor.options);
    let hits = if descriptor.options.is_negative_hits { Hits::GiveBack(hits) } else { Hits::Take(hits) };
    let key = rule.key(descriptor.entries);
    let mut check = Check::new(Origin::of(rule), limit, key, hits);
    deny(&mut check);
    Step::Check(check)
}

fn hash<'t>(hasher: &FixedState, first: &str, texts: impl Iterator<Item = &'t str>) -> u64 {
    let mut state = hasher.build_hasher();
    first.hash(&mut state);
    texts.for_each(|text| text.hash(&mut state));
    state.finish()
}

fn is_same<'t>(stored: &[Box<str>], mut texts: impl ExactSizeIterator<Item = &'t str>) -> bool {
    stored.len() == texts.len() && stored.iter().all(|text| texts.next() == Some(&**text))
}
