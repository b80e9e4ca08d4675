//! A file of limits in the form in which Limitador's operator writes it: a list. Each limit becomes a rule, and a selector of
//! the requests that meet it.
//!
//! Only this form is read. Limitador knows any CEL expression in `conditions` and `variables`; here each names one entry of the
//! first descriptor.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde_json::Value;

use super::limit::WINDOW_SECS;
use super::{CheckedFile, CheckedLimit, CheckedNode, CheckedReserve, Checker, LEVELS_MAX};
use crate::limit::{Algorithm, HoldTerms, Limit, Share};
use crate::pattern::Matcher;
use crate::rules::actions::Actions;
use crate::rules::fields::Fields;
use crate::rules::hash;
use crate::rules::keys::Section;
use crate::rules::quote::quote;
use crate::rules::selectors::{LIMIT, Selector};
use crate::time::SECOND_NANOS;
use crate::unit::Window;
use tidegate_yaml::{Content, NodeId, Place};

/// The most limits of a namespace: a request is compared with each of them, and may meet all.
const LIMITS_MAX: usize = 1_000;

/// How Kuadrant names the limits whose hits may be reserved: those of tokens.
const RESERVABLE: &str = "tokenlimit.";

/// How long a reservation lasts that nobody commits: what Limitador's --max-reservation-ttl is unless it is set.
const RESERVED_NANOS: u64 = 60 * SECOND_NANOS;

/// A limit as it is read.
struct ReadLimit {
    namespace: String,
    namespace_at: Place,
    selector: Selector,
    limit: CheckedLimit,
}

