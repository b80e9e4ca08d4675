//! One set of rules with its counters and its numbers: what a replay decides by them, and what it remembers of the
//! answers.
//!
//! In: a request, when its line is read; then its time, when its turn has come. Out: whether it passes. All by the
//! engine: plans, counters and decisions are those of a server.

use smallvec::SmallVec;
use tidegate_engine::Timestamp;
use tidegate_engine::decision::{Code, Decision, Limited, Status, Verdicts, conclude_into};
use tidegate_engine::key::Key;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::plan::{Candidate, Check, Hits, Modes, Origin, Plan, Step};
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::rules::{Rule, RuleSet};

use super::counters::Counters;
use super::keys::{KeyIndex, Keys, Met, Numbers, Outcome};
use super::trials::Trials;

/// The name of a key with more characters is cut.
const NAME_CHARS_MAX: usize = 200;

/// More than this part of a limit is near it: the default of NEAR_LIMIT_RATIO.
const NEAR_RATIO: f32 = 0.8;

/// A log does not say when calls end, so slots are always free. Returns whether the step asks for one.
fn leave_out_slot(step: &mut Step<'_>) -> bool {
    let Step::Check(Check { limit, origin: Origin::Rule { rule, .. }, .. }) = step else { return false };
    let is_slot = limit.algorithm() == Algorithm::Concurrency;
    if is_slot {
        *step = Step::Unlimited(rule);
    }
    is_slot
}

/// Rules, counters and numbers.
pub(super) struct Side<'r> {
    pub(super) rules: &'r RuleSet,
    counters: Counters,
    pub(super) keys: Keys,
    /// By the rules' ids.
    pub(super) numbers: Vec<Numbers>,
    pub(super) trials: Trials,
    /// Slots of `concurrency` that were asked for, and not counted.
    pub(super) slots: u64,
    plan: Plan<'r>,
    verdicts: Verdicts,
    decision: Decision<'r>,
}

