//! The shared store as the service asks it: one round trip whatever a request needs, and what is answered when Redis
//! does not answer.
//!
//! In: a request, its plan, how long its caller waits. Out: verdicts, or a [`StoreError`] where a rule says that
//! without Redis there is no answer. Counters of one slot are asked in one call, all calls at once; what one slot
//! charged for a request that another denied goes back, and no answer waits for that.

mod alone;
mod carried;
mod debts;
mod known;
mod leased;
mod over;
mod part;
mod question;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_all};
use smallvec::{SmallVec, smallvec};
use tokio::sync::watch;

use crate::address::Kind;
use crate::failure::{Failure, StoreError};
use crate::lease::Leases;
use crate::runtime::{Runtime, Tokio};
use crate::script::{Answered, Call, CounterAnswered};
use crate::store::{GIVE_BACK_PATIENCE, RedisStore};
use carried::{Carried, Taken};
pub use known::Moment;
pub use leased::LeaseTotals;
use over::{OverMemory, Refunds};
use part::Part;
pub use question::Question;
use tidegate_engine::clock::Clock;
use tidegate_engine::decision::Verdicts;
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit, Verdict};
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::plan::{Check, Hits, Plan, Step};
use tidegate_engine::reported::{Reported, ReportedTotal};
use tidegate_engine::request::Request;
use tidegate_engine::rules::{StoreFailure, Sync, Unit};
use tidegate_engine::settle::settle;

/// So long before its caller gives up an answer has to be on its way.
const HEAD_START: Duration = Duration::from_millis(3);

/// Longer keys are not held: what a lease or a debt holds is bounded in bytes too.
const KEY_BYTES_MAX: usize = 1_024;

/// What is over by hits that may yet go back is asked for again after so long.
const PROVISIONAL: Duration = Duration::from_millis(100);

/// A leased counter that is over is asked for again after so many lease times.
const OVER_LEASES: u32 = 10;

/// What happens beside asking Redis.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct FailoverOptions {
    /// What a rule without `on_store_failure` answers when Redis does not.
    pub mode: StoreFailure,
    /// This node's share of a limit while it decides alone: 0 to 1.
    pub local_share: f64,
    /// Bytes of memory for what is over; 0: only what is over of leased limits.
    pub over_bytes: usize,
    /// The most bytes that all counters take.
    pub counter_bytes: usize,
    /// How counters of a rule without `sync` are shared.
    pub sync: Sync,
    /// How long a lease lasts.
    pub lease_time: Duration,
}

impl Default for FailoverOptions {
    /// What the program does unless told otherwise: no answer from Redis is an error, nothing is leased or remembered.
    fn default() -> Self {
        Self {
            mode: StoreFailure::Error,
            local_share: 1.0,
            over_bytes: 0,
            counter_bytes: 64 << 20,
            sync: Sync::Strict,
            lease_time: Duration::from_millis(100),
        }
    }
}

impl FailoverOptions {
    /// Sets what a rule without `on_store_failure` answers when Redis does not.
    #[must_use]
    pub fn mode(self, mode: StoreFailure) -> Self {
        Self { mode, ..self }
    }

    /// Sets this node's share of a limit while it decides alone: 0 to 1.
    #[must_use]
    pub fn local_share(self, local_share: f64) -> Self {
        Self { local_share, ..self }
    }

    /// Sets the bytes of memory for what is over; 0: only what is over of leased limits.
    #[must_use]
    pub fn over_bytes(self, over_bytes: usize) -> Self {
        Self { over_bytes, ..self }
    }

    /// Sets the most bytes that all counters take.
    #[must_use]
    pub fn counter_bytes(self, counter_bytes: usize) -> Self {
        Self { counter_bytes, ..self }
    }

    /// Sets how counters of a rule without `sync` are shared.
    #[must_use]
    pub fn sync(self, sync: Sync) -> Self {
        Self { sync, ..self }
    }

    /// Sets how long a lease lasts.
    #[must_use]
    pub fn lease_time(self, lease_time: Duration) -> Self {
        Self { lease_time, ..self }
    }
}

