//! `limits_from`: whether the keys of a limit may have records of their own.
//!
//! In: the fields of a node. Out: the place of `limits_from: store`, if it is there.

use super::{CheckedLimit, Checker};
use crate::rules::fields::Fields;
use tidegate_yaml::Place;

impl Checker<'_, '_> {
    /// The place where the node says that its keys may have records. `limit`: its `rate_limit`, if that is valid.
    pub(super) fn limits_from(&mut self, fields: &Fields, limit: Option<&CheckedLimit>) -> Option<Place> {
        let (at, ()) = self.reader.word(fields, "limits_from", &[("store", ())])?;
        if !self.reader.is_given(fields, "rate_limit") {
            let message =
                "`limits_from` without `rate_limit` (expected the limit of keys that have no record)";
            self.reader.error(at, || message.to_owned());
        }
        if limit.is_some_and(|limit| limit.is_unlimited) {
            let message =
                "`limits_from` with `unlimited: true` (expected a limit; a record may be `unlimited`)";
            self.reader.error(at, || message.to_owned());
        }
        Some(at)
    }
}
