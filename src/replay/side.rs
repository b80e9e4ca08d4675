//! One set of rules with its counters and its numbers: what a replay asks, and what it remembers of the answers.
//!
//! In: a request, when its line is read; then its time, when its turn has come. Out: whether it passes. All by the
//! engine: plans, counters and decisions are those of a server.

use smallvec::SmallVec;
use tidegate_engine::Timestamp;
use tidegate_engine::decision::{Code, Decision, Limited, Status, Verdicts, conclude_into};
use tidegate_engine::plan::{Candidate, Check, Modes, Origin, Plan, Step};
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::rules::{Rule, RuleSet};

use super::counters::Counters;
use super::keys::{Keys, Numbers, Outcome};
use super::trials::Trials;

/// The name of a key with more characters is cut.
const NAME_CHARS_MAX: usize = 200;

/// More than this part of a limit is near it: the default of NEAR_LIMIT_RATIO.
const NEAR_RATIO: f32 = 0.8;

/// Rules, counters and numbers.
pub(super) struct Side<'r> {
    pub(super) rules: &'r RuleSet,
    counters: Counters,
    pub(super) keys: Keys,
    /// By the rules' ids.
    pub(super) numbers: Vec<Numbers>,
    pub(super) trials: Trials,
    plan: Plan<'r>,
    verdicts: Verdicts,
    decision: Decision<'r>,
}

/// What is left of a request when its line is gone.
#[derive(Debug)]
pub(super) struct Asked<'r> {
    steps: SmallVec<[Step<'r>; 1]>,
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
            plan: Plan::empty(modes),
            verdicts: Verdicts::new(),
            decision: Decision::empty(),
        }
    }

    /// Plans a request.
    #[inline]
    pub(super) fn ask(&mut self, request: &Request<'_>) -> Asked<'r> {
        self.rules.plan_into(request, &mut self.plan);
        let mut names = Vec::new();
        for (at, (step, descriptor)) in self.plan.steps.iter().zip(request.descriptors()).enumerate() {
            let Some((rule, check)) = counted(step) else { continue };
            let name = self.keys.meet(rule.id, check.key, || name_of(rule, descriptor.entries));
            if name.is_some() {
                names.resize(self.plan.steps.len(), None);
                names[at] = name;
            }
        }
        let candidates = std::mem::take(&mut self.plan.candidates);
        Asked { steps: SmallVec::from_slice(&self.plan.steps), candidates, names }
    }

    /// Decides a request at its time.
    #[inline]
    pub(super) fn decide(&mut self, asked: &Asked<'r>, at: Timestamp) -> Code {
        self.plan.steps.clear();
        self.plan.steps.extend_from_slice(&asked.steps);
        self.plan.candidates.clear();
        self.plan.candidates.extend_from_slice(&asked.candidates);
        self.counters.at(at).apply_into(&self.plan, at, &mut self.verdicts);
        conclude_into(&self.plan, &self.verdicts, &mut self.decision);
        self.decision.code
    }

    /// Adds the last decision to the numbers. `is_changed`: the other rules decided otherwise.
    #[inline]
    pub(super) fn count(&mut self, asked: &Asked<'_>, at: Timestamp, is_changed: bool) {
        let passes = self.decision.code == Code::Ok;
        for (index, (step, status)) in asked.steps.iter().zip(&self.decision.statuses).enumerate() {
            let (Some((rule, check)), Status::Limited(limited)) = (counted(step), status) else { continue };
            let outcome = outcome(limited, at, passes, is_changed);
            let name = asked.names.get(index).and_then(|name| name.as_deref());
            let streak = self.keys.add(check.key, rule.id, &outcome, name);
            self.numbers[rule.id].add(&outcome, streak);
        }
        self.trials.add(&self.decision);
    }

    /// Whether the request met a limit at all.
    pub(super) fn met_a_limit(asked: &Asked<'_>) -> bool {
        asked.steps.iter().any(|step| matches!(step, Step::Check(_)))
    }

    /// Decisions that counted nothing because there was no memory for more counters.
    pub(super) fn uncounted(&self) -> u64 {
        self.counters.uncounted()
    }
}

#[inline]
fn outcome(limited: &Limited<'_>, at: Timestamp, passes: bool, is_changed: bool) -> Outcome {
    let verdict = &limited.verdict;
    let near = (limited.limit.burst() as f32 * NEAR_RATIO) as u64;
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

/// The rule and the check of a step that has both.
#[inline]
fn counted<'s, 'r>(step: &'s Step<'r>) -> Option<(&'r Rule, &'s Check<'r>)> {
    match step {
        Step::Check(check @ Check { origin: Origin::Rule(rule), .. }) => Some((rule, check)),
        _ => None,
    }
}

/// The name of a counter for people: the entries that it is one of many for.
fn name_of(rule: &Rule, entries: &[Entry<'_>]) -> Box<str> {
    let keyed = entries.iter().take(32).enumerate().filter(|(level, _)| rule.keyed_levels >> level & 1 == 1);
    let parts: Vec<_> = keyed.map(|(_, entry)| format!("{}={}", entry.key, entry.value)).collect();
    let name = if parts.is_empty() { "(all)".to_owned() } else { parts.join(", ") };
    tidegate_engine::text::cut(&name, NAME_CHARS_MAX).into()
}
