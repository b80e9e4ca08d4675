//! Checked files → a [`RuleSet`]: the tree of nodes, and a [`Rule`] for every node with a limit. Refuses errors that
//! only all files together show: equal nodes, and a domain in two files. Warns of problems that only the complete
//! tree shows: nodes that no value leads to, and nodes without effect.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::classes::Classes;
use crate::cost::CostUse;
use crate::held_costs::HeldCosts;
use crate::key::{Key, SharedId};
use crate::limit::Limit;
use crate::metric_name::{NamedNode, name_of_node};
use crate::pattern::Matcher;
use crate::prefix::Prefixes;
use crate::rule::{CandidateLimit, Counting, Sync};
use crate::rules::actions::Actions;
use crate::rules::check::{
    CheckedBan, CheckedClasses, CheckedFile, CheckedLimit, CheckedNode, CheckedPrefix, CheckedReserve,
};
use crate::rules::diagnostic::Diagnostics;
use crate::rules::hash;
use crate::rules::lists::Lists;
use crate::rules::quote::quote;
use crate::rules::selectors::Selector;
use crate::rules::set::Domain;
use crate::rules::tree::{Clash, NodeId};
use crate::rules::{Example, LoadOptions, MetricName, Rule, RuleSet, Written};
use tidegate_yaml::Place;

