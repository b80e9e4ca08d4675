//! Epochs: they reset one counter, or all below a path, without touching any.
//!
//! In: resets, each with a path and a number that grows. Out: the same rules with other keys below these paths, and
//! with other keys for single counters. No request uses a counter of an older epoch any more, wherever it is, and it
//! expires by itself; so do leases, hits that go back, and everything else about it. Rules and counters that are not
//! reset keep their keys.
//!
//! Epochs only grow: merging gives the same result in any order and any number of times, so nodes agree once each has
//! all resets.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::quality::FixedState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::key::{Key, KeySecret, KeySeed, SharedId};
use crate::path::{Path, PathEntry};
use crate::request::Entry;
use crate::rule::{CandidateLimit, Counting, Rule};
use crate::rules::set::{RuleAfterReset, RuleSet};
use crate::rules::tree::NodeId;

/// Marks seeds that a reset has made.
const EPOCH: &[u8] = b"epoch";
/// Marks seeds of single counters that a reset has made.
const COUNTER_EPOCH: &[u8] = b"counter epoch";

/// The counters that a reset sets to zero.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResetPath {
    /// The path. Without entries: the whole domain.
    pub path: Path,
    /// Whether it is about rules or one counter.
    pub reach: Reach,
}

/// The counters that the path of a reset is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// All counters of rules. The entries are the first ones of their paths: keys and values as the rules have them,
    /// patterns too.
    #[default]
    Below,
    /// One counter. The entries are those of a descriptor, each with its value.
    Counter,
}

/// The number of a reset. A later one is greater. `0`: there was none.
pub type Epoch = u64;

/// The last reset of each path that was reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs(BTreeMap<ResetPath, Epoch>);

impl Epochs {
    /// Adds a reset. Returns whether that changes anything: a number that is not greater does not.
    pub fn raise(&mut self, path: ResetPath, epoch: Epoch) -> bool {
        let known = self.0.entry(path).or_default();
        let is_later = epoch > *known;
        *known = epoch.max(*known);
        is_later
    }

    /// Adds all resets of others. Returns whether that changes anything.
    pub fn merge(&mut self, others: &Self) -> bool {
        let raised = others.0.iter().filter(|(path, epoch)| self.raise((*path).clone(), **epoch));
        raised.count() > 0
    }

    /// The last reset of exactly this path; 0: none.
    pub fn of(&self, path: &ResetPath) -> Epoch {
        self.0.get(path).copied().unwrap_or_default()
    }

