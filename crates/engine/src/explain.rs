//! Explains a decision: which rule each descriptor met, level by level; the state of its counter; what would be
//! charged, and why. For people who ask at three in the morning why a request was denied, or why it was not.
//!
//! In: rules, a request, its plan, and the verdicts that its counters would give ([`Looks`]). Out: an
//! [`Explanation`], as text or JSON. Not used on the request path.

mod drawing;
mod json;
mod render;
mod settled;

use std::sync::Arc;

use crate::decision::{Code, Decision, Limited, Status, Trial, Verdicts, conclude};
use crate::limit::{BanTerms, Limit};
use crate::look::{Look, Looks};
use crate::overlay::{Finding, Label, Met, Overlay};
use crate::plan::{Check, Hits, Plan, Step};
use crate::request::{Entry, Request};
use crate::rules::{End, NameList, Rule, RuleSet, Walk};
use crate::settle::settle;
use crate::stamp;
use crate::text::span;
use crate::time::{SECOND_NANOS, Timestamp, ceil_secs};
use settled::Settled;

/// The answer that a request would get, and why.
#[derive(Clone, Debug)]
pub struct Explanation<'a> {
    domain: String,
    /// The hits of descriptors that have none of their own.
    hits: u64,
    decision: Decision<'a>,
    descriptors: Vec<Explained<'a>>,
}

/// The answer that one descriptor would get, and why.
#[derive(Clone, Debug)]
struct Explained<'a> {
    entries: Vec<(String, String)>,
    /// Whether it has hits of its own.
    own_hits: bool,
    walk: Walk<'a>,
    status: Status<'a>,
    rule: Option<&'a Rule>,
    /// The state of its counter.
    look: Option<Look>,
    settled: Option<Settled>,
    /// The descriptor whose rule replaces its own, by index.
    replaced_by: Option<usize>,
    /// The other limits of its rule.
    others: Vec<Limited<'a>>,
    /// The ban of its rule, and the state of the ban's counter.
    ban: Option<(BanTerms, Look)>,
    /// The hits that reservations hold of its limit.
    held: Option<u64>,
    /// Its class of importance.
    class: Option<Class>,
    /// What its counter is made of, if prefixes say it.
    counted_as: Option<String>,
    /// The exception that changed its limit.
    exception: Option<Met>,
    /// Its record. `None`: no record was looked for.
    record: Option<Finding>,
    /// The candidate of its rule, and the verdict of the candidate's counter.
    trial: Option<(Trial<'a>, Look)>,
    /// How often its counter denied lately.
    denials: Option<Denials>,
    /// One sentence.
    why: String,
}

/// A class of importance.
#[derive(Clone, Debug)]
struct Class {
    name: String,
    /// The request names it. Otherwise it is the lowest, because the request names none that is known.
    is_named: bool,
}

/// How often a counter denied lately, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denials {
    /// How often, at most.
    pub count: u64,
    /// How much too high that may be.
    pub error: u64,
    /// The first denial since the last long time without one.
    pub first: Timestamp,
    /// The last denial.
    pub last: Timestamp,
}

impl Denials {
    /// The first and the last time, to the second: for people.
    fn times(&self) -> [String; 2] {
        [self.first, self.last].map(|at| stamp::show(Timestamp::from_secs(at.as_nanos() / SECOND_NANOS)))
    }
}

