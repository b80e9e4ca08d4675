//! Epochs: a reset of all counters below a path, which touches none of them.
//!
//! In: resets, each of a path and with a number that grows. Out: the same rules with other keys below these paths. A
//! counter of an older epoch is asked by nobody any more, wherever it is, and expires by itself; so do leases, hits that
//! go back, and whatever else is known of it. Rules that no reset concerns keep their keys.
//!
//! Epochs only grow: merging is the same in any order and any number of times, so nodes agree once each has heard of
//! all resets.

use std::collections::BTreeMap;

use crate::key::{KeySecret, KeySeed, SharedId};
use crate::rule::Rule;
use crate::rules::RuleSet;
use crate::rules::tree::NodeId;

/// Marks seeds that a reset has made.
const EPOCH: &[u8] = b"epoch";

/// The first nodes of the paths of some rules: keys and values as the rules have them, patterns too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathPrefix {
    /// The domain.
    pub domain: String,
    /// Its nodes from the top. None: all rules of the domain.
    pub nodes: Vec<PathNode>,
}

/// One node of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathNode {
    /// The key.
    pub key: String,
    /// The value or pattern; `None`: the rules say none.
    pub value: Option<String>,
}

/// The number of a reset. A later one is greater. `0`: there was none.
pub type Epoch = u64;

/// The last reset of each path that was reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Epochs(BTreeMap<PathPrefix, Epoch>);

impl Epochs {
    /// Takes a reset in. Returns whether that changes anything: a number that is not greater does not.
    pub fn raise(&mut self, path: PathPrefix, epoch: Epoch) -> bool {
        let known = self.0.entry(path).or_default();
        let is_later = epoch > *known;
        *known = epoch.max(*known);
        is_later
    }

    /// Takes all resets of others in. Returns whether that changes anything.
    pub fn merge(&mut self, others: &Self) -> bool {
        let raised = others.0.iter().filter(|(path, epoch)| self.raise((*path).clone(), **epoch));
        raised.count() > 0
    }

    /// The last reset of exactly this path; 0: none.
    pub fn of(&self, path: &PathPrefix) -> Epoch {
        self.0.get(path).copied().unwrap_or_default()
    }

    /// All of them, by their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&PathPrefix, Epoch)> {
        self.0.iter().map(|(path, &epoch)| (path, epoch))
    }

    /// How many paths were reset.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there was no reset.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl RuleSet {
    /// How many rules have a counter at or below this path. `None`: no rule's path begins so.
    pub fn rules_below(&self, path: &PathPrefix) -> Option<usize> {
        let top = self.node_of(path)?;
        let mut rules = 0;
        self.tree.descend(|node, above: Option<bool>| {
            let is_below = node == top || above == Some(true);
            let is_limited = |rule: u32| self.rules[rule as usize].limit.is_some();
            rules += usize::from(is_below && self.tree.rule(node).is_some_and(is_limited));
            is_below
        });
        Some(rules)
    }

    /// The rule with exactly this path.
    pub fn rule_at(&self, path: &PathPrefix) -> Option<&Rule> {
        self.rule(self.tree.rule(self.node_of(path)?)? as usize)
    }

    /// The same rules in these epochs. It visits each node once.
    #[must_use]
    pub fn in_epochs(mut self, epochs: &Epochs) -> Self {
        let begun: BTreeMap<NodeId, Epoch> =
            epochs.iter().filter_map(|(path, epoch)| Some((self.node_of(path)?, epoch))).collect();
        if begun.is_empty() {
            return self;
        }
        let (tree, secret) = (&self.tree, &self.secret);
        tree.descend(|node, above: Option<Own>| {
            let above = above.unwrap_or(Own { depth: 0, epochs: None });
            let epochs = match begun.get(&node) {
                Some(&epoch) => Some(below(above, epoch)),
                None => above.epochs,
            };
            if let (Some(rule), Some(epochs)) = (tree.rule(node), epochs) {
                put_in(&mut self.rules[rule as usize], &epochs, secret);
            }
            Own { depth: above.depth + 1, epochs }
        });
        self
    }

    fn node_of(&self, path: &PathPrefix) -> Option<NodeId> {
        let root = self.domains.get(path.domain.as_str())?.root;
        self.tree.node(root, path.nodes.iter().map(|node| (node.key.as_str(), node.value.as_deref())))
    }
}

/// What a node hands to those below.
#[derive(Clone, Copy)]
struct Own {
    /// How many nodes are above them.
    depth: u32,
    /// Stands for all resets of the node and of those above; `None`: there was none.
    epochs: Option<SharedId>,
}

/// What stands for the resets above a node and its own one.
fn below(Own { depth, epochs }: Own, epoch: Epoch) -> SharedId {
    let above = epochs.map(|SharedId(above)| above);
    SharedId::of([above.as_ref().map_or(&[][..], |above| above), &depth.to_le_bytes(), &epoch.to_le_bytes()])
}

/// Makes the keys of a rule those of these epochs.
fn put_in(rule: &mut Rule, epochs: &SharedId, secret: &KeySecret) {
    let loaded = rule.loaded_seeds();
    let seed = |of: &KeySeed| secret.seed([EPOCH, &of.bytes(), &epochs.0]);
    rule.seed = seed(&loaded.seed);
    rule.shared = SharedId::of([EPOCH, &loaded.shared.0, &epochs.0]);
    if let (Some(candidate), Some(of)) = (&mut rule.candidate, &loaded.candidate) {
        candidate.seed = seed(of);
    }
    rule.loaded = Some(Box::new(loaded));
}
