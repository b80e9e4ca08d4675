//! What candidates would have done, compared with the limits in force: hits, by the verdicts of both.
//!
//! In: decisions with trials. Out: four counters for each rule with a candidate. Rules name them, and their number is
//! bounded like that of all series of rules.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::OTHER;
use super::series::{SeriesTable, Source};
use super::series_name::rule_name;
use super::striped::{Slot, Striped, Writer};
use tidegate_engine::decision::{Decision, Limited, Trial};
use tidegate_engine::plan::{Hits, Origin};
use tidegate_engine::rules::RuleSet;

/// The counters of one rule: whether its limit was over, then whether its candidate was.
const COUNTERS: [[&str; 2]; 4] =
    [["within", "within"], ["within", "over"], ["over", "within"], ["over", "over"]];

/// The counters of all candidates.
pub(super) struct Candidates {
    series: SeriesTable,
    /// The counts of rules that have no room for counters of their own.
    other: Slot,
}

/// The counters of the candidates of one rule set, by the numbers of their rules.
pub(super) type CandidateHandles = HashMap<usize, Slot, RandomState>;

impl Candidates {
    /// The most slots that are needed for this many rules.
    pub(super) const fn slots_max(rules_max: usize) -> usize {
        SeriesTable::slots_max(rules_max, 0, COUNTERS.len())
    }

    /// All counters at 0. `None`: there is no room for one.
    pub(super) fn new(striped: &Striped, rules_max: usize) -> Option<Self> {
        let series = SeriesTable::new(rules_max, 0, COUNTERS.len() as u32);
        let other = series.enter(striped, Source::Others, &rule_name(OTHER, [OTHER]))?;
        Some(Self { series, other })
    }

    /// Resolves the counters of a rule set.
    pub(super) fn handles(&self, striped: &Striped, set: &RuleSet) -> CandidateHandles {
        let rules = set.rules().iter().filter(|rule| rule.candidate.is_some());
        let slot = |domain: &str, path: &[_]| match path.is_empty() {
            true => self.series.enter(striped, Source::Rules, &rule_name(domain, [OTHER])),
            false => self.series.enter(striped, Source::Rules, &rule_name(domain, path)),
        };
        let resolved = rules.map(|rule| (rule.id, slot(&rule.domain, rule.metric_name.counted())));
        resolved.map(|(rule, slot)| (rule, slot.unwrap_or(self.other))).collect()
    }

    /// Adds the trials of a decision.
    #[inline(never)]
    pub(super) fn observe(&self, writer: &Writer<'_>, handles: &CandidateHandles, decision: &Decision<'_>) {
        for trial @ Trial { limited, .. } in decision.trials() {
            let (Hits::Take(hits @ 1..), Origin::Rule { rule, .. }) = (limited.hits, limited.origin) else {
                continue;
            };
            let Some(Limited { verdict, .. }) = decision.tried(trial) else { continue };
            let first = handles.get(&rule.id).copied().unwrap_or(self.other);
            let counter = 2 * usize::from(verdict.over) + usize::from(limited.verdict.over);
            writer.add(first.plus(counter), hits);
        }
    }

    /// All counters that are not 0: the name of their series, the verdicts of the limit and of the candidate, and the
    /// count.
    pub(super) fn counts<'c>(
        &'c self,
        striped: &'c Striped,
    ) -> impl Iterator<Item = (&'c str, [&'static str; 2], u64)> {
        self.series.iter().flat_map(move |series| {
            let counts = (0..)
                .zip(COUNTERS)
                .map(move |(place, said)| (&*series.name, said, striped.sum(series.first.plus(place))));
            counts.filter(|(.., count)| *count > 0)
        })
    }
}
