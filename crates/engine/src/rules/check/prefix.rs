//! `prefix`: how many bits addresses share that count together.
//!
//! In: the fields of a node, and what its `value` matches. Out: the longest prefix of each family, and the shorter ones,
//! each of which is a limit of its own.

use std::ops::RangeInclusive;

use super::Checker;
use crate::pattern::{Matcher, Nat64};
use crate::prefix::Prefix;
use crate::rules::fields::Fields;
use crate::rules::keys::Section;
use crate::rules::quote::quote;
use crate::rules::scalar;
use tidegate_yaml::{Content, NodeId, Place};

/// The most lengths of one family.
const LENGTHS_MAX: usize = 8;

/// The prefixes of a node.
#[derive(Clone, Debug)]
pub(in super::super) struct CheckedPrefix {
    pub(in super::super) at: Place,
    /// The longest of each family.
    pub(in super::super) longest: Prefix,
    /// The shorter ones, each with its factor of N.
    pub(in super::super) shorter: Vec<(Prefix, u32)>,
}

impl Checker<'_, '_> {
    /// The prefix of a node. `None`: there is none, or it is wrong, which is reported.
    pub(super) fn prefix(&mut self, node: &Fields, value: &Matcher) -> Option<CheckedPrefix> {
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
        let (v4, v4_shorter) = self.prefix_lens(&fields, "v4", 32)?;
        let (v6, v6_shorter) = self.prefix_lens(&fields, "v6", 128)?;
        let nat64 = self.nat64(&fields);
        let of = |v4, v6| Prefix { v4, v6, denies_others: false, nat64: nat64.clone() };
        let v4_shorter = v4_shorter.into_iter().map(|(len, factor)| (of(Some(len), None), factor));
        let v6_shorter = v6_shorter.into_iter().map(|(len, factor)| (of(None, Some(len)), factor));
        let denies_others = others.is_some_and(|(_, denies)| denies);
        let longest = Prefix { denies_others, ..of(Some(v4), Some(v6)) };
        Some(CheckedPrefix { at, longest, shorter: v4_shorter.chain(v6_shorter).collect() })
    }

    /// The networks whose addresses count as the IPv4 addresses in them. Those that are wrong are reported.
    fn nat64(&mut self, fields: &Fields) -> Nat64 {
        let mut nat64 = Nat64::default();
        for &item in self.reader.list(fields, "nat64") {
            let Content::Scalar(scalar) = &self.reader.document.node(item).content else {
                self.reader.expected(item, "an IPv6 prefix such as 2001:db8:64::/96");
                continue;
            };
            if let Err(problem) = nat64.add(&scalar.text) {
                let at = self.reader.at(item);
                self.reader.error(at, || format!("{} in `nat64` {problem}", quote(&scalar.text)));
            }
        }
        nat64
    }

    /// The longest length for a family, and the shorter ones with their factors of N: one number, or a mapping of lengths to
    /// factors. Without it each address counts by itself.
    fn prefix_lens(&mut self, fields: &Fields, family: &str, most: u8) -> Option<(u8, Vec<(u8, u32)>)> {
        let Some(node) = fields.last(family) else { return Some((most, Vec::new())) };
        let document = self.reader.document;
        let Content::Mapping(pairs) = &document.node(node).content else {
            if !self.reader.is_given(fields, family) {
                return Some((most, Vec::new()));
            }
            let (_, len) = self.reader.number(fields, family, 1..=u32::from(most))?;
            return Some((u8::try_from(len).ok()?, Vec::new()));
        };
        let mut lens = Vec::new();
        for &(len, factor) in pairs {
            let at = self.reader.at(len);
            let len = self.number_of(len, &format!("a length in `{family}`"), 1..=i128::from(most))?;
            let factor = self.number_of(
                factor,
                &format!("the factor of /{len} in `{family}`"),
                1..=i128::from(u32::MAX),
            )?;
            lens.push((u8::try_from(len).ok()?, u32::try_from(factor).ok()?, at));
        }
        lens.sort_by_key(|&(len, ..)| std::cmp::Reverse(len));
        self.refuse_lens(&lens, family, self.reader.at(node))?;
        let mut lens = lens.into_iter().map(|(len, factor, _)| (len, factor));
        let (longest, _) = lens.next()?;
        Some((longest, lens.collect()))
    }

    /// Refuses lengths, given from the longest on, whose factors do not fit. `None`: some do not.
    fn refuse_lens(&mut self, lens: &[(u8, u32, Place)], family: &str, at: Place) -> Option<()> {
        let Some(&(longest, factor, first_at)) = lens.first().filter(|_| lens.len() <= LENGTHS_MAX) else {
            let count = lens.len();
            self.reader.error(at, || format!("`{family}` has {count} lengths (expected 1 to {LENGTHS_MAX})"));
            return None;
        };
        if factor != 1 {
            self.reader.error(first_at, || {
                format!("the factor of /{longest} in `{family}` is `{factor}` (expected 1: N is that of the longest prefix)")
            });
            return None;
        }
        for pair in lens.windows(2) {
            let &[(longer, less, _), (len, factor, at)] = pair else { continue };
            if longer == len || factor < less {
                self.reader.error(at, || match longer == len {
                    true => format!("the length {len} in `{family}` twice (expected it once)"),
                    false => format!("the factor of /{len} in `{family}` is `{factor}` (expected {less} or more, as that of /{longer} in it)"),
                });
                return None;
            }
        }
        Some(())
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
