//! The shared store as requests use it: one round trip to Redis, and what requests get when Redis does not answer.
//!
//! In: a request, its plan, and how long its caller waits. Out: verdicts, or a [`StoreError`] where the rule wants
//! an error without Redis. The counters of one slot are asked in one call, and all calls are sent at once. When one
//! slot charged a request that another slot denied, the hits go back; no answer waits for that.

mod fallback;
mod unsynced;
mod report_unsynced;
mod known;
mod leased;
mod look;
mod deny_cache;
mod part;
mod question;
mod epochs;
mod give_back;
mod strikes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_all};
use smallvec::{SmallVec, smallvec};
use tokio::sync::watch;

use crate::address::Servers;
use crate::connection::GIVE_BACK_TIMEOUT;
use crate::failure::{Failure, StoreError};
use crate::lease::Leases;
use crate::runtime::{Runtime, Tokio};
use crate::script::{Answered, CounterAnswered};
use crate::store::RedisStore;
use deny_cache::{DenyCache, Refunds};
use epochs::EpochServers;
pub use epochs::{Agreed, Numbers, Raised};
pub use known::Moment;
pub use leased::LeaseTotals;
use part::Part;
pub use question::Question;
use tidegate_engine::clock::Clock;
use tidegate_engine::decision::Verdicts;
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::memory::{Cold, MemoryStore};
use tidegate_engine::plan::{Check, Hits, Plan, Step};
use tidegate_engine::reported::{Reported, ReportedTotal};
use tidegate_engine::request::Request;
use tidegate_engine::rules::{StoreFailure, Sync, Unit};
use unsynced::{Taken, UnsyncedHits};

/// An answer has to be ready this long before its caller gives up.
const HEAD_START: Duration = Duration::from_millis(3);

/// Longer keys are not kept, so that leases and unsynced hits are bounded in bytes too.
const KEY_BYTES_MAX: usize = 1_024;

/// How long a counter stays in the deny cache when hits that filled it may still go back.
const PROVISIONAL: Duration = Duration::from_millis(100);

/// How long a ban stays in the deny cache: another node may lift it.
const BAN_REMEMBERED: Duration = Duration::from_secs(1);

/// How many lease times a leased counter stays in the deny cache.
const OVER_LEASES: u32 = 10;

/// How a node uses the shared store.
#[derive(Clone, Copy, Debug)]
pub struct SharedStoreOptions {
    /// The fallback of a rule without `on_store_failure`.
    pub mode: StoreFailure,
    /// This node's share of a limit while it decides alone, from 0 to 1.
    pub local_share: f64,
    /// The bytes of the deny cache. 0: it keeps only leased counters.
    pub deny_cache_bytes: usize,
    /// The most bytes of all counters.
    pub counter_bytes: usize,
    /// How counters of a rule without `sync` are shared.
    pub sync: Sync,
    /// How long a lease lasts.
    pub lease_time: Duration,
}

impl Default for SharedStoreOptions {
    /// Without Redis a request gets an error, and there are no leases and no deny cache.
    fn default() -> Self {
        Self {
            mode: StoreFailure::Error,
            local_share: 1.0,
            deny_cache_bytes: 0,
            counter_bytes: 64 << 20,
            sync: Sync::Strict,
            lease_time: Duration::from_millis(100),
        }
    }
}

/// Counters in Redis.
pub struct SharedStore<R: Runtime = Tokio> {
    runtime: R,
    main: RedisStore<R>,
    /// Limits per second, if they have a Redis of their own.
    per_second: Option<RedisStore<R>>,
    /// Decides while Redis does not answer.
    local: Arc<MemoryStore>,
    clock: Clock,
    options: SharedStoreOptions,
    deny_cache: Arc<DenyCache>,
    unsynced: UnsyncedHits,
    /// Reported hits that did not fit, by the counters in Redis.
    reported: Reported,
    leases: Leases,
    /// The epochs of each server, as they were read.
    epoch_servers: EpochServers,
    /// The number of attached workers.
    workers: watch::Sender<usize>,
    sweeping: AtomicBool,
}

