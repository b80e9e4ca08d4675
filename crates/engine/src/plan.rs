//! The plan of a request under a rule set: for each descriptor, in order, which limit applies and which counter holds
//! it. Made by [`RuleSet::plan`](crate::rules::RuleSet::plan), executed by a store.

use smallvec::SmallVec;

use crate::key::Key;
use crate::limit::{Algorithm, Limit, Slot};
use crate::request::{Descriptor, Request};
use crate::rule::{Counting, Rule};
use crate::unit::{Unit, Window};

/// The plan of one request.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// One step per descriptor, in request order; then the `further` steps.
    pub steps: SmallVec<[Step<'a>; 8]>,
    /// For each further step, the index of its descriptor: its rule has more than one limit. All limits of a request hold
    /// together, whatever descriptors they belong to.
    pub further: SmallVec<[usize; 2]>,
    /// Candidates of the steps' limits, in the order of their steps; at most one for each step.
    pub candidates: Vec<Candidate<'a>>,
    /// The request's domain has rules.
    pub domain_known: bool,
    /// Some rule has not yet finally learnt what own costs mean
    /// ([`observe_costs`](crate::rules::RuleSet::observe_costs)).
    pub learns_costs: bool,
    /// How the whole process treats requests.
    pub modes: Modes,
}

impl<'a> Plan<'a> {
    /// The plan of a request without descriptors.
    #[inline]
    pub fn empty(modes: Modes) -> Self {
        Self {
            steps: SmallVec::new(),
            further: SmallVec::new(),
            candidates: Vec::new(),
            domain_known: false,
            learns_costs: false,
            modes,
        }
    }

    /// Whether any cost is taken as reported.
    pub fn has_reports(&self) -> bool {
        self.checks().any(|(_, check)| check.reported)
    }

    /// Takes the meaning of the only check's cost from an earlier plan of the same request: its rule may have learnt
    /// something else in between.
    pub fn keep_report(&mut self, reported: bool) {
        for step in &mut self.steps {
            if let Step::Check(check) = step {
                check.reported = reported;
            }
        }
    }

    /// How many descriptors the request has.
    #[inline]
    pub fn descriptors(&self) -> usize {
        self.steps.len() - self.further.len()
    }

    /// The descriptor of each step.
    #[inline]
    pub fn descriptors_of<'r, 'e>(
        &self,
        request: &'r Request<'e>,
    ) -> impl Iterator<Item = Descriptor<'r, 'e>> + use<'r, 'e, '_, 'a> {
        of_steps(request, &self.further)
    }

    /// Whether the check of this step is in quota mode. With QUOTA_MODE only the first limit of a rule is: otherwise a descriptor
    /// that is over one of its limits would pass by another.
    #[inline]
    pub fn in_quota_mode(&self, step: usize, check: &Check<'_>) -> bool {
        check.quota || self.modes.quota && step < self.descriptors()
    }

