//! Writes limits and comments into a rule file; everything else in it stays unchanged.
//!
//! In: the text of a rule file, and for some of its rules a number and comments. Out: the text with these. Comments
//! of an earlier suggestion are removed first, so that they do not pile up.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use tidegate_engine::rules::Rule;
use tidegate_yaml::{Budget, Content, Document, NodeId, Place};

/// How each comment begins that this module writes.
const MARK: &str = "# suggest: ";

/// The edit of one rule.
pub(super) struct Edit<'r> {
    pub(super) rule: &'r Rule,
    /// The new number of requests; `None`: it stays.
    pub(super) requests: Option<u32>,
    /// Lines to stand above the rule.
    pub(super) comments: Vec<String>,
}

/// Why a rule file cannot be edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The number is at a place where it cannot be replaced.
    #[error(
        "{0}: the rule's limit cannot be replaced (expected `requests_per_unit: NUMBER` in a `rate_limit` of its own)"
    )]
    NoNumber(String),
}

/// The text without the comments of an earlier suggestion.
pub(super) fn without_comments(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.trim_start().starts_with(MARK)).collect()
}

/// The text with these edits, and with `head` at its top.
pub(super) fn edited(text: &str, head: &[String], edits: &[Edit<'_>]) -> Result<String, EditError> {
    let numbers = numbers_of_rules(text);
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
    let mut comments: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for Edit { rule, requests, comments: of_rule } in edits {
        let written = Place { line: rule.written.line, column: rule.written.column };
        let line = written.line as usize - 1;
        comments.entry(line).or_default().extend(of_rule.iter().cloned());
        let Some(requests) = requests else { continue };
        let error = || EditError::NoNumber(rule.written.to_string());
        let number = numbers.get(&written).ok_or_else(error)?;
        // Two rules may share a limit through an alias: then there is one number for both.
        let is_replaced = used.insert(*number) && replace(&mut lines, *number, *requests).is_some();
        is_replaced.then_some(()).ok_or_else(error)?;
    }
    let mut text: String = head.iter().map(|line| format!("{MARK}{line}\n")).collect();
    for (at, line) in lines.iter().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        for comment in comments.remove(&at).unwrap_or_default() {
            text.extend([indent, MARK, &comment, "\n"]);
        }
        text.push_str(line);
    }
    Ok(text)
}

/// The place of each rule's number of requests, by the place of the rule, which is that of its key.
fn numbers_of_rules(text: &str) -> BTreeMap<Place, Place> {
    let mut numbers = BTreeMap::new();
    let mut budget = Budget::of_set(text.len().max(1 << 20));
    // The rules were loaded from this text, so it can be parsed.
    let Ok(document) = Document::parse(text, &mut budget) else { return numbers };
    let (mut open, mut seen) = (Vec::from_iter(document.root), HashSet::new());
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        match &document.node(id).content {
            Content::Scalar(_) => {}
            Content::Sequence(items) => open.extend(items),
            Content::Mapping(pairs) => {
                open.extend(pairs.iter().map(|(_, value)| *value));
                let key = value_of(&document, id, "key");
                let number = value_of(&document, id, "rate_limit")
                    .and_then(|limit| value_of(&document, limit, "requests_per_unit"));
                let places = key.zip(number).map(|ids| (document.node(ids.0).at, document.node(ids.1).at));
                numbers.extend(places);
            }
        }
    }
    numbers
}

/// The value of a key in a mapping.
fn value_of(document: &Document<'_>, mapping: NodeId, name: &str) -> Option<NodeId> {
    let Content::Mapping(pairs) = &document.node(mapping).content else { return None };
    let is_name = |id: NodeId| matches!(&document.node(id).content, Content::Scalar(it) if it.text == name);
    pairs.iter().find(|(key, _)| is_name(*key)).map(|(_, value)| *value)
}

/// Replaces the number at a place.
fn replace(lines: &mut [String], at: Place, number: u32) -> Option<()> {
    let line = lines.get_mut(at.line as usize - 1)?;
    let (start, _) = line.char_indices().nth(at.column as usize - 1)?;
    let rest = &line[start..];
    let end = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
    let is_whole = !rest[end..].starts_with(|char: char| char.is_alphanumeric() || "_.+-".contains(char));
    (end > 0 && is_whole).then(|| line.replace_range(start..start + end, &number.to_string()))
}