/// Explains what this request would get now. `plan` and `looks` are its own, under `rules`.
pub fn explain<'a>(
    rules: &'a RuleSet,
    request: &Request<'_>,
    plan: &Plan<'a>,
    looks: Looks,
) -> Explanation<'a> {
    let verdicts: Verdicts = looks.iter().map(|look| look.as_ref().map(|look| look.verdict)).collect();
    let decision = conclude(plan, &verdicts);
    let settlement = settle(plan, |place| verdicts[place].is_some_and(|verdict| verdict.over));
    let denying = denying(&decision);
    let mut descriptors = Vec::new();
    for (index, descriptor) in request.descriptors().enumerate() {
        let (step, status) = (&plan.steps[index], decision.statuses[index]);
        let walk = rules.walk(request.domain(), descriptor.entries);
        let replaced_by = replacing(plan, index);
        let banned = decision.bans().iter().find(|ban| ban.descriptor == index);
        let why = match (step, &status) {
            (Step::Replaced(rule), _) => replaced(plan, rule, replaced_by),
            (Step::Unlimited(_), _) => "the rule has no bound".to_owned(),
            (_, Status::Limited(limited)) => match banned {
                Some(ban) => format!("banned for {} more", span(ceil_secs(ban.nanos_left))),
                None => counted(limited),
            },
            _ => unmatched(&walk, request.domain(), descriptor.entries),
        };
        let shown = status.shown(plan, index);
        let settled = match (shown, &status) {
            (Some((_, check)), Status::Limited(limited)) => {
                let no_room = if banned.is_some() { "its key is banned" } else { "the hits do not fit" };
                Some(Settled::of(check, limited, settlement, &denying, no_room))
            }
            _ => None,
        };
        descriptors.push(Explained {
            entries: owned(descriptor.entries),
            own_hits: descriptor.options.hits_addend.is_some(),
            walk,
            status,
            rule: step.rule(),
            look: shown.and_then(|(place, _)| looks[place].clone()),
            settled,
            replaced_by,
            others: decision.not_shown(index).copied().collect(),
            ban: ban(plan, &looks, index),
            held: decision.held().iter().find(|held| held.descriptor == index).map(|held| held.others),
            class: step.rule().and_then(|rule| class(rule, descriptor.entries)),
            counted_as: shown
                .and_then(|(_, check)| check.origin.rule())
                .and_then(|rule| counted_as(rule, descriptor.entries)),
            exception: None,
            record: None,
            trial: trial(plan, &decision, &looks, index),
            denials: None,
            why,
        });
    }
    let hits = u64::from(request.hits_addend().max(1));
    Explanation { domain: request.domain().to_owned(), hits, decision, descriptors }
}

impl<'a> Explanation<'a> {
    /// The same, with the time for which each counter still counts as full because hits may be lost: `nanos_left` of
    /// its limit, if there is no room.
    #[must_use]
    pub fn while_cold(mut self, nanos_left: impl Fn(&Limit) -> u64) -> Self {
        for descriptor in &mut self.descriptors {
            let Status::Limited(limited) = &descriptor.status else { continue };
            let seconds = ceil_secs(nanos_left(&limited.limit));
            if seconds > 0 && limited.verdict.remaining == 0 {
                let why = format!("earlier hits may be lost, so it counts as full for {seconds} s more");
                descriptor.why = format!("{} ({why}: COLD_START=deny)", descriptor.why);
            }
        }
        self
    }

    /// The same, with the records and exceptions that changed the limits of its plan, which is under this overlay.
    #[must_use]
    pub fn under(mut self, overlay: Overlay<'_>, request: &Request<'_>, plan: &Plan<'_>) -> Self {
        for (index, descriptor) in self.descriptors.iter_mut().enumerate() {
            let may_have_record = descriptor.rule.is_some_and(|rule| rule.records.is_some());
            descriptor.record = overlay.records.filter(|_| may_have_record).map(|found| found.of(index));
        }
        for met in overlay.met(request, plan) {
            let descriptor = met.descriptor;
            self.descriptors[descriptor].exception = Some(met);
        }
        self
    }

    /// The same, with how often each counter denied lately, if that is known.
    #[must_use]
    pub fn denied_lately(mut self, plan: &Plan<'_>, denials: impl Fn(&Check<'_>) -> Option<Denials>) -> Self {
        for (index, descriptor) in self.descriptors.iter_mut().enumerate() {
            let shown = descriptor.status.shown(plan, index);
            descriptor.denials = shown.and_then(|(_, check)| denials(check));
        }
        self
    }

    /// The same, without what only bearers of the admin token may see: who made the exceptions and why, and how often
    /// keys were denied.
    #[must_use]
    pub fn for_everybody(&self) -> Self {
        let mut shown = self.clone();
        shown.descriptors.iter_mut().for_each(|descriptor| descriptor.denials = None);
        for label in shown.descriptors.iter_mut().filter_map(|it| it.exception.as_mut()?.label.as_mut()) {
            *label = Arc::new(Label { made: None, ..Label::clone(label) });
        }
        shown
    }

    /// The overall code, and which descriptors would have the code OVER_LIMIT: the result of a decision on the same
    /// request now.
    pub fn decision(&self) -> &Decision<'a> {
        &self.decision
    }
}