    /// The further checks of a descriptor, by its index.
    pub(crate) fn further_of(&mut self, descriptor: usize) -> impl Iterator<Item = &mut Check<'a>> {
        let first = self.descriptors();
        let steps = self.further.iter().zip(&mut self.steps[first..]);
        steps.filter_map(move |(&of, step)| match step {
            Step::Check(check) if of == descriptor => Some(check),
            _ => None,
        })
    }

    /// The rule that a record of a descriptor is for, by the index of the descriptor: the one that is met, or that of the slot,
    /// if it only renews or releases one.
    #[inline]
    pub fn recorded_rule(&self, descriptor: usize) -> Option<&'a Rule> {
        let mut places = self.places_of(descriptor);
        let met = places.find(|&place| !matches!(self.steps[place], Step::Unmatched))?;
        match self.steps[met] {
            Step::Check(check) => check.origin.rule(),
            _ => None,
        }
    }

    /// The descriptor of a step, by index.
    pub fn descriptor_of(&self, step: usize) -> usize {
        step.checked_sub(self.descriptors()).map_or(step, |further| self.further[further])
    }

    /// The places of a descriptor's steps: its first one, then the further ones.
    pub fn places_of(&self, descriptor: usize) -> impl Iterator<Item = usize> {
        let further = (self.descriptors()..).zip(&self.further).filter(move |(_, of)| **of == descriptor);
        std::iter::once(descriptor).chain(further.map(|(place, _)| place))
    }

    /// The place of the check of a descriptor's holds, if its limit has any.
    pub fn hold_of(&self, descriptor: usize) -> Option<usize> {
        let mut places = self.places_of(descriptor);
        places.find(|&place| matches!(&self.steps[place], Step::Check(check) if check.is_of_holds()))
    }

    /// The place of the check of a descriptor that bounds its worst cases, if there is one.
    pub fn bound_of(&self, descriptor: usize) -> Option<usize> {
        let mut places = self.places_of(descriptor);
        places.find(|&place| matches!(&self.steps[place], Step::Check(check) if check.is_bound()))
    }

    /// The checks of holds, each with its place, and the place of the limit whose hits they hold.
    pub fn holds(&self) -> impl Iterator<Item = (usize, usize, &Check<'a>)> {
        let further = (self.descriptors()..).zip(&self.further);
        further.filter_map(|(place, &of)| match &self.steps[place] {
            Step::Check(check) if check.is_of_holds() => Some((place, of, check)),
            _ => None,
        })
    }

    /// How many places for verdicts the plan has: first those of the steps, then those of the candidates.
    #[inline]
    pub fn places(&self) -> usize {
        self.steps.len() + self.candidates.len()
    }

    /// All checks with their places: first those of the steps, then those of the candidates.
    pub fn checks(&self) -> impl Iterator<Item = (usize, &Check<'a>)> {
        let of_steps = self.steps.iter().enumerate().filter_map(|(index, step)| match step {
            Step::Check(check) => Some((index, check)),
            _ => None,
        });
        let first = self.steps.len();
        let candidates = self.candidates.iter().enumerate();
        of_steps.chain(candidates.map(move |(index, candidate)| (first + index, &candidate.check)))
    }
}

/// The descriptor of each step of a plan with these further steps.
#[inline]
pub(crate) fn of_steps<'r, 'e, 'f>(
    request: &'r Request<'e>,
    further: &'f [usize],
) -> impl Iterator<Item = Descriptor<'r, 'e>> + use<'r, 'e, 'f> {
    request
        .descriptors()
        .chain(further.iter().filter_map(|&descriptor| request.descriptors().nth(descriptor)))
}

/// A candidate: counted as if it replaced the limit of a step, and never enforced.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The index of its step, which is a [`Step::Check`].
    pub step: usize,
    /// The id of its rule. All candidates of one rule are tried together.
    pub rule: usize,
    /// The check of its own counter.
    pub check: Check<'a>,
}

/// Modes that apply to all requests of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// The overall code is always OK.
    pub shadow: bool,
    /// Every descriptor is in quota mode, overrides and those without a limit included.
    pub quota: bool,
    /// Fixed windows: when one descriptor is over, the others are not charged.
    pub stop_increment_when_over: bool,
}

/// What has to be done for one descriptor.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// No limit applies.
    Unmatched,
    /// An unlimited rule applies.
    Unlimited(&'a Rule),
    /// A rule applies, but another descriptor's rule replaces it for this request.
    Replaced(&'a Rule),
    /// A counter has to be checked.
    Check(Check<'a>),
}

impl<'a> Step<'a> {
    /// The rule that applies, if it is one.
    pub const fn rule(&self) -> Option<&'a Rule> {
        match *self {
            Step::Unlimited(rule) | Step::Replaced(rule) => Some(rule),
            Step::Check(Check { origin, .. }) => origin.rule(),
            _ => None,
        }
    }
}

/// The check of one counter.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// Where the limit comes from.
    pub origin: Origin<'a>,
    /// The limit.
    pub limit: Limit,
    /// The counter.
    pub key: Key,
    /// The hits to take or to give back.
    pub hits: Hits,
    /// The hits are a reported cost: charged in full, whatever the answer, beyond N too.
    pub reported: bool,
    /// Rule shadow mode: count and report, never deny.
    pub shadow: bool,
    /// Quota mode: over only when every quota-mode descriptor of the request is.
    pub quota: bool,
    /// It is over, whatever its counter says.
    pub denied: bool,
    /// What the hits have to do with a reservation.
    pub reservation: ReservationStep,
}

