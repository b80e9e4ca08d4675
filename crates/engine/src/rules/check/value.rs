//! `value`: which values a node matches.
//!
//! In: the fields of a node. Out: a matcher. A problem is reported, and then the matcher is the text that is wrong, so
//! that everything else is checked too.

use smallvec::SmallVec;

use super::Checker;
use crate::pattern::Matcher;
use crate::rules::fields::Fields;
use crate::rules::keys::Section;
use crate::rules::lists;
use crate::rules::quote::quote;
use tidegate_yaml::{Content, NodeId, Place};

impl Checker<'_, '_> {
    /// The values that a node matches, and the place of `value`.
    pub(super) fn matcher(&mut self, fields: &Fields) -> (Option<Place>, Matcher) {
        let mapping = fields.last("value").filter(|&value| self.reader.is_pattern(value));
        if let Some(mapping) = mapping {
            return (Some(self.reader.at(mapping)), self.pattern(mapping));
        }
        let (at, text) = self.reader.text(fields, "value").unzip();
        (at, Matcher::of_text(text))
    }

    /// The pattern that is written as a mapping.
    fn pattern(&mut self, mapping: NodeId) -> Matcher {
        let unknown = Matcher::Exact(String::new());
        let Some(fields) = self.reader.fields(&[mapping], Section::Value) else { return unknown };
        let given: SmallVec<[&str; 4]> =
            Section::Value.own_keys().iter().copied().filter(|key| fields.last(key).is_some()).collect();
        match given[..] {
            ["in"] => self.one_of(&fields),
            [key] => {
                let Some((at, text)) = self.reader.text(&fields, key) else {
                    if !self.reader.is_given(&fields, key) {
                        self.reader.error(fields.at, || format!("`{key}` is empty (expected a text)"));
                    }
                    return unknown;
                };
                let pattern = match key {
                    "cidr" => Matcher::cidr(text),
                    "regex" => Matcher::regex(text),
                    _ => self.cidr_file(text),
                };
                pattern.unwrap_or_else(|why| {
                    self.reader.error(at, || format!("`{key}` {} {why}", quote(text)));
                    Matcher::Exact(text.to_owned())
                })
            }
            _ => {
                let keys = Section::Value.own_keys().join(", ");
                self.reader.error(fields.at, || {
                    format!("`value` is a mapping with {} known keys (expected one of {keys})", given.len())
                });
                unknown
            }
        }
    }

    /// `in`: a list of values.
    fn one_of(&mut self, fields: &Fields) -> Matcher {
        let mut values = Vec::new();
        for &item in self.reader.list(fields, "in") {
            let at = self.reader.at(item);
            match &self.reader.document.node(item).content {
                Content::Scalar(value) if value.is_null() || value.text.is_empty() => {
                    self.reader.error(at, || "an empty value in `in` (expected a text)".to_owned());
                }
                Content::Scalar(value) if value.text.contains('*') => self.reader.error(at, || {
                    format!(
                        "{} in `in` has a `*` (expected values alone; a wildcard has a node of its own)",
                        quote(&value.text)
                    )
                }),
                Content::Scalar(value) => values.push(Box::from(&*value.text)),
                Content::Sequence(_) | Content::Mapping(_) => self.reader.expected(item, "a text"),
            }
        }
        if fields.last("in").is_some_and(|node| self.reader.is_empty_list(node)) {
            self.reader.error(fields.at, || "`in` has no values (expected a list of texts)".to_owned());
        }
        Matcher::one_of(values)
    }

    /// `cidr_file`: the ranges in a file.
    fn cidr_file(&mut self, name: &str) -> Result<Matcher, String> {
        let path = lists::path(self.reader.file, name)
            .ok_or("leaves its folder (expected a path below the folder of this file)")?;
        let list = self.lists.get(&path).ok_or(
            "was not read: the rules are not in a file (expected rule files in the folder of the list)",
        )?;
        Ok(Matcher::cidr_file(name, list.ranges.clone()))
    }
}
