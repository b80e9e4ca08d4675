//! How the shared store uses leases: which checks may, what a request that is denied returns, and what goes back to
//! Redis when a lease ends.
//!
//! In: a plan, and afterwards its verdicts. Out: verdicts of counters that need no question, demands that go along with
//! one, and give-backs, which nobody waits for and which are never repeated.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use smallvec::{SmallVec, smallvec};

use super::{KEY_BYTES_MAX, Part, SharedStore, checks};
use crate::lease::{Demand, Held, Source, Unspent};
use crate::runtime::Runtime;
use crate::script::{Answered, Call, Memory, Stamp};
use tidegate_engine::decision::Verdicts;
use tidegate_engine::plan::{Check, Hits, Modes, Origin, Plan, Step};
use tidegate_engine::rules::{Sync, Unit};
use tidegate_engine::settle::settle;

/// Pauses between looks at what has ended: the shortest, and the longest.
const SWEEPS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Leases that come due within this part of T are asked for together, or within so long: a counter whose lease is spent
/// before the next is there is asked about hit by hit.
const GATHERED_PART: u32 = 50;
const GATHERED_MAX: Duration = Duration::from_millis(2);
/// Leases that one question asks for: all of them together take Redis a fraction of a millisecond.
const RENEWED_MAX: usize = 32;
/// Counters that one call gives back.
const GIVEN_BACK_MAX: usize = 64;

/// Whether it is the store of limits per second, the slot, and the memory of its server.
type To = (bool, u16, Arc<Memory>);

/// What the leases of a process came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTotals {
    /// Leases that were taken.
    pub taken: u64,
    /// Hits of them.
    pub hits_taken: u64,
    /// Hits that passed without asking Redis.
    pub hits_spent: u64,
    /// Hits that went back unspent.
    pub hits_given_back: u64,
}

/// Hits that a request holds, by step. Those that it does not settle, because nobody waits for it any more, others may
/// spend.
pub(super) struct AllHeld<'s, R: Runtime> {
    store: &'s SharedStore<R>,
    held: SmallVec<[(usize, Held); 2]>,
}

impl<R: Runtime> AllHeld<'_, R> {
    /// Spends what was held, if the request owes it; what it does not owe, others may spend.
    pub(super) fn settle(mut self, plan: &Plan<'_>, verdicts: &mut Verdicts) {
        if self.held.is_empty() {
            return;
        }
        let settlement = settle(plan, |index| verdicts[index].is_some_and(|verdict| verdict.over));
        for (index, held) in self.held.drain(..) {
            let Some(check) = super::check_at(plan, index) else { continue };
            let owed = settlement.charged(check, false);
            let surplus = held.hits.saturating_sub(owed);
            self.store.leases.spent(&held, owed);
            if surplus > 0 {
                verdicts[index] = Some(super::uncharged(check, &held.verdict, surplus));
                self.store.release(&held, surplus);
            }
        }
    }
}

impl<R: Runtime> Drop for AllHeld<'_, R> {
    fn drop(&mut self) {
        self.held.iter().for_each(|(_, held)| self.store.release(held, held.hits));
    }
}

impl<R: Runtime> SharedStore<R> {
    pub(super) fn is_leased(&self, check: &Check<'_>) -> bool {
        let own = match check.origin {
            Origin::Rule(rule) => rule.sync,
            Origin::Override { .. } => None,
        };
        own.unwrap_or(self.options.sync) == Sync::Leased && check.limit.algorithm().is_strict()
    }