impl Checker<'_, '_> {
    /// The limits of a file, by namespace.
    pub(super) fn limits_file<'f>(&mut self, file: &'f str) -> Vec<CheckedFile<'f>> {
        let Some(root) = self.root("a list of limits, [] for none") else { return Vec::new() };
        let Content::Sequence(limits) = &self.reader.document.node(root).content else {
            self.reader.expected(root, "a list of limits");
            return Vec::new();
        };
        let hash = hash::of_values(self.reader.document, root);
        let mut namespaces = BTreeMap::new();
        for &item in limits {
            let Some(ReadLimit { namespace, namespace_at: at, selector, limit }) = self.limit_of_file(item)
            else {
                continue;
            };
            let checked = namespaces.entry(namespace).or_insert_with_key(|namespace| CheckedFile {
                name: file,
                domain: namespace.as_str().into(),
                domain_at: at,
                actions: Actions::default(),
                actions_at: Vec::new(),
                misplaced: false,
                nodes: Vec::new(),
                selectors: Vec::new(),
                hash,
            });
            self.add(checked, self.reader.at(item), selector, limit);
        }
        namespaces.into_values().collect()
    }

    /// Adds a limit to its namespace. Of limits with the same counters only the smallest is kept.
    fn add(&mut self, namespace: &mut CheckedFile<'_>, at: Place, selector: Selector, limit: CheckedLimit) {
        let variables = selector.variables.iter().map(|key| (key.as_str(), Matcher::Any));
        let path = std::iter::once((LIMIT, Matcher::Exact(selector.name.clone()))).chain(variables);
        let node = node_at(&mut namespace.nodes, path, at);
        if let Some(same) = &mut node.limit {
            let Place { line, column } = node.at;
            self.reader.warning(at, || {
                format!("a limit that counts the same is at {line}:{column} (expected one: the smaller `max_value` holds)")
            });
            if most(&limit) < most(same) {
                *same = limit;
            }
            return;
        }
        if namespace.selectors.len() == LIMITS_MAX {
            self.reader
                .error(at, || format!("too many limits in one namespace (expected at most {LIMITS_MAX})"));
            return;
        }
        node.at = at;
        node.reserve = limit.limit.filter(|_| is_reservable(&selector)).map(|limit| reserve(&limit));
        node.limit = Some(limit);
        namespace.selectors.push(selector);
    }

    /// One limit. `None`: something is wrong, which is reported.
    fn limit_of_file(&mut self, item: NodeId) -> Option<ReadLimit> {
        let fields = self.reader.fields(&[item], Section::Limit)?;
        let namespace = self.required(&fields, "namespace");
        let name = self.reader.text(&fields, "name").map(|(_, name)| name.to_owned()).unwrap_or_default();
        let most = self.required_number(&fields, "max_value", 0..=Algorithm::FixedWindow.requests_max());
        let secs = self.required_number(&fields, "seconds", WINDOW_SECS);
        let conditions = self.parts_of(&fields, "conditions", CONDITION, condition);
        let variables = self.parts_of(&fields, "variables", VARIABLE, variable);
        let ((namespace_at, namespace), secs, variables) = (namespace?, secs?, variables?);
        if variables.len() >= LEVELS_MAX {
            let most = LEVELS_MAX - 1;
            self.reader.error(fields.at, || format!("too many `variables` (expected at most {most})"));
            return None;
        }
        let most = most?;
        let limit = Limit::new(self.algorithm_for(most, fields.at), most, secs * SECOND_NANOS);
        let limit = CheckedLimit {
            limit: Some(limit),
            is_unlimited: false,
            candidate: None,
            window: Window::of_nanos(secs * SECOND_NANOS)?,
            name,
            replaces: Vec::new(),
            sync: None,
            on_store_failure: None,
            cost: self.options.default_cost,
            near: None,
            call_id: None,
            retry_nanos: SECOND_NANOS,
        };
        let selector = Selector::new(secs, conditions?, variables);
        Some(ReadLimit { namespace, namespace_at, selector, limit })
    }

    /// The algorithm that can count to so many hits: the one of all limits, or else one that can, with a warning. The operator can
    /// choose none, and would leave all limits of its file out of force for one that is large.
    fn algorithm_for(&mut self, most: u64, at: Place) -> Algorithm {
        let default = self.options.default_algorithm;
        let can_count = |algorithm: &Algorithm| most <= algorithm.requests_max();
        let found = [default, Algorithm::SlidingWindow].into_iter().find(can_count);
        let algorithm = found.unwrap_or(Algorithm::FixedWindow);
        if algorithm != default {
            self.reader.warning(at, || {
                let (name, max) = (default.name(), default.requests_max());
                format!(
                    "`max_value` is too large for {name}, so {} counts (expected at most {max})",
                    algorithm.name()
                )
            });
        }
        algorithm
    }

    /// A number that has to be there.
    fn required_number(&mut self, fields: &Fields, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        if !self.reader.is_given(fields, name) {
            self.reader.error(fields.at, || format!("`{name}` is missing (expected a number)"));
        }
        self.reader.number(fields, name, range).map(|(_, number)| number)
    }

    /// The conditions or the variables of a limit, each of this form. `None`: one is wrong, which is reported.
    fn parts_of<T: Ord>(
        &mut self,
        fields: &Fields,
        name: &str,
        form: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<BTreeSet<T>> {
        if fields.last(name).is_none() {
            self.reader.error(fields.at, || format!("`{name}` is missing (expected a list, [] for none)"));
            return None;
        }
        let document = self.reader.document;
        let parts = self.reader.list(fields, name).iter().map(|&item| match &document.node(item).content {
            Content::Scalar(text) => read(&text.text).ok_or_else(|| (item, quote(&text.text))),
            Content::Sequence(_) => Err((item, "a list".to_owned())),
            Content::Mapping(_) => Err((item, "a mapping".to_owned())),
        });
        let (good, bad): (Vec<_>, Vec<_>) = parts.partition(Result::is_ok);
        for (item, text) in bad.iter().filter_map(|part| part.as_ref().err()) {
            self.reader.error(self.reader.at(*item), || {
                format!("{text} in `{name}` (expected {form}, without quotes or backslashes inside)")
            });
        }
        bad.is_empty().then(|| good.into_iter().flatten().collect())
    }
}

