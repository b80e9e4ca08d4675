//! Which series a limit counts in. The series of a rule is resolved once, when its rule set is installed. A series
//! whose name holds values of the request is looked up by name.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::candidates::CandidateHandles;
use super::series::Source;
use super::series_name::{request_name, rule_name};
use super::striped::Slot;
use super::{Metrics, OTHER};
use tidegate_engine::plan::Origin;
use tidegate_engine::request::Entry;
use tidegate_engine::rules::{MetricName, Rule, RuleSet};

/// The series of the rules of one rule set. Made by [`Metrics::handles`] and kept together with that rule set.
#[derive(Debug)]
pub struct RuleHandles {
    /// By the rule's number in its set: the series of its path, without values of requests.
    rules: Box<[Slot]>,
    /// By domain: the counter of its descriptors that match no rule.
    unmatched: HashMap<Box<str>, Slot, RandomState>,
    pub(super) candidates: CandidateHandles,
    without_room: usize,
}

/// The series that a rule counts in.
enum Counted {
    Own(Slot),
    /// A series above it, because there is no room for its own.
    Above(Slot),
}

impl RuleHandles {
    /// Rules that count in a series above them, because there is no room for their own.
    pub fn without_room(&self) -> usize {
        self.without_room
    }

    /// The series of each rule, by its number.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.rules.iter().copied()
    }

    pub(super) fn unmatched(&self, domain: &str) -> Option<Slot> {
        self.unmatched.get(domain).copied()
    }
}

impl Metrics {
    /// Resolves the series of the rules of a set. A rule keeps the series that its domain and path had before.
    pub fn handles(&self, set: &RuleSet) -> RuleHandles {
        let unmatched = |domain| {
            let slot = self.unmatched.enter(&self.striped, Source::Rules, &rule_name(domain, [""; 0]));
            (Box::from(domain), slot.unwrap_or(self.unmatched_other))
        };
        let mut without_room = 0;
        let mut slot = |rule| match self.rolled_up_series(rule) {
            Counted::Own(slot) => slot,
            Counted::Above(slot) => {
                without_room += 1;
                slot
            }
        };
        RuleHandles {
            rules: set.rules().iter().map(&mut slot).collect(),
            unmatched: set.domains().map(unmatched).collect(),
            candidates: self.candidates.handles(&self.striped, set),
            without_room,
        }
    }

    /// The series of a rule's path. Without room for it: the series of the nearest node above that has one, else the
    /// series for all others of the domain.
    fn rolled_up_series(&self, rule: &Rule) -> Counted {
        let (domain, path) = (&*rule.domain, rule.metric_name.counted());
        let name = |levels: usize| rule_name(domain, &path[..levels]);
        if path.is_empty() {
            return Counted::Own(self.other_series(domain));
        }
        match self.limits.enter(&self.striped, Source::Rules, &name(path.len())) {
            Some(slot) => Counted::Own(slot),
            None => {
                let above = (1..path.len()).rev().find_map(|levels| self.limits.find(&name(levels)));
                Counted::Above(above.unwrap_or_else(|| self.other_series(domain)))
            }
        }
    }

    fn other_series(&self, domain: &str) -> Slot {
        let name = rule_name(domain, [OTHER]);
        self.limits.enter(&self.striped, Source::Others, &name).unwrap_or(self.limits_other)
    }

    /// The first slot of the series in which a descriptor with these entries counts.
    pub(super) fn series_of(
        &self,
        handles: &RuleHandles,
        origin: &Origin<'_>,
        domain: &str,
        entries: &[Entry<'_>],
    ) -> Slot {
        let rule = match origin {
            Origin::Rule { rule, .. } => rule,
            Origin::Override { .. } => return self.override_series(domain, entries),
        };
        let per_value = match rule.metric_name.is_dynamic() {
            true => self.request_series(domain, rule.metric_name.resolve(entries)),
            false => None,
        };
        let rolled_up = || handles.rules.get(rule.id).copied();
        per_value.or_else(rolled_up).unwrap_or(self.limits_other)
    }

    /// The path of an override is made of its entries. They come from the request, so there is no path without values
    /// of the request to fall back to: without room, all overrides of the domain are counted together.
    fn override_series(&self, domain: &str, entries: &[Entry<'_>]) -> Slot {
        self.request_series(domain, MetricName::of_entries(entries))
            .unwrap_or_else(|| self.other_series(domain))
    }

    fn request_series<Part: AsRef<str>>(
        &self,
        domain: &str,
        path: impl IntoIterator<Item = Part>,
    ) -> Option<Slot> {
        self.limits.enter(&self.striped, Source::Requests, &request_name(domain, path)?)
    }
}
