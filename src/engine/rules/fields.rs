//! Mappings of a rule file → their known fields, with merges (`<<`) followed; and the values of fields, typed.
//!
//! Merging follows Go's yaml.v2: what is assigned later wins, a merge counts where it stands, and of a list of
//! merged mappings the first one wins. What is wrong is reported with its place, and reading goes on.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use smallvec::SmallVec;

use crate::engine::rules::diagnostic::{Diagnostics, Place};
use crate::engine::rules::keys::{Known, Section, misplaced_key};
use crate::engine::rules::scalar;
use crate::engine::rules::yaml::{Content, Document, NodeId, Scalar, Typing};

/// How much of a text is told in a message, in characters.
pub(super) const TOLD_CHARS_MAX: usize = 60;

/// The fields of one mapping, in the order of their assignment.
#[derive(Debug)]
pub(super) struct Fields {
    /// Where the mapping begins.
    pub(super) at: Place,
    assigned: SmallVec<[(&'static str, NodeId); 8]>,
}

/// A document that is being read.
pub(super) struct Reader<'d, 't> {
    pub(super) file: &'d str,
    pub(super) document: &'d Document<'t>,
    pub(super) errors: &'d mut Diagnostics,
    pub(super) warnings: &'d mut Diagnostics,
}

impl Fields {
    /// All nodes that were assigned to a field.
    pub(super) fn all(&self, name: &str) -> SmallVec<[NodeId; 1]> {
        self.assigned.iter().filter(|(assigned, _)| *assigned == name).map(|&(_, node)| node).collect()
    }

    /// The node that was assigned to a field last.
    pub(super) fn last(&self, name: &str) -> Option<NodeId> {
        self.assigned.iter().rev().find(|(assigned, _)| *assigned == name).map(|&(_, node)| node)
    }
}

impl<'d> Reader<'d, '_> {
    /// Reports what is wrong.
    pub(super) fn error(&mut self, at: Place, message: impl FnOnce() -> String) {
        self.errors.add(self.file, at, message);
    }

    /// Reports what is probably not meant.
    pub(super) fn warning(&mut self, at: Place, message: impl FnOnce() -> String) {
        self.warnings.add(self.file, at, message);
    }

    /// Where a node is.
    pub(super) fn at(&self, node: NodeId) -> Place {
        self.document.node(node).at
    }

    /// The fields of these mappings together (the usual one, or several that merges assign to one field).
    pub(super) fn fields(&mut self, mappings: &[NodeId], section: Section) -> Option<Fields> {
        let mut fields = Fields { at: self.at(*mappings.last()?), assigned: SmallVec::new() };
        for &mapping in mappings {
            if !matches!(self.document.node(mapping).content, Content::Mapping(_)) {
                self.expected(mapping, "a mapping");
                return None;
            }
            self.assign(mapping, section, &mut fields);
        }
        Some(fields)
    }

    fn assign(&mut self, mapping: NodeId, section: Section, fields: &mut Fields) {
        let document = self.document;
        let Content::Mapping(pairs) = &document.node(mapping).content else { return };
        let mut seen = SmallVec::<[(&str, Place); 12]>::new();
        for &(key, value) in pairs {
            let at = self.at(key);
            let Content::Scalar(text) = &document.node(key).content else {
                self.expected(key, "a key");
                continue;
            };
            let Some(Known { name, is_here }) = section.key(&text.text) else {
                self.error(at, || section.unknown_key(&text.text));
                continue;
            };
            if let Some((_, first)) = seen.iter().find(|(seen, _)| *seen == name) {
                let Place { line, column } = *first;
                self.error(at, || {
                    format!("`{name}` twice in one mapping (expected once; it is at {line}:{column} too)")
                });
            }
            seen.push((name, at));
            match name {
                "<<" => self.merge(value, |reader, merged| reader.assign(merged, section, fields)),
                _ if is_here => fields.assigned.push((name, value)),
                _ => self.warning(at, || misplaced_key(name)),
            }
        }
    }

    /// Calls `assign` for every mapping that a `<<` brings in, the one that wins last.
    pub(super) fn merge(&mut self, merged: NodeId, mut assign: impl FnMut(&mut Self, NodeId)) {
        let document = self.document;
        match &document.node(merged).content {
            Content::Mapping(_) => assign(self, merged),
            Content::Sequence(items) => {
                items.iter().rev().for_each(|&item| match document.node(item).content {
                    Content::Mapping(_) => assign(self, item),
                    _ => self.expected(item, "a mapping to merge"),
                })
            }
            Content::Scalar(_) => self.expected(merged, "a mapping or a list of mappings to merge"),
        }
    }

    /// The scalar of a field; none when it is null or empty.
    fn scalar(&mut self, fields: &Fields, name: &str) -> Option<(Place, &'d Scalar<'d>)> {
        let node = self.document.node(fields.last(name)?);
        match &node.content {
            Content::Scalar(scalar) if scalar.is_null() || scalar.text.is_empty() => None,
            Content::Scalar(scalar) => Some((node.at, scalar)),
            Content::Sequence(_) | Content::Mapping(_) => {
                self.error(node.at, || format!("`{name}` is a collection (expected a scalar)"));
                None
            }
        }
    }

    /// The field is there, and neither null nor empty.
    pub(super) fn is_given(&self, fields: &Fields, name: &str) -> bool {
        fields.last(name).is_some_and(|node| match &self.document.node(node).content {
            Content::Scalar(scalar) => !scalar.is_null() && !scalar.text.is_empty(),
            Content::Sequence(_) | Content::Mapping(_) => true,
        })
    }

    /// A text, as it is written.
    pub(super) fn text(&mut self, fields: &Fields, name: &str) -> Option<(Place, &'d str)> {
        self.scalar(fields, name).map(|(at, scalar)| (at, &*scalar.text))
    }

    /// A switch; off when it is not there.
    pub(super) fn flag(&mut self, fields: &Fields, name: &str) -> bool {
        let Some((at, scalar)) = self.scalar(fields, name) else { return false };
        scalar::bool(scalar).unwrap_or_else(|| {
            self.error(at, || format!("`{name}` is {} (expected true or false)", told_scalar(scalar)));
            false
        })
    }

    /// A whole number in a range.
    pub(super) fn number(
        &mut self,
        fields: &Fields,
        name: &str,
        range: RangeInclusive<u32>,
    ) -> Option<(Place, u32)> {
        let (at, scalar) = self.scalar(fields, name)?;
        let number =
            scalar::int(scalar).and_then(|number| u32::try_from(number).ok()).filter(|it| range.contains(it));
        if number.is_none() {
            let (least, most) = (range.start(), range.end());
            self.error(at, || {
                format!(
                    "`{name}` is {} (expected a whole number from {least} to {most})",
                    told_scalar(scalar)
                )
            });
        }
        number.map(|number| (at, number))
    }

    /// One of several words.
    pub(super) fn word<T: Copy>(
        &mut self,
        fields: &Fields,
        name: &str,
        words: &[(&str, T)],
    ) -> Option<(Place, T)> {
        let (at, text) = self.text(fields, name)?;
        let found = words.iter().find(|(word, _)| *word == text);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|&(word, _)| word).collect();
            self.error(at, || format!("`{name}` is {} (expected {})", told(text), known.join(", ")));
        }
        found.map(|&(_, value)| (at, value))
    }

    /// The items of a list; none when it is not there.
    pub(super) fn list(&mut self, fields: &Fields, name: &str) -> &'d [NodeId] {
        let Some(id) = fields.last(name) else { return &[] };
        match &self.document.node(id).content {
            Content::Sequence(items) => items,
            Content::Scalar(scalar) if scalar.is_null() => &[],
            Content::Scalar(_) | Content::Mapping(_) => {
                self.expected(id, "a list");
                &[]
            }
        }
    }

    /// Reports a node that is something else than what belongs there.
    pub(super) fn expected(&mut self, node: NodeId, what: &str) {
        let node = self.document.node(node);
        self.error(node.at, || {
            let found = match &node.content {
                Content::Scalar(scalar) => told_scalar(scalar).into_owned(),
                Content::Sequence(_) => "a list".to_owned(),
                Content::Mapping(_) => "a mapping".to_owned(),
            };
            format!("{found} stands here (expected {what})")
        });
    }
}

/// A text in a message, in backquotes, not all of it when it is long.
pub(super) fn told(text: &str) -> String {
    match text.char_indices().nth(TOLD_CHARS_MAX) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None => format!("`{text}`"),
    }
}

fn told_scalar(scalar: &Scalar<'_>) -> Cow<'static, str> {
    match scalar.typing {
        _ if scalar.is_null() => Cow::Borrowed("nothing"),
        Typing::Text => Cow::Owned(format!("the text {}", told(&scalar.text))),
        Typing::Plain | Typing::Tagged => Cow::Owned(told(&scalar.text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_not_told_whole() {
        assert_eq!(told(&"é".repeat(1_000)).chars().count(), TOLD_CHARS_MAX + 3);
    }
}