    /// Holds what leases have, and answers it. A reported cost is not held: what is held goes back where the request comes
    /// to nothing, and what is reported was spent all the same.
    pub(super) fn hold(&self, plan: &Plan<'_>, now: Duration, verdicts: &mut Verdicts) -> AllHeld<'_, R> {
        let mut all = AllHeld { store: self, held: SmallVec::new() };
        for (index, check) in checks(plan).filter(|(_, check)| self.is_leased(check) && !check.reported) {
            if let Some(held) = self.leases.hold(check, now) {
                verdicts[index] = Some(held.verdict);
                all.held.push((index, held));
            }
        }
        all
    }

    /// Asks for a lease along with this check of the counter under `key`, if one is due.
    pub(super) fn demand(&self, check: &Check<'_>, key: &[u8]) -> Option<Demand<'_>> {
        // A question takes nothing. Who only asks and reports would be told by a lease that there is room, and never spend
        // it: a metered limit would be N and all that is begun in T.
        let takes = check.hits != Hits::Take(0) && !check.reported;
        let may = takes && key.len() <= KEY_BYTES_MAX && self.is_leased(check);
        if may { self.leases.demand(check) } else { None }
    }

    /// Puts what was granted into the table. The question was sent after `taken`.
    pub(super) fn take_leases(
        &self,
        plan: &Plan<'_>,
        part: &Part<'_, R>,
        answered: &Answered,
        taken: Duration,
    ) {
        for ((place, demand), &granted) in part.demands.iter().zip(&answered.leases) {
            let check = super::check_at(plan, part.steps[*place]);
            let (Some(check), Some(counter)) = (check, answered.counters.get(*place)) else { continue };
            let source = Source {
                unit: check.unit(),
                slot: part.slot,
                key: part.keys[*place].clone(),
                limit: check.limit,
                stamp: granted.stamp,
                memory: part.memory.clone(),
            };
            let unspent = demand.granted(source, granted, &counter.verdict, taken);
            unspent.iter().for_each(|unspent| self.return_one(unspent));
        }
    }

    /// Lets others spend what was held, or Redis have it back.
    pub(super) fn release(&self, held: &Held, hits: u64) {
        let unspent = self.leases.release(held, hits);
        unspent.into_iter().for_each(|unspent| self.return_one(&unspent));
    }

    /// T, as Redis counts.
    pub(super) fn lease_micros(&self) -> u64 {
        u64::try_from(self.leases.time().as_micros()).unwrap_or(u64::MAX)
    }

    /// Ends leases and renews them, for ever.
    pub(super) async fn keep_leases(self: Arc<Self>) {
        let pause = self.leases.time().clamp(SWEEPS.0, SWEEPS.1);
        let mut paused = pin!(self.runtime.sleep(Duration::ZERO));
        let mut renewing = FuturesUnordered::new();
        // Timers are in milliseconds: what is to be sooner is at once.
        let patience = (self.leases.time() / GATHERED_PART).min(GATHERED_MAX);
        let patience = Some(patience).filter(|&patience| patience >= Duration::from_millis(1));
        let mut gathered = pin!(self.runtime.sleep(Duration::ZERO));
        let mut gathers = false;
        loop {
            // What was begun goes on before more is begun.
            tokio::select! {
                biased;
                () = &mut paused => {
                    paused.set(self.runtime.sleep(pause));
                    self.end_leases(self.runtime.since_boot());
                }
                Some(()) = renewing.next() => {}
                () = &mut gathered, if gathers => {
                    renewing.extend(self.renewals());
                    gathers = false;
                }
                () = self.leases.came_due.notified(), if !gathers => match patience {
                    Some(patience) => {
                        gathered.set(self.runtime.sleep(patience));
                        gathers = true;
                    }
                    None => renewing.extend(self.renewals()),
                },
            }
        }
    }

    /// Questions about what is due, to one slot each, that ask several counters for a lease and nothing else.
    fn renewals(&self) -> impl Iterator<Item = impl Future<Output = ()>> {
        let mut due: Vec<_> = self.leases.take_due().collect();
        due.sort_by_key(|(_, source)| (source.unit == Unit::Second, source.slot));
        let mut renewals: Vec<(Plan<'_>, Part<'_, R>)> = Vec::new();
        for (demand, source) in due {
            let store = self.store_of(source.unit);
            let has_room = |part: &Part<'_, R>| {
                std::ptr::eq(part.store, store) && part.slot == source.slot && part.keys.len() < RENEWED_MAX
            };
            if !renewals.last().is_some_and(|(_, part)| has_room(part)) {
                renewals.push((Plan::empty(Modes::default()), Part::new(store, source.slot)));
            }
            let Some((plan, part)) = renewals.last_mut() else { continue };
            plan.steps.push(Step::Check(Check {
                origin: Origin::Override { unit: source.unit, unit_multiplier: 1 },
                limit: source.limit,
                key: demand.key,
                hits: Hits::Take(0),
                reported: false,
                shadow: false,
                quota: false,
            }));
            part.add(plan.steps.len() - 1, source.key.clone(), Some(demand));
        }
        renewals.into_iter().map(|(plan, part)| self.renew(plan, part))
    }

    /// Asks for leases and nothing else.
    async fn renew(&self, plan: Plan<'_>, part: Part<'_, R>) {
        // A failure is no decision's: whoever asks next is told.
        let unknown = smallvec![None; plan.steps.len()];
        let _ = self.ask_slot(&plan, &part, &unknown, self.times(None)).await;
    }

    /// Gives back what is left of leases that are over at `now`; how many hits that is.
    pub(super) fn end_leases(&self, now: Duration) -> u64 {
        let mut hits = 0;
        let mut calls: BTreeMap<To, Call> = BTreeMap::new();
        self.leases.sweep(now, |key, unspent| {
            self.over.forget(key, self.runtime.monotonic());
            hits += unspent.hits;
            let Some(to) = to(&unspent.source) else { return };
            let (_, _, memory) = &to;
            let call = calls.entry(to.clone()).or_insert_with(|| Call::giving_back(memory));
            push(call, &unspent);
            if call.keys.len() >= GIVEN_BACK_MAX {
                self.return_all(&to, std::mem::replace(call, Call::giving_back(memory)));
            }
        });
        calls.into_iter().for_each(|(to, call)| self.return_all(&to, call));
        hits
    }

    /// A worker that was attached has served everything. The last one gives back what leases still have; the others
    /// wait for that, because some of them may share its connections.
    pub async fn detach(&self) {
        self.workers.send_modify(|workers| *workers = workers.saturating_sub(1));
        let _ = self.workers.subscribe().wait_for(|&workers| workers == 0).await;
        // Nobody would spend what is due. What is asked for lasts as long as a decision may.
        self.leases.take_due().for_each(drop);
        let _ = self.runtime.timeout(self.main.options().timeout, self.leases.all_answered()).await;
        match self.end_leases(Duration::MAX) {
            0 => {}
            hits => tracing::info!("redis: {hits} leased hits that were not spent go back"),
        }
        for (_, store) in self.stores() {
            store.all_given_back().await;
        }
    }

    fn return_one(&self, unspent: &Unspent) {
        let Some(to) = to(&unspent.source) else { return };
        let mut call = Call::giving_back(&to.2);
        push(&mut call, unspent);
        self.return_all(&to, call);
    }

    fn return_all(&self, (per_second, slot, _): &To, call: Call) {
        if !call.keys.is_empty() {
            self.store(*per_second).give_back(*slot, call, ());
        }
    }

    /// What leases came to.
    pub fn leases(&self) -> LeaseTotals {
        use std::sync::atomic::Ordering::Relaxed;
        LeaseTotals {
            taken: self.leases.taken.load(Relaxed),
            hits_taken: self.leases.hits_taken.load(Relaxed),
            hits_spent: self.leases.hits_spent(),
            hits_given_back: self.leases.hits_given_back.load(Relaxed),
        }
    }
}

/// Where hits go back to. `None`: nobody knows in which memory they were charged, so they stay.
fn to(source: &Source) -> Option<To> {
    Some((source.unit == Unit::Second, source.slot, source.memory.clone()?))
}

fn push(call: &mut Call, unspent: &Unspent) {
    let Source { key, limit, stamp, .. } = &*unspent.source;
    call.push_give_back(key.clone(), limit, Stamp::of(*stamp), unspent.hits);
}
