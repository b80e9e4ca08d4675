//! Mappings of a rule file → their known fields, with merges (`<<`) followed; and the values of fields, typed.
//!
//! Merging follows Go's yaml.v2: a later assignment wins, a merge counts where it stands, and of a list of merged
//! mappings the first one wins. Problems are reported with their place, and reading goes on.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use smallvec::SmallVec;

use crate::limit::COUNT_REQUESTS_MAX;
use crate::rules::diagnostic::Diagnostics;
use crate::rules::keys::{KnownKey, Section, misplaced_key};
use crate::rules::quote::quote;
use crate::rules::{hint, scalar};
use tidegate_yaml::{Content, Document, Node, NodeId, Place, Scalar, Typing};

/// The fields of one mapping, in the order of their assignment.
#[derive(Debug)]
pub(super) struct Fields {
    /// Where the mapping begins.
    pub(super) at: Place,
    /// It holds a known key that belongs elsewhere, which is reported.
    pub(super) misplaced: bool,
    assigned: SmallVec<[(&'static str, NodeId); 8]>,
}

/// KnownKey keys that belong elsewhere, and where they stand.
type Misplaced = SmallVec<[(&'static str, Place); 1]>;

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
    pub(super) fn error(&mut self, at: Place, message: impl FnOnce() -> String) {
        self.errors.add(self.file, at, message);
    }

    /// Reports a warning: valid but probably unintended.
    pub(super) fn warning(&mut self, at: Place, message: impl FnOnce() -> String) {
        self.warnings.add(self.file, at, message);
    }

    pub(super) fn at(&self, node: NodeId) -> Place {
        self.document.node(node).at
    }

    /// The fields of these mappings together (usually one; several if merges assign them to one field).
    pub(super) fn fields(&mut self, mappings: &[NodeId], section: Section) -> Option<Fields> {
        let at = self.at(*mappings.last()?);
        let mut fields = Fields { at, misplaced: false, assigned: SmallVec::new() };
        let mut misplaced = Misplaced::new();
        for &mapping in mappings {
            if !matches!(self.document.node(mapping).content, Content::Mapping(_)) {
                self.expected(mapping, "a mapping");
                return None;
            }
            self.assign(mapping, section, &mut fields, &mut misplaced);
        }
        fields.misplaced = !misplaced.is_empty();
        let has_limit = section != Section::Descriptor
            || ["rate_limit", "concurrency"].iter().any(|name| self.is_given(&fields, name));
        self.warn_of_misplaced(&misplaced, has_limit);
        Some(fields)
    }

    /// Warns of keys in a wrong place. Keys of a missing `rate_limit` are one mistake: they are one level too far out.
    fn warn_of_misplaced(&mut self, misplaced: &[(&'static str, Place)], has_limit: bool) {
        let is_of_limit =
            |name| !has_limit && Section::RateLimit.key(name).is_some_and(|known| known.is_here);
        let (of_limit, others): (Misplaced, Misplaced) =
            misplaced.iter().copied().partition(|(name, _)| is_of_limit(name));
        if let Some((_, at)) = of_limit.first() {
            let names: Vec<String> = of_limit.iter().map(|(name, _)| format!("`{name}`")).collect();
            let (names, are) = (names.join(", "), if names.len() == 1 { "is" } else { "are" });
            self.warning(*at, || {
                format!("{names} {are} ignored here, and nothing is limited (expected below `rate_limit:`, further to the right)")
            });
        }
        for (name, at) in others {
            self.warning(at, || misplaced_key(name));
        }
    }

    fn assign(&mut self, mapping: NodeId, section: Section, fields: &mut Fields, misplaced: &mut Misplaced) {
        let document = self.document;
        let Content::Mapping(pairs) = &document.node(mapping).content else { return };
        let mut seen = SmallVec::<[(&str, Place); 12]>::new();
        for &(key, value) in pairs {
            let at = self.at(key);
            let Content::Scalar(text) = &document.node(key).content else {
                self.expected(key, "a key");
                continue;
            };
            let Some(KnownKey { name, is_here }) = section.key(&text.text) else {
                self.error(at, || {
                    hint::for_key(&text.text).unwrap_or_else(|| section.unknown_key(&text.text))
                });
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
                "<<" => self.merge(value, |reader, merged| reader.assign(merged, section, fields, misplaced)),
                _ if is_here => fields.assigned.push((name, value)),
                _ => misplaced.push((name, at)),
            }
        }
    }

    /// Calls `assign` for every mapping that a `<<` merges. The one that wins comes last.
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
                let is_template = self.is_template(node);
                self.error(node.at, || match is_template {
                    true => format!("`{name}` is a template that was not rendered (expected its result)"),
                    false => format!("`{name}` is a collection (expected a scalar)"),
                });
                None
            }
        }
    }

    /// Whether it is a list without items, or null in place of one.
    pub(super) fn is_empty_list(&self, node: NodeId) -> bool {
        match &self.document.node(node).content {
            Content::Sequence(items) => items.is_empty(),
            Content::Scalar(scalar) => scalar.is_null(),
            Content::Mapping(_) => false,
        }
    }

    /// Whether a `value` is a mapping, and no template.
    pub(super) fn is_pattern(&self, value: NodeId) -> bool {
        let value = self.document.node(value);
        matches!(value.content, Content::Mapping(_)) && !self.is_template(value)
    }

    /// Whether the field is there, and neither null nor empty.
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

    /// A boolean; false when it is not there.
    pub(super) fn flag(&mut self, fields: &Fields, name: &str) -> bool {
        let Some((at, scalar)) = self.scalar(fields, name) else { return false };
        scalar::bool(scalar).unwrap_or_else(|| {
            self.error(at, || match hint::why_suspicious(&scalar.text) {
                Some(why) => format!("`{name}` {why}"),
                None => format!("`{name}` is {} (expected true or false)", quote_scalar(scalar)),
            });
            false
        })
    }

    /// A whole number in a range.
    pub(super) fn number<T: TryFrom<i128> + PartialOrd + fmt::Display>(
        &mut self,
        fields: &Fields,
        name: &str,
        range: RangeInclusive<T>,
    ) -> Option<(Place, T)> {
        let (at, scalar) = self.scalar(fields, name)?;
        let number =
            scalar::int(scalar).and_then(|number| T::try_from(number).ok()).filter(|it| range.contains(it));
        if number.is_none() {
            self.error(at, || no_number(name, scalar, &range));
        }
        number.map(|number| (at, number))
    }

    /// A share: more than 0, and 1 at most.
    pub(super) fn share(&mut self, fields: &Fields, name: &str) -> Option<f64> {
        let (at, scalar) = self.scalar(fields, name)?;
        let number = scalar::int(scalar).map(|number| number as f64).or_else(|| scalar::float(scalar));
        let share = number.filter(|share| *share > 0.0 && *share <= 1.0);
        if share.is_none() {
            self.error(at, || {
                format!(
                    "`{name}` is {} (expected a share above 0 and up to 1, such as 0.8)",
                    quote_scalar(scalar)
                )
            });
        }
        share
    }

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
            self.error(at, || not_one_of(name, text, &known));
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

    /// Reports a node of the wrong kind.
    pub(super) fn expected(&mut self, node: NodeId, what: &str) {
        let node = self.document.node(node);
        let is_template = self.is_template(node);
        self.error(node.at, || {
            let found = match &node.content {
                _ if is_template => "a template that was not rendered".to_owned(),
                Content::Scalar(scalar) => match hint::for_key(&scalar.text) {
                    Some(message) => return message,
                    None => quote_scalar(scalar).into_owned(),
                },
                Content::Sequence(_) => "a list".to_owned(),
                Content::Mapping(_) => "a mapping".to_owned(),
            };
            format!("{found} stands here (expected {what})")
        });
    }
}

impl Reader<'_, '_> {
    /// `{{ … }}`, as YAML reads it: a mapping whose only key is a mapping.
    fn is_template(&self, node: &Node<'_>) -> bool {
        match &node.content {
            Content::Mapping(pairs) => match pairs[..] {
                [(key, _)] => matches!(self.document.node(key).content, Content::Mapping(_)),
                _ => false,
            },
            _ => false,
        }
    }
}

/// The message for a value that is no number, or out of its range.
fn no_number(name: &str, scalar: &Scalar<'_>, range: &RangeInclusive<impl fmt::Display>) -> String {
    if let Some(why) = hint::why_suspicious(&scalar.text) {
        return format!("`{name}` {why}");
    }
    let (least, most) = (range.start(), range.end());
    let fraction = scalar::float(scalar).filter(|_| name == "requests_per_unit").and_then(hint::as_fraction);
    let instead = fraction.map(|(requests, units)| {
        format!("; `requests_per_unit: {requests}` with `unit_multiplier: {units}` is the same rate")
    });
    let is_large = |number: &i128| (u32::MAX.into()..=COUNT_REQUESTS_MAX.into()).contains(number);
    let large = scalar::int(scalar).filter(|number| name == "requests_per_unit" && is_large(number));
    let large = large.map(|_| format!("; with `period` or fixed_window to {COUNT_REQUESTS_MAX}"));
    let (number, instead) = (quote_scalar(scalar), instead.or(large).unwrap_or_default());
    format!("`{name}` is {number} (expected a whole number from {least} to {most}{instead})")
}

/// The message for an unknown word.
pub(super) fn not_one_of(name: &str, text: &str, known: &[&str]) -> String {
    if let Some(why) = hint::why_suspicious(text) {
        return format!("`{name}` {why}");
    }
    let closest = hint::closest(text, known).map(|closest| format!("; the closest is `{closest}`"));
    format!("`{name}` is {} (expected {}{})", quote(text), known.join(", "), closest.unwrap_or_default())
}

fn quote_scalar(scalar: &Scalar<'_>) -> Cow<'static, str> {
    match scalar.typing {
        _ if scalar.is_null() => Cow::Borrowed("nothing"),
        Typing::Text => Cow::Owned(format!("the text {}", quote(&scalar.text))),
        Typing::Plain | Typing::Tagged => Cow::Owned(quote(&scalar.text)),
    }
}
