//! The nodes of all rules, in one place, and the step from a node to its child for one entry of a request.
//!
//! Two hash tables for the whole set: families (the children of one node with one key) and exact children (of one
//! family with one value). A step hashes the entry's key and its value once each, joins no strings, and costs the
//! same for ten rules as for a hundred thousand.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::{HashMap, HashTable};

use crate::pattern::{Matcher, Pattern, Patterns};
use crate::request::Entry;
use crate::rules::Written;

/// A node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(u32);

/// All nodes; those of a domain hang below the domain's root, which has no key.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    hasher: FixedState,
    nodes: Vec<Node>,
    families: Vec<Family>,
    /// Indexes of `families`, by parent and key.
    family_table: HashTable<u32>,
    /// Nodes with a value that is a text, by family and text. Wildcards too: a request's value may be that text itself.
    exact_table: HashTable<NodeId>,
    /// Nodes with any other pattern, by family and text. Requests are not looked up here.
    pattern_table: HashTable<NodeId>,
    /// The nodes whose descriptors may have one entry more: its key. It names a class or a call.
    trailing_keys: HashMap<NodeId, Arc<str>, FixedState>,
    /// Where each node was written; roots are written nowhere. Only explanations read it.
    written: Vec<Option<Written>>,
}

#[derive(Clone, Debug)]
struct Node {
    family: u32,
    value: Option<Box<str>>,
    has_children: bool,
    /// The index of its rule in the set.
    rule: Option<u32>,
}

/// The children of one node that have the same key.
#[derive(Clone, Debug)]
struct Family {
    parent: NodeId,
    key: Box<str>,
    has_values: bool,
    /// The child without a value.
    any: Option<NodeId>,
    /// The children whose value is a pattern, in the order in which they are tried.
    patterns: Vec<(NodeId, Pattern)>,
    /// The same, compiled when the tree is complete.
    compiled: Option<Arc<Patterns<NodeId>>>,
}

/// The nodes that an entry may lead to, for explanations: those with its key, in the order in which they are tried.
#[derive(Clone, Debug)]
pub(super) struct Choices<'t> {
    /// The node that it leads to.
    pub(super) taken: Option<NodeId>,
    /// There are nodes with a value.
    pub(super) has_values: bool,
    /// The node with exactly this value.
    pub(super) exact: Option<NodeId>,
    pub(super) patterns: &'t [(NodeId, Pattern)],
    /// The node without a value.
    pub(super) any: Option<NodeId>,
}

/// Why a node cannot be where it is.
pub(super) enum Clash {
    /// This value of its list is a value of the other node too.
    SameValue(Box<str>, NodeId),
    /// It is the first of regular expressions that are too large together.
    RegexesTooLarge,
}

/// The most patterns that are tested for being shadowed. Nobody writes so many by hand.
const SHADOWED_MAX: usize = 100_000;

/// The family of a root: there is none.
const NO_FAMILY: u32 = u32::MAX;

