//! `ban`: a key that is denied too often is denied for a while, without counting.
//!
//! In: the fields of a node, and its `rate_limit`. Out: the terms, and the keys of the entries that a ban is about.

use super::{CheckedLimit, Checker};
use crate::limit::{BanTerms, STRIKES_MAX};
use crate::rules::Sync;
use crate::rules::fields::Fields;
use crate::rules::keys::Section;
use crate::rules::parse_duration_nanos;
use crate::rules::quote::quote;
use crate::time::SECOND_NANOS;
use tidegate_yaml::{Content, Place};

/// A ban, as it is written.
#[derive(Debug)]
pub(in super::super) struct CheckedBan {
    pub(in super::super) terms: BanTerms,
    /// The keys of the entries whose values are banned, and where each stands. `None`: those of the limit's counter.
    pub(in super::super) on: Option<Vec<(Place, String)>>,
}

impl Checker<'_, '_> {
    /// The ban of a node with this limit. `None`: there is none, or it is wrong, which is reported.
    pub(super) fn ban(&mut self, node: &Fields, limit: Option<&CheckedLimit>) -> Option<CheckedBan> {
        let mappings = node.all("ban");
        let fields = self.reader.fields(self.since_last_null(&mappings), Section::Ban)?;
        self.refuse_beside_ban(node, &fields, limit);
        for name in ["after", "within", "for"] {
            if !self.reader.is_given(&fields, name) {
                self.reader.error(fields.at, || {
                    format!("`{name}` is missing (expected `after`, `within` and `for`: 5 denials, 10m, 1h)")
                });
            }
        }
        let strikes = self.strikes(&fields);
        let within_nanos = self.seconds(&fields, "within");
        let every_nanos = self.every(&fields, within_nanos);
        let first = self.seconds(&fields, "for");
        let longest = if self.reader.is_given(&fields, "doubling_to") {
            self.seconds(&fields, "doubling_to")
        } else {
            first
        };
        if let (Some(first), Some(longest)) = (first, longest)
            && longest < first
        {
            let at = self.place(&fields, "doubling_to");
            self.reader.error(at, || "`doubling_to` is less than `for` (expected no less)".to_owned());
        }
        let on = self.on(&fields);
        let secs = |nanos: u64| u32::try_from(nanos / SECOND_NANOS).unwrap_or(u32::MAX);
        let terms = BanTerms {
            strikes: strikes?,
            within_nanos: within_nanos?,
            every_nanos: every_nanos?,
            first_secs: secs(first?),
            longest_secs: secs(longest?),
        };
        Some(CheckedBan { terms, on })
    }

    /// Refuses what does not go with a ban.
    fn refuse_beside_ban(&mut self, node: &Fields, ban: &Fields, limit: Option<&CheckedLimit>) {
        if !self.reader.is_given(node, "rate_limit") {
            self.reader.error(ban.at, || {
                "`ban` without `rate_limit` (expected the limit whose denials count)".to_owned()
            });
        }
        for name in ["quota_mode", "classes"] {
            self.refuse(node, name, || {
                format!("`{name}` with `ban` (expected a descriptor of its own for each)")
            });
        }
        if limit.is_some_and(|limit| limit.is_unlimited) {
            self.reader.error(ban.at, || {
                "`ban` with `unlimited: true`, which denies nothing (expected a limit)".to_owned()
            });
        }
        if limit.is_some_and(|limit| limit.sync == Some(Sync::Leased)) {
            self.reader.error(ban.at, || {
                "`ban` with `sync: leased` (expected strict: bans are asked for with every request)"
                    .to_owned()
            });
        }
    }

    /// `after`: `5`, or `5 denials`.
    fn strikes(&mut self, fields: &Fields) -> Option<u32> {
        let (at, text) = self.reader.text(fields, "after")?;
        let number = [" denials", " denial"].iter().find_map(|unit| text.strip_suffix(unit)).unwrap_or(text);
        let strikes = number.trim_end().parse().ok().filter(|strikes| (1..=STRIKES_MAX).contains(strikes));
        if strikes.is_none() {
            self.reader.error(at, || {
                format!(
                    "`after` is {} (expected 1 to {STRIKES_MAX} denials, such as `5 denials`)",
                    quote(text)
                )
            });
        }
        strikes
    }

    /// `every`: a second unless it is given. In whole microseconds, in which Redis counts.
    fn every(&mut self, fields: &Fields, within_nanos: Option<u64>) -> Option<u64> {
        let Some((at, text)) = self.reader.text(fields, "every") else { return Some(SECOND_NANOS) };
        let every = parse_duration_nanos(text).filter(|nanos| nanos % 1_000 == 0);
        if every.is_none_or(|every| within_nanos.is_some_and(|within| every > within)) {
            self.reader.error(at, || {
                format!("`every` is {} (expected a time up to `within`, such as `1s` or `0`)", quote(text))
            });
        }
        every
    }

    /// `on`: a list of keys.
    fn on(&mut self, fields: &Fields) -> Option<Vec<(Place, String)>> {
        let node = fields.last("on").filter(|_| self.reader.is_given(fields, "on"))?;
        let mut keys = Vec::new();
        for &item in self.reader.list(fields, "on") {
            match &self.reader.document.node(item).content {
                Content::Scalar(key) if !key.is_null() && !key.text.is_empty() => {
                    keys.push((self.reader.at(item), key.text.to_string()));
                }
                _ => self.reader.expected(item, "the key of an entry"),
            }
        }
        if self.reader.is_empty_list(node) {
            let at = self.reader.at(node);
            self.reader.error(at, || "`on` names no key (expected keys of the descriptor)".to_owned());
        }
        Some(keys)
    }
}
