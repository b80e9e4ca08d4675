//! Which series a limit counts in: resolved once for the rules of a set, and looked up by name where the name holds
//! values of the request.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::series::Source;
use super::series_name::{request_name, rule_name};
use super::striped::Slot;
use super::{Metrics, OTHER};
use tidegate_engine::plan::Origin;
use tidegate_engine::request::Entry;
use tidegate_engine::rules::{MetricName, Rule, RuleSet};

/// Where the rules of one set count. Made by [`Metrics::handles`]; belongs beside the rule set that it was made for.
#[derive(Debug)]
pub struct RuleHandles {
    /// By the rule's number in its set: the series of its path without values of requests.
    rules: Box<[Slot]>,
    /// By the name of a domain: where its descriptors that meet no rule count.
    unmatched: HashMap<Box<str>, Slot, RandomState>,
    without_room: usize,
}

/// Where a rule counts.
enum Counted {
    /// Where it is meant to.
    Own(Slot),
    /// In the series of something above it, because there is no room for its own.
    Above(Slot),
}

impl RuleHandles {
    /// Rules that count in the series of something above them, because there is no room for their own.
    pub fn without_room(&self) -> usize {
        self.without_room
    }

    pub(super) fn unmatched(&self, domain: &str) -> Option<Slot> {
        self.unmatched.get(domain).copied()
    }
}

impl Metrics {
    /// Resolves where the rules of a set count. A rule whose domain and path had a series before counts on in it.
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
            without_room,
        }
    }

    /// The series of a rule's path; where there is no room, that of the nearest node above that has one; else the one
    /// that stands for all others of the domain.
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
            Origin::Rule(rule) => rule,
            Origin::Override { .. } => return self.override_series(domain, entries),
        };
        let per_value = match rule.metric_name.is_dynamic() {
            true => self.request_series(domain, rule.metric_name.resolve(entries)),
            false => None,
        };
        let rolled_up = || handles.rules.get(rule.id).copied();
        per_value.or_else(rolled_up).unwrap_or(self.limits_other)
    }

    /// The path of an override is made of its entries. Keys come from the request just as values do, so where there
    /// is no room, all overrides of the domain count together.
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
