//! `candidate`: other numbers for a limit, to be tried.
//!
//! In: the fields of a `rate_limit` and its limit. Out: the candidate, if there is one.

use super::Checker;
use crate::limit::{Algorithm, Limit};
use crate::rules::fields::Fields;
use crate::rules::keys::Section;

impl Checker<'_, '_> {
    /// The candidate: `own` with the numbers in `candidate`, as if they were written in `rate_limit`: without `burst`
    /// in either, it is N.
    pub(super) fn candidate(
        &mut self,
        fields: &Fields,
        algorithm: Algorithm,
        own: Option<Limit>,
    ) -> Option<Limit> {
        let mappings = fields.all("candidate");
        let numbers = self.reader.fields(self.since_last_null(&mappings), Section::Candidate)?;
        if !["requests_per_unit", "burst"].iter().any(|name| self.reader.is_given(&numbers, name)) {
            let message = "`candidate` without numbers (expected `requests_per_unit`, `burst` or both)";
            self.reader.error(numbers.at, || message.to_owned());
        }
        let requests = self.requests(&numbers, algorithm);
        let burst = self.burst(&numbers, algorithm);
        let own = own?;
        let requests = requests.unwrap_or(own.requests());
        let own_burst = self.reader.is_given(fields, "burst").then_some(own.burst());
        let limit = own.with_requests(requests).with_burst(burst.or(own_burst).unwrap_or(requests));
        self.bounds(&numbers, &limit, requests);
        if limit == own {
            let message = "`candidate` has the numbers of its own limit (expected others, or no candidate)";
            self.reader.warning(numbers.at, || message.to_owned());
        }
        Some(limit)
    }

    /// The candidate of an unlimited rule: there is none.
    pub(super) fn no_candidate(&mut self, fields: &Fields) -> Option<Limit> {
        self.refuse(fields, "candidate", || {
            "`candidate` with `unlimited: true` (expected a limit in `shadow_mode`, which denies nothing either)".to_owned()
        });
        None
    }
}
