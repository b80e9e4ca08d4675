//! The records of a request's descriptors, found somewhere else, and its plan under them.

use smallvec::SmallVec;

use super::record::{Record, counting};
use crate::plan::{Check, Origin, Plan, Step};
use crate::request::Request;
use crate::rule::{Counting, Rule};

/// The records of a request's descriptors.
#[derive(Debug, Default)]
pub struct Found {
    found: SmallVec<[OneFound; 1]>,
    /// The descriptors whose record the store did not return, by index. Empty while the store answers.
    unconfirmed: SmallVec<[(usize, Unconfirmed); 1]>,
}

/// What applies to a descriptor whose record the store did not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unconfirmed {
    /// The last known record, or that there was none.
    KnownLast,
    /// Something else, because nothing is known: the rule's limit, or [`Record::NOTHING_PASSES`].
    NotKnown,
}

/// What is known of the record of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The record that applies. `None`: there is none, as far as is known.
    pub record: Option<Record>,
    /// The store did not answer.
    pub unconfirmed: Option<Unconfirmed>,
}

impl From<Option<Record>> for Finding {
    /// The store answered this.
    fn from(record: Option<Record>) -> Self {
        Self { record, unconfirmed: None }
    }
}

#[derive(Debug)]
struct OneFound {
    /// The index of the descriptor.
    descriptor: usize,
    record: Record,
    /// How the rule's limit counts under this record. `None`: as it does without a record.
    counting: Option<Box<Counting>>,
}

impl Found {
    /// Whether there are none, and that is certain.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty() && self.unconfirmed.is_empty()
    }

    /// Adds what is known of the record of a descriptor, which meets this rule.
    #[inline]
    pub fn add(&mut self, descriptor: usize, rule: &Rule, Finding { record, unconfirmed }: Finding) {
        if let Some(record) = record {
            self.found.push(OneFound { descriptor, record, counting: counting(rule, &record) });
        }
        unconfirmed.into_iter().for_each(|unconfirmed| self.unconfirmed.push((descriptor, unconfirmed)));
    }

    /// What is known of the record of a descriptor, by its index.
    pub fn of(&self, descriptor: usize) -> Finding {
        let record = self.found.iter().find(|found| found.descriptor == descriptor).map(|found| found.record);
        let unconfirmed =
            self.unconfirmed.iter().find(|(at, _)| *at == descriptor).map(|&(_, unconfirmed)| unconfirmed);
        Finding { record, unconfirmed }
    }

    /// Puts a plan of the request under these records. It has to be the plan of the rules that they were added with.
    /// A candidate whose limit gets other numbers is not checked.
    #[inline]
    pub(super) fn apply<'p>(&'p self, request: &Request<'_>, plan: &mut Plan<'p>) {
        for found in &self.found {
            let shadow = found.record.shadow();
            if let Some(Step::Check(check)) = plan.steps.get_mut(found.descriptor) {
                found.record.apply(&mut check.limit, check.origin.rule());
                check.shadow = shadow.unwrap_or(check.shadow);
                if let Some(counting) = &found.counting {
                    count_apart(check, counting, request, found.descriptor);
                }
                if found.record == Record::NOTHING_PASSES {
                    check.deny_question();
                }
                let limit = check.limit;
                plan.further_of(found.descriptor).for_each(|further| further.limit.expire_with(&limit));
                if let (Some(counting), Some(hold)) = (&found.counting, plan.hold_of(found.descriptor)) {
                    hold_apart(plan, hold, counting);
                }
            }
            if found.record.anchor.is_some() {
                plan.further_of(found.descriptor).for_each(|check| found.record.set_anchor(&mut check.limit));
            }
            if let Some(bound) = plan.bound_of(found.descriptor) {
                follow(plan, found.descriptor, bound);
            }
            // A ban or a bound on calls in flight denies no more than the limit does.
            if let Some(shadow) = shadow {
                plan.further_of(found.descriptor).for_each(|check| check.shadow = shadow);
            }
            if !plan.candidates.is_empty() {
                plan.candidates.retain(|candidate| candidate.step != found.descriptor);
            }
        }
    }
}

/// Lets the bound on the worst cases of a limit follow it.
#[cold]
fn follow(plan: &mut Plan<'_>, limited: usize, bound: usize) {
    if let (Step::Check(limited), Step::Check(bound)) = (plan.steps[limited], &mut plan.steps[bound]) {
        let limit = limited.limit.with_share(bound.limit.share());
        *bound = Check { limit, key: limited.key, origin: limited.origin, shadow: limited.shadow, ..*bound };
    }
}

/// Lets the holds of a limit be at the server that has its counter: the one for its unit.
#[cold]
fn hold_apart<'p>(plan: &mut Plan<'p>, hold: usize, counting: &'p Counting) {
    if let Step::Check(check) = &mut plan.steps[hold]
        && let Origin::Rule { rule, .. } = check.origin
    {
        check.origin = Origin::Rule { rule, counting };
    }
}

/// Gives the check of a descriptor another counter of its rule.
#[cold]
fn count_apart<'p>(check: &mut Check<'p>, counting: &'p Counting, request: &Request<'_>, descriptor: usize) {
    let Origin::Rule { rule, .. } = check.origin else { return };
    let Some(descriptor) = request.descriptors().nth(descriptor) else { return };
    check.origin = Origin::Rule { rule, counting };
    check.key = rule.key_with(&counting.seed, descriptor.entries);
}