/// The state of a request after its line is gone. Many wait at once, so the usual one is small.
#[derive(Debug)]
pub(super) enum SideRequest<'r> {
    /// One hit on one counter of a rule, whose key has numbers of its own, at this place.
    Usual(&'r Rule, Key, KeyIndex),
    Other(Box<Other<'r>>),
}

#[derive(Debug)]
pub(super) struct Other<'r> {
    steps: SmallVec<[Step<'r>; 2]>,
    further: SmallVec<[usize; 2]>,
    candidates: Vec<Candidate<'r>>,
    /// For each step, the name of its key, if it has no numbers of its own. Empty: all have.
    names: Vec<Option<Box<str>>>,
}

impl<'r> Side<'r> {
    pub(super) fn new(rules: &'r RuleSet, modes: Modes) -> Self {
        Self {
            rules,
            counters: Counters::new(),
            keys: Keys::new(),
            numbers: vec![Numbers::default(); rules.rules().len()],
            trials: Trials::of(rules.rules().len()),
            slots: 0,
            plan: Plan::empty(modes),
            verdicts: Verdicts::new(),
            decision: Decision::empty(),
        }
    }

    #[inline]
    pub(super) fn ask(&mut self, request: &Request<'_>) -> SideRequest<'r> {
        let rules = self.rules;
        if rules.selects() { self.ask_as_it_is(&rules.asked(request)) } else { self.ask_as_it_is(request) }
    }

    /// The same for a request that can be planned as it is.
    #[inline]
    fn ask_as_it_is(&mut self, request: &Request<'_>) -> SideRequest<'r> {
        self.rules.plan_into(request, &mut self.plan);
        for step in &mut self.plan.steps {
            self.slots += u64::from(leave_out_slot(step));
        }
        let (mut names, mut place) = (Vec::new(), 0);
        for (at, (step, descriptor)) in
            self.plan.steps.iter().zip(self.plan.descriptors_of(request)).enumerate()
        {
            let Some((rule, check)) = counted(step) else { continue };
            match self.keys.meet(rule.id, check.key, || name_of(rule, descriptor.entries)) {
                Met::At(found) => place = found,
                Met::Without(name) => {
                    names.resize(self.plan.steps.len(), None);
                    names[at] = Some(name);
                }
            }
        }
        let candidates = std::mem::take(&mut self.plan.candidates);
        let further = std::mem::take(&mut self.plan.further);
        match self.plan.steps[..] {
            [
                Step::Check(Check {
                    origin: Origin::Rule { rule, .. },
                    key,
                    hits: Hits::Take(1),
                    reported: false,
                    ..
                }),
            ] if names.is_empty() && candidates.is_empty() && rule.classes.is_none() => {
                SideRequest::Usual(rule, key, place)
            }
            _ => {
                let steps = SmallVec::from_slice(&self.plan.steps);
                SideRequest::Other(Box::new(Other { steps, further, candidates, names }))
            }
        }
    }

    /// Prefetches what the decision about these reads.
    #[inline]
    pub(super) fn fetch<'a>(&self, asked: impl Iterator<Item = &'a SideRequest<'r>> + Clone)
    where
        'r: 'a,
    {
        let usual = asked.filter_map(|asked| match asked {
            SideRequest::Usual(rule, key, place) => Some((rule.limit?.algorithm(), *key, *place)),
            SideRequest::Other(_) => None,
        });
        usual.clone().for_each(|(.., place)| self.keys.fetch(place));
        self.counters.fetch(usual.map(|(algorithm, key, _)| (algorithm, key)));
    }

    /// Decides a request at its time.
    #[inline]
    pub(super) fn decide(&mut self, asked: &SideRequest<'r>, at: Timestamp) -> Code {
        self.plan.steps.clear();
        self.plan.further.clear();
        self.plan.candidates.clear();
        match asked {
            SideRequest::Usual(rule, key, _) => self.plan.steps.extend(usual(rule, *key)),
            SideRequest::Other(other) => {
                self.plan.steps.extend_from_slice(&other.steps);
                self.plan.further.extend_from_slice(&other.further);
                self.plan.candidates.extend_from_slice(&other.candidates);
            }
        }
        self.counters.at(at).apply_into(&self.plan, at, &mut self.verdicts);
        conclude_into(&self.plan, &self.verdicts, &mut self.decision);
        self.decision.code
    }

    /// Adds the last decision to the numbers. `is_changed`: the other rules decided otherwise.
    #[inline]
    pub(super) fn count(&mut self, asked: &SideRequest<'_>, at: Timestamp, is_changed: bool) {
        let passes = self.decision.code == Code::Ok;
        for (index, status) in self.decision.statuses.iter().enumerate() {
            let (Some((place, check)), Status::Limited(limited)) = (status.shown(&self.plan, index), status)
            else {
                continue;
            };
            let Some(rule) = check.origin.rule() else { continue };
            let outcome = outcome(limited, at, passes, is_changed);
            let (place, name) = asked.named(place);
            let streak = self.keys.add((check.key, place), rule.id, &outcome, name);
            self.numbers[rule.id].add(&outcome, streak);
        }
        self.trials.add(&self.decision);
    }

    /// Decisions that counted nothing because there was no memory for more counters.
    pub(super) fn uncounted(&self) -> u64 {
        self.counters.uncounted()
    }
}

impl SideRequest<'_> {
    /// Whether it met a limit.
    #[inline]
    pub(super) fn met_a_limit(&self) -> bool {
        match self {
            Self::Usual(..) => true,
            Self::Other(other) => other.steps.iter().any(|step| matches!(step, Step::Check(_))),
        }
    }

    /// Whether it met a rule, even one without a limit.
    #[inline]
    pub(super) fn met_a_rule(&self) -> bool {
        match self {
            Self::Usual(..) => true,
            Self::Other(other) => other.steps.iter().any(|step| !matches!(step, Step::Unmatched)),
        }
    }

    /// The place of a key's numbers for a step, if known; or its name, if it has none.
    #[inline]
    fn named(&self, step: usize) -> (Option<KeyIndex>, Option<&str>) {
        match self {
            Self::Usual(_, _, place) => (Some(*place), None),
            Self::Other(other) => (None, other.names.get(step).and_then(Option::as_deref)),
        }
    }
}

/// The step of a usual request, as it was planned.
#[inline]
fn usual(rule: &Rule, key: Key) -> Option<Step<'_>> {
    rule.limit.map(|limit| Step::Check(Check::of(rule, limit, key, Hits::Take(1))))
}

#[inline]
fn outcome(limited: &Limited<'_>, at: Timestamp, passes: bool, is_changed: bool) -> Outcome {
    let verdict = &limited.verdict;
    let near = (limited.limit.capacity() as f32 * NEAR_RATIO) as u64;
    Outcome {
        at,
        passes,
        is_denied: !passes && limited.is_denied(),
        is_near: passes && !verdict.over && verdict.after > near,
        is_shadowed: verdict.over && limited.shadow,
        is_changed,
        wait_nanos: verdict.reset_nanos,
    }
}

/// The rule and the check of a step that counts hits of a rule.
#[inline]
fn counted<'s, 'r>(step: &'s Step<'r>) -> Option<(&'r Rule, &'s Check<'r>)> {
    match step {
        Step::Check(check @ Check { origin: Origin::Rule { rule, .. }, .. }) => {
            (rule.is_limit() && !check.is_bound()).then_some((rule, check))
        }
        _ => None,
    }
}

/// The name of a counter for people: the entries that distinguish it from the rule's other counters.
fn name_of(rule: &Rule, entries: &[Entry<'_>]) -> Box<str> {
    let parts: Vec<_> = rule.counted(entries).map(|(key, value)| format!("{key}={}", &*value)).collect();
    let name = if parts.is_empty() { "(all)".to_owned() } else { parts.join(", ") };
    tidegate_engine::text::cut(&name, NAME_CHARS_MAX).into()
}
