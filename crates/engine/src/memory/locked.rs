//! A request with several counters: all its shards locked, looked at, settled and charged together.

use smallvec::{SmallVec, smallvec};

use crate::decision::Verdicts;
use crate::key::Key;
use crate::limit::Ahead;
use crate::memory::StoreFull;
use crate::memory::budget::Budget;
use crate::memory::due::Due;
use crate::memory::kind::{Guard, Kinds, Place};
use crate::memory::shard::{Asked, Promised};
use crate::plan::{Check, Hits, Plan, Step};
use crate::settle::Settlement;
use crate::time::Timestamp;

/// All shards of one request, locked.
pub(super) struct Locked<'a> {
    guards: SmallVec<[(Place, Guard<'a>, &'a Due); 8]>,
    /// For each step: where its guard is, and the first step on the same counter.
    seats: SmallVec<[Seat; 8]>,
}

#[derive(Clone, Copy, Default)]
struct Seat {
    guard: usize,
    counter: usize,
}

impl<'a> Locked<'a> {
    /// Locks what the plan's checks need: each shard once, in ascending order, so that no two requests wait for each
    /// other.
    pub(super) fn new(kinds: &'a Kinds, plan: &Plan<'_>) -> Self {
        let mut order = SmallVec::<[(Place, Key, usize); 8]>::new();
        for (index, step) in plan.steps.iter().enumerate() {
            if let Step::Check(check) = step {
                order.push((kinds.place(check), check.key, index));
            }
        }
        order.sort_unstable();
        let mut locked =
            Self { guards: SmallVec::new(), seats: smallvec![Seat::default(); plan.steps.len()] };
        let mut previous: Option<(Place, Key, usize)> = None;
        for &(place, key, index) in &order {
            if locked.guards.last().is_none_or(|&(last, ..)| last != place) {
                let (shard, due) = kinds.lock(place);
                locked.guards.push((place, shard, due));
            }
            let same = previous.filter(|&(last, last_key, _)| (last, last_key) == (place, key));
            let counter = same.map_or(index, |(_, _, first)| first);
            locked.seats[index] = Seat { guard: locked.guards.len() - 1, counter };
            previous = Some((place, key, counter));
        }
        locked
    }

    /// What each counter says before anything is charged, in request order.
    pub(super) fn look_all(
        &mut self,
        plan: &Plan<'_>,
        now: Timestamp,
        budget: &Budget,
        full: StoreFull,
    ) -> SmallVec<[Option<Asked>; 8]> {
        let mut ahead: SmallVec<[Ahead; 8]> = smallvec![Ahead::default(); plan.steps.len()];
        let mut promised: SmallVec<[Promised; 8]> = smallvec![Promised::default(); self.guards.len()];
        let mut look = |(index, step): (usize, &Step<'_>)| {
            let Step::Check(check) = step else { return None };
            let Seat { guard, counter } = self.seats[index];
            let asked = self.guards[guard]
                .1
                .look(check, now, ahead[counter], &mut promised[guard], budget)
                .answered(full);
            match check.hits {
                Hits::GiveBack(hits) => ahead[counter].give_back(hits),
                Hits::Take(_) => {
                    let charged = asked.charged(Settlement::PASSES, check, asked.charge_max);
                    ahead[counter].take(charged);
                }
            }
            Some(asked)
        };
        plan.steps.iter().enumerate().map(&mut look).collect()
    }

    /// Charges what was settled and tells the verdicts, in request order. Calls `told` with each check that is done, what
    /// its counter said and what was charged.
    pub(super) fn finish_all(
        &mut self,
        plan: &Plan<'_>,
        now: Timestamp,
        asked: &[Option<Asked>],
        settlement: Settlement,
        verdicts: &mut Verdicts,
        mut told: impl FnMut(&Check<'_>, &Asked, u64),
    ) {
        let mut charged_so_far: SmallVec<[u64; 8]> = smallvec![0; plan.steps.len()];
        for (index, step) in plan.steps.iter().enumerate() {
            let (Step::Check(check), Some(asked)) = (step, asked[index]) else { continue };
            let Seat { guard, counter } = self.seats[index];
            let (_, shard, due) = &mut self.guards[guard];
            let (slot, charge_max) = shard.find_report_max(check);
            let charged = asked.charged(settlement, check, charge_max);
            let uncharged = asked.ahead.taken.saturating_sub(charged_so_far[counter]);
            verdicts[index] = Some(shard.finish_at(slot, check, now, &asked, charged, uncharged));
            due.note(shard.earliest_secs());
            charged_so_far[counter] = charged_so_far[counter].saturating_add(charged);
            told(check, &asked, charged);
        }
    }
}