/// Compiles files, in this order. `lists` are those that they name.
pub(super) fn compile(
    files: &[CheckedFile<'_>],
    lists: &Lists,
    options: &LoadOptions,
    errors: &mut Diagnostics,
    warnings: &mut Diagnostics,
) -> RuleSet {
    let (domains, nodes, reported) = (HashMap::new(), HashMap::new(), HashSet::new());
    let mut compiler = Compiler { options, errors, set: RuleSet::empty(options), domains, nodes, reported };
    for file in files {
        compiler.file(file);
    }
    compiler.refuse_clashes();
    let of_lists = lists.values().map(|list| ("", &list.hash));
    let hashes = files.iter().map(|file| (&*file.domain, &file.hash)).chain(of_lists).collect();
    compiler.set.hash = hash::of_files(hashes, options);
    compiler.warn_of_shadowed(warnings);
    if compiler.errors.is_empty() {
        compiler.warn_of_idle(warnings);
    }
    HeldCosts::share_counters(compiler.set.rules.iter_mut().filter_map(|rule| rule.held_costs.as_mut()));
    compiler.set
}

/// An example request for the rule at the end of this path.
fn example(domain: &Arc<str>, path: &[Level<'_>]) -> Example {
    let value = |node: &CheckedNode| match (&node.value, &node.prefix) {
        (Matcher::Any, Some(_)) => "203.0.113.7".to_owned(),
        (value, _) => value.example(),
    };
    let entries = path.iter().map(|Level { node, .. }| (node.key.clone(), value(node))).collect();
    Example { domain: domain.clone(), entries }
}

struct Compiler<'c, 'f> {
    options: &'c LoadOptions,
    errors: &'c mut Diagnostics,
    set: RuleSet,
    /// Where each domain was written first.
    domains: HashMap<Arc<str>, (&'f str, Place)>,
    /// Where each node was written.
    nodes: HashMap<NodeId, (&'f str, Place)>,
    /// Nodes with a problem that is already reported.
    reported: HashSet<NodeId>,
}

/// A node on the path to a rule, with what all rules below it share. So nothing is as large as the number of rules
/// times the length of their paths.
struct Level<'n> {
    node: &'n CheckedNode,
    name: Arc<str>,
    /// Stands for this node and the ones above it.
    digest: u128,
    /// The same for all processes.
    shared: SharedId,
}

/// The file and domain of the nodes that are being compiled.
#[derive(Clone, Copy)]
struct Scope<'f, 'd> {
    file: &'f str,
    /// The same name, shared by all rules of the file.
    shared_file: &'d Arc<str>,
    domain: &'d Arc<str>,
}

impl Scope<'_, '_> {
    fn written(&self, at: Place) -> Written {
        Written { file: self.shared_file.clone(), line: at.line, column: at.column }
    }
}

impl<'f> Compiler<'_, 'f> {
    fn file(&mut self, file: &CheckedFile<'f>) {
        let CheckedFile { name, domain, domain_at, actions, nodes, selectors, .. } = file;
        let root = self.root(domain, actions, selectors);
        if let Some(&(first, at)) = self.domains.get(domain).filter(|_| !self.options.merge_domains) {
            self.errors.add(name, *domain_at, || {
                let (domain, place) = (quote(domain), place_text(first, at));
                let merge = self.options.names.merge_domains;
                format!("domain {domain} is in {place} too (expected one file a domain, or {merge})")
            });
        }
        if !domain.is_empty() {
            self.domains.entry(domain.clone()).or_insert((name, *domain_at));
        }
        let scope = Scope { file: name, shared_file: &Arc::from(*name), domain };
        self.nodes(scope, root, nodes, &mut Vec::new());
    }

    /// The root of a domain's nodes. Adds the file's actions and selectors to the domain.
    fn root(&mut self, domain: &Arc<str>, actions: &Actions, selectors: &[Selector]) -> NodeId {
        if let Some(selector) = selectors.first() {
            self.set.selects = true;
            let example = || Example { domain: domain.clone(), entries: selector.example() };
            self.set.example.get_or_insert_with(example);
        }
        let tree = &mut self.set.tree;
        if domain.is_empty() {
            return tree.add_root();
        }
        let new = || Domain { root: tree.add_root(), actions: Actions::default(), selectors: Vec::new() };
        let domain = self.set.domains.entry(domain.clone()).or_insert_with(new);
        domain.actions.0.extend_from_slice(&actions.0);
        domain.selectors.extend_from_slice(selectors);
        domain.root
    }

    /// Recursion is bounded by the depth that `check` allows.
    fn nodes<'n>(
        &mut self,
        scope: Scope<'f, '_>,
        parent: NodeId,
        nodes: &'n [CheckedNode],
        path: &mut Vec<Level<'n>>,
    ) {
        for node in nodes {
            match self.set.tree.add(parent, &node.key, &node.value) {
                Ok(id) => {
                    self.nodes.insert(id, (scope.file, node.at));
                    self.set.tree.set_written(id, scope.written(node.at));
                    self.reported.extend(node.misplaced.then_some(id));
                    path.push(self.level(node, path.last()));
                    self.limits(scope, id, path);
                    self.refuse_records(scope.file, path);
                    self.nodes(scope, id, &node.children, path);
                    path.pop();
                }
                Err(equal) => self.equal_nodes(scope.file, node, equal),
            }
        }
    }

    /// A level is the level above, its key, the kind of its value, and the value or pattern: each with its length in
    /// front.
    fn level<'n>(&self, node: &'n CheckedNode, above: Option<&Level<'_>>) -> Level<'n> {
        let kind = format!("{}{}", if node.share_threshold { "shared " } else { "" }, node.value.kind());
        let value = node.value.text();
        let name = name_of_node(&node.key, node.value.name());
        let digest = above.map_or(0, |level| level.digest).to_le_bytes();
        let SharedId(shared) = above.map_or(SharedId([0; 16]), |level| level.shared);
        let own = [node.key.as_bytes(), kind.as_bytes(), value.unwrap_or_default().as_bytes()];
        let below = |above| std::iter::once(above).chain(own);
        let Key(digest) = self.options.secret.seed(below(&digest)).key([]);
        Level { node, name, digest, shared: SharedId::of(below(&shared)) }
    }

    /// Compiles the patterns. Refuses nodes that cannot be where they are.
    fn refuse_clashes(&mut self) {
        for (node, clash) in self.set.tree.complete() {
            let Some(&(file, at)) = self.nodes.get(&node) else { continue };
            self.errors.add(file, at, || match clash {
                Clash::SameValue(value, other) => {
                    let other = self.nodes.get(&other).map(|&(file, at)| place_text(file, at));
                    let (value, other) = (quote(&value), other.unwrap_or_default());
                    format!("the value {value} in `in` is at {other} too (expected it once)")
                }
                Clash::RegexesTooLarge => {
                    "the regular expressions of this key are too large together (expected fewer or shorter ones)"
                        .to_owned()
                }
            });
        }
    }

    /// Warns of nodes that no value leads to, because an earlier pattern takes all of their values.
    fn warn_of_shadowed(&self, warnings: &mut Diagnostics) {
        for (node, by) in self.set.tree.shadowed() {
            let (Some(&(file, at)), Some(&(by_file, by_at))) = (self.nodes.get(&node), self.nodes.get(&by))
            else {
                continue;
            };
            warnings.add(file, at, || {
                let by = place_text(by_file, by_at);
                format!("no value leads here: the pattern at {by} takes them all (expected the narrower one first)")
            });
        }
    }

    /// Warns of nodes that have no limit and no nodes below them, and do not take values from a node next to them.
    fn warn_of_idle(&self, warnings: &mut Diagnostics) {
        for node in self.set.tree.idle().filter(|node| !self.reported.contains(node)) {
            let Some(&(file, at)) = self.nodes.get(&node) else { continue };
            warnings.add(file, at, || {
                "a key that limits nothing (expected `rate_limit` or `descriptors`)".to_owned()
            });
        }
    }

    fn equal_nodes(&mut self, file: &str, node: &CheckedNode, equal: NodeId) {
        let first = self.nodes.get(&equal).map(|&(file, at)| place_text(file, at)).unwrap_or_default();
        let key = quote(&node.key);
        self.errors.add(file, node.at, || match node.value.text() {
            Some(value) => {
                format!("key {key} with value {} is at {first} too (expected one such node)", quote(value))
            }
            None => format!("key {key} without a value is at {first} too (expected one such node)"),
        });
    }

    /// Refuses `limits_from` where there can be no records.
    fn refuse_records(&mut self, file: &str, path: &[Level<'_>]) {
        let Some(at) = path.last().and_then(|level| level.node.limits_from_store) else { return };
        if let Some(remedy) = self.options.no_records {
            let message = format!("`limits_from: store` without a store of records (expected {remedy})");
            self.errors.add(file, at, || message);
        }
        if path.iter().any(|level| level.node.share_threshold) {
            let message = "`limits_from` with `share_threshold`, whose values share a counter (expected one of the two: \
                           a record is for one value)";
            self.errors.add(file, at, || message.to_owned());
        }
        if path.iter().any(|level| level.node.prefix.is_some()) {
            let message = "`limits_from` with `prefix`, whose addresses share a counter (expected one of the two: a record \
                           is for one value)";
            self.errors.add(file, at, || message.to_owned());
        }
    }

    /// The limits of the last node of a path: one rule for each, one after the other.
    fn limits(&mut self, scope: Scope<'_, '_>, id: NodeId, path: &[Level<'_>]) {
        let Some(level @ Level { node, .. }) = path.last() else { return };
        let first = self.set.rules.len();
        if let Some(limit) = &node.limit {
            let rule = self.rule(scope, limit, level, path);
            let shorter = self.shorter(scope, &rule, path);
            let factor = (!shorter.is_empty()).then_some(1);
            self.set.rules.push(Rule { factor, ..rule });
            self.set.rules.extend(shorter);
        }
        if let Some(slots) = &node.concurrency {
            let rule = self.rule(scope, slots, level, path);
            self.set.rules.push(rule);
        }
        if let (Some(ban), Some(limited)) = (&node.ban, self.set.rules.get_mut(first)) {
            // Who spends a lease does not ask whether the key is banned.
            limited.sync = Some(Sync::Strict);
            let limited = limited.clone();
            let ban = self.ban(scope, ban, limited, level, path);
            self.set.rules.push(ban);
        }
        if let (Some(reserve), Some(limited)) = (&node.reserve, self.set.rules.get_mut(first)) {
            (limited.sync, limited.retry_nanos) = (Some(Sync::Strict), reserve.retry_nanos);
            let holds = holds(reserve, limited.clone());
            self.refuse_shorter(scope, first, node.at);
            self.set.rules.push(holds);
        }
        let rules = &mut self.set.rules[first..];
        rules.iter_mut().enumerate().for_each(|(place, rule)| rule.id = first + place);
        let further = rules.len().saturating_sub(1);
        let Some(rule) = rules.first_mut() else { return };
        rule.further = further;
        self.set.has_more |= further > 0 || self.set.counts_calls;
        self.set.tree.set_rule(id, first as u32);
        self.set.example.get_or_insert_with(|| example(scope.domain, path));
        if let Some(key) = node.trailing_key() {
            self.set.tree.set_trailing_key(id, Arc::clone(key));
        }
    }

    /// The further limits of a rule by shorter prefixes. Its counters differ by the prefixes in their keys.
    fn shorter(&mut self, scope: Scope<'_, '_>, rule: &Rule, path: &[Level<'_>]) -> Vec<Rule> {
        let (Some(limit), Some(Prefixes(longest))) = (rule.limit, &rule.prefixes) else { return Vec::new() };
        let of_levels =
            path.iter().enumerate().filter_map(|(at, level)| Some((at, level.node.prefix.as_ref()?)));
        let mut of_levels = of_levels.filter(|(_, prefix)| !prefix.shorter.is_empty());
        let Some((level, CheckedPrefix { at, shorter, .. })) = of_levels.next() else { return Vec::new() };
        if let Some((_, second)) = of_levels.next() {
            self.errors.add(scope.file, second.at, || {
                "`prefix` with several lengths at two levels of a path (expected one such level)".to_owned()
            });
        }
        if rule.quota_mode {
            self.errors.add(scope.file, *at, || {
                "`prefix` with several lengths and `quota_mode` (expected one length: in quota mode a request passes by the \
                 lengths that have room)"
                    .to_owned()
            });
        }
        let most = limit.algorithm().requests_max();
        let times = |number: u64, factor: u32| number.checked_mul(factor.into()).filter(|it| *it <= most);
        let mut rules = Vec::new();
        for (prefix, factor) in shorter {
            let factor = *factor;
            let numbers = times(limit.requests(), factor).zip(times(limit.burst(), factor));
            let Some((requests, burst)) = numbers else {
                self.errors.add(scope.file, *at, || {
                    format!(
                        "N times the factor {factor} is more than a limit may be (expected {most} at most)"
                    )
                });
                continue;
            };
            let mut prefixes = longest.clone();
            prefixes[level] = Some(prefix.clone());
            rules.push(Rule {
                limit: Some(limit.with_requests(requests).with_burst(burst)),
                prefixes: Some(Prefixes(prefixes)),
                factor: Some(factor),
                candidate: None,
                ..rule.clone()
            });
        }
        rules
    }

    /// Refuses prefixes of several lengths for a limit with `reserve`.
    fn refuse_shorter(&mut self, scope: Scope<'_, '_>, first: usize, at: Place) {
        if self.set.rules[first..].iter().any(|rule| rule.factor.is_some()) {
            self.errors.add(scope.file, at, || {
                "`reserve` with a `prefix` of several lengths (expected one length)".to_owned()
            });
        }
    }

    /// The ban of a rule. Its key is made of the values that it is about.
    fn ban(
        &mut self,
        scope: Scope<'_, '_>,
        CheckedBan { terms, on }: &CheckedBan,
        limited: Rule,
        Level { digest, shared, .. }: &Level<'_>,
        path: &[Level<'_>],
    ) -> Rule {
        let on = on.as_deref();
        for (at, key) in on.unwrap_or_default() {
            if path.iter().all(|level| level.node.key != *key) {
                let keys: Vec<String> = path.iter().map(|level| quote(&level.node.key)).collect();
                self.errors.add(scope.file, *at, || {
                    format!(
                        "`on` names {}, which is no key of this descriptor (expected {})",
                        quote(key),
                        keys.join(", ")
                    )
                });
            }
        }
        let is_named = |key: &str| on.is_some_and(|on| on.iter().any(|(_, named)| named == key));
        let keyed_levels = match on {
            Some(_) => {
                levels_of(path, |node| is_named(&node.key) && !matches!(node.value, Matcher::Exact(_)))
            }
            None => limited.keyed_levels,
        };
        let limit = Limit::ban(terms);
        let own = keyed_levels.to_le_bytes();
        let path_of = |path: &[u8]| [path, &own].concat();
        let (domain, limit_of) = (scope.domain, Some(&limit));
        let seed = constant_part(b"rule", domain, limit_of, &path_of(&digest.to_le_bytes()), |parts| {
            self.options.secret.seed(parts)
        });
        let shared =
            constant_part(b"rule", domain, limit_of, &path_of(&shared.0), |parts| SharedId::of(parts));
        let window = limited.counting.window;
        Rule {
            limit: Some(limit),
            counting: Counting { window, seed, shared },
            factor: None,
            candidate: None,
            ban_on: on.unwrap_or_default().iter().map(|(_, key)| key.as_str().into()).collect(),
            keyed_levels,
            ..limited
        }
    }

    fn rule(
        &mut self,
        scope: Scope<'_, '_>,
        checked: &CheckedLimit,
        level: &Level<'_>,
        path: &[Level<'_>],
    ) -> Rule {
        let (Scope { domain, .. }, Level { node, digest, shared, .. }) = (scope, level);
        let (limit, digest, secret) = (checked.limit.as_ref(), digest.to_le_bytes(), &self.options.secret);
        let seed = |mark| constant_part(mark, domain, limit, &digest, |parts| secret.seed(parts));
        let candidate =
            checked.candidate.map(|limit| Box::new(CandidateLimit { limit, seed: seed(b"candidate") }));
        let seed = seed(b"rule");
        let learning = secret.seed([b"learning".as_slice(), domain.as_bytes(), &digest]);
        let shared = constant_part(b"rule", domain, limit, &shared.0, |parts| SharedId::of(parts));
        self.set.has_more |= candidate.is_some() || !checked.replaces.is_empty();
        let keys = path.iter().map(|level| level.node.key.as_str());
        let records = node.limits_from_store.map(|_| secret.records(domain, keys));
        self.set.has_records |= records.is_some();
        self.set.counts_calls |= checked.call_id.is_some();
        let prefixes = prefixes(path);
        Rule {
            id: 0,
            further: 0,
            factor: None,
            domain: domain.clone(),
            written: scope.written(node.at),
            limit: checked.limit,
            candidate,
            counting: Counting { window: checked.window, seed, shared },
            name: checked.name.as_str().into(),
            replaces: checked.replaces.iter().map(|(_, name)| name.as_str().into()).collect(),
            shadow_mode: node.shadow_mode,
            quota_mode: node.quota_mode,
            metric_name: metric_name(path),
            metadata: node.metadata.clone(),
            sync: checked.sync,
            cost: CostUse::new(checked.cost),
            on_store_failure: checked.on_store_failure,
            near: checked.near,
            loaded: None,
            learning,
            records,
            classes: node
                .classes
                .as_ref()
                .map(|CheckedClasses { key, shares }| Classes { key: key.clone(), shares: shares.clone() }),
            has_own_pattern: prefixes.is_some() || path.iter().any(|level| level.node.value.is_of_tidegate()),
            is_plain: prefixes.is_none() && node.trailing_key().is_none(),
            prefixes,
            levels: path.len(),
            call_id: checked.call_id.clone(),
            ban_on: Box::default(),
            held_costs: None,
            retry_nanos: checked.retry_nanos,
            keyed_levels: keyed_levels(path),
        }
    }
}

/// The holds of a rule. They have a counter for each of the rule's: in Redis its key follows from the key of that.
fn holds(reserve: &CheckedReserve, limited: Rule) -> Rule {
    let seed = limited.counting.seed.with([b"holds".as_slice()]);
    Rule {
        limit: Some(Limit::holds(&reserve.terms)),
        held_costs: reserve.hold.map(HeldCosts::new),
        counting: Counting { seed, ..limited.counting },
        factor: None,
        is_plain: false,
        records: None,
        ..limited
    }
}

/// The levels of a path whose values are part of counters' keys: bit i stands for level i.
fn keyed_levels(path: &[Level<'_>]) -> u32 {
    levels_of(path, CheckedNode::varies)
}

/// The levels of a path with such nodes: bit i stands for level i.
fn levels_of(path: &[Level<'_>], is_meant: impl Fn(&CheckedNode) -> bool) -> u32 {
    path.iter().rev().fold(0, |levels, level| levels << 1 | u32::from(is_meant(level.node)))
}

/// The name of the last node of a path in metrics.
fn metric_name(path: &[Level<'_>]) -> MetricName {
    // `metrics: aggregate`: a node and those below count in the series of the node above.
    let counted = path.iter().position(|level| level.node.aggregates_metrics).unwrap_or(path.len());
    let detailed = path[..counted].last().is_some_and(|level| level.node.detailed_metric);
    let named = path.iter().map(|Level { node, name, .. }| NamedNode {
        name,
        varies: node.varies(),
        value_to_metric: node.value_to_metric,
    });
    MetricName::of_path(named, counted, detailed)
}

/// The prefixes of the nodes of a path, if any has one.
fn prefixes(path: &[Level<'_>]) -> Option<Prefixes> {
    let prefixes: Box<[_]> =
        path.iter().map(|level| level.node.prefix.as_ref().map(|prefix| prefix.longest.clone())).collect();
    prefixes.iter().any(Option::is_some).then_some(Prefixes(prefixes))
}

fn place_text(file: &str, Place { line, column }: Place) -> String {
    format!("{file}:{line}:{column}")
}

/// The constant part of the keys of a rule's counters: a mark, domain, algorithm, window, granularity and path.
fn constant_part<T>(
    mark: &'static [u8],
    domain: &str,
    limit: Option<&Limit>,
    path: &[u8],
    of: impl FnOnce([&[u8]; 7]) -> T,
) -> T {
    let (algorithm, numbers) = limit.map_or(("unlimited", [[0; 8]; 3]), Limit::counter_parts);
    let [window, numerator, denominator] = &numbers;
    of([mark, domain.as_bytes(), algorithm.as_bytes(), window, numerator, denominator, path])
}
