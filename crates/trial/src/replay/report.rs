//! The result of a replay, as values; `text`, `json` and `html` write it.
//!
//! In: the numbers of a replay. Out: totals, a line per rule, the most important keys, requests over time, bursts,
//! and notes on what limits the meaning of all this.

mod html;
mod json;
mod text;

pub use self::html::About;

use std::collections::BTreeSet;

use tidegate_engine::Timestamp;
use tidegate_engine::heavy::Heavy;
use tidegate_engine::rules::Rule;
use tidegate_engine::time::SECOND_NANOS;

use super::keys::{BURST_CLASSES, DeniedKey, KeyNumbers, Keys, Numbers};
use super::read::Counts;
use super::side::Side;
use super::timeline::Timeline;
use super::trials::TrialNumbers;
use super::{Replay, Totals};

/// Keys in each list of a report.
const KEYS_MAX: usize = 100;

/// A window of less than this many times the resolution of the timestamps is decided coarsely.
const RESOLUTIONS_MIN: u64 = 10;

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct Report {
    /// Lines and requests.
    pub totals: Totals,
    /// The times of the first and the last request.
    pub(super) span: Option<(Timestamp, Timestamp)>,
    /// The first unreadable lines, each with its place.
    pub(super) unreadable: Vec<String>,
    pub(super) side: SideReport,
    /// The rules that are compared with.
    pub(super) against: Option<SideReport>,
    pub(super) timeline: Timeline,
    /// For 1, 2–3, 4–7, … : how often a key sent so many requests in one second.
    pub(super) bursts: [u64; BURST_CLASSES],
    /// Notes that a reader needs to understand the numbers.
    pub(super) notes: Vec<String>,
}

/// The result of one set of rules.
#[derive(Clone, Debug)]
pub(super) struct SideReport {
    pub(super) rules: Vec<RuleReport>,
    /// The keys denied most, then those that asked most.
    pub(super) keys: Vec<KeyReport>,
    /// With rules to compare: the keys that only these rules deny.
    pub(super) changed: Vec<KeyReport>,
    /// Keys, and denied ones.
    pub(super) keys_total: u64,
    pub(super) denied_keys: u64,
    /// Counts of keys are estimates, and so are the denials of the keys that are listed.
    pub(super) is_estimated: bool,
}

/// The result of one rule.
#[derive(Clone, Debug)]
pub(super) struct RuleReport {
    pub(super) path: String,
    pub(super) place: String,
    pub(super) limit: String,
    pub(super) numbers: Numbers,
    /// Its candidate, and what that would have done.
    pub(super) candidate: Option<(String, TrialNumbers)>,
    pub(super) keys: u64,
    pub(super) denied_keys: u64,
}

/// The numbers of one key.
#[derive(Clone, Debug)]
pub(super) struct KeyReport {
    /// The path of its rule.
    pub(super) rule: String,
    pub(super) name: String,
    pub(super) numbers: Numbers,
    /// How much too high the denials may be. The other numbers are then unknown.
    pub(super) error: Option<u64>,
}

impl Report {
    pub(super) fn new(replay: Replay<'_>, counts: Counts) -> Self {
        let notes = notes(&replay, counts.resolution_nanos);
        let Replay { side, against, totals, timeline, first, last } = replay;
        Self {
            span: first.map(|first| (first, last)),
            unreadable: counts.shown,
            bursts: side.keys.bursts(),
            side: SideReport::new(&side),
            against: against.as_ref().map(SideReport::new),
            timeline,
            totals,
            notes,
        }
    }

    /// Whether any request met a rule. If none did, the numbers say nothing about the rules.
    pub fn met_a_rule(&self) -> bool {
        self.totals.unmatched < self.totals.requests
    }

    pub(super) fn keys_total(&self) -> u64 {
        self.side.keys_total
    }

    /// Keys that were denied at least once.
    pub(super) fn denied_keys(&self) -> u64 {
        self.side.denied_keys
    }
}

impl SideReport {
    fn new(side: &Side<'_>) -> Self {
        let weight = side.keys.weight();
        let mut per_rule = vec![(0, 0); side.numbers.len()];
        for key in side.keys.iter() {
            let (keys, denied) = &mut per_rule[key.rule];
            *keys += weight;
            *denied += if key.numbers.denied > 0 { weight } else { 0 };
        }
        for (denied, known) in per_rule.iter_mut().map(|(_, denied)| denied).zip(known_denied(side)) {
            *denied = known.max(*denied);
        }
        let rules = side.rules.rules();
        let rows = side.rules.limits().map(|rule| {
            let (numbers, (keys, denied_keys)) = (&side.numbers[rule.id], per_rule[rule.id]);
            let (path, place, limit) =
                (rule.path(), rule.written.to_string(), limit_text(rule, side.rules.ban_text(rule)));
            let candidate = rule.candidate.as_deref();
            let candidate = candidate.map(|it| (rule.counts_text(&it.limit), side.trials.of_rule(rule.id)));
            RuleReport { path, place, limit, numbers: numbers.clone(), candidate, keys, denied_keys }
        });
        Self {
            rules: rows.collect(),
            keys: top(&side.keys, rules),
            changed: most(side.keys.iter().filter(|key| key.numbers.changed > 0), rules, |it| {
                it.numbers.changed
            }),
            keys_total: per_rule.iter().map(|(keys, _)| keys).sum(),
            denied_keys: per_rule.iter().map(|(_, denied)| denied).sum(),
            is_estimated: weight > 1,
        }
    }
}