/// What a limit's check does for a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservationStep {
    /// Nothing: its hits are charged if they fit, or reported.
    #[default]
    None,
    /// Its hits are held, if they fit, and not charged.
    Hold,
    /// Its hits are the cost of a commit, of which an expired hold may have paid a part.
    Commit,
    /// Nothing is charged or held. It is over where the worst cases of all calls do not fit into the limit and its overdraft:
    /// the counter of another check of its descriptor is asked once more, where holds are less than that.
    Bound,
}

impl<'a> Check<'a> {
    /// The check of a counter, enforced. Nothing is reported or reserved.
    #[inline]
    pub fn new(origin: Origin<'a>, limit: Limit, key: Key, hits: Hits) -> Self {
        let (reported, shadow, quota, denied) = Default::default();
        Self { origin, limit, key, hits, reported, shadow, quota, denied, reservation: ReservationStep::None }
    }

    /// What a rule asks of one of its counters, in its modes.
    #[inline]
    pub fn of(rule: &'a Rule, limit: Limit, key: Key, hits: Hits) -> Self {
        let (shadow, quota) = (rule.shadow_mode, rule.quota_mode);
        Self { shadow, quota, ..Self::new(Origin::of(rule), limit, key, hits) }
    }

    /// Where nothing may pass, a question of 0 hits is over too: by a fixed window, the limit of 0 is not enough.
    pub(crate) fn deny_question(&mut self) {
        self.denied = self.hits == Hits::Take(0) && self.limit.algorithm() == Algorithm::FixedWindow;
    }

    /// Makes it the check of a slot of `concurrency` of this name: the id of a call that takes it, or the token that
    /// releases or renews it. One hit or more takes one slot. A reported cost takes none.
    #[cold]
    pub(crate) fn about_slot(&mut self, rule: &Rule, name: Option<&str>, renews: bool) {
        let token = || name.and_then(Slot::from_token);
        let (hits, slot) = match self.hits {
            Hits::Take(_) if renews => {
                token().map_or((Hits::Take(0), None), |slot| (Hits::Take(1), Some(slot)))
            }
            Hits::Take(hits) if hits == 0 || self.reported => (Hits::Take(0), None),
            Hits::Take(_) => (Hits::Take(1), Some(rule.new_slot(name))),
            // 0 hits: what this frees, no other check of the request may take. What is no token releases a slot that
            // nobody holds.
            Hits::GiveBack(_) => {
                let slot = token().unwrap_or_else(|| rule.new_slot(None));
                (Hits::GiveBack(0), Some(slot))
            }
        };
        (self.hits, self.reported) = (hits, false);
        self.limit = slot.map_or(self.limit, |slot| self.limit.for_slot(slot));
    }

    /// Whether it asks if its key is banned.
    #[inline]
    pub fn is_ban(&self) -> bool {
        self.limit.algorithm() == Algorithm::Ban
    }

    /// Whether it is about the holds of a limit.
    #[inline]
    pub fn is_of_holds(&self) -> bool {
        self.limit.algorithm() == Algorithm::Holds
    }

    /// Whether it bounds worst cases: it asks the counter of another check once more.
    #[inline]
    pub fn is_bound(&self) -> bool {
        self.reservation == ReservationStep::Bound
    }

    /// The unit that the limit was written in.
    #[inline]
    pub fn unit(&self) -> Unit {
        self.origin.window().unit
    }
}

/// Where a limit comes from.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// A rule of the set.
    Rule {
        /// The rule.
        rule: &'a Rule,
        /// How it counts here: as the rule says, or as a record does.
        counting: &'a Counting,
    },
    /// The request itself.
    Override {
        /// The window in the answer.
        window: Window,
    },
}

impl<'a> Origin<'a> {
    /// This rule, which counts as it says.
    #[inline]
    pub const fn of(rule: &'a Rule) -> Self {
        Self::Rule { rule, counting: &rule.counting }
    }

    /// The rule, if it is one.
    #[inline]
    pub const fn rule(self) -> Option<&'a Rule> {
        match self {
            Self::Rule { rule, .. } => Some(rule),
            Self::Override { .. } => None,
        }
    }

    /// The window in the answer.
    #[inline]
    pub const fn window(self) -> Window {
        match self {
            Self::Rule { counting, .. } => counting.window,
            Self::Override { window } => window,
        }
    }
}

/// Hits of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Take this many; 0 only asks.
    Take(u64),
    /// Give this many back.
    GiveBack(u64),
}
