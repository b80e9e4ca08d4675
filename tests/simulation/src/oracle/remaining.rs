//! Answers that say less is left than there surely is.
//!
//! In: the records of all counters. Out: the first that was admitted hits and says that fewer are left than N without all that may
//! be there. What nodes lease and do not spend is not left to others: leased counters are not judged.

use super::starved::Counted;
use super::{Counter, Rules};

/// An answer that leaves too little.
pub fn left_too_little(rules: &Rules<'_>, counters: &[Counter]) -> Option<String> {
    counters.iter().find_map(|it| {
        let limit = &rules.limit_of(&it.own[0]);
        // What is held is not left.
        if limit.is_leased || limit.shape.reserve.is_some() {
            return None;
        }
        let counted = Counted::of(rules, limit, it);
        let found = (0..it.own.len()).find_map(|place| counted.leaves_too_little(place));
        found.map(|found| it.named(found))
    })
}