    /// All of them, by their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&ResetPath, Epoch)> {
        self.0.iter().map(|(path, &epoch)| (path, epoch))
    }

    /// How many paths were reset.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// How many paths of this reach were reset.
    pub fn count(&self, reach: Reach) -> usize {
        self.0.keys().filter(|path| path.reach == reach).count()
    }

    /// Whether there was no reset.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl RuleSet {
    /// How many rules have a counter at or below this path. `None`: no rule's path begins like this. For a path to
    /// one counter: 1, or `None` if there is none.
    pub fn rules_below(&self, path: &ResetPath) -> Option<usize> {
        if path.reach == Reach::Counter {
            return (!self.counters_of(&path.path).is_empty()).then_some(1);
        }
        let top = self.node_of(&path.path)?;
        let mut rules = 0;
        self.tree.descend(|node, above: Option<bool>| {
            let is_below = node == top || above == Some(true);
            let is_limited = |first: u32| {
                let first = first as usize;
                self.rules[first..=first + self.rules[first].further].iter().any(|rule| rule.limit.is_some())
            };
            rules += usize::from(is_below && self.tree.rule(node).is_some_and(is_limited));
            is_below
        });
        Some(rules)
    }

    /// The rule with exactly this path.
    pub fn rule_at(&self, path: &Path) -> Option<&Rule> {
        self.rule(self.tree.rule(self.node_of(path)?)? as usize)
    }

    /// The same rules in these epochs. It visits each node once.
    #[must_use]
    pub fn in_epochs(mut self, epochs: &Epochs) -> Self {
        let of = |reach| epochs.iter().filter(move |(path, _)| path.reach == reach);
        let below = of(Reach::Below).filter_map(|(path, epoch)| Some((self.node_of(&path.path)?, epoch)));
        self.put_below_in(&below.collect());
        self.after_resets = self.counters_in(of(Reach::Counter));
        self.has_more |= !self.after_resets.is_empty();
        self
    }

    fn put_below_in(&mut self, begun: &BTreeMap<NodeId, Epoch>) {
        if begun.is_empty() {
            return;
        }
        let (tree, secret) = (&self.tree, &self.secret);
        tree.descend(|node, above: Option<Own>| {
            let above = above.unwrap_or(Own { depth: 0, epochs: None });
            let epochs = match begun.get(&node) {
                Some(&epoch) => Some(below(above, epoch)),
                None => above.epochs,
            };
            if let (Some(rule), Some(epochs)) = (tree.rule(node), epochs) {
                let first = rule as usize;
                let last = first + self.rules[first].further;
                self.rules[first..=last].iter_mut().for_each(|rule| put_in(rule, &epochs, secret));
            }
            Own { depth: above.depth + 1, epochs }
        });
    }

    /// For each counter that was reset by itself, the rule that replaces its own. Two descriptors may lead to one
    /// counter: then the resets of both are in its keys.
    fn counters_in<'e>(
        &self,
        epochs: impl Iterator<Item = (&'e ResetPath, Epoch)>,
    ) -> HashMap<Key, Arc<RuleAfterReset>, FixedState> {
        let mut begun: BTreeMap<Key, (&Rule, Vec<Epoch>)> = BTreeMap::new();
        for (path, epoch) in epochs {
            for (rule, key) in self.counters_of(&path.path) {
                begun.entry(key).or_insert((rule, Vec::new())).1.push(epoch);
            }
        }
        let replacement = |(key, (rule, epochs)): (Key, (&Rule, Vec<Epoch>))| {
            // Sets of rules share what they have in common: each reset makes another set.
            let known = self.after_resets.get(&key).filter(|known| known.epochs == epochs);
            let made = || {
                Arc::new(RuleAfterReset { rule: with_other_counters(rule, &epochs), epochs: epochs.clone() })
            };
            (key, known.map_or_else(made, Arc::clone))
        };
        begun.into_iter().map(replacement).collect()
    }

    /// The counters that a path leads to, one for each limit of its rule: with the rule and the key of each.
    fn counters_of(&self, path: &Path) -> SmallVec<[(&Rule, Key); 1]> {
        let entries: Option<SmallVec<[Entry<'_>; 8]>> = path.entries.iter().map(PathEntry::entry).collect();
        let (Some(entries), Some(domain)) = (entries, self.domains.get(&*path.domain)) else {
            return SmallVec::new();
        };
        let first = self.tree.find(domain.root, &entries).and_then(|rule| self.rule(rule as usize));
        let all =
            first.into_iter().flat_map(|rule| std::iter::once(rule).chain(self.further(rule, &entries)));
        let limited = all.filter(|rule| rule.limit.is_some());
        limited.map(|rule| (rule, rule.key(&entries))).collect()
    }

    fn node_of(&self, path: &Path) -> Option<NodeId> {
        let root = self.domains.get(&*path.domain)?.root;
        self.tree.node(root, path.entries.iter().map(|node| (node.key.as_str(), node.value.as_deref())))
    }
}

/// What a node passes to the nodes below it.
#[derive(Clone, Copy)]
struct Own {
    /// How many nodes are above them.
    depth: u32,
    /// A hash of all resets of the node and of those above; `None`: there was none.
    epochs: Option<SharedId>,
}

/// The hash of the resets above a node and its own one.
fn below(Own { depth, epochs }: Own, epoch: Epoch) -> SharedId {
    let above = epochs.map(|SharedId(above)| above);
    SharedId::of([above.as_ref().map_or(&[][..], |above| above), &depth.to_le_bytes(), &epoch.to_le_bytes()])
}

/// A rule with other counters. Everything else is as in the original.
fn with_other_counters(rule: &Rule, epochs: &[Epoch]) -> Rule {
    let bytes: Vec<u8> = epochs.iter().flat_map(|epoch| epoch.to_le_bytes()).collect();
    let parts = [COUNTER_EPOCH, &bytes];
    let candidate = rule.candidate.as_deref();
    let Counting { window, seed, shared } = &rule.counting;
    let shared = SharedId::of([COUNTER_EPOCH, &shared.0, &bytes]);
    Rule {
        counting: Counting { window: *window, seed: seed.with(parts), shared },
        candidate: candidate
            .map(|own| Box::new(CandidateLimit { seed: own.seed.with(parts), ..own.clone() })),
        // What its calls cost is learnt under the seeds of before.
        loaded: Some(Box::new(rule.loaded_seeds())),
        ..rule.clone()
    }
}

/// Makes the keys of a rule those of these epochs.
fn put_in(rule: &mut Rule, epochs: &SharedId, secret: &KeySecret) {
    let loaded = rule.loaded_seeds();
    let seed = |of: &KeySeed| secret.seed([EPOCH, &of.bytes(), &epochs.0]);
    rule.counting.seed = seed(&loaded.seed);
    rule.counting.shared = SharedId::of([EPOCH, &loaded.shared.0, &epochs.0]);
    if let (Some(candidate), Some(of)) = (&mut rule.candidate, &loaded.candidate) {
        candidate.seed = seed(of);
    }
    rule.loaded = Some(Box::new(loaded));
}
