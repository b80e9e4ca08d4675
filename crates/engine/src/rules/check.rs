//! The raw tree of a file → checked nodes: every field has its type, and the fields of one node fit each other.
//! `limitador` makes nodes of Limitador's limits.
//!
//! `compile` checks what only all nodes together show (equal nodes, a domain in two files).

mod actions;
mod ban;
mod candidate;
mod classes;
mod concurrency;
mod limit;
mod limitador;
mod limits_from;
mod metadata;
mod period;
mod prefix;
mod reserve;
mod value;

use std::sync::Arc;

use serde_json::Value;

use crate::limit::Limit;
use crate::pattern::Matcher;
use crate::rules::actions::Actions;
use crate::rules::diagnostic::Diagnostics;
use crate::rules::fields::{Fields, Reader};
use crate::rules::hash::{self, FileHash};
use crate::rules::keys::Section;
use crate::rules::lists::Lists;
use crate::rules::quote::quote;
use crate::rules::selectors::Selector;
use crate::rules::{Cost, LoadOptions, RulesFormat, StoreFailure, Sync, text};
use crate::unit::Window;
pub(super) use ban::CheckedBan;
pub(super) use classes::CheckedClasses;
pub(super) use prefix::CheckedPrefix;
pub(super) use reserve::CheckedReserve;
use tidegate_yaml::{Budget, Content, Document, NodeId, Place};

/// How deep descriptors may nest.
const LEVELS_MAX: usize = 32;

/// The rules of a domain in a file.
#[derive(Debug)]
pub(super) struct CheckedFile<'f> {
    pub(super) name: &'f str,
    /// Empty when it is missing, which is reported already.
    pub(super) domain: Arc<str>,
    pub(super) domain_at: Place,
    pub(super) actions: Actions,
    /// Where each of the actions' descriptors stands.
    pub(super) actions_at: Vec<Place>,
    /// Something in a wrong place was ignored, and is already reported.
    pub(super) misplaced: bool,
    pub(super) nodes: Vec<CheckedNode>,
    /// Which requests meet each of the nodes. Empty: they are found by descriptors alone.
    pub(super) selectors: Vec<Selector>,
    pub(super) hash: FileHash,
}

/// A node: a mapping with a `key`.
#[derive(Debug)]
pub(super) struct CheckedNode {
    pub(super) at: Place,
    pub(super) key: String,
    pub(super) value: Matcher,
    pub(super) value_at: Option<Place>,
    pub(super) share_threshold: bool,
    pub(super) prefix: Option<CheckedPrefix>,
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) detailed_metric: bool,
    pub(super) value_to_metric: bool,
    /// `metrics: aggregate`.
    pub(super) aggregates_metrics: bool,
    pub(super) metadata: Value,
    pub(super) limit: Option<CheckedLimit>,
    pub(super) concurrency: Option<CheckedLimit>,
    pub(super) ban: Option<CheckedBan>,
    pub(super) reserve: Option<CheckedReserve>,
    pub(super) classes: Option<CheckedClasses>,
    /// The place of `limits_from: store`: keys may have records.
    pub(super) limits_from_store: Option<Place>,
    /// Something in a wrong place was ignored, and is already reported.
    pub(super) misplaced: bool,
    pub(super) children: Vec<CheckedNode>,
}

/// A `rate_limit`.
#[derive(Debug)]
pub(super) struct CheckedLimit {
    /// `None` is `unlimited`.
    pub(super) limit: Option<Limit>,
    pub(super) is_unlimited: bool,
    /// The candidate.
    pub(super) candidate: Option<Limit>,
    pub(super) window: Window,
    pub(super) name: String,
    pub(super) replaces: Vec<(Place, String)>,
    pub(super) sync: Option<Sync>,
    pub(super) on_store_failure: Option<StoreFailure>,
    pub(super) cost: Cost,
    pub(super) near: Option<f64>,
    /// `id` of `concurrency`: the key of the entry that names a call.
    pub(super) call_id: Option<Arc<str>>,
    /// `retry` of `concurrency`.
    pub(super) retry_nanos: u64,
}

impl CheckedNode {
    /// The key of one entry more, which a descriptor of this node may have: it names a class or a call.
    pub(super) fn trailing_key(&self) -> Option<&Arc<str>> {
        let classes = self.classes.as_ref().map(|classes| &classes.key);
        classes.or_else(|| self.concurrency.as_ref()?.call_id.as_ref())
    }