/// The forms that are read.
const CONDITION: &str = r#"`descriptors[0]["KEY"] == "VALUE"`"#;
const VARIABLE: &str = r#"`descriptors[0]["KEY"]`"#;

/// The key and the value of a condition.
fn condition(text: &str) -> Option<(String, String)> {
    let (key, rest) = entry(text)?;
    let (value, rest) = quoted(rest.trim_start().strip_prefix("==")?.trim_start())?;
    rest.trim().is_empty().then(|| (key.to_owned(), value.to_owned()))
}

/// The key of a variable.
fn variable(text: &str) -> Option<String> {
    entry(text).filter(|(_, rest)| rest.trim().is_empty()).map(|(key, _)| key.to_owned())
}

/// The key of an entry of the first descriptor, at the begin of an expression, and the rest. Kuadrant writes `["KEY"]`; by hand
/// it may be `['KEY']` or `.KEY` too.
fn entry(text: &str) -> Option<(&str, &str)> {
    let rest = text.trim_start().strip_prefix("descriptors[0]")?;
    let (key, rest) = match rest.strip_prefix('.') {
        Some(rest) => {
            let is_in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let name = rest.split_at(rest.find(|letter| !is_in_name(letter)).unwrap_or(rest.len()));
            Some(name).filter(|_| !rest.starts_with(|letter: char| letter.is_ascii_digit()))?
        }
        None => {
            let (key, rest) = quoted(rest.strip_prefix('[')?)?;
            (key, rest.strip_prefix(']')?)
        }
    };
    (!key.is_empty()).then_some((key, rest))
}

/// The text in quotes at the begin, and the rest.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = ['"', '\''].into_iter().find(|quote| text.starts_with(*quote))?;
    text[1..].split_once(quote).filter(|(inside, _)| is_plain(inside))
}

/// Whether a text in quotes means itself: nothing in it is escaped, or ends it.
fn is_plain(text: &str) -> bool {
    !text.contains(['"', '\\', '\n'])
}

/// The most hits that a limit admits.
fn most(limit: &CheckedLimit) -> u64 {
    limit.limit.map_or(u64::MAX, |limit| limit.requests())
}

fn is_reservable(selector: &Selector) -> bool {
    selector.conditions.iter().any(|(key, _)| key.starts_with(RESERVABLE))
}

fn reserve(limit: &Limit) -> CheckedReserve {
    let (ttl_nanos, after_secs) = (RESERVED_NANOS, limit.remembered_secs());
    let terms = HoldTerms { ttl_nanos, after_secs, periods: None, worst: 0, share: Share::FULL };
    CheckedReserve { terms, retry_nanos: SECOND_NANOS, hold: None }
}

/// The node at the end of this path, which is not empty. Nodes that are not there yet are made.
fn node_at<'n, 'k>(
    mut nodes: &'n mut Vec<CheckedNode>,
    path: impl Iterator<Item = (&'k str, Matcher)>,
    at: Place,
) -> &'n mut CheckedNode {
    let mut path = path.peekable();
    loop {
        let (key, value) = path.next().expect("it ends with the return below");
        let is_it = |node: &CheckedNode| node.key == key && node.value.text() == value.text();
        let place = nodes.iter().position(is_it).unwrap_or(nodes.len());
        if place == nodes.len() {
            nodes.push(node(at, key, value));
        }
        let node = &mut nodes[place];
        if path.peek().is_none() {
            return node;
        }
        nodes = &mut node.children;
    }
}

/// A node without a limit.
fn node(at: Place, key: &str, value: Matcher) -> CheckedNode {
    CheckedNode {
        at,
        key: key.to_owned(),
        value,
        value_at: None,
        share_threshold: false,
        prefix: None,
        shadow_mode: false,
        quota_mode: false,
        detailed_metric: false,
        value_to_metric: false,
        aggregates_metrics: false,
        metadata: Value::Null,
        limit: None,
        concurrency: None,
        ban: None,
        reserve: None,
        classes: None,
        limits_from_store: None,
        misplaced: false,
        children: Vec::new(),
    }
}
