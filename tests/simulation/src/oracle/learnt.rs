//! What a reservation may hold where its rule says `hold`: a percentile of what calls have cost, or `initial` until enough have ended.
//!
//! In: all that was asked of a limit. Out: the least and the most of a hold. Each process learns by itself, from the first commit of each
//! call. If one may or may not have been seen, a hold is between the cheapest and the dearest call.

use std::collections::BTreeMap;

use tidegate_engine::limit::Found;

use super::{Outcome, Record};
use crate::scenario::Hold;

/// A percentile is known after so many commits.
const ENOUGH: usize = 20;

/// A process of a node, by how often the node had been started, and a rule.
type Learning = (usize, u64, Option<usize>);

/// The commits that each process may have learnt from, for each rule of a limit.
#[derive(Default)]
pub(super) struct Learnt<'r>(BTreeMap<Learning, Vec<&'r Record>>);

/// What calls have cost, in order.
struct Costs {
    all: Vec<u64>,
    /// So many were surely seen.
    sure: usize,
}

impl<'r> Learnt<'r> {
    /// What may be learnt from these of a limit.
    pub(super) fn of(limit: usize, records: &'r [Record]) -> Self {
        let mut learnt = Self::default();
        for it in records.iter().filter(|it| it.limit == limit && may_be_learnt(it)) {
            learnt.0.entry(learning(it)).or_default().push(it);
        }
        learnt
    }

    /// The least and the most that this reservation holds, which asks for its worst case.
    pub(super) fn bounds(&self, hold: &Hold, it: &Record) -> [u64; 2] {
        let commits = self.0.get(&learning(it)).map_or(&[][..], Vec::as_slice);
        let own = commits.iter().copied().filter(|commit| hold.is_of_counter && commit.key == it.key);
        // Where too few are known of the counter, those of its rule count.
        let costs = [Costs::of(own, it), Costs::of(commits.iter().copied(), it)];
        let known = costs.iter().position(|costs| costs.sure >= ENOUGH);
        let may_count = &costs[..known.map_or(costs.len(), |place| place + 1)];
        let learnt = may_count.iter().filter_map(|costs| costs.percentile(hold.percentile));
        let initial = known.is_none().then_some([hold.initial; 2]);
        let all = learnt.chain(initial);
        let [least, most] = all.fold([u64::MAX, 0], |[least, most], [own_least, own_most]| {
            [least.min(own_least), most.max(own_most)]
        });
        [least, most].map(|hits| hits.min(it.hits))
    }
}

impl Costs {
    /// Those of which may be known when this is asked.
    fn of<'c>(commits: impl Iterator<Item = &'c Record>, it: &Record) -> Self {
        let seen: Vec<_> = commits.filter(|commit| commit.asked <= it.answered).collect();
        let is_sure = |commit: &&&Record| commit.outcome != Outcome::Unknown && commit.answered < it.asked;
        let sure = seen.iter().filter(is_sure).count();
        let mut all: Vec<_> = seen.iter().map(|commit| commit.hits).collect();
        all.sort_unstable();
        Self { all, sure }
    }

    /// The least and the most that may be taken for a percentile. `None`: there are too few.
    fn percentile(&self, percentile: u64) -> Option<[u64; 2]> {
        let count = self.all.len();
        if count < ENOUGH {
            return None;
        }
        let place = (count as u64 * percentile).div_ceil(100) as usize - 1;
        let [least, most] = if self.sure == count { [place; 2] } else { [0, count - 1] };
        // A bucket of costs is an eighth wide.
        Some([self.all[least], self.all[most] + self.all[most] / 8])
    }
}

/// Who learns from a record.
fn learning(it: &Record) -> Learning {
    (it.node, it.process, it.reserving.and_then(|reserving| reserving.rule))
}

/// Whether a process may learn from this: a cost of 0 is that of a call which did not happen.
fn may_be_learnt(it: &Record) -> bool {
    let Some(reserving) = it.reserving.filter(|it| it.is_commit) else { return false };
    let is_first = matches!(reserving.found, Some(Found::Open | Found::Expired(_)));
    it.hits > 0 && (is_first || it.outcome == Outcome::Unknown)
}