    /// Its limits: the `rate_limit`, and the bound on calls in flight.
    pub(super) fn limits(&self) -> impl Iterator<Item = &CheckedLimit> {
        self.limit.iter().chain(&self.concurrency)
    }

    /// Requests with different values match this node, and have different counters.
    pub(super) fn varies(&self) -> bool {
        !self.share_threshold && !matches!(self.value, Matcher::Exact(_))
    }
}

/// Checks the text of a file, with the lists that it may name. `Err`: it is not YAML, where and why. All other problems
/// go to `errors`.
pub(super) fn check<'f>(
    file: &'f str,
    text: &str,
    options: &LoadOptions,
    budget: &mut Budget,
    lists: &Lists,
    errors: &mut Diagnostics,
    warnings: &mut Diagnostics,
) -> Result<Vec<CheckedFile<'f>>, (Place, String)> {
    let document = Document::parse(text, budget)?;
    let reader = Reader { file, document: &document, errors, warnings };
    let mut checker = Checker { reader, options, lists, normalize_path: true };
    Ok(match options.format {
        RulesFormat::Tidegate => checker.file(file).into_iter().collect(),
        RulesFormat::Limitador => checker.limits_file(file),
    })
}

/// Whether these bytes are a YAML mapping with a `domain`, whatever else is wrong with them.
pub(super) fn is_rules(bytes: &[u8], budget: &Budget) -> bool {
    let has_domain = |text: &str| {
        let document = Document::parse(text, &mut budget.clone()).ok()?;
        match &document.node(document.root?).content {
            Content::Mapping(pairs) => Some(pairs.iter().any(|&(key, _)| {
                matches!(&document.node(key).content, Content::Scalar(scalar) if scalar.text == "domain")
            })),
            _ => None,
        }
    };
    text::decode(bytes).is_ok_and(|text| has_domain(&text).unwrap_or(false))
}

struct Checker<'d, 't> {
    reader: Reader<'d, 't>,
    options: &'d LoadOptions,
    lists: &'d Lists,
    /// `:path` in the file's `rate_limits` means the normal form.
    normalize_path: bool,
}

impl Checker<'_, '_> {
    /// The root of a file's only document. None: there is none that could be rules, which is reported. `expected` says
    /// what a file contains.
    fn root(&mut self, expected: &str) -> Option<NodeId> {
        if let Some(second) = self.reader.document.second {
            self.reader.warning(second, || {
                "a second YAML document is ignored (expected one in each file)".to_owned()
            });
        }
        let Some(root) = self.reader.document.root else {
            self.reader.error(Place::START, || format!("the file is empty (expected {expected})"));
            return None;
        };
        if let Some(kind) = self.kind_of_manifest(root) {
            let at = self.reader.at(root);
            self.reader.error(at, || {
                format!("a Kubernetes manifest of the kind {kind} (expected rules alone: the text below `data`, in its own file)")
            });
            return None;
        }
        Some(root)
    }

