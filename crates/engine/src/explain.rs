//! Explains a decision: which rule each descriptor matched, by which path, what its counter holds, and what follows.
//! For people who ask at three in the morning why a request was denied, or why it was not.
//!
//! In: rules, a request of 0 hits, its plan and its verdicts. Out: an [`Explanation`], as text or JSON. Not used on
//! the request path.

mod render;

use crate::decision::{Decision, Limited, Status, Verdicts, conclude};
use crate::limit::Limit;
use crate::plan::{Check, Origin, Plan, Step};
use crate::request::{Entry, Request};
use crate::rules::{End, NameList, Rule, RuleSet, Walk};
use crate::time::ceil_secs;

/// What a request would be answered, and why.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    domain: String,
    /// The hits that each descriptor would take.
    hits: u64,
    decision: Decision<'a>,
    descriptors: Vec<Explained<'a>>,
}

/// What one descriptor would be answered, and why.
#[derive(Clone, Debug)]
struct Explained<'a> {
    entries: Vec<(String, String)>,
    walk: Walk<'a>,
    status: Status<'a>,
    rule: Option<&'a Rule>,
    /// One sentence.
    why: String,
}

/// Explains what `hits` hits on each descriptor would get now. `plan` and `verdicts` are those of a `request` of 0
/// hits under `rules`.
pub fn explain<'a>(
    rules: &'a RuleSet,
    request: &Request<'_>,
    plan: &Plan<'a>,
    mut verdicts: Verdicts,
    hits: u64,
) -> Explanation<'a> {
    for verdict in verdicts.iter_mut().flatten() {
        // The verdict on 0 hits says what the counter holds, whether 1 hit would be denied, and when that changes.
        verdict.over |= hits > verdict.remaining;
    }
    let decision = conclude(plan, &verdicts);
    let descriptors = request
        .descriptors()
        .zip(plan.steps.iter().zip(&decision.statuses))
        .map(|(descriptor, (step, status))| {
            let walk = rules.walk(request.domain(), descriptor.entries);
            let why = match (step, status) {
                (Step::Replaced(rule), _) => replaced(plan, rule),
                (Step::Unlimited(_), _) => "the rule has no bound".to_owned(),
                (_, Status::Limited(limited)) => counted(limited, hits),
                _ => unmatched(&walk, request.domain(), descriptor.entries),
            };
            Explained { entries: owned(descriptor.entries), walk, status: *status, rule: rule_of(step), why }
        })
        .collect();
    Explanation { domain: request.domain().to_owned(), hits, decision, descriptors }
}

impl Explanation<'_> {
    /// The same, saying for each descriptor how long its counter still counts as full because hits may be lost:
    /// `nanos_left` of its limit, if there is no room.
    #[must_use]
    pub fn while_cold(mut self, nanos_left: impl Fn(&Limit) -> u64) -> Self {
        for descriptor in &mut self.descriptors {
            let Status::Limited(limited) = &descriptor.status else { continue };
            let seconds = ceil_secs(nanos_left(&limited.limit));
            if seconds > 0 && limited.verdict.remaining == 0 {
                let why = format!("hits of before may be lost, so it counts as full for {seconds} s more");
                descriptor.why = format!("{} ({why}: COLD_START=deny)", descriptor.why);
            }
        }
        self
    }
}

fn owned(entries: &[Entry<'_>]) -> Vec<(String, String)> {
    entries.iter().map(|entry| (entry.key.to_owned(), entry.value.to_owned())).collect()
}

fn rule_of<'a>(step: &Step<'a>) -> Option<&'a Rule> {
    match *step {
        Step::Unlimited(rule) | Step::Replaced(rule) => Some(rule),
        Step::Check(Check { origin: Origin::Rule(rule), .. }) => Some(rule),
        Step::Check(_) | Step::Unmatched => None,
    }
}

fn replaced(plan: &Plan<'_>, rule: &Rule) -> String {
    let mut others = plan.steps.iter().filter_map(rule_of);
    let by = others.find(|other| other.replaces.contains(&rule.name)).map(Rule::path);
    format!("not counted: another rule of this request, {}, replaces `{}`", by.unwrap_or_default(), rule.name)
}

fn counted(limited: &Limited<'_>, hits: u64) -> String {
    let room = match limited.verdict.over {
        false => return "there is room".to_owned(),
        true if hits > u64::from(limited.limit.burst()) => "so many never fit",
        true => "there is no room now",
    };
    let but = match (limited.shadow, limited.quota) {
        (true, _) => ", but shadow_mode lets it pass",
        (false, true) => "; in quota mode that denies only if it is so for all in quota mode",
        (false, false) => "",
    };
    format!("{room}{but}")
}

fn unmatched(walk: &Walk<'_>, domain: &str, entries: &[Entry<'_>]) -> String {
    let text = |entry: &Entry<'_>| format!("{}={}", entry.key, entry.value);
    match &walk.end {
        End::NoDomain(known) => format!("domain {domain} has no rules (there are: {})", names_text(known)),
        End::NoNode(known) => {
            let next = entries.get(walk.met.len()).map(text).unwrap_or_default();
            format!("no rule for {next} at this level (there is: {})", names_text(known))
        }
        End::NoLimit(below) if !below.names.is_empty() => {
            format!("the path ends where no limit is set (below it there is: {})", names_text(below))
        }
        End::NoLimit(_) | End::Rule(_) => "the path ends where no limit is set".to_owned(),
    }
}

fn names_text(known: &NameList) -> String {
    match known {
        NameList { names, .. } if names.is_empty() => "nothing".to_owned(),
        NameList { names, more: 0 } => names.join(", "),
        NameList { names, more } => format!("{} and {} more", names.join(", "), grouped(*more)),
    }
}

/// A number with its thousands separated: 99,992.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
