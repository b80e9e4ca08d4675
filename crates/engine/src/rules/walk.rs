//! The way of a descriptor down the rules, for people: which node each entry came to, and where and why it ended.
//!
//! Not of the request path, which only needs the end: see `tree`.

use crate::request::Entry;
use crate::rules::set::Domain;
use crate::rules::tree::{NodeId, Step};
use crate::rules::{Rule, RuleSet};

/// Nodes and domains that are named where nothing was met.
const NAMES_MAX: usize = 8;

/// The way of one descriptor.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    /// What each entry met, as far as the walk came.
    pub met: Vec<Met<'a>>,
    /// Where it ended.
    pub end: End<'a>,
}

/// What an entry met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met<'a> {
    /// A node with exactly this value.
    Exact,
    /// A node with this pattern.
    Pattern(&'a str),
    /// A node without a value.
    Any,
}

/// Where a walk ended.
#[derive(Clone, Debug)]
pub enum End<'a> {
    /// At a node with a limit.
    Rule(&'a Rule),
    /// At a node without a limit. The nodes below it.
    NoLimit(NameList),
    /// Before its last entry: there is no node for the next one. Those that there are.
    NoNode(NameList),
    /// The domain has no rules. Those that have.
    NoDomain(NameList),
}

/// What there is where something was not met: a node is `key` or `key=value`.
#[derive(Clone, Debug, Default)]
pub struct NameList {
    /// Some of it.
    pub names: Vec<String>,
    /// How much more there is.
    pub more: usize,
}

impl RuleSet {
    /// The way of a descriptor with these entries.
    pub fn walk(&self, domain: &str, entries: &[Entry<'_>]) -> Walk<'_> {
        let Some(&Domain { root, .. }) = self.domains.get(domain) else {
            let mut known: Vec<_> = self.domains().map(str::to_owned).collect();
            known.sort_unstable();
            let more = known.len().saturating_sub(NAMES_MAX);
            known.truncate(NAMES_MAX);
            return Walk { met: Vec::new(), end: End::NoDomain(NameList { names: known, more }) };
        };
        let (mut met, mut node) = (Vec::new(), root);
        for entry in entries {
            let Some(Step { to, value }) = self.tree.step(node, entry) else {
                return Walk { met, end: End::NoNode(self.below(node)) };
            };
            met.push(match value {
                Some(value) if value == entry.value => Met::Exact,
                Some(pattern) => Met::Pattern(pattern),
                None => Met::Any,
            });
            node = to;
        }
        let rule = self.tree.rule(node).and_then(|rule| self.rules.get(rule as usize));
        Walk { met, end: rule.map_or_else(|| End::NoLimit(self.below(node)), End::Rule) }
    }

    /// The nodes right below this one.
    fn below(&self, node: NodeId) -> NameList {
        let mut children = self.tree.children(node);
        let text = |(key, value): (&str, Option<&str>)| match value {
            Some(value) => format!("{key}={value}"),
            None => key.to_owned(),
        };
        let names = children.by_ref().take(NAMES_MAX).map(text).collect();
        NameList { names, more: children.count() }
    }
}
