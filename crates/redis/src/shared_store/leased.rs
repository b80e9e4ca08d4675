//! How the shared store uses leases: which checks may be leased, which hits a denied request returns, and which go
//! back to Redis when a lease ends.
//!
//! In: a plan, and then its verdicts. Out: verdicts without a question to Redis, demands for leases along with a
//! question, and give-backs. No request waits for a give-back, and none is repeated.

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
use crate::script::{Answered, Call, ChargeId, DataId};
use tidegate_engine::decision::Verdicts;
use tidegate_engine::plan::{Check, Hits, Modes, Origin, Plan, Step};
use tidegate_engine::rules::{Sync, Unit};
use tidegate_engine::settle::settle;
use tidegate_engine::unit::Window;

/// The shortest and the longest pause between sweeps of leases that have ended.
const SWEEPS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Leases that are due within this part of T, or within this time if it is shorter, are asked for together. The time
/// is short because a counter whose lease is spent before the next one arrives asks Redis for every hit.
const GATHERED_PART: u32 = 50;
const GATHERED_MAX: Duration = Duration::from_millis(2);
/// Leases of one call. Together they take Redis a fraction of a millisecond.
const RENEWED_MAX: usize = 32;
/// Counters of one give-back.
const GIVEN_BACK_MAX: usize = 64;

/// Whether it is the store of limits per second, the slot, and the data of its server.
type To = (bool, u16, Arc<DataId>);

/// The leases of this node since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseTotals {
    /// Leases that were taken.
    pub taken: u64,
    /// Hits that were leased.
    pub hits_taken: u64,
    /// Hits that were spent without asking Redis.
    pub hits_spent: u64,
    /// Hits that went back.
    pub hits_given_back: u64,
}

/// Hits that a request holds, by step. Dropping it without [`settle`](Self::settle) lets other requests spend them.
pub(super) struct AllHeld<'s, R: Runtime> {
    store: &'s SharedStore<R>,
    /// There is room for four without an allocation: more would be copied with every future that waits.
    held: SmallVec<[(usize, Held); 4]>,
}

