//! Answers that say less is left than there surely is.
//!
//! In: the records of all counters. Out: the first that was admitted hits and says that fewer are left than N without all that may
//! be there. What nodes lease and do not spend is not left to others: leased counters are not judged.

use super::starved::Counted;
use super::{Counter, Outcome, Record, Rules};
use crate::world::MICRO;

/// An answer that leaves too little.
pub fn left_too_little(rules: &Rules<'_>, counters: &[Counter]) -> Option<String> {
    counters.iter().find_map(|it| {
        let Counter { own, counting, .. } = it;
        let limit = &rules.limits[it.limit];
        // What is held is not left.
        if limit.is_leased || limit.shape.reserve.is_some() {
            return None;
        }
        let counted = Counted::new(rules, limit, (own, counting));
        let is_judged = |it: &Record| it.outcome == Outcome::Admitted && rules.explains(limit, it);
        let found = own.iter().enumerate().filter(|(_, it)| is_judged(it)).find_map(|(place, it)| {
            let most = limit.capacity(it.requests, it.share);
            let (answered, hits, left) = (it.answered / MICRO, it.hits, it.remaining);
            let there = counted.fewer_than(most.saturating_sub(hits + left), place)?;
            Some(format!(
                "request {} left {left} at {answered} us with {hits} hits, though at most {there} of {most} were there",
                it.request
            ))
        });
        found.map(|found| it.named(found))
    })
}
