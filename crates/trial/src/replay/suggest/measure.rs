//! Measures what limits would do to each key of a log, in its first half and in its second half by time.
//!
//! In: rules, a limit for each of them, and a log. Out: for each half and rule, its keys with their requests, how
//! many of these were denied, and the peak: the most that was counted at once. The engine counts. With a limit that
//! nothing reaches, the peak is the most requests in any window, wherever it starts. A key is denied at least once
//! exactly by the limits that are less than its peak, because up to the first denial all counts are the same.
//!
//! Each limit is measured separately. If several are in force, a request that one denies is not charged to the
//! others, so together none of them denies more.

use std::ops::ControlFlow;

use smallvec::SmallVec;
use tidegate_engine::Timestamp;
use tidegate_engine::key::Key;
use tidegate_engine::limit::Limit;
use tidegate_engine::plan::{Check, Modes, Origin, Plan, Step};
use tidegate_engine::request::Request;
use tidegate_engine::rules::RuleSet;

use super::statistics::Rate;
use crate::replay::counters::Counters;
use crate::replay::order::Turn;
use crate::replay::read::Decider;
use crate::replay::sample::Sample;

/// Most keys with numbers of their own, in each half.
const KEYS_MAX: usize = 100_000;

/// A measurement under way.
pub(super) struct Measuring<'r> {
    rules: &'r RuleSet,
    /// By the rules' ids; `None`: that rule is not measured.
    limits: Vec<Option<Limit>>,
    plan: Plan<'r>,
    counters: Counters,
    /// When the second half begins.
    middle: Timestamp,
    /// The second half is not needed.
    only_first: bool,
    halves: [Half; 2],
}

/// One half of the log.
struct Half {
    totals: Vec<Totals>,
    keys: Sample<OfKey>,
}

/// Numbers of a rule that are exact, however many keys there are.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    requests: u64,
    denied: u64,
}

/// Numbers of a key.
#[derive(Clone, Copy, Debug, Default)]
struct OfKey {
    rule: usize,
    requests: u64,
    denied: u64,
    peak: u64,
}

/// The measurements of a rule in one half.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Requests that met the rule, and the denied ones among them.
    pub(super) requests: u64,
    pub(super) denied: u64,
    /// Keys in the sample, how many of them were denied, and how many keys each stands for.
    pub(super) keys: u64,
    pub(super) denied_keys: u64,
    pub(super) weight: u64,
    /// The peaks of the keys, sorted.
    pub(super) peaks: Vec<u64>,
    /// The part of requests that were denied.
    pub(super) rate: Rate,
}

impl<'r> Measuring<'r> {
    pub(super) fn new(rules: &'r RuleSet, limits: Vec<Option<Limit>>, middle: Timestamp) -> Self {
        let half = || Half { totals: vec![Totals::default(); limits.len()], keys: Sample::new(KEYS_MAX) };
        Self {
            rules,
            halves: [half(), half()],
            limits,
            plan: Plan::empty(Modes::default()),
            counters: Counters::new(),
            middle,
            only_first: false,
        }
    }

    /// Leaves the second half out.
    pub(super) fn only_first(self) -> Self {
        Self { only_first: true, ..self }
    }

    /// The measurements of the rule with this id in each half.
    pub(super) fn of_rule(&self, rule: usize) -> [Measured; 2] {
        self.halves.each_ref().map(|half| half.of_rule(rule))
    }

    /// Requests for which no counter could be kept, because there was no memory for more.
    pub(super) fn uncounted(&self) -> u64 {
        self.counters.uncounted()
    }
}

impl Half {
    fn of_rule(&self, rule: usize) -> Measured {
        let keys = self.keys.values().filter(|key| key.rule == rule);
        let mut peaks: Vec<_> = keys.clone().map(|key| key.peak).collect();
        peaks.sort_unstable();
        Measured {
            requests: self.totals[rule].requests,
            denied: self.totals[rule].denied,
            keys: peaks.len() as u64,
            denied_keys: keys.clone().filter(|key| key.denied > 0).count() as u64,
            weight: self.keys.weight(),
            peaks,
            rate: Rate::of(keys.map(|key| (key.requests, key.denied))),
        }
    }
}

impl<'r> Decider for Measuring<'r> {
    type Asked = SmallVec<[(usize, Key); 1]>;

    fn ask(&mut self, request: &Request<'_>) -> Self::Asked {
        self.rules.plan_into(request, &mut self.plan);
        let counter = |step: &Step<'r>| match step {
            Step::Check(Check { origin: Origin::Rule { rule, .. }, key, .. }) => Some((rule.id, *key)),
            _ => None,
        };
        self.plan.steps.iter().filter_map(counter).collect()
    }

    fn decide(&mut self, turn: Turn<Self::Asked>) -> ControlFlow<()> {
        let is_second = turn.at >= self.middle;
        if is_second && self.only_first {
            return ControlFlow::Break(());
        }
        let half = &mut self.halves[usize::from(is_second)];
        let store = self.counters.at(turn.at);
        for (rule, key) in turn.line {
            let Some(limit) = &self.limits[rule] else { continue };
            let verdict = store.take(limit, key, 1, turn.at);
            let denied = u64::from(verdict.over);
            half.totals[rule].requests += 1;
            half.totals[rule].denied += denied;
            if let Some(of_key) = half.keys.get(key) {
                of_key.rule = rule;
                of_key.requests += 1;
                of_key.denied += denied;
                of_key.peak = of_key.peak.max(verdict.after);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Finds the times of the first and the last request.
#[derive(Debug, Default)]
pub(super) struct Span {
    pub(super) first: Option<Timestamp>,
    pub(super) last: Timestamp,
    pub(super) requests: u64,
    /// Of these, those that were out of order by more than the bound.
    pub(super) late: u64,
}

impl Decider for Span {
    type Asked = ();

    fn ask(&mut self, _: &Request<'_>) {}

    fn decide(&mut self, turn: Turn<()>) -> ControlFlow<()> {
        self.first.get_or_insert(turn.at);
        self.last = turn.at;
        self.requests += 1;
        self.late += u64::from(turn.is_late);
        ControlFlow::Continue(())
    }
}

/// Several measurements of the same requests.
pub(super) struct Several<'r>(pub(super) Vec<Measuring<'r>>);

impl<'r> Decider for Several<'r> {
    type Asked = <Measuring<'r> as Decider>::Asked;

    fn ask(&mut self, request: &Request<'_>) -> Self::Asked {
        // They have the same rules.
        self.0.first_mut().map(|measuring| measuring.ask(request)).unwrap_or_default()
    }

    fn decide(&mut self, turn: Turn<Self::Asked>) -> ControlFlow<()> {
        for measuring in &mut self.0 {
            let Turn { at, is_late, ref line } = turn;
            measuring.decide(Turn { at, line: line.clone(), is_late })?;
        }
        ControlFlow::Continue(())
    }
}
