//! Checked files → a [`RuleSet`]: the tree of nodes, and a [`Rule`] for every node with a limit. What only shows
//! when all files are seen together is refused here: equal nodes, and a domain in two files.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::FixedState;

use crate::engine::key::{Key, KeySecret, KeySeed};
use crate::engine::limit::{Algorithm, Limit};
use crate::engine::rules::check::{CheckedFile, CheckedLimit, CheckedNode};
use crate::engine::rules::diagnostic::{Diagnostics, Place};
use crate::engine::rules::metric_name::NamedNode;
use crate::engine::rules::tree::{NodeId, Tree};
use crate::engine::rules::{LoadOptions, MetricName, Rule, RuleSet};

/// Compiles files, in this order.
pub(super) fn compile(files: &[CheckedFile<'_>], options: &LoadOptions, errors: &mut Diagnostics) -> RuleSet {
    let (domains, nodes) = (HashMap::new(), HashMap::new());
    let mut compiler = Compiler { options, errors, set: empty(options), domains, nodes };
    for file in files {
        compiler.file(file);
    }
    compiler.set.tree.complete();
    compiler.set
}

/// The set of no files.
pub(super) fn empty(options: &LoadOptions) -> RuleSet {
    let Key(random) = options.secret.seed([b"tree".as_slice()]).key([]);
    let seed = random as u64;
    RuleSet {
        default_algorithm: options.default_algorithm,
        rules: Vec::new(),
        tree: Tree::new(seed),
        domains: hashbrown::HashMap::with_hasher(FixedState::with_seed(seed)),
        secret: options.secret,
    }
}

struct Compiler<'c, 'f> {
    options: &'c LoadOptions,
    errors: &'c mut Diagnostics,
    set: RuleSet,
    /// Where each domain and each node was written first.
    domains: HashMap<Arc<str>, (&'f str, Place)>,
    nodes: HashMap<NodeId, (&'f str, Place)>,
}

/// The file and domain of the nodes that are being compiled.
#[derive(Clone, Copy)]
struct Whose<'f, 'd> {
    file: &'f str,
    domain: &'d Arc<str>,
}

impl<'f> Compiler<'_, 'f> {
    fn file(&mut self, file: &CheckedFile<'f>) {
        let CheckedFile { name, domain, domain_at, nodes } = file;
        if let Some(&(first, at)) = self.domains.get(domain).filter(|_| !self.options.merge_domains) {
            self.errors.add(name, *domain_at, || {
                let place = told(first, at);
                format!(
                    "domain `{domain}` is in {place} too (expected one file a domain, or MERGE_DOMAIN_CONFIG)"
                )
            });
        }
        self.domains.entry(domain.clone()).or_insert((name, *domain_at));
        let root = self.root(domain);
        self.nodes(Whose { file: name, domain }, root, nodes, &mut Vec::new());
    }

    fn root(&mut self, domain: &Arc<str>) -> NodeId {
        let tree = &mut self.set.tree;
        *self.set.domains.entry(domain.clone()).or_insert_with(|| tree.add_root())
    }

    /// Recursion is bounded by the depth that `check` lets through.
    fn nodes<'n>(
        &mut self,
        whose: Whose<'f, '_>,
        parent: NodeId,
        nodes: &'n [CheckedNode],
        path: &mut Vec<&'n CheckedNode>,
    ) {
        for node in nodes {
            path.push(node);
            match self.set.tree.add(parent, &node.key, node.value.as_deref()) {
                Ok(id) => {
                    self.nodes.insert(id, (whose.file, node.at));
                    if let Some(limit) = &node.limit {
                        self.rule(whose, id, limit, path);
                    }
                    self.nodes(whose, id, &node.children, path);
                }
                Err(equal) => self.equal_nodes(whose.file, node, equal),
            }
            path.pop();
        }
    }

    fn equal_nodes(&mut self, file: &str, node: &CheckedNode, equal: NodeId) {
        let first = self.nodes.get(&equal).map(|&(file, at)| told(file, at)).unwrap_or_default();
        let CheckedNode { key, value, .. } = node;
        self.errors.add(file, node.at, || match value {
            Some(value) => {
                format!("key `{key}` with value `{value}` is at {first} too (expected one such node)")
            }
            None => format!("key `{key}` without a value is at {first} too (expected one such node)"),
        });
    }

    fn rule(&mut self, whose: Whose<'_, '_>, id: NodeId, checked: &CheckedLimit, path: &[&CheckedNode]) {
        let Some(node) = path.last() else { return };
        let named: Vec<NamedNode<'_>> = path.iter().map(|node| named(node)).collect();
        let rule = Rule {
            id: self.set.rules.len(),
            domain: whose.domain.clone(),
            limit: checked.limit,
            unit: checked.unit,
            unit_multiplier: checked.unit_multiplier,
            name: checked.name.as_str().into(),
            replaces: checked.replaces.iter().map(|name| name.as_str().into()).collect(),
            shadow_mode: node.shadow_mode,
            quota_mode: node.quota_mode,
            metric_name: MetricName::of_path(&named, node.detailed_metric),
            metadata: node.metadata.clone(),
            sync: checked.sync,
            on_store_failure: checked.on_store_failure,
            seed: seed(&self.options.secret, whose.domain, checked.limit.as_ref(), path),
            keyed_levels: path.iter().rev().fold(0, |levels, node| levels << 1 | u32::from(node.varies())),
        };
        self.set.tree.set_rule(id, rule.id as u32);
        self.set.rules.push(rule);
    }
}

fn told(file: &str, Place { line, column }: Place) -> String {
    format!("{file}:{line}:{column}")
}

fn named(node: &CheckedNode) -> NamedNode<'_> {
    let CheckedNode { key, value, value_to_metric, .. } = node;
    let (value, varies) = (value.as_deref(), node.varies());
    NamedNode { key, value, varies, value_to_metric: *value_to_metric }
}

/// The constant part of the keys of a rule's counters: domain, algorithm, window, granularity and path. Each level
/// of the path is a key, a value or pattern, and what that is: all of them length-prefixed, so injective.
fn seed(secret: &KeySecret, domain: &str, limit: Option<&Limit>, path: &[&CheckedNode]) -> KeySeed {
    let window = limit.map_or(0, Limit::window_nanos).to_le_bytes();
    let (algorithm, buckets) = limit.map_or(("unlimited", (0, 0)), |limit| match limit.algorithm() {
        Algorithm::SlidingWindow => (limit.algorithm().name(), limit.buckets()),
        other => (other.name(), (0, 0)),
    });
    let (numerator, denominator) = (buckets.0.to_le_bytes(), buckets.1.to_le_bytes());
    let limit =
        [b"rule".as_slice(), domain.as_bytes(), algorithm.as_bytes(), &window, &numerator, &denominator];
    let levels = path.iter().flat_map(|node| {
        let kind = match (&node.value, node.varies()) {
            (None, _) => "any",
            (Some(_), true) => "pattern",
            (Some(_), false) if node.share_threshold => "shared pattern",
            (Some(_), false) => "value",
        };
        [node.key.as_bytes(), kind.as_bytes(), node.value.as_deref().unwrap_or_default().as_bytes()]
    });
    secret.seed(limit.into_iter().chain(levels))
}
