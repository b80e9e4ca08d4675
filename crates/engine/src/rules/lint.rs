//! Warns of rules that load but have no effect, or another effect than they seem to have.
//!
//! In: the checked files. Only what is certain is reported, because nobody can overrule a warning under STRICT_RULES.

mod spelled;
mod spread;

use std::collections::{HashMap, HashSet};

use crate::pattern::Matcher;
use crate::rules::actions::{Action, Field, TextTest, TextTestKind, Value};
use crate::rules::check::{CheckedFile, CheckedNode};
use crate::rules::diagnostic::Diagnostics;
use crate::rules::hint;
use crate::rules::quote::quote;
use tidegate_yaml::Place;

pub(super) use spread::over_nodes;

/// The key of the action `masked_remote_address`, whose values are address ranges.
const MASKED_REMOTE_ADDRESS: &str = "masked_remote_address";

/// The most nodes of a set that are visited to find out whether `rate_limits` match any. Beyond it none is reported.
const VISITS_MAX: usize = 1_000_000;

/// Warns of texts that do not mean what they look like.
pub(super) fn texts(files: &[CheckedFile<'_>], warnings: &mut Diagnostics) {
    let constants = constants_of_actions(files);
    for file in files {
        let domain = &*file.domain;
        let mut warn_if_suspicious = |at: Place, name: &str, text: &str| {
            let why = hint::why_suspicious(text);
            why.iter().for_each(|why| warnings.add(file.name, at, || format!("`{name}` {why}")));
            why.is_some()
        };
        warn_if_suspicious(file.domain_at, "domain", domain);
        let mut literal = Vec::new();
        every_node(&file.nodes, &mut |node| {
            warn_if_suspicious(node.at, "key", &node.key);
            let Some((value, at)) = node.value.literal().zip(node.value_at) else { return };
            if !warn_if_suspicious(at, "value", value) {
                literal.extend(taken_literally(&node.key, value).map(|why| (at, &*node.key, value, why)));
            }
        });
        for (at, _, _, why) in
            literal.into_iter().filter(|&(_, key, value, _)| !constants.contains(&(domain, key, value)))
        {
            warnings.add(file.name, at, || format!("`value` {why}"));
        }
    }
}

/// Why this value does not mean what it looks like.
fn taken_literally(key: &str, value: &str) -> Option<&'static str> {
    let is_range = || spelled::like_a_range(value).filter(|_| key != MASKED_REMOTE_ADDRESS);
    spelled::like_a_regex(value).or_else(is_range)
}

/// Calls `visit` for every node. Recursion is bounded by the depth that `check` lets through.
fn every_node<'n>(nodes: &'n [CheckedNode], visit: &mut impl FnMut(&'n CheckedNode)) {
    for node in nodes {
        visit(node);
        every_node(&node.children, visit);
    }
}

/// The constants that the `rate_limits` of a domain make: domain, key, value.
fn constants_of_actions<'f>(files: &'f [CheckedFile<'_>]) -> HashSet<(&'f str, &'f str, &'f str)> {
    let actions = files.iter().flat_map(|file| {
        file.actions
            .0
            .iter()
            .flat_map(|item| &item.actions)
            .map(|action| (&*file.domain, &*action.key, &action.value))
    });
    actions
        .filter_map(|(domain, key, value)| match value {
            Value::Constant(value) | Value::HeaderValueMatch { value, .. } => Some((domain, key, &**value)),
            _ => None,
        })
        .collect()
}