/// The descriptors that deny the request, by index: those that are over and in no mode that admits them. If all
/// descriptors in quota mode are over, these.
fn denying(decision: &Decision<'_>) -> Vec<usize> {
    let denied = |quota: bool| {
        let statuses = decision.statuses.iter().enumerate();
        let over = statuses.filter(move |(_, status)| match status {
            Status::Limited(limited) => limited.is_denied() && limited.quota == quota,
            _ => false,
        });
        over.map(|(index, _)| index).collect::<Vec<_>>()
    };
    if decision.code == Code::Ok && !decision.shadowed {
        return Vec::new();
    }
    let alone = denied(false);
    if alone.is_empty() { denied(true) } else { alone }
}

/// The ban of a descriptor's rule.
fn ban(plan: &Plan<'_>, looks: &Looks, descriptor: usize) -> Option<(BanTerms, Look)> {
    plan.places_of(descriptor).find_map(|place| match &plan.steps[place] {
        Step::Check(check) => Some((check.limit.ban_terms()?, looks[place].clone()?)),
        _ => None,
    })
}

fn class(rule: &Rule, entries: &[Entry<'_>]) -> Option<Class> {
    let (name, _) = rule.class_of(entries)?;
    let is_named = rule.trailing(entries) == Some(name);
    Some(Class { name: name.to_owned(), is_named })
}

/// The keys and values of its counter, if some count by prefixes: `remote_address=2001:db8::/64`.
fn counted_as(rule: &Rule, entries: &[Entry<'_>]) -> Option<String> {
    let prefixes = rule.prefixes.as_ref()?;
    let counted: Vec<_> = rule.counted(entries).map(|(key, value)| format!("{key}={}", &*value)).collect();
    let denies = prefixes.deny(entries.iter().map(|entry| entry.value));
    Some(counted.join(" ") + if denies { ", no address: denied" } else { "" })
}

fn owned(entries: &[Entry<'_>]) -> Vec<(String, String)> {
    entries.iter().map(|entry| (entry.key.to_owned(), entry.value.to_owned())).collect()
}

/// The step whose rule replaces that of this step.
fn replacing(plan: &Plan<'_>, index: usize) -> Option<usize> {
    let Step::Replaced(rule) = plan.steps.get(index)? else { return None };
    let replaces = |step: &Step<'_>| step.rule().is_some_and(|other| other.replaces.contains(&rule.name));
    plan.steps.iter().position(replaces)
}

fn replaced(plan: &Plan<'_>, rule: &Rule, by: Option<usize>) -> String {
    let path = by.and_then(|by| plan.steps[by].rule()).map(Rule::path).unwrap_or_default();
    let number = by.map(|by| format!(" (descriptor {})", by + 1)).unwrap_or_default();
    format!("not counted: another rule of this request, {path}{number}, replaces `{}`", rule.name)
}

/// The candidate of this step.
fn trial<'a>(
    plan: &Plan<'a>,
    decision: &Decision<'a>,
    looks: &Looks,
    step: usize,
) -> Option<(Trial<'a>, Look)> {
    let trial = decision.trials().iter().find(|trial| trial.descriptor == step)?;
    let place = plan.candidates.iter().position(|candidate| candidate.step == step)?;
    Some((*trial, looks.get(plan.steps.len() + place)?.clone()?))
}

fn counted(limited: &Limited<'_>) -> String {
    let hits = match limited.hits {
        Hits::Take(hits) => hits,
        Hits::GiveBack(_) => 0,
    };
    let room = match limited.verdict.over {
        false => return "there is room".to_owned(),
        true if hits > limited.limit.capacity() => "so many never fit",
        true => "there is no room now",
    };
    let but = match (limited.shadow, limited.quota) {
        (true, _) => ", but shadow_mode lets it pass",
        (false, true) => {
            "; in quota mode the request is denied only if all descriptors in quota mode are over"
        }
        (false, false) => "",
    };
    format!("{room}{but}")
}

fn unmatched(walk: &Walk<'_>, domain: &str, entries: &[Entry<'_>]) -> String {
    let text = |entry: &Entry<'_>| format!("{}={}", entry.key, entry.value);
    match &walk.end {
        End::NoDomain(known) => format!("domain {domain} has no rules (there are: {})", names_text(known)),
        End::NoNode(known) => {
            let next = entries.get(walk.met().count()).map(text).unwrap_or_default();
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