/// For each rule, how many of its keys were certainly denied, if keys are a sample, which may have missed some.
fn known_denied(side: &Side<'_>) -> Vec<u64> {
    let mut known = vec![0; side.numbers.len()];
    let heavy = side.keys.heavy().into_iter().flat_map(|heavy| heavy.top());
    heavy.filter(|it| it.count > it.error).for_each(|it| known[it.about.rule] += 1);
    known
}

/// The keys to list.
fn top(keys: &Keys, rules: &[Rule]) -> Vec<KeyReport> {
    let Some(heavy) = keys.heavy() else {
        return most(keys.iter(), rules, |it| (it.numbers.denied, it.numbers.requests));
    };
    let report = |it: &Heavy<DeniedKey>| KeyReport {
        rule: rules[it.about.rule].path(),
        name: it.about.name.to_string(),
        numbers: Numbers { denied: it.count, ..Numbers::default() },
        error: Some(it.error),
    };
    heavy.top().take(KEYS_MAX).map(report).collect()
}

/// The keys with the greatest `measure`.
fn most<'k, M: Ord>(
    keys: impl Iterator<Item = &'k KeyNumbers>,
    rules: &[Rule],
    measure: impl Fn(&KeyNumbers) -> M,
) -> Vec<KeyReport> {
    let mut keys: Vec<_> = keys.collect();
    let compare =
        |a: &&KeyNumbers, b: &&KeyNumbers| measure(b).cmp(&measure(a)).then_with(|| a.name.cmp(&b.name));
    if keys.len() > KEYS_MAX {
        keys.select_nth_unstable_by(KEYS_MAX, compare);
        keys.truncate(KEYS_MAX);
    }
    keys.sort_unstable_by(compare);
    let report = |it: &KeyNumbers| KeyReport {
        rule: rules[it.rule].path(),
        name: it.name.to_string(),
        numbers: it.numbers.clone(),
        error: None,
    };
    keys.into_iter().map(report).collect()
}

/// A rule's limit: `100 per minute, sliding_window`.
fn limit_text(rule: &Rule, ban: Option<String>) -> String {
    let Some(limit) = &rule.limit else { return "unlimited".to_owned() };
    let mode = if rule.shadow_mode { ", shadow" } else { "" };
    let ban = ban.map(|ban| format!(", ban: {ban}")).unwrap_or_default();
    format!("{}, {}{mode}{ban}", rule.counts_text(limit), limit.algorithm().name())
}

fn notes(replay: &Replay<'_>, resolution: u64) -> Vec<String> {
    let mut notes = vec![
        "What clients do after a denial is not modelled: some would have retried, others given up."
            .to_owned(),
    ];
    let sides = [Some(&replay.side), replay.against.as_ref()];
    let is_short = |rule: &Rule| {
        rule.limit.is_some_and(|it| it.window_nanos() < RESOLUTIONS_MIN.saturating_mul(resolution))
    };
    let rules = sides.iter().flatten().flat_map(|side| side.rules.rules().iter().zip(&side.numbers));
    let short = rules.filter(|(rule, numbers)| numbers.requests > 0 && is_short(rule));
    // A set: both sides may have the same rule.
    for place in short.map(|(rule, _)| rule.written.to_string()).collect::<BTreeSet<_>>() {
        let seconds = resolution as f64 / SECOND_NANOS as f64;
        notes.push(format!(
            "{place}: the window is short compared with the timestamps of the log, which are multiples of {seconds} s: \
             its numbers are coarse (expected a window of at least {} s).",
            RESOLUTIONS_MIN as f64 * seconds,
        ));
    }
    let Totals { late, not_asked, unlimited, unmatched, .. } = replay.totals;
    let counted = [
        (
            late,
            "requests were out of order by more than the bound, and were decided at a later time than theirs.",
        ),
        (
            not_asked,
            "requests got no descriptor: a value that the map needs was missing. A proxy would not have asked.",
        ),
        (unmatched, "requests met no rule."),
        (unlimited - unmatched, "requests met a rule, but none with a limit that is counted here."),
        (
            sides.iter().flatten().map(|side| side.slots).sum(),
            "slots of `concurrency` were asked for and given without counting: a log does not say when calls end.",
        ),
        (
            sides.iter().flatten().map(|side| side.uncounted()).sum(),
            "decisions counted nothing, because there was no memory for more counters.",
        ),
    ];
    notes.extend(
        counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")),
    );
    let met_a_limit = |side: &Side<'_>| side.numbers.iter().any(|numbers| numbers.requests > 0);
    if replay.against.as_ref().is_some_and(|side| !met_a_limit(side)) {
        notes.push(
            "No request met a limit of the rules that are compared with: every denial is a new one."
                .to_owned(),
        );
    }
    if sides.iter().flatten().any(|side| side.keys.weight() > 1) {
        notes.push(
            "There were too many keys for numbers of each: counts of keys are estimates from a sample, \
             and so are the denials of the keys that are listed. All other numbers are exact."
                .to_owned(),
        );
    }
    notes
}
