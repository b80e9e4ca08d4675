//! Which series a limit counts in: resolved once for the rules of a set, and looked up by name where the name holds
//! values of the request.

use super::name::{request_name, rule_name};
use super::series::Source;
use super::striped::Slot;
use super::{Metrics, OTHER};
use crate::engine::plan::Origin;
use crate::engine::request::Entry;
use crate::engine::rules::{MetricName, Rule};

/// Where the rules of one set count. Made by [`Metrics::handles`]; belongs beside the rule set that it was made for.
#[derive(Debug)]
pub struct RuleHandles {
    /// By the rule's number in its set: the series of its path without values of requests.
    rules: Box<[Slot]>,
}

impl Metrics {
    /// Resolves where the rules of a set count. A rule whose domain and path had a series before counts on in it.
    /// Rules come in the order of their numbers.
    pub fn handles<'a>(&self, rules: impl IntoIterator<Item = &'a Rule>) -> RuleHandles {
        RuleHandles { rules: rules.into_iter().map(|rule| self.rolled_up_series(rule)).collect() }
    }

    fn rolled_up_series(&self, rule: &Rule) -> Slot {
        let name = rule_name(&rule.domain, rule.metric_name.rolled_up());
        self.rule_series(&name).unwrap_or(self.limits_other)
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
            .or_else(|| self.rule_series(&rule_name(domain, [OTHER])))
            .unwrap_or(self.limits_other)
    }

    fn rule_series(&self, name: &str) -> Option<Slot> {
        self.limits.enter(&self.striped, Source::Rules, name)
    }

    fn request_series<Part: AsRef<str>>(
        &self,
        domain: &str,
        path: impl IntoIterator<Item = Part>,
    ) -> Option<Slot> {
        self.limits.enter(&self.striped, Source::Requests, &request_name(domain, path)?)
    }
}
