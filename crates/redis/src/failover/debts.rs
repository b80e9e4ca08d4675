//! Tells Redis what this node admitted while it decided alone, where no call comes that carries it along: a client that
//! goes to another node finds its hits there.
//!
//! In: what is to be carried. Out: calls that ask for nothing else, a few at a time, with pauses as long as they took.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::smallvec;

use super::carried::Debt;
use super::{Failure, Part, SharedStore};
use crate::runtime::Runtime;
use tidegate_engine::plan::{Check, Hits, Modes, Origin, Plan, Step};
use tidegate_engine::rules::Unit;

/// So often it is looked whether Redis can be told. Calls that come anyway go first.
const PAUSE: Duration = Duration::from_millis(200);
/// After each call Redis has time for others, at least so much.
const REST: Duration = Duration::from_millis(1);
/// Counters of one call, and entries of all of them: together they take Redis a fraction of a millisecond.
const COUNTERS_MAX: usize = 16;
const ENTRIES_MAX: usize = 64;
/// Calls at a time.
const CALLS_MAX: usize = 4;

impl<R: Runtime> SharedStore<R> {
    /// Tells Redis what no call carries, for ever.
    pub(super) async fn charge_debts(self: Arc<Self>) {
        loop {
            self.carried.came().await;
            while !self.carried.is_empty() {
                self.runtime.sleep(PAUSE).await;
                self.charge_all().await;
            }
        }
    }

    /// Tells once all that is to be told to servers that can be reached.
    async fn charge_all(&self) {
        // There may be many debts, and they grow while nobody can be told.
        if !self.stores().any(|(_, store)| store.reaches_any()) {
            return;
        }
        let mut debts = self.carried.debts(self.runtime.monotonic());
        debts.retain(|debt| self.store_of(debt.place.unit).reaches(debt.place.slot));
        debts.sort_by_key(|debt| (debt.place.unit == Unit::Second, debt.place.slot));
        for calls in calls(&debts).chunks(CALLS_MAX) {
            let began = self.runtime.monotonic();
            join_all(calls.iter().map(|debts| self.charge(debts))).await;
            let taken = self.runtime.monotonic().saturating_duration_since(began);
            self.runtime.sleep(taken.max(REST)).await;
        }
    }

    /// Tells debts of one slot. A failure is no decision's: what was not told is told later.
    async fn charge(&self, debts: &[Debt]) {
        let refused = matches!(self.charge_together(debts).await, Err(Failure::Refused));
        if refused && debts.len() > 1 {
            // What stands under one of the keys is none of our counters, or was none when it was read: nothing was done.
            for debt in debts {
                let _ = self.charge_together(std::slice::from_ref(debt)).await;
            }
        }
    }

    /// One call: questions for no hits, with which the debts are carried along.
    async fn charge_together(&self, debts: &[Debt]) -> Result<(), Failure> {
        let Some(Debt { place, .. }) = debts.first() else { return Ok(()) };
        let mut plan = Plan::empty(Modes::default());
        let mut part = Part::new(self.store_of(place.unit), place.slot);
        for (step, Debt { counter, place, .. }) in debts.iter().enumerate() {
            plan.steps.push(Step::Check(Check {
                origin: Origin::Override { unit: place.unit, unit_multiplier: 1 },
                limit: place.limit,
                key: *counter,
                hits: Hits::Take(0),
                reported: false,
                shadow: false,
                quota: false,
            }));
            part.add(step, place.key.clone(), None);
        }
        self.ask_slot(&plan, &part, &smallvec![None; debts.len()], self.times(None)).await.map(|_| ())
    }
}

/// Debts that one call tells, of those in the order of stores and slots.
fn calls(debts: &[Debt]) -> Vec<&[Debt]> {
    let mut calls = Vec::new();
    let (mut first, mut entries) = (0, 0);
    for (at, debt) in debts.iter().enumerate() {
        let (begin, place) = (&debts[first].place, &debt.place);
        let same = begin.slot == place.slot && (begin.unit == Unit::Second) == (place.unit == Unit::Second);
        let has_room = same && at - first < COUNTERS_MAX && entries + debt.entries <= ENTRIES_MAX;
        if at > first && !has_room {
            calls.push(&debts[first..at]);
            (first, entries) = (at, 0);
        }
        entries += debt.entries;
    }
    calls.push(&debts[first..]);
    calls
}
