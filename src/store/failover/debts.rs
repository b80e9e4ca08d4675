//! Tells Redis what this node admitted while it decided alone, where no call comes that carries it along: a client that
//! goes to another node finds its hits there.
//!
//! In: what is to be carried. Out: calls that ask for nothing else, a few at a time, with pauses as long as they took.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::smallvec;
use tokio::time::sleep;

use super::carried::Debt;
use super::{Part, SharedStore, Times};
use crate::clock::{monotonic, since_boot};
use crate::engine::plan::{Check, Hits, Modes, Origin, Plan, Step};
use crate::engine::rules::Unit;

/// So often it is looked whether Redis can be told. Calls that come anyway go first.
const PAUSE: Duration = Duration::from_millis(200);
/// After each call Redis has time for others, at least so much.
const REST: Duration = Duration::from_millis(1);
/// Counters of one call, and entries of all of them: together they take Redis a fraction of a millisecond.
const COUNTERS_MAX: usize = 16;
const ENTRIES_MAX: usize = 64;
/// Calls at a time.
const CALLS_MAX: usize = 4;

impl SharedStore {
    /// Tells Redis what no call carries, for ever.
    pub(super) async fn charge_debts(self: Arc<Self>) {
        loop {
            self.carried.came().await;
            while !self.carried.is_empty() {
                sleep(PAUSE).await;
                self.charge_all().await;
            }
        }
    }

    /// Tells once all that is to be told to stores that answer.
    async fn charge_all(&self) {
        if !self.stores().any(|(_, store)| store.is_up()) {
            return;
        }
        let mut debts = self.carried.debts(monotonic());
        debts.retain(|debt| self.store_of(debt.place.unit).is_up());
        debts.sort_by_key(|debt| (debt.place.unit == Unit::Second, debt.place.slot));
        for calls in self.debt_calls(&debts).chunks(CALLS_MAX) {
            let began = monotonic();
            join_all(calls.iter().map(|(plan, part)| self.charge(plan, part))).await;
            sleep(monotonic().saturating_duration_since(began).max(REST)).await;
        }
    }

    /// Calls that tell these debts, which are in the order of slots: questions for no hits.
    fn debt_calls(&self, debts: &[Debt]) -> Vec<(Plan<'static>, Part<'_>)> {
        let mut calls: Vec<(Plan<'static>, Part<'_>)> = Vec::new();
        let mut entries = 0;
        for Debt { counter, place, entries: more } in debts {
            let store = self.store_of(place.unit);
            entries += more;
            let has_room = |(_, part): &(Plan<'_>, Part<'_>)| {
                let same = std::ptr::eq(part.store, store) && part.slot == place.slot;
                same && part.keys.len() < COUNTERS_MAX && entries <= ENTRIES_MAX
            };
            if !calls.last().is_some_and(has_room) {
                calls.push((Plan::empty(Modes::default()), Part::new(store, place.slot)));
                entries = *more;
            }
            let Some((plan, part)) = calls.last_mut() else { continue };
            plan.steps.push(Step::Check(Check {
                origin: Origin::Override { unit: place.unit, unit_multiplier: 1 },
                limit: place.limit,
                key: *counter,
                hits: Hits::Take(0),
                reported: false,
                shadow: false,
                quota: false,
            }));
            part.add(plan.steps.len() - 1, place.key.clone(), None);
        }
        calls
    }

    async fn charge(&self, plan: &Plan<'_>, part: &Part<'_>) {
        let times = Times { began: monotonic(), leases_from: since_boot(), patience: None };
        // A failure is no decision's. What was not told is told later.
        let _ = self.ask_slot(plan, part, &smallvec![None; plan.steps.len()], times).await;
    }
}