/// Counters in Redis.
pub struct SharedStore<R: Runtime = Tokio> {
    runtime: R,
    main: RedisStore<R>,
    /// Limits whose unit is second, if they live elsewhere.
    per_second: Option<RedisStore<R>>,
    /// Decides while Redis does not.
    local: Arc<MemoryStore>,
    clock: Clock,
    options: FailoverOptions,
    over: Arc<OverMemory>,
    carried: Carried,
    /// By the counters in Redis.
    reported: Reported,
    leases: Leases,
    /// Workers that are attached.
    workers: watch::Sender<usize>,
    sweeping: AtomicBool,
}

/// What applying a plan came to.
#[derive(Debug, Default)]
pub struct Applied {
    /// One place a step of the plan.
    pub verdicts: Verdicts,
    /// The steps that were answered from the memory of what is over.
    pub remembered: SmallVec<[usize; 4]>,
}

/// What became of one check.
type Outcome = Option<Result<CounterAnswered, Failure>>;

/// One place a step. Room for more would be copied along with every future that waits.
type Outcomes = SmallVec<[Outcome; 1]>;

impl<R: Runtime> SharedStore<R> {
    /// A store of counters in `main`, those per second in `per_second` if it is there, on the runtime of `main`. `local`
    /// decides while they do not, under the times of `clock`.
    pub fn new(
        main: RedisStore<R>,
        per_second: Option<RedisStore<R>>,
        local: Arc<MemoryStore>,
        clock: Clock,
        options: FailoverOptions,
    ) -> Self {
        Self {
            runtime: main.runtime().clone(),
            main,
            per_second,
            local,
            clock,
            options,
            over: Arc::new(OverMemory::new(match options.over_bytes {
                0 => options.counter_bytes,
                bytes => bytes,
            })),
            carried: Carried::default(),
            reported: Reported::default(),
            leases: Leases::new(options.lease_time),
            workers: watch::Sender::new(0),
            sweeping: AtomicBool::new(false),
        }
    }

    /// The stores, each with its name.
    pub fn stores(&self) -> impl Iterator<Item = (&'static str, &RedisStore<R>)> {
        let per_second = self.per_second.iter().map(|store| ("per_second", store));
        std::iter::once(("main", &self.main)).chain(per_second)
    }

    /// Connects for the calling worker. The first one looks after leases too.
    pub fn attach(self: &Arc<Self>) {
        self.workers.send_modify(|workers| *workers += 1);
        self.stores().for_each(|(_, store)| store.attach());
        if !self.sweeping.swap(true, Relaxed) {
            self.runtime.spawn(Arc::clone(self).keep_leases());
            self.runtime.spawn(Arc::clone(self).charge_debts());
            self.runtime.spawn(Arc::clone(self).forget_with_redis());
        }
    }

    /// Forgets what is over: limits may have changed.
    pub fn forget_over(&self) {
        self.over.clear(self.runtime.monotonic());
    }

    /// Forgets what is over whenever Redis has forgotten it, for ever.
    async fn forget_with_redis(self: Arc<Self>) {
        loop {
            let losses = self.stores().map(|(_, store)| Box::pin(store.memory_lost()));
            select_all(losses).await;
            self.forget_over();
        }
    }

    /// Hits of reported costs that did not fit, by the counters in Redis.
    pub fn reported_total(&self) -> ReportedTotal {
        self.reported.total()
    }

    /// What is remembered of what is over: questions that were answered from there, and counters.
    pub fn over(&self) -> (u64, u64) {
        self.over.totals()
    }

    /// Asks and charges all counters of a request whose caller waits for `patience`.
    ///
    /// # Errors
    /// When Redis does not answer for a counter whose rule has no other answer.
    pub async fn apply(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        patience: Option<Duration>,
    ) -> Result<Applied, StoreError> {
        let times = self.times(patience);
        let Times { began, leases_from, .. } = times;
        let mut verdicts: Verdicts = smallvec![None; plan.steps.len()];
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
        Ok(Applied { verdicts, remembered })
    }

