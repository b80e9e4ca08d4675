//! What candidates would have done, rule by rule.
//!
//! In: decisions with trials. Out: numbers of each rule, next to those of the limit in force.

use tidegate_engine::decision::{Code, Decision};
use tidegate_engine::plan::Origin;

/// Counts of the requests that met a rule, with its candidate in place of its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrialNumbers {
    /// Descriptors of requests that would have passed.
    pub admitted: u64,
    /// Descriptors that it would have denied. The rest would have been denied by other limits.
    pub denied: u64,
    /// Of requests that passed: those that would not have passed.
    pub newly_denied: u64,
    /// Of requests that were denied: those that would have passed.
    pub newly_admitted: u64,
}

/// The numbers of all rules, by their ids.
#[derive(Debug)]
pub(super) struct Trials(Vec<TrialNumbers>);

impl Trials {
    pub(super) fn of(rules: usize) -> Self {
        Self(vec![TrialNumbers::default(); rules])
    }

    /// Adds the trials of a decision.
    pub(super) fn add(&mut self, decision: &Decision<'_>) {
        let passed = decision.code == Code::Ok;
        for trial in decision.trials() {
            let Origin::Rule { rule, .. } = trial.limited.origin else { continue };
            let Some(numbers) = self.0.get_mut(rule.id) else { continue };
            numbers.admitted += u64::from(trial.passes);
            numbers.denied += u64::from(!trial.passes && trial.limited.is_denied());
            numbers.newly_denied += u64::from(passed && !trial.passes);
            numbers.newly_admitted += u64::from(!passed && trial.passes);
        }
    }

    /// The numbers of a rule.
    pub(super) fn of_rule(&self, rule: usize) -> TrialNumbers {
        self.0.get(rule).copied().unwrap_or_default()
    }
}
