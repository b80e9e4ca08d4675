//! Reports unsynced hits to Redis for counters that no request asks for, so that a client finds its hits there when
//! it moves to another node.
//!
//! In: unsynced hits. Out: calls that take no hits of their own, a few at a time, with pauses as long as the calls
//! took.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::smallvec;

use super::unsynced::UnsyncedCounter;
use super::{Failure, Part, SharedStore, checks};
use crate::runtime::Runtime;
use tidegate_engine::plan::{Check, Hits, Modes, Origin, Plan, Step};
use tidegate_engine::rules::Unit;
use tidegate_engine::unit::Window;

/// How often to report. Calls of requests come first.
const PAUSE: Duration = Duration::from_millis(200);
/// The least pause after each round of calls, for other clients of Redis.
const REST: Duration = Duration::from_millis(1);
/// The counters of one call, and the entries of all of them. Together they take Redis a fraction of a millisecond.
const COUNTERS_MAX: usize = 16;
const ENTRIES_MAX: usize = 64;
/// Calls at a time.
const CALLS_MAX: usize = 4;

impl<R: Runtime> SharedStore<R> {
    /// Reports hits that no other call reports, for ever.
    pub(super) async fn report_unsynced(self: Arc<Self>) {
        loop {
            self.unsynced.came().await;
            while !self.unsynced.is_empty() {
                self.runtime.sleep(PAUSE).await;
                self.report_all().await;
            }
        }
    }

    /// Reports all hits once, to the servers that can be called.
    async fn report_all(&self) {
        // There may be many counters, and more are added while no server can be called.
        if !self.stores().any(|(_, store)| store.reaches_any()) {
            return;
        }
        let mut counters = self.unsynced.idle(self.runtime.monotonic());
        counters.retain(|counter| self.store_of(counter.place.unit).reaches(counter.place.slot));
        counters.sort_by_key(|counter| (counter.place.unit == Unit::Second, counter.place.slot));
        for calls in calls(&counters).chunks(CALLS_MAX) {
            let began = self.runtime.monotonic();
            join_all(calls.iter().map(|counters| self.report(counters))).await;
            let taken = self.runtime.monotonic().saturating_duration_since(began);
            self.runtime.sleep(taken.max(REST)).await;
        }
    }

    /// Reports hits of one slot. A failure is not counted as a failed decision: the hits stay unsynced, and are
    /// reported later.
    async fn report(&self, counters: &[UnsyncedCounter]) {
        let refused = matches!(self.report_together(counters).await, Err(Failure::Refused));
        if refused && counters.len() > 1 {
            // One of the keys holds a value that is no counter, so Redis did nothing. The others are reported one
            // by one.
            for counter in counters {
                let _ = self.report_together(std::slice::from_ref(counter)).await;
            }
        }
    }

    /// One call: checks of 0 hits, with the unsynced hits.
    async fn report_together(&self, counters: &[UnsyncedCounter]) -> Result<(), Failure> {
        let Some(UnsyncedCounter { place, .. }) = counters.first() else { return Ok(()) };
        let mut plan = Plan::empty(Modes::default());
        let mut part = Part::new(self.store_of(place.unit), place.slot);
        for (step, UnsyncedCounter { key, place, .. }) in counters.iter().enumerate() {
            plan.steps.push(Step::Check(Check::new(
                Origin::Override { window: Window::of(place.unit) },
                place.limit,
                *key,
                Hits::Take(0),
            )));
            part.add(step, place.key.clone(), None);
        }
        let times = self.times(None);
        let (answered, _) = self.ask_slot(&plan, &part, &smallvec![None; counters.len()], times).await?;
        for ((_, check), counter) in checks(&plan).zip(&answered.counters) {
            self.learn_ban(check, &counter.verdict, times.began);
        }
        Ok(())
    }
}

/// Splits counters, in the order of stores and slots, into calls.
fn calls(counters: &[UnsyncedCounter]) -> Vec<&[UnsyncedCounter]> {
    let mut calls = Vec::new();
    let (mut first, mut entries) = (0, 0);
    for (at, counter) in counters.iter().enumerate() {
        let (begin, place) = (&counters[first].place, &counter.place);
        let same = begin.slot == place.slot && (begin.unit == Unit::Second) == (place.unit == Unit::Second);
        let has_room = same && at - first < COUNTERS_MAX && entries + counter.entries <= ENTRIES_MAX;
        if at > first && !has_room {
            calls.push(&counters[first..at]);
            (first, entries) = (at, 0);
        }
        entries += counter.entries;
    }
    calls.push(&counters[first..]);
    calls
}

#[cfg(test)]
mod tests {
    use super::super::unsynced::CounterPlace;
    use super::*;
    use tidegate_engine::key::Key;
    use tidegate_engine::limit::{Algorithm, Limit};

    /// The lengths of the calls for counters of these units, slots and entries.
    fn lengths(counters: impl IntoIterator<Item = (Unit, u16, usize)>) -> Vec<usize> {
        let counter = |(unit, slot, entries)| {
            let limit = Limit::new(Algorithm::FixedWindow, 9, 1_000_000_000);
            let place = Arc::new(CounterPlace { unit, slot, key: Vec::new(), limit });
            UnsyncedCounter { key: Key(7), place, entries }
        };
        let counters: Vec<_> = counters.into_iter().map(counter).collect();
        calls(&counters).iter().map(|call| call.len()).collect()
    }

    #[test]
    fn a_call_is_for_one_store_and_one_slot() {
        let [first, second] = [Unit::Day, Unit::Hour].map(|unit| (unit, 5, 1));
        assert_eq!(lengths([first, second]), [2]);
        assert_eq!(lengths([first, (Unit::Day, 6, 1)]), [1, 1]);
        assert_eq!(lengths([first, second, (Unit::Second, 5, 1)]), [2, 1], "it may have a server of its own");
    }

    #[test]
    fn a_call_has_bounds_for_counters_and_for_their_entries() {
        assert_eq!(lengths([(Unit::Day, 5, 1); 2 * COUNTERS_MAX + 1]), [COUNTERS_MAX, COUNTERS_MAX, 1]);
        assert_eq!(lengths([(Unit::Day, 5, ENTRIES_MAX / 2); 5]), [2, 2, 1]);
        assert_eq!(lengths([(Unit::Day, 5, 2 * ENTRIES_MAX); 2]), [1, 1], "one alone may have more");
    }
}