/// Warns of what has no effect, in files without errors. In a file with errors the rest proves nothing.
pub(super) fn without_effect(files: &[CheckedFile<'_>], warnings: &mut Diagnostics) {
    let mut domains: HashMap<&str, Vec<&CheckedFile<'_>>> = HashMap::new();
    for file in files {
        domains.entry(&file.domain).or_default().push(file);
        every_node(&file.nodes, &mut |node| flags_without_limit(file.name, node, warnings));
    }
    let mut visits = VISITS_MAX;
    for files in domains.values() {
        no_descriptors(files, warnings);
        values_of_no_path(files, warnings);
        replaced_by_nobody(files, warnings);
        actions_without_limit(files, &mut visits, warnings);
    }
}

/// Warns of fields for a limit on a node without one. If all limits below have them too, they are superfluous and
/// mean what they seem to mean: Envoy Gateway writes rules like this.
fn flags_without_limit(file: &str, node: &CheckedNode, warnings: &mut Diagnostics) {
    // A node without both gets a single warning.
    if node.limits().next().is_some() || node.children.is_empty() {
        return;
    }
    // With `metrics: aggregate`, nodes below count in this node's series.
    let detailed = node.detailed_metric && !node.children.iter().any(|child| child.aggregates_metrics);
    let metadata = !node.metadata.is_null();
    let flags = [
        ("shadow_mode", node.shadow_mode && !every_limit(node, |below| below.shadow_mode)),
        ("quota_mode", node.quota_mode && !every_limit(node, |below| below.quota_mode)),
        ("detailed_metric", detailed && !every_limit(node, |below| below.detailed_metric)),
        ("metadata", metadata && !every_limit(node, |below| below.metadata == node.metadata)),
    ];
    for (name, has_no_effect) in flags {
        if has_no_effect {
            warnings.add(file, node.at, || {
                format!(
                    "`{name}` has no effect beside a key without `rate_limit`: the nodes below do not inherit it \
                     (expected beside each `rate_limit` that it is for)"
                )
            });
        }
    }
}

/// Whether all nodes with a limit below this one satisfy `is_so`.
fn every_limit(node: &CheckedNode, is_so: impl Fn(&CheckedNode) -> bool) -> bool {
    let mut holds = true;
    every_node(&node.children, &mut |below| holds &= below.limits().next().is_none() || is_so(below));
    holds
}

fn no_descriptors(files: &[&CheckedFile<'_>], warnings: &mut Diagnostics) {
    let Some(first) = files.first().filter(|_| files.iter().all(|file| file.nodes.is_empty())) else {
        return;
    };
    if files.iter().any(|file| file.misplaced) {
        return;
    }
    warnings.add(first.name, first.domain_at, || {
        format!("the domain {} limits nothing (expected `descriptors`)", quote(&first.domain))
    });
}

/// Warns of values that no `:path` has, under keys that `rate_limits` fill with nothing else. A gRPC client may send
/// such a key too, with paths in its own spelling. A value for those belongs under a key of its own, because no HTTP
/// request matches it.
fn values_of_no_path(files: &[&CheckedFile<'_>], warnings: &mut Diagnostics) {
    let mut is_path_alone: HashMap<&str, bool> = HashMap::new();
    for action in files.iter().flat_map(|file| &file.actions.0).flat_map(|item| &item.actions) {
        let is_path = matches!(action.value, Value::RequestHeader(Field::Path));
        *is_path_alone.entry(&action.key).or_insert(true) &= is_path;
    }
    is_path_alone.retain(|_, is_path_alone| *is_path_alone);
    if is_path_alone.is_empty() {
        return;
    }
    for file in files {
        every_node(&file.nodes, &mut |node| {
            let Some((value, at)) = node.value.literal().zip(node.value_at) else { return };
            let is_reported =
                || hint::why_suspicious(value).is_some() || taken_literally(&node.key, value).is_some();
            if is_path_alone.contains_key(&*node.key) && !may_match_a_normal_path(value) && !is_reported() {
                warnings.add(file.name, at, || {
                    format!(
                        "`value` is {}, which matches no `:path` in its normal form, and `rate_limits` fill this key \
                         with nothing else (expected the normal form, or `normalize_path: false` beside `rate_limits`)",
                        quote(value)
                    )
                });
            }
        });
    }
}

/// Whether some normal path has this value. What follows the first wildcard may belong to the query, which may hold
/// anything.
fn may_match_a_normal_path(value: &str) -> bool {
    let (kind, text) = match value.split_once('*') {
        Some((start, _)) => (TextTestKind::Prefix, start),
        None => (TextTestKind::Exact, value),
    };
    TextTest { kind, text: text.into(), ignore_case: false }.can_match_a_normal_path()
}

fn replaced_by_nobody(files: &[&CheckedFile<'_>], warnings: &mut Diagnostics) {
    let (mut names, mut replaced) = (HashSet::new(), Vec::new());
    for file in files {
        every_node(&file.nodes, &mut |node| {
            for limit in node.limits() {
                names.insert(&*limit.name);
                replaced.extend(limit.replaces.iter().map(|(at, name)| (file.name, *at, name)));
            }
        });
    }
    for (file, at, name) in replaced.into_iter().filter(|(_, _, name)| !names.contains(&***name)) {
        warnings.add(file, at, || {
            format!("no limit of this domain has the name {} (expected the `name` of one)", quote(name))
        });
    }
}

/// Warns of descriptors of `rate_limits` that cannot match a limit, whatever the request.
fn actions_without_limit(files: &[&CheckedFile<'_>], visits: &mut usize, warnings: &mut Diagnostics) {
    if files.iter().all(|file| file.nodes.is_empty()) {
        return;
    }
    for file in files {
        for (item, at) in file.actions.0.iter().zip(&file.actions_at) {
            let actions = &item.actions;
            let meets = files.iter().any(|file| may_meet(&file.nodes, actions, visits));
            if !meets && *visits > 0 {
                let keys: Vec<&str> = actions.iter().map(|action| &*action.key).collect();
                warnings.add(file.name, *at, || {
                    let keys = quote(&keys.join(", "));
                    format!("the descriptor {keys} meets no limit (expected `descriptors` with these keys)")
                });
            }
        }
    }
}

/// Whether entries that these actions make may lead to a limit below these nodes. Recursion is bounded by the depth
/// of nodes and the number of actions that may be left out.
fn may_meet(nodes: &[CheckedNode], actions: &[Action], visits: &mut usize) -> bool {
    let Some((action, rest)) = actions.split_first() else { return false };
    for node in nodes {
        let Some(left) = visits.checked_sub(1) else { return true };
        *visits = left;
        if node.key != *action.key || !may_have(node, &action.value) {
            continue;
        }
        // All remaining actions may be left out, but for one that names a class or a call.
        let is_trailing = |action: &Action| node.trailing_key().is_some_and(|key| **key == *action.key);
        let ends =
            rest.iter().all(|it| it.skip_if_absent || is_trailing(it)) && node.limits().next().is_some();
        if ends || may_meet(&node.children, rest, visits) {
            return true;
        }
    }
    action.skip_if_absent && may_meet(nodes, rest, visits)
}

/// Whether an entry of this value may lead to a node with its key.
fn may_have(node: &CheckedNode, value: &Value) -> bool {
    match (&node.value, value) {
        (Matcher::Exact(own), Value::Constant(value) | Value::HeaderValueMatch { value, .. }) => {
            **own == **value
        }
        _ => true,
    }
}