/// The verdicts of a plan.
#[derive(Debug, Default)]
pub struct Applied {
    /// One for each step of the plan.
    pub verdicts: Verdicts,
    /// The steps that the deny cache answered.
    pub remembered: SmallVec<[usize; 4]>,
}

/// The answer to one check. `None`: it was not asked.
type Outcome = Option<Result<CounterAnswered, Failure>>;

/// One for each step. There is room for one without an allocation: more would be copied with every future that waits.
type Outcomes = SmallVec<[Outcome; 1]>;

impl<R: Runtime> SharedStore<R> {
    /// A store of counters in `main`, and of those per second in `per_second` if there is one. It uses the runtime
    /// of `main`. While Redis does not answer, `local` decides, by the time of `clock`.
    pub fn new(
        main: RedisStore<R>,
        per_second: Option<RedisStore<R>>,
        local: Arc<MemoryStore>,
        clock: Clock,
        options: SharedStoreOptions,
    ) -> Self {
        Self {
            runtime: main.runtime().clone(),
            main,
            per_second,
            local,
            clock,
            options,
            deny_cache: Arc::new(DenyCache::new(match options.deny_cache_bytes {
                0 => options.counter_bytes,
                bytes => bytes,
            })),
            unsynced: UnsyncedHits::default(),
            reported: Reported::default(),
            leases: Leases::new(options.lease_time),
            epoch_servers: EpochServers::default(),
            workers: watch::Sender::new(0),
            sweeping: AtomicBool::new(false),
        }
    }

    /// The stores, each with its name.
    pub fn stores(&self) -> impl Iterator<Item = (&'static str, &RedisStore<R>)> {
        let per_second = self.per_second.iter().map(|store| ("per_second", store));
        std::iter::once(("main", &self.main)).chain(per_second)
    }

    /// The store of all counters but those per second.
    pub fn main(&self) -> &RedisStore<R> {
        &self.main
    }

    /// Connects for the calling worker. The first worker also starts the tasks in the background.
    pub fn attach(self: &Arc<Self>) {
        self.workers.send_modify(|workers| *workers += 1);
        self.stores().for_each(|(_, store)| store.attach());
        if !self.sweeping.swap(true, Relaxed) {
            self.runtime.spawn(Arc::clone(self).keep_leases());
            self.runtime.spawn(Arc::clone(self).report_unsynced());
            self.runtime.spawn(Arc::clone(self).forget_with_redis());
        }
    }

    /// Clears the deny cache: limits may have changed.
    pub fn clear_deny_cache(&self) {
        self.deny_cache.clear(self.runtime.monotonic());
    }

    /// Clears the deny cache whenever a server has lost its data, for ever.
    async fn forget_with_redis(self: Arc<Self>) {
        loop {
            let losses = self.stores().map(|(_, store)| Box::pin(store.memory_lost()));
            select_all(losses).await;
            self.clear_deny_cache();
        }
    }

    /// How long counters of Redis count as full, because hits may be missing.
    pub fn coldness(&self) -> Cold {
        let colds = self.stores().filter_map(|(_, store)| store.cold_since());
        let latest = colds.max_by_key(|(since, _)| *since);
        latest.map_or(Cold::NEVER, |(since, window_max)| {
            let nanos = u64::try_from(window_max.as_nanos()).unwrap_or(u64::MAX);
            Cold::since(self.clock.at(since), nanos)
        })
    }

    /// The lease time of this node and the longest of the nodes that share Redis, if they differ. It is only known
    /// with `deny_cold`: after a loss, counters count as full for the longest one.
    pub fn lease_times_differ(&self) -> Option<[Duration; 2]> {
        self.stores().find_map(|(_, store)| store.lease_times_differ())
    }

