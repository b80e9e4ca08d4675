//! An answer explained: which rule each descriptor met, by which path, what its counter says, and what comes of it.
//! For whoever asks at three in the morning why a request was denied, or why it was not.
//!
//! In: rules, a request that only asks (0 hits), its plan and its verdicts. Out: an [`Explanation`], as text or as
//! JSON. Not of the request path.

mod told;

use crate::engine::decision::{Decision, Limited, Status, Verdicts, conclude};
use crate::engine::plan::{Check, Origin, Plan, Step};
use crate::engine::request::{Descriptor, Entry, Request};
use crate::engine::rules::{End, Rule, RuleSet, Walk};

/// Why a request would be answered as it would be.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    domain: String,
    /// What would be asked of each descriptor.
    hits: u64,
    decision: Decision<'a>,
    descriptors: Vec<Explained<'a>>,
}

/// Why one descriptor would be answered as it would be.
#[derive(Clone, Debug)]
struct Explained<'a> {
    entries: Vec<(String, String)>,
    walk: Walk<'a>,
    status: Status<'a>,
    rule: Option<&'a Rule>,
    /// One sentence.
    why: String,
}

/// Explains what `hits` of each descriptor would get now. `verdicts` are what the counters said to a `request` of 0
/// hits, whose `plan` was made of `rules`.
pub fn explain<'a>(
    rules: &'a RuleSet,
    request: &Request<'_>,
    plan: &Plan<'a>,
    mut verdicts: Verdicts,
    hits: u64,
) -> Explanation<'a> {
    for verdict in verdicts.iter_mut().flatten() {
        // To 0 hits a counter says what it holds, whether 1 hit would be denied, and when that changes.
        verdict.over |= hits > verdict.remaining;
    }
    let decision = conclude(plan, &verdicts);
    let descriptors = request
        .descriptors()
        .zip(plan.steps.iter().zip(&decision.statuses))
        .map(|(descriptor, (step, status))| explained(rules, request, &descriptor, plan, step, *status))
        .collect();
    Explanation { domain: request.domain().to_owned(), hits, decision, descriptors }
}

fn explained<'a>(
    rules: &'a RuleSet,
    request: &Request<'_>,
    descriptor: &Descriptor<'_, '_>,
    plan: &Plan<'a>,
    step: &Step<'a>,
    status: Status<'a>,
) -> Explained<'a> {
    let walk = rules.walk(request.domain(), descriptor.entries);
    let rule = match step {
        Step::Unlimited(rule) | Step::Replaced(rule) => Some(*rule),
        Step::Check(Check { origin: Origin::Rule(rule), .. }) => Some(*rule),
        Step::Check(_) | Step::Unmatched => None,
    };
    let why = match (step, &status) {
        (Step::Replaced(rule), _) => replaced(plan, rule),
        (Step::Unlimited(_), _) => "the rule has no bound".to_owned(),
        (_, Status::Limited(limited)) => counted(limited),
        _ => unmatched(&walk, request.domain(), descriptor.entries),
    };
    let entries = descriptor.entries.iter().map(|entry| (entry.key.to_owned(), entry.value.to_owned()));
    Explained { entries: entries.collect(), walk, status, rule, why }
}

fn replaced(plan: &Plan<'_>, rule: &Rule) -> String {
    let by = plan.steps.iter().find_map(|step| match step {
        Step::Check(Check { origin: Origin::Rule(other), .. })
        | Step::Unlimited(other)
        | Step::Replaced(other) => other.replaces.contains(&rule.name).then(|| other.path()),
        _ => None,
    });
    format!("not counted: another rule of this request, {}, replaces `{}`", by.unwrap_or_default(), rule.name)
}

fn counted(limited: &Limited<'_>) -> String {
    let would = match (limited.verdict.over, limited.shadow, limited.quota) {
        (false, ..) => "there is room",
        (true, true, _) => "there is no room, but shadow_mode lets it pass",
        (true, false, true) => {
            "there is no room; in quota mode that denies only if it is so for all in quota mode"
        }
        (true, false, false) => "there is no room",
    };
    would.to_owned()
}

fn unmatched(walk: &Walk<'_>, domain: &str, entries: &[Entry<'_>]) -> String {
    let told = |entry: &Entry<'_>| format!("{}={}", entry.key, entry.value);
    let some = |known: &[String]| match known {
        [] => "nothing".to_owned(),
        known => known.join(", "),
    };
    match &walk.end {
        End::NoDomain(known) => format!("domain {domain} has no rules (there are: {})", some(known)),
        End::NoNode(known) => {
            let next = entries.get(walk.met.len()).map(told).unwrap_or_default();
            format!("no rule for {next} at this level (there is: {})", some(known))
        }
        End::NoLimit | End::Rule(_) => "the path ends where no limit is set".to_owned(),
    }
}
