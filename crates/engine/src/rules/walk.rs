//! The walk of a descriptor through the rules, for people: level by level which nodes were tried, and where and why
//! the walk ended.
//!
//! The request path only needs the end: see `tree`.

use crate::request::Entry;
use crate::rules::set::Domain;
use crate::rules::tree::{Choices, NodeId};
use crate::rules::{Rule, RuleSet, Written};

/// The most nodes or domains that are listed where nothing matched, and the most patterns of one level.
const NAMES_MAX: usize = 8;

/// The walk of one descriptor.
#[derive(Clone, Debug)]
pub struct Walk<'a> {
    /// A level for each entry that was reached; the last one may have no node that fits. An entry that names a class
    /// or a call has none.
    pub levels: Vec<Level<'a>>,
    /// Where it ended.
    pub end: End<'a>,
}

/// The nodes that were tried for one entry.
#[derive(Clone, Debug, Default)]
pub struct Level<'a> {
    /// How the entry matched. `None`: no node fits.
    pub met: Option<Met<'a>>,
    /// The nodes with its key, in the order in which they are tried.
    pub tried: Vec<Tried<'a>>,
    /// Patterns that are left out of the list.
    pub more: usize,
}

/// A node that could have fitted.
#[derive(Clone, Copy, Debug)]
pub struct Tried<'a> {
    /// What kind of node it is.
    pub node: Met<'a>,
    /// Its place. `None`: there is no such node.
    pub written: Option<&'a Written>,
    /// Whether it fits.
    pub fit: Fit,
}

/// Whether a node fits an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is the first that fits.
    Taken,
    /// It does not.
    No,
    /// It is a range of addresses that contains the value. A longer one does too.
    Shorter,
    /// An earlier one fits.
    NotTried,
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
    /// The domain has no rules. With the domains that have some.
    NoDomain(NameList),
}

/// Names of the existing nodes or domains where nothing matched. A node is `key` or `key=value`.
#[derive(Clone, Debug, Default)]
pub struct NameList {
    /// The first names.
    pub names: Vec<String>,
    /// The number of further ones.
    pub more: usize,
}

impl<'a> Walk<'a> {
    /// How the entries matched, as far as they did.
    pub fn met(&self) -> impl Iterator<Item = &Met<'a>> {
        self.levels.iter().filter_map(|level| level.met.as_ref())
    }
}

impl RuleSet {
    /// The walk of a descriptor with these entries.
    pub fn walk(&self, domain: &str, entries: &[Entry<'_>]) -> Walk<'_> {
        let Some(&Domain { root, .. }) = self.domains.get(domain) else {
            let mut known: Vec<_> = self.domains().map(str::to_owned).collect();
            known.sort_unstable();
            let more = known.len().saturating_sub(NAMES_MAX);
            known.truncate(NAMES_MAX);
            return Walk { levels: Vec::new(), end: End::NoDomain(NameList { names: known, more }) };
        };
        let (mut levels, mut node) = (Vec::new(), root);
        for (place, entry) in entries.iter().enumerate() {
            let choices = self.tree.choices(node, entry);
            if choices.is_none() && self.tree.is_trailing(node, &entries[place..]) {
                break;
            }
            levels.push(choices.as_ref().map(|choices| self.level(choices, entry.value)).unwrap_or_default());
            let Some(to) = choices.and_then(|choices| choices.taken) else {
                return Walk { levels, end: End::NoNode(self.below(node)) };
            };
            node = to;
        }
        let rule = self.tree.rule(node).and_then(|rule| self.rules.get(rule as usize));
        Walk { levels, end: rule.map_or_else(|| End::NoLimit(self.below(node)), End::Rule) }
    }

    fn level<'a>(&'a self, choices: &Choices<'a>, value: &str) -> Level<'a> {
        let mut level = Level::default();
        if choices.has_values {
            // The text of a pattern is a value too: then the node is the pattern itself.
            let is_taken = choices.exact.is_some();
            self.try_node(&mut level, choices, Met::Exact, choices.exact, is_taken);
        }
        for (place, (node, pattern)) in choices.patterns.iter().enumerate() {
            let met = Met::Pattern(self.tree.value(*node).unwrap_or_default());
            let is_taken = choices.exact.is_none() && choices.taken == Some(*node);
            if place < NAMES_MAX || is_taken {
                self.try_node(&mut level, choices, met, Some(*node), is_taken);
                if level.met.is_none() && !pattern.ranges().is_empty() && pattern.matches(value) {
                    // It was not taken, so a longer range contains the value too.
                    if let Some(tried) = level.tried.last_mut() {
                        tried.fit = Fit::Shorter;
                    }
                }
            } else {
                level.more += 1;
            }
        }
        if let Some(any) = choices.any {
            self.try_node(&mut level, choices, Met::Any, Some(any), choices.taken == Some(any));
        }
        level
    }

    fn try_node<'a>(
        &'a self,
        level: &mut Level<'a>,
        choices: &Choices<'_>,
        node: Met<'a>,
        id: Option<NodeId>,
        is_taken: bool,
    ) {
        let fit = match (is_taken, level.met) {
            (true, _) => Fit::Taken,
            (false, Some(_)) => Fit::NotTried,
            (false, None) => Fit::No,
        };
        let written = id.and_then(|id| self.tree.written(id));
        debug_assert!(!is_taken || id == choices.taken, "the node that is taken is another one");
        level.tried.push(Tried { node, written, fit });
        if is_taken {
            level.met = Some(node);
        }
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