    /// Reported hits that did not fit, by the counters in Redis.
    pub fn reported_total(&self) -> ReportedTotal {
        self.reported.total()
    }

    /// The checks that the deny cache answered, and the counters in it.
    pub fn deny_cache_totals(&self) -> (u64, u64) {
        self.deny_cache.totals()
    }

    /// Checks and charges all counters of a request. Its caller waits for `caller_timeout`.
    /// Fails when Redis does not answer for a counter and its rule's fallback is an error.
    pub async fn apply(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        caller_timeout: Option<Duration>,
    ) -> Result<Applied, StoreError> {
        let times = self.times(caller_timeout);
        let Times { began, leases_from, .. } = times;
        let mut verdicts: Verdicts = smallvec![None; plan.places()];
        let held = self.hold(plan, leases_from, &mut verdicts);
        let refunds = self.begin_refunds(plan);
        let remembered = self.remember(plan, began, &mut verdicts);
        let parts = self.parts(request, plan, &verdicts);
        let outcomes = self.ask_all(plan, &parts, &verdicts, times).await;
        drop(refunds);
        let failed = self.take_in(plan, &parts, &outcomes, &mut verdicts, began)?;
        held.settle(plan, &mut verdicts);
        if !failed && (parts.len() > 1 || !remembered.is_empty()) {
            self.give_back(plan, &parts, &outcomes, &mut verdicts);
        }
        if !plan.further.is_empty() {
            self.note_strikes(request, plan, &verdicts);
        }
        Ok(Applied { verdicts, remembered })
    }

