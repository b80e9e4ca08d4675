//! What a reservation may hold where its rule says `hold`: what was learnt, or `initial` until that is enough.
//!
//! In: all that was asked of a limit. Out: the least and the most of a hold. What was learnt is between the cheapest and the dearest
//! call whose commit the same process may have seen. Each process learns by itself, and each call once.

use std::collections::BTreeMap;

use tidegate_engine::limit::Found;

use super::{Outcome, Record};
use crate::scenario::Hold;

/// A percentile is known after so many commits.
const ENOUGH: usize = 20;

/// The commits of a limit that each process of a node may have learnt from.
#[derive(Default)]
pub(super) struct Learnt<'r>(BTreeMap<(usize, u64), Vec<&'r Record>>);

/// Costs that a process may have learnt.
struct Costs {
    may_be: usize,
    are: usize,
    bounds: [u64; 2],
}

impl<'r> Learnt<'r> {
    /// What may be learnt from these of a limit.
    pub(super) fn of(limit: usize, records: &'r [Record]) -> Self {
        let mut learnt = Self::default();
        for it in records.iter().filter(|it| it.limit == limit && may_be_learnt(it)) {
            learnt.0.entry((it.node, it.process)).or_default().push(it);
        }
        learnt
    }

    /// The least and the most that this reservation holds, which asks for its worst case.
    pub(super) fn bounds(&self, hold: &Hold, it: &Record) -> [u64; 2] {
        let commits = self.0.get(&(it.node, it.process)).map_or(&[][..], Vec::as_slice);
        let of_counter = || Costs::of(commits.iter().filter(|commit| commit.key == it.key), it);
        let of_counter = hold.is_of_counter.then(of_counter);
        // Where too few are known of the counter, those of its rule count.
        let mut all: Vec<[u64; 2]> = Vec::new();
        let mut is_known = false;
        for costs in of_counter.into_iter().chain([Costs::of(commits.iter(), it)]) {
            if costs.may_be >= ENOUGH && !is_known {
                all.push(costs.bounds);
            }
            is_known |= costs.are >= ENOUGH;
        }
        if !is_known {
            all.push([hold.initial; 2]);
        }
        let least = all.iter().map(|[least, _]| *least).min().unwrap_or(0);
        let most = all.iter().map(|[_, most]| *most).max().unwrap_or(u64::MAX);
        [least, most].map(|hits| hits.min(it.hits))
    }
}

impl Costs {
    /// Those that may be known when this is asked.
    fn of<'c>(commits: impl Iterator<Item = &'c &'c Record>, it: &Record) -> Self {
        let mut costs = Self { may_be: 0, are: 0, bounds: [u64::MAX, 0] };
        for commit in commits.filter(|commit| commit.asked <= it.answered) {
            costs.may_be += 1;
            costs.are += usize::from(commit.outcome != Outcome::Unknown && commit.answered < it.asked);
            let [least, most] = costs.bounds;
            // A bucket of costs is an eighth wide.
            costs.bounds = [least.min(commit.hits), most.max(commit.hits + commit.hits / 8)];
        }
        costs
    }
}

/// Whether a process may learn from this: a cost of 0 is that of a call which did not happen.
fn may_be_learnt(it: &Record) -> bool {
    let Some(reserving) = it.reserving.filter(|it| it.is_commit) else { return false };
    let is_first = matches!(reserving.found, Some(Found::Open | Found::Expired(_)));
    it.hits > 0 && (is_first || it.outcome == Outcome::Unknown)
}