impl Tree {
    /// An empty tree. The seed makes its hashes differ from those of other processes.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            hasher: FixedState::with_seed(seed),
            nodes: Vec::new(),
            families: Vec::new(),
            family_table: HashTable::new(),
            exact_table: HashTable::new(),
            pattern_table: HashTable::new(),
            trailing_keys: HashMap::with_hasher(FixedState::with_seed(seed)),
            written: Vec::new(),
        }
    }

    pub(super) fn add_root(&mut self) -> NodeId {
        self.push(Node { family: NO_FAMILY, value: None, has_children: false, rule: None })
    }

    /// Adds a child; `Err` is the node that is already there with the same key and value.
    pub(super) fn add(&mut self, parent: NodeId, key: &str, matcher: &Matcher) -> Result<NodeId, NodeId> {
        let (family, value) = (self.family_or_new(parent, key), matcher.text());
        if let Some(equal) = self.child_of(family, value) {
            return Err(equal);
        }
        let id = self.push(Node { family, value: value.map(Box::from), has_children: false, rule: None });
        self.nodes[parent.0 as usize].has_children = true;
        let of = &mut self.families[family as usize];
        match matcher {
            Matcher::Any => of.any = Some(id),
            Matcher::Exact(_) => {}
            Matcher::Pattern(pattern) => of.patterns.push((id, pattern.clone())),
        }
        if let Some(value) = value {
            of.has_values = true;
            self.insert(id, family, value, matcher.literal().is_some());
        }
        Ok(id)
    }

    /// Sets the rule of a node.
    pub(super) fn set_rule(&mut self, node: NodeId, rule: u32) {
        self.nodes[node.0 as usize].rule = Some(rule);
    }

    /// Compiles the patterns. Called once, when all nodes are there. Returns nodes that cannot be where they are.
    pub(super) fn complete(&mut self) -> Vec<(NodeId, Clash)> {
        let mut clashes = self.values_of_several();
        for family in self.families.iter_mut().filter(|family| !family.patterns.is_empty()) {
            // Stable, so patterns of one rank stay in file order.
            family.patterns.sort_by_key(|(_, pattern)| pattern.rank());
            match Patterns::new(&family.patterns) {
                Ok(compiled) => family.compiled = Some(Arc::new(compiled)),
                Err(first) => clashes.push((first, Clash::RegexesTooLarge)),
            }
        }
        clashes
    }

    /// Values that are in several lists, or in a list and a node of their own.
    fn values_of_several(&self) -> Vec<(NodeId, Clash)> {
        let mut clashes = Vec::new();
        for (family, of) in (0..).zip(&self.families) {
            let mut listed: HashMap<_, _, FixedState> = HashMap::default();
            for (node, pattern) in &of.patterns {
                for value in pattern.values() {
                    let other = listed.insert(value, *node).or_else(|| self.exact(family, value));
                    clashes.extend(other.map(|other| (*node, Clash::SameValue(value.clone(), other))));
                }
            }
        }
        clashes
    }

    /// The rule at the end of the walk that these entries take from a root.
    #[inline(always)] // Every decision takes one walk or more: as a call of its own each takes 20 instructions more.
    pub(super) fn find(&self, root: NodeId, entries: &[Entry<'_>]) -> Option<u32> {
        let mut node = root;
        for (level, entry) in entries.iter().enumerate() {
            match self.child(node, entry) {
                Some(child) => node = child,
                None if self.is_trailing(node, &entries[level..]) => break,
                None => return None,
            }
        }
        self.nodes[node.0 as usize].rule
    }

    /// Whether the rest of a descriptor is one entry that names a class or a call of the limit at this node.
    #[cold]
    pub(super) fn is_trailing(&self, node: NodeId, rest: &[Entry<'_>]) -> bool {
        let [entry] = rest else { return false };
        !self.trailing_keys.is_empty() && self.trailing_keys.get(&node).is_some_and(|key| **key == *entry.key)
    }

    /// Sets the key of the entry that names a class or a call of the limit at this node.
    pub(super) fn set_trailing_key(&mut self, node: NodeId, key: Arc<str>) {
        self.trailing_keys.insert(node, key);
    }

    /// The rule of this node, if it has one.
    pub(super) fn rule(&self, node: NodeId) -> Option<u32> {
        self.nodes[node.0 as usize].rule
    }

    /// The node at the end of this path, by the keys and values of the rules themselves.
    pub(super) fn node<'n>(
        &self,
        root: NodeId,
        path: impl IntoIterator<Item = (&'n str, Option<&'n str>)>,
    ) -> Option<NodeId> {
        path.into_iter().try_fold(root, |node, (key, value)| self.child_of(self.family(node, key)?, value))
    }

    /// Calls `visit` with each node and what it returned for the node above, from the roots down. A root has nothing
    /// above.
    pub(super) fn descend<T: Copy>(&self, mut visit: impl FnMut(NodeId, Option<T>) -> T) {
        let mut known: Vec<T> = Vec::with_capacity(self.nodes.len());
        // A node comes after its parent.
        for (id, node) in (0..).map(NodeId).zip(&self.nodes) {
            let family = self.families.get(node.family as usize);
            let above = family.and_then(|family| known.get(family.parent.0 as usize).copied());
            known.push(visit(id, above));
        }
    }

    /// Nodes that no value leads to (except the text of their own pattern), each with the earlier pattern that takes
    /// all of its values.
    pub(super) fn shadowed(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        let several = |family: &&Family| family.patterns.len() + usize::from(family.any.is_some()) > 1;
        let nodes = self.families.iter().filter(several).flat_map(|family| {
            let patterns = family.patterns.iter().map(|(node, pattern)| (*node, Some(pattern)));
            let nodes = patterns.chain(family.any.map(|any| (any, None)));
            nodes.filter_map(|(node, pattern)| Some((node, pattern, family.compiled.as_deref()?)))
        });
        nodes.take(SHADOWED_MAX).filter_map(|(node, pattern, compiled)| {
            let by = compiled.covering(pattern)?;
            (by != node).then_some((node, by))
        })
    }

    /// Nodes that have no rule and no children, and take no value away from a node next to them.
    pub(super) fn idle(&self) -> impl Iterator<Item = NodeId> {
        (0..).map(NodeId).zip(&self.nodes).filter_map(|(id, node)| {
            let family = self.families.get(node.family as usize)?;
            let is_exception = match &node.value {
                None => false,
                Some(_) => {
                    family.any.is_some() || family.patterns.last().is_some_and(|(last, _)| *last != id)
                }
            };
            (node.rule.is_none() && !node.has_children && !is_exception).then_some(id)
        })
    }

    /// The nodes that an entry may lead to from here. `None`: no node has its key.
    pub(super) fn choices(&self, from: NodeId, entry: &Entry<'_>) -> Option<Choices<'_>> {
        let index = self.family(from, entry.key)?;
        let family = &self.families[index as usize];
        Some(Choices {
            taken: self.child(from, entry),
            has_values: family.has_values,
            exact: self.exact(index, entry.value),
            patterns: &family.patterns,
            any: family.any,
        })
    }

    /// The value or pattern of a node.
    pub(super) fn value(&self, node: NodeId) -> Option<&str> {
        self.nodes[node.0 as usize].value.as_deref()
    }

    /// Where a node was written.
    pub(super) fn written(&self, node: NodeId) -> Option<&Written> {
        self.written[node.0 as usize].as_ref()
    }

    /// Notes where a node was written.
    pub(super) fn set_written(&mut self, node: NodeId, written: Written) {
        self.written[node.0 as usize] = Some(written);
    }

    /// The children of a node, key and value, in the order of the files. It visits all nodes.
    pub(super) fn children(&self, parent: NodeId) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.nodes.iter().filter_map(move |node| {
            let family = self.families.get(node.family as usize).filter(|family| family.parent == parent)?;
            Some((&*family.key, node.value.as_deref()))
        })
    }

    /// The child that an entry leads to: the one with exactly this value, else the first pattern that matches, else
    /// the one without a value.
    fn child(&self, parent: NodeId, entry: &Entry<'_>) -> Option<NodeId> {
        if !self.nodes[parent.0 as usize].has_children {
            return None;
        }
        let index = self.family(parent, entry.key)?;
        let family = &self.families[index as usize];
        if !family.has_values {
            return family.any;
        }
        self.exact(index, entry.value).or_else(|| family.compiled.as_ref()?.find(entry.value)).or(family.any)
    }

    fn push(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(node);
        self.written.push(None);
        id
    }

    fn child_of(&self, family: u32, value: Option<&str>) -> Option<NodeId> {
        match value {
            None => self.families[family as usize].any,
            Some(value) => {
                self.exact(family, value).or_else(|| self.in_table(&self.pattern_table, family, value))
            }
        }
    }

    fn family(&self, parent: NodeId, key: &str) -> Option<u32> {
        let is = |&index: &u32| {
            let family = &self.families[index as usize];
            family.parent == parent && *family.key == *key
        };
        self.family_table.find(hash(&self.hasher, parent.0, key), is).copied()
    }

    fn exact(&self, family: u32, value: &str) -> Option<NodeId> {
        self.in_table(&self.exact_table, family, value)
    }

    fn in_table(&self, table: &HashTable<NodeId>, family: u32, value: &str) -> Option<NodeId> {
        let is = |id: &NodeId| {
            let node = &self.nodes[id.0 as usize];
            node.family == family && node.value.as_deref() == Some(value)
        };
        table.find(hash(&self.hasher, family, value), is).copied()
    }

    fn family_or_new(&mut self, parent: NodeId, key: &str) -> u32 {
        if let Some(index) = self.family(parent, key) {
            return index;
        }
        let index = self.families.len() as u32;
        let (key, patterns) = (Box::from(key), Vec::new());
        self.families.push(Family { parent, key, has_values: false, any: None, patterns, compiled: None });
        let (hasher, families) = (&self.hasher, &self.families);
        let rehash =
            |&index: &u32| hash(hasher, families[index as usize].parent.0, &families[index as usize].key);
        self.family_table.insert_unique(rehash(&index), index, rehash);
        index
    }

    fn insert(&mut self, id: NodeId, family: u32, value: &str, is_text: bool) {
        let (hasher, nodes) = (&self.hasher, &self.nodes);
        let rehash = |id: &NodeId| {
            let node = &nodes[id.0 as usize];
            hash(hasher, node.family, node.value.as_deref().unwrap_or_default())
        };
        let table = if is_text { &mut self.exact_table } else { &mut self.pattern_table };
        table.insert_unique(hash(hasher, family, value), id, rehash);
    }
}

fn hash(hasher: &FixedState, number: u32, text: &str) -> u64 {
    hasher.hash_one(Pair(number, text))
}

struct Pair<'a>(u32, &'a str);

impl Hash for Pair<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u32(self.0);
        state.write(self.1.as_bytes());
    }
}