    /// Adds the verdicts of Redis, which was asked at `began`, and the fallback's for checks without an answer.
    /// Returns whether there were any of these.
    fn take_in(
        &self,
        plan: &Plan<'_>,
        parts: &[Part<'_, R>],
        outcomes: &Outcomes,
        verdicts: &mut Verdicts,
        began: Instant,
    ) -> Result<bool, StoreError> {
        for (index, outcome) in outcomes.iter().enumerate() {
            let Some(Ok(CounterAnswered { verdict, charged, .. })) = outcome else { continue };
            verdicts[index] = Some(*verdict);
            if let Some(check) = check_at(plan, index).filter(|_| verdict.over) {
                let left = check.limit.capacity().saturating_sub(verdict.before);
                self.reported.count(check, left, *charged);
            }
        }
        let failed = self.fall_back(plan, parts, outcomes, verdicts)?;
        self.learn(plan, outcomes, began);
        Ok(failed)
    }

    /// Removes the counters from the deny cache to which the request gives hits back, or whose ban it replaces.
    fn begin_refunds(&self, plan: &Plan<'_>) -> Option<Refunds<R>> {
        let changes = |(_, check): (usize, &Check<'_>)| {
            let is_changed = match check.hits {
                Hits::GiveBack(_) => true,
                Hits::Take(hits) => hits > 0 && check.is_ban(),
            };
            is_changed.then_some(check.key)
        };
        Refunds::begin(&self.runtime, &self.deny_cache, checks(plan).filter_map(changes).collect())
    }

    /// Answers checks that are over in any case, and checks from the deny cache. With a candidate the cache answers none,
    /// because the candidate has to be asked in any case.
    fn remember(&self, plan: &Plan<'_>, now: Instant, verdicts: &mut Verdicts) -> SmallVec<[usize; 4]> {
        let mut remembered = SmallVec::new();
        for (index, check) in checks(plan).filter(|(_, check)| check.denied) {
            verdicts[index] = Some(fallback::denied(check));
            remembered.push(index);
        }
        if !plan.candidates.is_empty() {
            return remembered;
        }
        let denied = remembered.len();
        for (index, check) in checks(plan) {
            if verdicts[index].is_none() {
                verdicts[index] = self.deny_cache.answer(check, now);
                remembered.extend(verdicts[index].map(|_| index));
            }
        }
        if !plan.further.is_empty() && remembered.len() > denied {
            self.spare(plan, &remembered[denied..], now, verdicts);
        }
        remembered
    }

    fn times(&self, caller_timeout: Option<Duration>) -> Times {
        Times { began: self.runtime.monotonic(), leases_from: self.runtime.since_boot(), caller_timeout }
    }

    fn store_of(&self, unit: Unit) -> &RedisStore<R> {
        self.store(unit == Unit::Second)
    }

    /// The store of a check's counter. Slots are all in the main one: a `ttl` is no unit, even if it is in seconds.
    fn store_for(&self, check: &Check<'_>) -> &RedisStore<R> {
        match check.limit.algorithm() {
            Algorithm::Concurrency => &self.main,
            _ => self.store_of(check.unit()),
        }
    }

    fn store(&self, per_second: bool) -> &RedisStore<R> {
        self.per_second.as_ref().filter(|_| per_second).unwrap_or(&self.main)
    }

    /// Calls all slots at once.
    async fn ask_all(
        &self,
        plan: &Plan<'_>,
        parts: &[Part<'_, R>],
        known: &Verdicts,
        times: Times,
    ) -> Outcomes {
        let mut outcomes: Outcomes = smallvec![None; plan.places()];
        match parts {
            [] => {}
            [part] => self.ask(plan, part, known, times, &mut outcomes).await,
            _ => {
                let asking = parts.iter().map(|part| async {
                    let mut own: Outcomes = smallvec![None; plan.places()];
                    self.ask(plan, part, known, times, &mut own).await;
                    own
                });
                for (own, part) in join_all(asking).await.iter_mut().zip(parts) {
                    part.places(plan).for_each(|place| outcomes[place] = own[place].take());
                }
            }
        }
        outcomes
    }

    /// Calls one slot.
    async fn ask(
        &self,
        plan: &Plan<'_>,
        part: &Part<'_, R>,
        known: &Verdicts,
        times: Times,
        outcomes: &mut Outcomes,
    ) {
        let answered = self.ask_slot(plan, part, known, times).await;
        if let Err(failure) = answered {
            part.store.failed(failure);
        }
        for (index, place) in part.places(plan).enumerate() {
            outcomes[place] = Some(match &answered {
                Ok((answered, replicated)) => {
                    let counter = answered.counters.get(index).copied().ok_or(Failure::Late);
                    counter.and_then(|counter| {
                        if counter.admits() { replicated.map(|()| counter) } else { Ok(counter) }
                    })
                }
                Err(failure) => Err(*failure),
            });
        }
    }

    /// The answer of one slot, and whether enough replicas have its charges.
    async fn ask_slot(
        &self,
        plan: &Plan<'_>,
        part: &Part<'_, R>,
        known: &Verdicts,
        times: Times,
    ) -> Result<(Answered, Result<(), Failure>), Failure> {
        let until = times.until(part.store);
        let _waiting = part.store.wait()?;
        let asked = || part.steps.iter().filter_map(|&step| check_at(plan, step));
        let mut taken = self.take_unsynced(asked().map(|check| (check.key, &check.limit)), until).await?;
        let call = self.call(plan, part, known, &mut taken);
        // Boxed, because the futures around it are copied when they are made.
        let reply = Box::pin(part.store.decide(part.slot, &call, until)).await?;
        let candidates = part.candidates.iter().map(|&(candidate, _)| &plan.candidates[candidate].check);
        let answered = Answered::read(&reply.numbers, asked().chain(candidates)).ok_or(Failure::Garbage)?;
        taken.charged();
        part.answered(&answered);
        let replicated = if answered.admits(part.steps.len()) {
            part.store.replicate(&reply, until).await
        } else {
            Ok(())
        };
        if replicated.is_ok() {
            self.take_leases(plan, part, &answered, times.leases_from);
        }
        Ok((answered, replicated))
    }

    /// Takes the unsynced hits of these counters for a call. While another call has them, this one waits: Redis would
    /// answer it without these hits.
    async fn take_unsynced<'l>(
        &self,
        counters: impl Iterator<Item = (Key, &'l Limit)> + Clone,
        until: Instant,
    ) -> Result<Taken<'_>, Failure> {
        loop {
            let now = self.runtime.monotonic();
            match self.unsynced.take(counters.clone(), now) {
                Ok(taken) => return Ok(taken),
                Err(landed) => {
                    let left = until.saturating_duration_since(now);
                    self.runtime.timeout(left, landed).await.ok_or(Failure::Timeout)?;
                }
            }
        }
    }

    /// Puts counters that are over into the deny cache.
    fn learn(&self, plan: &Plan<'_>, outcomes: &[Outcome], asked: Instant) {
        for (index, check) in checks(plan) {
            let Some(Ok(counter)) = &outcomes[index] else { continue };
            // A request that asks for a counter twice may be over for that reason alone.
            let is_only = || checks(plan).filter(|(_, other)| other.key == check.key).count() == 1;
            let is_leased = self.is_leased(check);
            let is_kept = self.options.deny_cache_bytes > 0 || is_leased;
            // Nobody knows when a slot is released, or hits that are held.
            let holds = || plan.hold_of(plan.descriptor_of(index)).is_some();
            let has_end = || check.limit.algorithm() != Algorithm::Concurrency && !holds();
            if counter.verdict.over && is_kept && has_end() && is_only() {
                // Other nodes give back what they do not spend of their leases: capacity may come back before the
                // window ends.
                let lasts = match check.is_ban() {
                    true => BAN_REMEMBERED,
                    false if is_leased => self.options.lease_time * OVER_LEASES,
                    false => Duration::MAX,
                };
                let provisional = !check.is_ban() && self.may_be_provisional(plan, check, counter);
                let lasts = if provisional { lasts.min(PROVISIONAL) } else { lasts };
                self.deny_cache.learn(check, &counter.verdict, asked, lasts);
            }
        }
    }

    /// Whether another slot may still deny the request whose hits filled this counter, so that they go back. That
    /// takes at most one request's budget and a give-back's time. Earlier charges stay.
    fn may_be_provisional(&self, plan: &Plan<'_>, check: &Check<'_>, counter: &CounterAnswered) -> bool {
        let is_fixed = check.limit.algorithm() == Algorithm::FixedWindow;
        let goes_back = !is_fixed || plan.modes.stop_increment_when_over;
        let until = self.store_for(check).options().timeout + GIVE_BACK_TIMEOUT;
        self.has_slots() && goes_back && u128::from(counter.quiet_nanos) < until.as_nanos()
    }

    /// Whether the counters of one request may live in different slots.
    fn has_slots(&self) -> bool {
        self.per_second.is_some() || matches!(self.main.options().kind, Servers::Cluster(_))
    }
}

/// When a request began, by two clocks, and how long its caller waits.
#[derive(Clone, Copy)]
struct Times {
    began: Instant,
    /// The start of the leases that the request takes.
    leases_from: Duration,
    caller_timeout: Option<Duration>,
}

impl Times {
    /// The deadline of the answer: the store's budget, or the caller's timeout if that is shorter.
    fn until<R: Runtime>(self, store: &RedisStore<R>) -> Instant {
        let caller = self.caller_timeout.map_or(Duration::MAX, |caller| caller.saturating_sub(HEAD_START));
        self.began + store.options().timeout.min(caller)
    }
}

fn checks<'p, 'a>(plan: &'p Plan<'a>) -> impl Iterator<Item = (usize, &'p Check<'a>)> {
    plan.steps.iter().enumerate().filter_map(|(index, step)| match step {
        Step::Check(check) => Some((index, check)),
        _ => None,
    })
}

fn check_at<'p, 'a>(plan: &'p Plan<'a>, index: usize) -> Option<&'p Check<'a>> {
    match plan.steps.get(index) {
        Some(Step::Check(check)) => Some(check),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