    /// Puts what Redis told, was asked at `began`, among the verdicts; and for what it did not tell, what is answered
    /// then. Whether there was any such.
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
                let left = u64::from(check.limit.burst()).saturating_sub(verdict.before);
                self.reported.count(check, left, *charged);
            }
        }
        let failed = self.fail_over(plan, parts, outcomes, verdicts)?;
        self.learn(plan, outcomes, began);
        Ok(failed)
    }

    /// Counters that a request gives hits back to are over no more.
    fn begin_refunds(&self, plan: &Plan<'_>) -> Option<Refunds<R>> {
        let gives =
            |(_, check): (usize, &Check<'_>)| matches!(check.hits, Hits::GiveBack(_)).then_some(check.key);
        Refunds::begin(&self.runtime, &self.over, checks(plan).filter_map(gives).collect())
    }

    /// What Redis says now to a request that only asks (0 hits). Nothing is answered from what this node remembers, and
    /// nothing is learned.
    ///
    /// # Errors
    /// When Redis does not answer for one of the counters.
    pub async fn look(&self, request: &Request<'_>, plan: &Plan<'_>) -> Result<Verdicts, StoreError> {
        let times = self.times(None);
        let unknown: Verdicts = smallvec![None; plan.steps.len()];
        let parts = self.parts(request, plan, &unknown);
        let told = |outcome: Outcome| outcome.transpose().map(|counter| Some(counter?.verdict));
        let outcomes = self.ask_all(plan, &parts, &unknown, times).await;
        outcomes.into_iter().map(told).collect::<Result<_, _>>().map_err(StoreError)
    }

    /// Answers what is known to be over.
    fn remember(&self, plan: &Plan<'_>, now: Instant, verdicts: &mut Verdicts) -> SmallVec<[usize; 4]> {
        let mut remembered = SmallVec::new();
        for (index, check) in checks(plan) {
            if verdicts[index].is_none() {
                verdicts[index] = self.over.answer(check, now);
                remembered.extend(verdicts[index].map(|_| index));
            }
        }
        remembered
    }

    fn times(&self, patience: Option<Duration>) -> Times {
        Times { began: self.runtime.monotonic(), leases_from: self.runtime.since_boot(), patience }
    }

    fn store_of(&self, unit: Unit) -> &RedisStore<R> {
        self.store(unit == Unit::Second)
    }

    fn store(&self, per_second: bool) -> &RedisStore<R> {
        self.per_second.as_ref().filter(|_| per_second).unwrap_or(&self.main)
    }

    /// Asks all slots at once.
    async fn ask_all(
        &self,
        plan: &Plan<'_>,
        parts: &[Part<'_, R>],
        known: &Verdicts,
        times: Times,
    ) -> Outcomes {
        let mut outcomes: Outcomes = smallvec![None; plan.steps.len()];
        match parts {
            [] => {}
            [part] => self.ask(plan, part, known, times, &mut outcomes).await,
            _ => {
                let asking = parts.iter().map(|part| async {
                    let mut own: Outcomes = smallvec![None; plan.steps.len()];
                    self.ask(plan, part, known, times, &mut own).await;
                    own
                });
                for (own, part) in join_all(asking).await.iter_mut().zip(parts) {
                    part.steps.iter().for_each(|&step| outcomes[step] = own[step].take());
                }
            }
        }
        outcomes
    }

    /// Asks one slot.
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
        for (place, &step) in part.steps.iter().enumerate() {
            outcomes[step] = Some(match &answered {
                Ok((answered, replicated)) => {
                    let counter = answered.counters.get(place).copied().ok_or(Failure::Late);
                    counter.and_then(|counter| {
                        if counter.admits() { replicated.map(|()| counter) } else { Ok(counter) }
                    })
                }
                Err(failure) => Err(*failure),
            });
        }
    }

    /// What one slot answered, and whether enough replicas have what it charged.
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
        let mut carried = self.take_carried(asked().map(|check| (check.key, &check.limit)), until).await?;
        let call = self.call(plan, part, known, &mut carried);
        // In a box, because the futures around it are copied as they are made.
        let reply = Box::pin(part.store.decide(part.slot, &call, until)).await?;
        let answered = Answered::read(&reply.numbers, asked()).ok_or(Failure::Garbage)?;
        carried.charged();
        let replicated = if answered.admits() { part.store.replicate(&reply, until).await } else { Ok(()) };
        if replicated.is_ok() {
            self.take_leases(plan, part, &answered, times.leases_from);
        }
        Ok((answered, replicated))
    }

    /// What these counters are to be charged of what this node admitted alone. Another call may be telling Redis right
    /// now; this one must not overtake it.
    async fn take_carried<'l>(
        &self,
        counters: impl Iterator<Item = (Key, &'l Limit)> + Clone,
        until: Instant,
    ) -> Result<Taken<'_>, Failure> {
        loop {
            let now = self.runtime.monotonic();
            match self.carried.take(counters.clone(), now) {
                Ok(taken) => return Ok(taken),
                Err(landed) => {
                    let left = until.saturating_duration_since(now);
                    self.runtime.timeout(left, landed).await.ok_or(Failure::Timeout)?;
                }
            }
        }
    }

    /// Notes which counters Redis called over.
    fn learn(&self, plan: &Plan<'_>, outcomes: &[Outcome], asked: Instant) {
        for (index, check) in checks(plan) {
            let Some(Ok(counter)) = &outcomes[index] else { continue };
            // Where a request asks a counter twice, it may be over for that reason alone.
            let is_only = || checks(plan).filter(|(_, other)| other.key == check.key).count() == 1;
            let is_leased = self.is_leased(check);
            let is_kept = self.options.over_bytes > 0 || is_leased;
            if counter.verdict.over && is_kept && is_only() {
                // What other nodes do not spend of their leases should not be missed until the window ends.
                let patience = if is_leased { self.options.lease_time * OVER_LEASES } else { Duration::MAX };
                let provisional = self.may_be_provisional(plan, check, counter);
                let patience = if provisional { patience.min(PROVISIONAL) } else { patience };
                self.over.learn(check, &counter.verdict, asked, patience);
            }
        }
    }

    /// Whether a counter may be over by hits of another node's request that is denied in another slot, and which go
    /// back. That takes a request's budget and a give-back's time at most: what was charged before that stays.
    fn may_be_provisional(&self, plan: &Plan<'_>, check: &Check<'_>, counter: &CounterAnswered) -> bool {
        let is_fixed = check.limit.algorithm() == Algorithm::FixedWindow;
        let goes_back = !is_fixed || plan.modes.stop_increment_when_over;
        let until = self.store_of(check.unit()).options().timeout + GIVE_BACK_PATIENCE;
        self.has_slots() && goes_back && u128::from(counter.quiet_nanos) < until.as_nanos()
    }

    /// Whether counters of one request may live in different slots.
    fn has_slots(&self) -> bool {
        self.per_second.is_some() || matches!(self.main.options().kind, Kind::Cluster(_))
    }

    /// Gives back what a slot charged and the whole request does not owe.
    fn give_back(
        &self,
        plan: &Plan<'_>,
        parts: &[Part<'_, R>],
        outcomes: &[Outcome],
        verdicts: &mut Verdicts,
    ) {
        let over = |index: usize| verdicts[index].is_some_and(|verdict: Verdict| verdict.over);
        let settlement = settle(plan, over);
        for part in parts {
            let Some(memory) = &part.memory else { continue };
            let (mut call, mut counters) = (Call::giving_back(memory), SmallVec::new());
            for (&step, key) in part.steps.iter().zip(&part.keys) {
                let (Some(check), Some(Ok(counter))) = (check_at(plan, step), &outcomes[step]) else {
                    continue;
                };
                let owed = settlement.charged(check, counter.verdict.over);
                let surplus = counter.charged.saturating_sub(owed);
                if surplus > 0 {
                    counters.push(check.key);
                    call.push_give_back(key.clone(), &check.limit, counter.stamp, surplus);
                    verdicts[step] = Some(uncharged(check, &counter.verdict, surplus));
                }
            }
            if !call.keys.is_empty() {
                let refunds = Refunds::begin(&self.runtime, &self.over, counters);
                part.store.give_back(part.slot, call, refunds);
            }
        }
    }
}

/// When a request began, by two clocks, and how long its caller waits.
#[derive(Clone, Copy)]
struct Times {
    began: Instant,
    /// Leases that it takes last from here.
    leases_from: Duration,
    patience: Option<Duration>,
}

impl Times {
    /// Until when an answer is waited for: as long as the store's budget lasts and the caller waits.
    fn until<R: Runtime>(self, store: &RedisStore<R>) -> Instant {
        let patience = self.patience.map_or(Duration::MAX, |patience| patience.saturating_sub(HEAD_START));
        self.began + store.options().timeout.min(patience)
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

/// The verdict of a counter to which this much goes back.
fn uncharged(check: &Check<'_>, verdict: &Verdict, hits: u64) -> Verdict {
    let remaining = verdict.remaining.saturating_add(hits).min(u64::from(check.limit.burst()));
    let reset_nanos = if verdict.before == 0 { 0 } else { verdict.reset_nanos };
    Verdict { remaining, reset_nanos, ..*verdict }
}

#[cfg(test)]
mod tests;
