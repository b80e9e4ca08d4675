//! `classes`: the classes of importance of a limit.
//!
//! In: the fields of a node, its `rate_limit`, and the nodes below it. Out: the key that names a class, and the share of
//! each class.

use std::sync::Arc;

use super::{CheckedLimit, Checker};
use crate::limit::{Algorithm, Limit, Share};
use crate::rules::fields::Fields;
use crate::rules::keys::Section;
use crate::rules::quote::quote;
use tidegate_yaml::{Content, NodeId, Place};

/// The most classes of a limit. With a shared store a node keeps leases and denials for each of them.
const CLASSES_MAX: usize = 16;

/// The classes of a node, as they are written.
#[derive(Debug)]
pub(in super::super) struct CheckedClasses {
    pub(in super::super) key: Arc<str>,
    /// The largest share first.
    pub(in super::super) shares: Arc<[(Box<str>, Share)]>,
}

impl<'d> Checker<'d, '_> {
    /// The classes of a node with this limit. `None`: there are none, or they are wrong, which is reported.
    pub(super) fn classes(
        &mut self,
        fields: &Fields,
        limit: Option<&CheckedLimit>,
    ) -> Option<CheckedClasses> {
        let mappings = fields.all("classes");
        let classes = self.reader.fields(self.since_last_null(&mappings), Section::Classes)?;
        let at = classes.at;
        if !self.reader.is_given(fields, "rate_limit") {
            self.reader.error(at, || {
                "`classes` without `rate_limit` (expected the limit that they share)".to_owned()
            });
        }
        if limit.is_some_and(|limit| limit.is_unlimited) {
            self.reader.error(at, || {
                "`classes` with `unlimited: true` (expected a limit that they share)".to_owned()
            });
        }
        let algorithm = limit.and_then(|limit| limit.limit).map(|limit| limit.algorithm());
        if algorithm == Some(Algorithm::FixedWindow) {
            self.reader.error(at, || {
                "`classes` with fixed_window, which counts hits that it denies (expected another algorithm)".to_owned()
            });
        }
        let key = self.required(&classes, "key");
        let limit = limit.filter(|_| !self.reader.is_given(fields, "limits_from")).and_then(|it| it.limit);
        let shares = self.shares(&classes, limit)?;
        Some(CheckedClasses { key: key?.1.into(), shares: shares.into() })
    }

    /// The share of each class, the largest first. `limit` is what all keys share.
    fn shares(&mut self, classes: &Fields, limit: Option<Limit>) -> Option<Vec<(Box<str>, Share)>> {
        let document = self.reader.document;
        let pairs = match classes.last("shares") {
            Some(node) => match &document.node(node).content {
                Content::Mapping(pairs) => &pairs[..],
                Content::Scalar(scalar) if scalar.is_null() => &[],
                Content::Scalar(_) | Content::Sequence(_) => {
                    self.reader.expected(node, "a mapping of classes and their shares");
                    return None;
                }
            },
            None => &[],
        };
        if pairs.is_empty() || pairs.len() > CLASSES_MAX {
            let at = self.place(classes, "shares");
            self.reader.error(at, || match pairs.len() {
                0 => "`classes` without `shares` (expected a share for each class, such as `batch: 0.6`)"
                    .to_owned(),
                many => format!("{many} classes (expected at most {CLASSES_MAX})"),
            });
            return None;
        }
        let mut shares: Vec<(Box<str>, Share)> = Vec::new();
        for &(name, share) in pairs {
            let Some((at, class)) = self.class_name(name) else { continue };
            if shares.iter().any(|(known, _)| **known == *class) {
                self.reader.error(at, || format!("the class {} twice (expected once)", quote(class)));
            }
            let Some(parsed) = self.class_share(class, share) else { continue };
            if let Some(limit) = limit {
                self.warn_of_nothing(class, self.reader.at(share), limit.with_share(parsed));
            }
            shares.push((class.into(), parsed));
        }
        // Stable: of equal shares, the last one is the lowest class.
        shares.sort_by(|(_, one), (_, other)| other.cmp(one));
        (shares.len() == pairs.len()).then_some(shares)
    }

    /// Warns of a class whose share of this limit is less than one hit.
    fn warn_of_nothing(&mut self, class: &str, at: Place, limit: Limit) {
        if limit.capacity() == 0 && limit.requests() > 0 {
            self.reader.warning(at, || {
                format!(
                    "the class {} may use {} of {}, which is no hit, so all of its requests are denied (expected a larger \
                     share)",
                    quote(class),
                    limit.share(),
                    limit.burst()
                )
            });
        }
    }

    fn class_name(&mut self, name: NodeId) -> Option<(Place, &'d str)> {
        let document = self.reader.document;
        match &document.node(name).content {
            Content::Scalar(text) if !text.text.is_empty() && text.text != "<<" => {
                Some((self.reader.at(name), &*text.text))
            }
            Content::Scalar(text) if text.text == "<<" => {
                let at = self.reader.at(name);
                self.reader.error(at, || {
                    "`<<` does not merge into `shares` (expected each class here, or an alias of all shares)".to_owned()
                });
                None
            }
            _ => {
                self.reader.expected(name, "the name of a class");
                None
            }
        }
    }

    fn class_share(&mut self, class: &str, share: NodeId) -> Option<Share> {
        let text = match &self.reader.document.node(share).content {
            Content::Scalar(scalar) => &*scalar.text,
            Content::Sequence(_) | Content::Mapping(_) => {
                self.reader.expected(share, "a share above 0 and up to 1, such as 0.85");
                return None;
            }
        };
        let parsed = Share::parse(text);
        if parsed.is_none() {
            let (at, text) = (self.reader.at(share), quote(text));
            self.reader.error(at, || {
                format!(
                    "the share of {} is {text} (expected a number above 0 and up to 1, with at most six digits \
                     after the point)",
                    quote(class)
                )
            });
        }
        parsed
    }
}
