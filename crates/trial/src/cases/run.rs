//! Runs one case: its requests, at their times, through the engine.

use std::convert::Infallible;
use std::fmt;

use tidegate_engine::Timestamp;
use tidegate_engine::decision::{Decision, conclude};
use tidegate_engine::explain::explain;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::{self, Modes, Origin};
use tidegate_engine::request::RequestBuf;
use tidegate_engine::rules::RuleSet;

use super::{Case, CaseRequest, CaseResult, Expected, Failure, Step, When};

/// When a case starts: 2026-01-01T00:00:00Z. Windows of a day and less are aligned with it.
const START: Timestamp = Timestamp::from_secs(1_767_225_600);

/// The most memory of a case's counters, in bytes.
const COUNTER_BYTES_MAX: u64 = 64 << 20;

/// The most text of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 1 << 20;

pub(super) fn run(case: &Case, rules: &RuleSet, modes: Modes) -> CaseResult {
    let mut run = Run::new(rules, modes);
    let mut failure = run.case(case);
    if let (Some(failure), true) = (&mut failure, run.is_unmet) {
        failure.explanation = explained(case, rules, modes, run.requests);
    }
    let Run { requests, met_a_rule, .. } = run;
    CaseResult { name: case.name.clone(), line: case.at.line, requests, met_a_rule, failure }
}

/// Explains this request of the case: runs the case once more, up to the moment before it.
fn explained(case: &Case, rules: &RuleSet, modes: Modes, request: u64) -> String {
    let mut run = Run { explains: Some(request), ..Run::new(rules, modes) };
    run.case(case).map(|failure| failure.explanation).unwrap_or_default()
}

/// A case that is running.
struct Run<'r> {
    rules: &'r RuleSet,
    modes: Modes,
    store: MemoryStore,
    requests: u64,
    met_a_rule: bool,
    /// The last request was decided, and the answer was unexpected.
    is_unmet: bool,
    /// The number of the request that is explained instead of decided. The case ends there.
    explains: Option<u64>,
}

impl<'r> Run<'r> {
    fn new(rules: &'r RuleSet, modes: Modes) -> Self {
        let store = MemoryStore::new(MemoryOptions::new(COUNTER_BYTES_MAX));
        Self { rules, modes, store, requests: 0, met_a_rule: false, is_unmet: false, explains: None }
    }

    /// Runs all steps, up to the first failure.
    fn case(&mut self, case: &Case) -> Option<Failure> {
        let mut now = 0_u64;
        case.steps.iter().find_map(|step| {
            now = match step.when {
                When::At(nanos) => nanos,
                When::After(nanos) => now.saturating_add(nanos),
            };
            self.step(step, &mut now)
        })
    }

    /// Sends the requests of a step. `now` becomes the time of the last one.
    fn step(&mut self, step: &Step, now: &mut u64) -> Option<Failure> {
        let mut described = match self.described(step) {
            Ok(described) => described,
            Err(got) => return Some(failure(step, *now, 1, got)),
        };
        described.set_hits(step.hits);
        let described = described.as_request();
        let request = self.rules.asked(&described);
        for number in 1..=step.times {
            if number > 1 {
                *now = now.saturating_add(step.every_nanos);
            }
            self.requests += 1;
            let at = START.plus(*now);
            let plan = self.rules.plan(&request, self.modes);
            self.met_a_rule |= plan.steps.iter().any(|step| !matches!(step, plan::Step::Unmatched));
            if self.explains == Some(self.requests) {
                let explanation =
                    explain(self.rules, &request, &plan, self.store.look(&plan, at)).to_string();
                return Some(Failure { explanation, ..failure(step, *now, number, String::new()) });
            }
            if let Err(bad) = self.rules.check_calls(&request, &plan) {
                return Some(failure(step, *now, number, bad.to_string()));
            }
            let decision = conclude(&plan, &self.store.apply(&plan, at));
            if !step.expected.is_met(&decision) {
                self.is_unmet = true;
                return Some(failure(step, *now, number, got(&decision)));
            }
        }
        None
    }

    /// The descriptors of a step.
    fn described(&self, step: &Step) -> Result<RequestBuf, String> {
        let domain = match &step.domain {
            Some(domain) => domain.clone(),
            None => match &self.rules.domains().collect::<Vec<_>>()[..] {
                [only] => (*only).to_owned(),
                domains => {
                    return Err(format!("the rules have {} domains (expected `domain`)", domains.len()));
                }
            },
        };
        let mut buf = RequestBuf::new(&domain);
        match &step.asked {
            CaseRequest::Descriptors(descriptors) => {
                for descriptor in descriptors {
                    descriptor.iter().for_each(|(key, value)| push(&mut buf, key, value));
                    buf.close();
                }
            }
            CaseRequest::Http(http) => {
                let actions = self.rules.actions(&domain).filter(|actions| !actions.is_empty());
                let actions =
                    actions.ok_or_else(|| format!("domain {domain} has no `rate_limits` (expected them)"))?;
                let Ok(()) = actions.describe(http, &mut buf, REQUEST_BYTES_MAX);
            }
        }
        Ok(buf)
    }
}

fn push(buf: &mut RequestBuf, key: &str, value: &str) {
    let write = |text: &mut String| {
        text.push_str(value);
        Ok::<_, Infallible>(true)
    };
    let Ok(_) = buf.entry(key, write);
}

fn failure(step: &Step, at_nanos: u64, number: u32, got: String) -> Failure {
    Failure {
        line: step.at.line,
        column: step.at.column,
        number: (number, step.times),
        at_nanos,
        expected: step.expected.to_string(),
        got,
        explanation: String::new(),
    }
}

impl Expected {
    fn is_met(&self, decision: &Decision<'_>) -> bool {
        let tightest = decision.tightest();
        let rule = match tightest.map(|limited| limited.origin) {
            Some(Origin::Rule { rule, .. }) => Some(rule),
            _ => None,
        };
        let is_rule =
            |wanted: &String| rule.is_some_and(|rule| *wanted == *rule.name || *wanted == rule.path());
        self.code.is_none_or(|code| code == decision.code)
            && self.rule.as_ref().is_none_or(is_rule)
            && self.remaining.is_none_or(|wanted| tightest.is_some_and(|it| it.remaining() == wanted))
            && self.wait_secs.is_none_or(|wanted| tightest.is_some_and(|it| it.reset_secs() == wanted))
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.code.map(|code| code.name().to_owned()),
            self.rule.as_ref().map(|rule| format!("rule {rule}")),
            self.remaining.map(|remaining| format!("remaining {remaining}")),
            self.wait_secs.map(|seconds| format!("wait {seconds}s")),
        ];
        out.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The answer, written like an expectation.
fn got(decision: &Decision<'_>) -> String {
    let code = decision.code.name();
    let Some(tightest) = decision.tightest() else { return format!("{code}, no limit was met") };
    let rule = match tightest.origin {
        Origin::Rule { rule, .. } if rule.name.is_empty() => format!(", rule {}", rule.path()),
        Origin::Rule { rule, .. } => format!(", rule {}", rule.name),
        Origin::Override { .. } => String::new(),
    };
    format!("{code}{rule}, remaining {}, wait {}s", tightest.remaining(), tightest.reset_secs())
}