impl<R: Runtime> AllHeld<'_, R> {
    /// Spends what the request owes. Other requests may spend the rest.
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
                verdicts[index] = Some(super::give_back::uncharged(check, &held.verdict, surplus));
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
            Origin::Rule { rule, .. } => rule.sync,
            Origin::Override { .. } => None,
        };
        own.unwrap_or(self.options.sync) == Sync::Leased && check.limit.algorithm().is_strict()
    }

    /// Holds hits of leases, and answers their checks. A reported cost is not held: held hits go back when the
    /// request is denied, but reported hits were spent all the same. With a candidate nothing is held: the verdicts
    /// of a limit and its candidate are settled together, in Redis.
    pub(super) fn hold(&self, plan: &Plan<'_>, now: Duration, verdicts: &mut Verdicts) -> AllHeld<'_, R> {
        let mut all = AllHeld { store: self, held: SmallVec::new() };
        if !plan.candidates.is_empty() {
            return all;
        }
        for (index, check) in checks(plan).filter(|(_, check)| self.is_leased(check) && !check.reported) {
            if let Some(held) = self.leases.hold(check, now) {
                verdicts[index] = Some(held.verdict);
                all.held.push((index, held));
            }
        }
        all
    }

    /// Asks for a lease along with this check of the counter under `key`, if one is wanted.
    pub(super) fn demand(&self, check: &Check<'_>, key: &[u8]) -> Option<Demand<'_>> {
        // A check of 0 hits spends nothing, and reported costs spend nothing of a lease. A client that only asks and
        // reports would get its answers from the lease and never spend it: it could exceed N by all requests that
        // begin within T.
        let takes = check.hits != Hits::Take(0) && !check.reported;
        let may = takes && key.len() <= KEY_BYTES_MAX && self.is_leased(check);
        if may { self.leases.demand(check) } else { None }
    }

    /// Adds the granted leases to the table. The question was sent after `taken`.
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
                counter: check.key,
                limit: check.limit,
                stamp: granted.stamp,
                data: part.data.get().cloned(),
            };
            let unspent = demand.granted(source, granted, &counter.verdict, taken);
            unspent.iter().for_each(|unspent| self.return_one(unspent));
        }
    }

    /// Returns held hits to their lease, or to Redis if the lease has ended.
    pub(super) fn release(&self, held: &Held, hits: u64) {
        let unspent = self.leases.release(held, hits);
        unspent.into_iter().for_each(|unspent| self.return_one(&unspent));
    }

    /// T in microseconds, in which Redis counts.
    pub(super) fn lease_micros(&self) -> u64 {
        u64::try_from(self.leases.time().as_micros()).unwrap_or(u64::MAX)
    }

    /// Ends leases and renews them, for ever.
    pub(super) async fn keep_leases(self: Arc<Self>) {
        let pause = self.leases.time().clamp(SWEEPS.0, SWEEPS.1);
        let mut paused = pin!(self.runtime.sleep(Duration::ZERO));
        let mut renewing = FuturesUnordered::new();
        // Timers have whole milliseconds. A shorter time would be 0.
        let gathering = (self.leases.time() / GATHERED_PART).min(GATHERED_MAX);
        let gathering = Some(gathering).filter(|&time| time >= Duration::from_millis(1));
        let mut gathered = pin!(self.runtime.sleep(Duration::ZERO));
        let mut gathers = false;
        loop {
            // A question in flight is continued before a new one is sent.
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
                () = self.leases.came_due.notified(), if !gathers => match gathering {
                    Some(time) => {
                        gathered.set(self.runtime.sleep(time));
                        gathers = true;
                    }
                    None => renewing.extend(self.renewals()),
                },
            }
        }
    }

    /// The questions for leases that are due: one slot each, several counters, and nothing else.
    pub(super) fn renewals(&self) -> impl Iterator<Item = impl Future<Output = ()>> {
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
            plan.steps.push(Step::Check(Check::new(
                Origin::Override { window: Window::of(source.unit) },
                source.limit,
                source.counter,
                Hits::Take(0),
            )));
            part.add(plan.steps.len() - 1, source.key.clone(), Some(demand));
        }
        renewals.into_iter().map(|(plan, part)| self.renew(plan, part))
    }

    /// Asks for leases and nothing else.
    async fn renew(&self, plan: Plan<'_>, part: Part<'_, R>) {
        // This failure is not counted as a failed decision. The next question fails by itself.
        let unknown = smallvec![None; plan.steps.len()];
        let _ = self.ask_slot(&plan, &part, &unknown, self.times(None)).await;
    }

    /// Gives back the remaining hits of leases that have ended at `now`. Returns the number of hits.
    pub(super) fn end_leases(&self, now: Duration) -> u64 {
        let mut hits = 0;
        let mut calls: BTreeMap<To, Call> = BTreeMap::new();
        self.leases.sweep(now, |unspent| {
            self.deny_cache.forget(unspent.source.counter, self.runtime.monotonic());
            hits += unspent.hits;
            let Some(to) = to(&unspent.source) else { return };
            let (_, _, data) = &to;
            let call = calls.entry(to.clone()).or_insert_with(|| Call::giving_back(data));
            push(call, &unspent);
            if call.keys.len() >= GIVEN_BACK_MAX {
                self.return_all(&to, std::mem::replace(call, Call::giving_back(data)));
            }
        });
        calls.into_iter().for_each(|(to, call)| self.return_all(&to, call));
        hits
    }

    /// Detaches a worker that has served all its requests. The last one gives back what leases still have. The
    /// others wait for it, because it may share their connections.
    pub async fn detach(&self) {
        debug_assert!(*self.workers.borrow() > 0, "a worker is detached that was not attached");
        self.workers.send_modify(|workers| *workers = workers.saturating_sub(1));
        let _ = self.workers.subscribe().wait_for(|&workers| workers == 0).await;
        // Leases that are due are no longer asked for. A question in flight takes at most the budget of a decision.
        self.leases.take_due().for_each(drop);
        let _ = self.runtime.timeout(self.main.options().timeout, self.leases.all_answered()).await;
        match self.end_leases(Duration::MAX) {
            0 => {}
            hits => tracing::info!("redis: giving back {hits} unspent leased hits"),
        }
        for (_, store) in self.stores() {
            store.all_given_back().await;
        }
    }

    fn return_one(&self, unspent: &Unspent) {
        self.deny_cache.forget(unspent.source.counter, self.runtime.monotonic());
        let Some(to) = to(&unspent.source) else { return };
        let mut call = Call::giving_back(&to.2);
        push(&mut call, unspent);
        self.return_all(&to, call);
    }

    fn return_all(&self, (per_second, slot, data): &To, call: Call) {
        if !call.keys.is_empty() {
            self.store(*per_second).give_back(*slot, data, call, ());
        }
    }

    /// The leases since the node started.
    pub fn leases(&self) -> LeaseTotals {
        use std::sync::atomic::Ordering::Relaxed;
        LeaseTotals {
            taken: self.leases.taken.load(Relaxed),
            hits_taken: self.leases.hits_taken.load(Relaxed),
            hits_spent: self.leases.hits_spent(),
            hits_given_back: self.leases.hits_given_back.load(Relaxed),
        }
    }

    /// Hits that leases still have. Waiting requests may hold others. It reads every lease, which is too slow for a
    /// page of metrics.
    pub fn leased_hits_left(&self) -> u64 {
        self.leases.hits_left()
    }
}

/// Where hits go back to. `None`: the data in which they were charged is unknown, so they stay.
fn to(source: &Source) -> Option<To> {
    Some((source.unit == Unit::Second, source.slot, source.data.clone()?))
}

fn push(call: &mut Call, unspent: &Unspent) {
    let Source { key, limit, stamp, .. } = &*unspent.source;
    call.push_give_back(key.clone(), limit, ChargeId::of(*stamp), unspent.hits);
}