    fn file<'f>(&mut self, name: &'f str) -> Option<CheckedFile<'f>> {
        let root = self.root("`domain` and `descriptors`")?;
        let fields = self.reader.fields(&[root], Section::File)?;
        let domain = self.required(&fields, "domain");
        let (actions, actions_at) = self.actions(&fields);
        let nodes = self.nodes(&fields, 1);
        let (domain_at, domain) = domain.unwrap_or((fields.at, String::new()));
        let misplaced = fields.misplaced;
        let hash = hash::of_values(self.reader.document, root);
        let domain = domain.into();
        let selectors = Vec::new();
        Some(CheckedFile { name, domain, domain_at, actions, actions_at, misplaced, nodes, selectors, hash })
    }

    /// The kind of a Kubernetes resource.
    fn kind_of_manifest(&self, root: NodeId) -> Option<String> {
        let document = self.reader.document;
        let Content::Mapping(pairs) = &document.node(root).content else { return None };
        let value = |name: &str| {
            let is =
                |id: NodeId| matches!(&document.node(id).content, Content::Scalar(key) if key.text == name);
            pairs.iter().find(|&&(key, _)| is(key)).map(|&(_, value)| &document.node(value).content)
        };
        match (value("apiVersion"), value("kind")) {
            (Some(_), Some(Content::Scalar(kind))) => Some(quote(&kind.text)),
            _ => None,
        }
    }

    /// A required text.
    fn required(&mut self, fields: &Fields, name: &str) -> Option<(Place, String)> {
        let text = self.reader.text(fields, name).map(|(at, text)| (at, text.to_owned()));
        if !self.reader.is_given(fields, name) {
            let at = fields.last(name).map_or(fields.at, |node| self.reader.at(node));
            self.reader.error(at, || format!("`{name}` is missing or empty (expected a text)"));
        }
        text
    }

    /// The `descriptors` at a level, counted from 1. Recursion is bounded by the number of levels.
    fn nodes(&mut self, fields: &Fields, level: usize) -> Vec<CheckedNode> {
        let nodes = self.reader.list(fields, "descriptors");
        if let Some(&first) = nodes.first().filter(|_| level > LEVELS_MAX) {
            let at = self.reader.at(first);
            self.reader.error(at, || {
                format!("`descriptors` nested too deep (expected at most {LEVELS_MAX} levels)")
            });
            return Vec::new();
        }
        nodes.iter().filter_map(|&node| self.node(node, level)).collect()
    }

    fn node(&mut self, node: NodeId, level: usize) -> Option<CheckedNode> {
        let fields = self.reader.fields(&[node], Section::Descriptor)?;
        let key = self.required(&fields, "key");
        let (value_at, value) = self.matcher(&fields);
        let share_threshold = self.share_threshold(&fields, &value);
        let prefix = self.prefix(&fields, &value);
        // Control planes name a node by one text, `*` included, as key and value.
        let is_name = |key: &str| value.text() == Some(key);
        if let Some((at, key)) = key.as_ref().filter(|(_, key)| key.contains('*') && !is_name(key)) {
            self.reader.warning(*at, || {
                format!(
                    "`*` in the key {} is an ordinary character (expected wildcards in `value`)",
                    quote(key)
                )
            });
        }
        let has_records = self.reader.is_given(&fields, "limits_from");
        let limit = self.limit(&fields.all("rate_limit"), has_records);
        let concurrency = self.concurrency(&fields, &fields.all("concurrency"));
        let ban = self.ban(&fields, limit.as_ref());
        let reserve = self.reserve(&fields, limit.as_ref());
        let limits_from_store = self.limits_from(&fields, limit.as_ref());
        let classes = self.classes(&fields, limit.as_ref());
        let aggregates_metrics = self.reader.word(&fields, "metrics", &[("aggregate", ())]).is_some();
        let (at, metadata) = (self.reader.at(node), self.metadata(&fields));
        let flag = |checker: &mut Self, name| checker.reader.flag(&fields, name);
        let checked = CheckedNode {
            at,
            key: String::new(),
            value,
            value_at,
            share_threshold,
            prefix,
            shadow_mode: flag(self, "shadow_mode"),
            quota_mode: flag(self, "quota_mode"),
            detailed_metric: flag(self, "detailed_metric"),
            value_to_metric: flag(self, "value_to_metric"),
            aggregates_metrics,
            metadata,
            limit,
            concurrency,
            ban,
            reserve,
            classes,
            limits_from_store,
            misplaced: fields.misplaced,
            children: self.nodes(&fields, level + 1),
        };
        self.refuse_trailing_keys(&checked);
        key.map(|(at, key)| CheckedNode { at, key, ..checked })
    }

    /// Refuses nodes below a node whose key is that of its classes or its calls: no entry can be both.
    fn refuse_trailing_keys(&mut self, node: &CheckedNode) {
        let Some(key) = node.trailing_key() else { return };
        for child in node.children.iter().filter(|child| *child.key == **key) {
            self.reader.error(child.at, || {
                let (key, what) = (quote(key), if node.classes.is_some() { "classes" } else { "calls" });
                format!("the key {key} names the {what} of the limit above (expected another key)")
            });
        }
    }

    fn share_threshold(&mut self, fields: &Fields, value: &Matcher) -> bool {
        let share_threshold = self.reader.flag(fields, "share_threshold");
        if share_threshold && !matches!(value, Matcher::Pattern(_)) {
            let at = fields.last("share_threshold").map_or(fields.at, |node| self.reader.at(node));
            self.reader
                .error(at, || "`share_threshold` without a pattern (expected `*`, `in`, `cidr`, `cidr_file` or `regex` in `value`)".to_owned());
        }
        share_threshold
    }
}
