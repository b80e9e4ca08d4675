//! Finds limits that several nodes would count separately, if a proxy chooses the node by the value of one key.
//!
//! In: the checked files and the key. Out: the place of every limit whose counters do not each belong to one value.

use crate::rules::check::{CheckedFile, CheckedNode};
use crate::rules::diagnostic::Diagnostics;
use crate::rules::quote::quote;

/// Reports every limit in whose path `key` is missing, or has values that share a counter.
pub(crate) fn over_nodes(files: &[CheckedFile<'_>], key: &str, found: &mut Diagnostics) {
    for file in files {
        below(file.name, &file.nodes, key, found);
    }
}

/// The same below a path without `key`. Recursion is bounded by the depth that `check` lets through.
fn below(file: &str, nodes: &[CheckedNode], key: &str, found: &mut Diagnostics) {
    for node in nodes.iter().filter(|node| !chooses(node, key)) {
        if node.limit.as_ref().is_some_and(|limit| limit.limit.is_some()) {
            found.add(file, node.at, || {
                let key = quote(key);
                format!(
                    "requests with different values of {key} share a counter of this limit, and every node counts it \
                     by itself (expected the key {key} in its path, without `share_threshold`)"
                )
            });
        }
        below(file, &node.children, key, found);
    }
}

/// Whether every counter at this node and below belongs to one value of `key`.
fn chooses(node: &CheckedNode, key: &str) -> bool {
    node.key == key && !node.share_threshold
}
