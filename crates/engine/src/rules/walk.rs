//! The walk of a descriptor down the rules, for people: which node each entry matched, and where and why it ended.
//!
//! The request path only needs the end: see `tree`.

use crate::request::Entry;
use crate::rules::set::Domain;
use crate::rules::tree::{NodeId, Step};
use crate::rules::{Rule, RuleSet};

/// The most nodes or domains that are listed where nothing matched.
const NAMES_MAX: usize = 8;

/// The walk of one descriptor.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    /// How each entry matched, as far as the walk came.
    pub met: Vec<Met<'a>>,
    /// Where it ended.
    pub end: End<'a>,
}

/// How an entry matched.
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
    /// At a node without a limit. With the nodes below it.
    NoLimit(NameList),
    /// Before its last entry, because no node matches the next one. With the nodes that there are.
    NoNode(NameList),
    /// The domain has no rules. With the domains that have.
    NoDomain(NameList),
}

/// Names of what there is where nothing matched. A node is `key` or `key=value`.
#[derive(Clone, Debug, Default)]
pub struct NameList {
    /// The first names.
    pub names: Vec<String>,
    /// How many more there are.
    pub more: usize,
}

impl RuleSet {
    /// The walk of a descriptor with these entries.
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
