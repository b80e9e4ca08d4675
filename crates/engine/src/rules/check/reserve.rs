//! `reserve`: hits of a limit may be held for calls whose cost is known later.
//!
//! In: the fields of a node, and its `rate_limit`. Out: how holds end, and the wait of who is denied by holds alone.

use super::{CheckedLimit, Checker};
use crate::limit::HoldTerms;
use crate::rules::Sync;
use crate::rules::fields::Fields;
use crate::rules::keys::Section;
use crate::time::SECOND_NANOS;

/// `reserve`, as it is written.
#[derive(Debug)]
pub(in super::super) struct CheckedReserve {
    pub(in super::super) terms: HoldTerms,
    pub(in super::super) retry_nanos: u64,
}

impl Checker<'_, '_> {
    /// The `reserve` of a node with this limit. `None`: there is none, or it is wrong, which is reported.
    pub(super) fn reserve(
        &mut self,
        node: &Fields,
        checked: Option<&CheckedLimit>,
    ) -> Option<CheckedReserve> {
        let mappings = node.all("reserve");
        let fields = self.reader.fields(self.since_last_null(&mappings), Section::Reserve)?;
        self.refuse_with_reserve(node, &fields, checked);
        if !self.reader.is_given(&fields, "ttl") {
            self.reader.error(fields.at, || {
                "`ttl` is missing (expected the longest time that a call takes: 10m)".to_owned()
            });
        }
        let ttl_nanos = self.seconds(&fields, "ttl");
        let charges = self.reader.word(&fields, "expired", &[("charge", true), ("free", false)]);
        let retry_nanos = self.retry(&fields)?;
        let limit = checked?.limit?;
        let charges = charges.is_none_or(|(_, charges)| charges);
        let terms = HoldTerms {
            ttl_nanos: ttl_nanos?,
            after_nanos: if charges && limit.periods().is_none() { limit.remembered_nanos() } else { 0 },
            periods: limit.periods().filter(|_| charges),
        };
        Some(CheckedReserve { terms, retry_nanos })
    }

    /// `retry`: a second unless it is given.
    pub(super) fn retry(&mut self, fields: &Fields) -> Option<u64> {
        if self.reader.is_given(fields, "retry") { self.seconds(fields, "retry") } else { Some(SECOND_NANOS) }
    }

    /// Refuses what does not go with reservations.
    fn refuse_with_reserve(&mut self, node: &Fields, reserve: &Fields, checked: Option<&CheckedLimit>) {
        if !self.reader.is_given(node, "rate_limit") {
            self.reader.error(reserve.at, || {
                "`reserve` without `rate_limit` (expected the limit whose hits are held)".to_owned()
            });
        }
        for name in ["quota_mode", "classes", "ban"] {
            self.refuse(node, name, || {
                format!("`{name}` with `reserve` (expected a descriptor of its own for each)")
            });
        }
        let Some(checked) = checked else { return };
        let wrong = [
            (checked.is_unlimited, "`unlimited: true`, which denies nothing (expected a limit)"),
            (checked.candidate.is_some(), "`candidate` (expected one of the two: a candidate holds nothing)"),
            (
                checked.sync == Some(Sync::Leased),
                "`sync: leased` (expected strict: who spends a lease does not know what is held)",
            ),
        ];
        for (_, what) in wrong.into_iter().filter(|(is_wrong, _)| *is_wrong) {
            self.reader.error(reserve.at, || format!("`reserve` with {what}"));
        }
    }
}
