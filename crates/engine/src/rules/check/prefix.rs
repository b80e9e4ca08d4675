//! `prefix`: how many bits addresses share that count together.
//!
//! In: the fields of a node, and what its `value` matches. Out: the prefix of each family.

use std::ops::RangeInclusive;

use super::Checker;
use crate::pattern::Matcher;
use crate::prefix::Prefix;
use crate::rules::fields::Fields;
use crate::rules::keys::Section;
use crate::rules::quote::quote;
use crate::rules::scalar;
use tidegate_yaml::{Content, NodeId};

impl Checker<'_, '_> {
    /// The prefix of a node. `None`: there is none, or it is wrong, which is reported.
    pub(super) fn prefix(&mut self, node: &Fields, value: &Matcher) -> Option<Prefix> {
        let mappings = node.all("prefix");
        let fields = self.reader.fields(self.since_last_null(&mappings), Section::Prefix)?;
        let at = fields.at;
        if !value.may_be_addresses() {
            self.reader.error(at, || {
                "`prefix` with a `value` that is no range of addresses (expected `cidr`, `cidr_file` or no `value`)"
                    .to_owned()
            });
        }
        self.refuse(node, "share_threshold", || {
            "`share_threshold` with `prefix` (expected one of the two: all values together, or those of each prefix)"
                .to_owned()
        });
        if !["v4", "v6"].iter().any(|family| self.reader.is_given(&fields, family)) {
            self.reader.error(at, || {
                "`prefix` without a length (expected `v4`, `v6` or both, such as `{v4: 24, v6: 64}`)"
                    .to_owned()
            });
        }
        let words = [("count", false), ("deny", true)];
        let others = self.reader.word(&fields, "not_an_address", &words);
        Some(Prefix {
            v4: self.prefix_len(&fields, "v4", 32)?,
            v6: self.prefix_len(&fields, "v6", 128)?,
            denies_others: others.is_some_and(|(_, denies)| denies),
        })
    }

    /// The length for a family: a number, or a mapping of one length to its factor of N, which is 1. Without it each
    /// address counts by itself.
    fn prefix_len(&mut self, fields: &Fields, family: &str, most: u8) -> Option<u8> {
        let Some(node) = fields.last(family) else { return Some(most) };
        let document = self.reader.document;
        let Content::Mapping(pairs) = &document.node(node).content else {
            if !self.reader.is_given(fields, family) {
                return Some(most);
            }
            let (_, len) = self.reader.number(fields, family, 1..=u32::from(most))?;
            return u8::try_from(len).ok();
        };
        let &[(len, factor)] = &pairs[..] else {
            let at = self.reader.at(node);
            self.reader.error(at, || format!("`{family}` has {} lengths (expected one)", pairs.len()));
            return None;
        };
        let len = self.number_of(len, &format!("a length in `{family}`"), 1..=i128::from(most))?;
        self.number_of(factor, &format!("the factor of /{len} in `{family}`"), 1..=1)?;
        u8::try_from(len).ok()
    }

    /// A whole number in a range, with its name for people.
    fn number_of(&mut self, node: NodeId, name: &str, range: RangeInclusive<i128>) -> Option<i128> {
        let (least, most) = (range.start(), range.end());
        let expected =
            if least == most { least.to_string() } else { format!("a whole number from {least} to {most}") };
        let Content::Scalar(scalar) = &self.reader.document.node(node).content else {
            self.reader.expected(node, &expected);
            return None;
        };
        let number = scalar::int(scalar).filter(|number| range.contains(number));
        if number.is_none() {
            let at = self.reader.at(node);
            self.reader.error(at, || format!("{name} is {} (expected {expected})", quote(&scalar.text)));
        }
        number
    }
}
