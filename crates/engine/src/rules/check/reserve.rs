//! `reserve`: hits of a limit may be held for calls whose cost is known later.
//!
//! In: the fields of a node, and its `rate_limit`. Out: how holds end, how much is held, and the wait of who is denied by holds alone.

use super::{CheckedLimit, Checker};
use crate::held_costs::{CostsOf, HoldSize};
use crate::limit::{HoldTerms, Share};
use crate::rules::Sync;
use crate::rules::fields::Fields;
use crate::rules::keys::Section;
use crate::rules::quote::quote;
use crate::time::SECOND_NANOS;

/// `reserve`, as it is written.
#[derive(Debug)]
pub(in super::super) struct CheckedReserve {
    pub(in super::super) terms: HoldTerms,
    pub(in super::super) retry_nanos: u64,
    pub(in super::super) hold: Option<HoldSize>,
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
        let (hold, share) = self.hold(&fields)?;
        let limit = checked?.limit?;
        let charges = charges.is_none_or(|(_, charges)| charges);
        let terms = HoldTerms {
            ttl_nanos: ttl_nanos?,
            after_secs: if charges && limit.periods().is_none() { limit.remembered_secs() } else { 0 },
            periods: limit.periods().filter(|_| charges),
            worst: hold.map_or(0, |hold| hold.max),
            share,
        };
        Some(CheckedReserve { terms, retry_nanos, hold })
    }

    /// `hold` and `overdraft`: both or neither. `None`: one is wrong, which is reported.
    fn hold(&mut self, reserve: &Fields) -> Option<(Option<HoldSize>, Share)> {
        let given = ["hold", "overdraft"].map(|name| self.reader.is_given(reserve, name));
        match given {
            [false, false] => return Some((None, Share::FULL)),
            [true, false] => self.refuse(reserve, "hold", || {
                "`hold` without `overdraft` (expected how far the worst cases may exceed the limit: 0.5, or 0)".to_owned()
            }),
            [false, true] => self.refuse(reserve, "overdraft", || {
                "`overdraft` without `hold` (expected both: holds of the worst case never exceed the limit)".to_owned()
            }),
            [true, true] => {}
        }
        let share = self.overdraft(reserve);
        let size = if given[0] { self.hold_size(reserve) } else { None };
        Some((Some(size?), share?))
    }

    fn overdraft(&mut self, reserve: &Fields) -> Option<Share> {
        let (at, text) = self.reader.text(reserve, "overdraft")?;
        let share = Share::with_overdraft(text);
        if share.is_none() {
            self.reader.error(at, || {
                format!(
                    "`overdraft` is {} (expected a number from 0 to 10 with at most three decimals, such as 0.5)",
                    quote(text)
                )
            });
        }
        share
    }

    fn hold_size(&mut self, reserve: &Fields) -> Option<HoldSize> {
        let mappings = reserve.all("hold");
        let fields = self.reader.fields(self.since_last_null(&mappings), Section::Hold)?;
        for (name, expected) in [
            ("percentile", "how many of a hundred calls cost no more than what is held: 99"),
            ("initial", "what is held until enough calls have been committed"),
            ("max", "the most that a call may cost"),
        ] {
            if !self.reader.is_given(&fields, name) {
                self.reader.error(fields.at, || format!("`{name}` is missing (expected {expected})"));
            }
        }
        let percentile = self.reader.number(&fields, "percentile", 1..=99);
        let of = self.reader.word(&fields, "of", &CostsOf::ALL.map(|of| (of.name(), of)));
        let initial = self.reader.number(&fields, "initial", 1..=u32::MAX);
        let max = self.reader.number(&fields, "max", 1..=u32::MAX);
        let ((_, percentile), (_, initial), (at, max)) = (percentile?, initial?, max?);
        if max < initial {
            self.reader
                .error(at, || format!("`max` is {max}, below `initial` (expected at least {initial})"));
        }
        Some(HoldSize { percentile, of: of.map(|(_, of)| of).unwrap_or_default(), initial, max })
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
                "`sync: leased` (expected strict: a node that spends a lease does not know what is held)",
            ),
        ];
        for (_, what) in wrong.into_iter().filter(|(is_wrong, _)| *is_wrong) {
            self.reader.error(reserve.at, || format!("`reserve` with {what}"));
        }
    }
}
