//! The path of a request, from the request to its answer. Calls every stage and has no logic of its own.
//!
//! Requests come in a [`Batch`]. [`Service::decide`] decides those that this node can decide by itself.
//! [`Service::finish`] decides one for which the shared store has to be asked. A request keeps its place in the batch
//! until its answer is sent.

mod bans;
mod batch;
mod counters;
mod exceptions;
mod readers;
mod records;
mod snapshot;
#[cfg(any(test, feature = "fixture"))]
#[doc(hidden)]
pub mod fixture;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use parking_lot::Mutex;

pub use self::bans::BanError;
pub use self::batch::{BATCH_MAX, Batch};
use self::counters::Answered;
pub use self::counters::Counters;
pub use self::exceptions::EFFECTS;
pub use self::records::{
    KnownRecords, NoAnswer, RecordAnswer, RecordSource, RecordStats, RecordsOptions, StaleMode,
};
pub use self::snapshot::{InForce, Snapshot};
use crate::bans::Bans;
use crate::clock::Clock;
use crate::decisions::{Context, DecisionLog, Denials};
use crate::denied::DeniedKeys;
use crate::events::{Decided, Events, RuleEvents};
use crate::live::LiveRules;
use crate::metrics::{Metrics, RuleHandles, RulesBySeries};
use crate::watches::{TooManyWatches, Watched, Watches};
use tidegate_engine::decision::{Decision, conclude_into};
use tidegate_engine::explain::{Explanation, explain};
use tidegate_engine::overlay::{Exceptions, Found, Overlay};
use tidegate_engine::plan::{Modes, Plan};
use tidegate_engine::request::Request;
use tidegate_engine::rules::{BadCallId, Epochs, RuleSet};
use tidegate_engine::time::Timestamp;
use tidegate_redis::runtime::{Runtime, Tokio};
use tidegate_redis::{Applied, StoreError};

/// Decides requests under the rules in force. It takes times, timers and tasks from its runtime only.
pub struct Service<R: Runtime = Tokio> {
    runtime: R,
    live: Arc<LiveRules<Option<Loaded>>>,
    counters: Counters<R>,
    metrics: Arc<Metrics>,
    clock: Clock,
    modes: Modes,
    exceptions: exceptions::InForce,
    /// The resets that the rules in force know of. Locked while rules are put in force.
    epochs: Mutex<Epochs>,
    /// `None`: there are no records, and no rule asks for them.
    records: Option<Arc<KnownRecords<R>>>,
    log: DecisionLog,
    /// `None`: there are no outlets for events.
    events: Option<Arc<Events>>,
    /// The keys that are denied most, if their names are kept.
    denied: Option<Arc<DeniedKeys>>,
    /// The bans that have denied requests.
    bans: Bans,
    /// Waits of denied requests are lengthened at random by up to this share.
    retry_jitter: f64,
}

/// A set of rules, with its counters in metrics and the times of its log lines.
struct Loaded {
    rules: RuleSet,
    handles: RuleHandles,
    /// When a denial by these rules was last logged.
    denials: Denials,
    /// The events of these rules.
    rule_events: RuleEvents,
    /// The fullest counters of some rules, while somebody asks.
    watches: Watches,
    /// Indices of all rules in the order of their paths, made when they are first needed.
    by_path: OnceLock<Box<[usize]>>,
    /// The same by the series in which they count.
    by_series: OnceLock<RulesBySeries>,
}

/// Why no decision could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No set of rules was ever loaded.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// The shared store did not answer, and the fallback is an error.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The request names a call by what is no id.
    #[error(transparent)]
    CallId(#[from] BadCallId),
}

/// The records of each request of a batch. `None`: one of them is not known here.
type AllFound = ArrayVec<Option<Found>, BATCH_MAX>;

/// Puts the plan of each request of a batch under its overlay.
#[inline(never)] // Most have nothing over their rules: the way of all others stays short.
fn lay_over<'p>(batch: &Batch<'_>, plans: &mut [Plan<'p>], overlay_of: impl Fn(usize) -> Overlay<'p>) {
    for (place, request) in batch.places().enumerate() {
        overlay_of(place).apply(request, &mut plans[place]);
    }
}

/// A request with its plan under an overlay, which holds until it is answered.
#[derive(Clone, Copy)]
struct Planned<'p, 'r, 'o> {
    request: &'p Request<'r>,
    plan: &'p Plan<'o>,
    overlay: Overlay<'p>,
}

/// A random number from 0 to 1. It need not be secret.
fn random_share() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}

impl Service {
    /// A service without rules.
    pub fn new(counters: Counters, metrics: Arc<Metrics>, clock: Clock, modes: Modes) -> Self {
        Self::on(Tokio, counters, metrics, clock, modes)
    }
}

impl<R: Runtime> Service<R> {
    /// A service without rules, on this runtime.
    pub fn on(runtime: R, counters: Counters<R>, metrics: Arc<Metrics>, clock: Clock, modes: Modes) -> Self {
        let (live, log) = (Arc::new(LiveRules::new(None)), DecisionLog::new(runtime.monotonic()));
        let (exceptions, epochs) = Default::default();
        let (records, events, denied) = (None, None, None);
        Self {
            runtime,
            live,
            counters,
            metrics,
            clock,
            modes,
            exceptions,
            epochs,
            records,
            log,
            events,
            denied,
            bans: Bans::new(false),
            retry_jitter: 0.0,
        }
    }

    /// The same service, which lengthens each wait of a denied request at random by up to this share: clients that
    /// were denied together do not come back together.
    #[must_use]
    pub fn spreading_retries(self, retry_jitter: f64) -> Self {
        Self { retry_jitter, ..self }
    }

    /// The same service, logging decisions with these options.
    #[must_use]
    pub fn logging(self, log: DecisionLog) -> Self {
        Self { log, ..self }
    }

    /// The same service, emitting these events. They have to be set before rules are.
    #[must_use]
    pub fn emitting(self, events: Option<Arc<Events>>) -> Self {
        Self { events, ..self }
    }

    /// The same service, counting the keys that it denies.
    #[must_use]
    pub fn counting_denied_keys(self, denied: Option<Arc<DeniedKeys>>) -> Self {
        Self { denied, ..self }
    }

    /// The same service, which keeps the entries of banned requests if somebody may see them.
    #[must_use]
    pub fn listing_bans(self, bans: Bans) -> Self {
        Self { bans, ..self }
    }

    /// The same service, with limits of these records.
    #[must_use]
    pub fn recorded(self, records: Option<Arc<KnownRecords<R>>>) -> Self {
        Self { records, ..self }
    }

    /// The time of decisions.
    fn now(&self) -> Timestamp {
        self.clock.at(self.runtime.monotonic())
    }

    fn nanos_since(&self, began: Instant) -> u64 {
        let since = self.runtime.monotonic().saturating_duration_since(began);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The modes that rules do not choose.
    pub fn modes(&self) -> Modes {
        self.modes
    }

    /// The counters that decisions ask.
    pub fn counters(&self) -> &Counters<R> {
        &self.counters
    }

    /// Empties the plans of those requests of a batch that [`finish`](Self::finish) looks up records for, or refuses:
    /// nothing is asked for them here. Adds their places to `left_out`.
    #[inline(never)] // Few rules need this: the way of all others stays short.
    fn leave_out(
        &self,
        plans: &mut [Plan<'_>],
        left_out: &mut Answered,
        is_left_out: impl Fn(usize, &Plan<'_>) -> bool,
    ) {
        for (place, plan) in plans.iter_mut().enumerate() {
            if is_left_out(place, plan) {
                left_out.add(place);
                *plan = Plan::empty(self.modes);
            }
        }
    }

    /// Adds the records of each request of a batch to `found`.
    #[inline(never)]
    fn look_up<'b, 'r: 'b, 'p: 'b>(
        &self,
        requests: impl Iterator<Item = (&'b Request<'r>, &'b Plan<'p>)> + Clone,
        found: &mut AllFound,
    ) {
        match &self.records {
            Some(records) => self.metrics.records_known(records.look(requests, found)),
            None => found.extend(requests.map(|_| Some(Found::default()))),
        }
    }

    /// The records of a request that waits, which keeps little: `Some(None)` if it has none. `None`: one is not in
    /// memory.
    #[inline(never)]
    fn known(&self, request: &Request<'_>, plan: &Plan<'_>) -> Option<Option<Box<Found>>> {
        let mut found = AllFound::new();
        self.look_up(std::iter::once((request, plan)), &mut found);
        let found = found.pop().flatten()?;
        Some((!found.is_empty()).then(|| Box::new(found)))
    }

    /// The records of a request; those that are not in memory are fetched. `None`: no rule has records.
    async fn find(
        &self,
        live: InForce<'_>,
        request: &Request<'_>,
        timeout: Option<Duration>,
    ) -> Option<Found> {
        let records = self.records.as_ref().filter(|_| live.rules().has_records())?;
        let plan = live.rules().plan(request, self.modes);
        Some(records.find(request, &plan, timeout).await)
    }

    /// Decides the requests of a batch, one after the other, as far as this node can by itself. `render` gets each
    /// request with its place and its decision, or with `None` if the shared store has to be asked
    /// ([`finish`](Self::finish)).
    pub fn decide(
        &self,
        live: InForce<'_>,
        batch: &Batch<'_>,
        mut render: impl FnMut(usize, &Request<'_>, Option<&Decision<'_>>),
    ) {
        if !self.counters.may_answer_now() {
            return batch.requests().for_each(|(place, request)| render(place, request, None));
        }
        let selected = live.rules().selects().then(|| batch.asked(live.rules()));
        match &selected {
            Some(selected) => self.decide_asked(live, selected, render),
            None => self.decide_asked(live, batch, render),
        }
    }

    /// Like `decide`, for requests that can be planned as they are.
    fn decide_asked(
        &self,
        live: InForce<'_>,
        batch: &Batch<'_>,
        mut render: impl FnMut(usize, &Request<'_>, Option<&Decision<'_>>),
    ) {
        let asked = batch.requests().count();
        if asked == 0 {
            return;
        }
        let began = self.runtime.monotonic();
        let (has_records, mut found) = (live.rules().has_records(), AllFound::new());
        let exceptions = self.exceptions.load();
        // Large values are filled in place.
        let mut plans: ArrayVec<Plan<'_>, BATCH_MAX> = ArrayVec::new();
        let mut applied: ArrayVec<Applied, BATCH_MAX> = ArrayVec::new();
        for (place, request) in batch.places().enumerate() {
            plans.push(Plan::empty(self.modes));
            live.rules().plan_into(request, &mut plans[place]);
            applied.push(Applied::default());
        }
        let mut left_out = Answered::default();
        if has_records {
            self.look_up(batch.places().zip(&plans), &mut found);
            self.leave_out(&mut plans, &mut left_out, |place, _| found[place].is_none());
        }
        if live.rules().counts_calls() {
            let requests: ArrayVec<&Request<'_>, BATCH_MAX> = batch.places().collect();
            self.leave_out(&mut plans, &mut left_out, |place, plan| {
                live.rules().check_calls(requests[place], plan).is_err()
            });
        }
        let overlay_of = |place: usize| Overlay {
            records: found.get(place).and_then(Option::as_ref),
            exceptions: exceptions.as_deref().map(Arc::as_ref),
        };
        if has_records || exceptions.is_some() {
            lay_over(batch, &mut plans, overlay_of);
        }
        let answered = self.counters.begin(&plans, began, &self.clock, &mut applied).without(left_out);
        let decided = batch.requests().filter(|&(place, _)| answered.has(place)).count();
        self.metrics.decisions_took(self.nanos_since(began) / asked as u64, decided);
        for (place, request) in batch.requests() {
            match answered.has(place) {
                true => {
                    let planned = Planned { request, plan: &plans[place], overlay: overlay_of(place) };
                    self.conclude(live, began, planned, &applied[place], |decision| {
                        render(place, request, Some(decision));
                    });
                }
                false => render(place, request, None),
            }
        }
    }

    /// Decides one request for which the shared store has to be asked. Its caller waits for `timeout` (`None`:
    /// without an end). `read` fills a request in place, and may be called more than once.
    ///
    /// A future is copied to where it waits, so it keeps little: a request that asks for one counter is read and
    /// planned again when the store has answered. (Keeping all of it, and room for a span, took the limiter 5.3 µs a
    /// call instead of 4.3: `cargo bench --bench redis`, `fixed_window` on the lane.)
    /// Fails as `read` does, and when the store does not answer and the fallback is an error.
    pub async fn finish<'r, T, E: From<ServiceError>>(
        &self,
        live: InForce<'r>,
        read: impl Fn(&mut Request<'r>) -> Result<(), E>,
        timeout: Option<Duration>,
        render: impl FnOnce(&Request<'_>, &Decision<'_>) -> T,
    ) -> Result<T, E> {
        let read = |request: &mut Request<'r>| {
            read(request)?;
            if live.rules().selects() {
                *request = live.rules().asked(request);
            }
            Ok::<_, E>(())
        };
        let (shared, began) = (self.counters.shared(), self.runtime.monotonic());
        // The second plan has to be the same as the first.
        let (exceptions, mut found) = (self.exceptions.hold(), None);
        let question = 'question: {
            let mut request = Request::default();
            read(&mut request)?;
            let mut plan = live.rules().plan(&request, self.modes);
            live.rules().check_calls(&request, &plan).map_err(ServiceError::from)?;
            if live.rules().has_records() {
                let Some(known) = self.known(&request, &plan) else { break 'question None };
                found = known;
            }
            let overlay = Overlay { records: found.as_deref(), exceptions: exceptions.as_deref() };
            overlay.apply(&request, &mut plan);
            let question =
                shared.and_then(|shared| Some((shared, shared.question(&request, &plan, timeout)?)));
            question.map(|(shared, question)| (shared, question, plan.has_reports()))
        };
        let Some((shared, question, has_reports)) = question else {
            return Box::pin(self.finish_any(live, read, timeout, render)).await;
        };
        let asked = self.nanos_since(began);
        let reply = question.ask().await;
        let answered = self.runtime.monotonic();
        let mut request = Request::default();
        read(&mut request)?;
        let overlay = Overlay { records: found.as_deref(), exceptions: exceptions.as_deref() };
        let mut plan = live.rules().plan_under(&request, self.modes, overlay);
        plan.keep_report(has_reports);
        let applied = shared.answered(&plan, question, reply).map_err(ServiceError::from)?;
        self.metrics.decisions_took(asked + self.nanos_since(answered), 1);
        let planned = Planned { request: &request, plan: &plan, overlay };
        Ok(self.conclude(live, answered, planned, &applied, |decision| render(&request, decision)))
    }

    /// Like `finish`, for any request: also one that asks for several counters, gives hits back, or waits for another
    /// call or for records. It plans once, so it decides under the records that it found.
    async fn finish_any<'r, T, E: From<ServiceError>>(
        &self,
        live: InForce<'_>,
        read: impl Fn(&mut Request<'r>) -> Result<(), E>,
        timeout: Option<Duration>,
        render: impl FnOnce(&Request<'_>, &Decision<'_>) -> T,
    ) -> Result<T, E> {
        let began = self.runtime.monotonic();
        let mut request = Request::default();
        read(&mut request)?;
        let found = self.find(live, &request, timeout).await;
        let found_at = self.runtime.monotonic();
        let timeout =
            timeout.map(|timeout| timeout.saturating_sub(found_at.saturating_duration_since(began)));
        let exceptions = self.exceptions.hold();
        let overlay = Overlay { records: found.as_ref(), exceptions: exceptions.as_deref() };
        let plan = live.rules().plan_under(&request, self.modes, overlay);
        live.rules().check_calls(&request, &plan).map_err(ServiceError::from)?;
        let planning = self.nanos_since(found_at);
        let applied = self.counters.finish(&request, &plan, timeout, self.clock.at(found_at)).await;
        let applied = applied.map_err(ServiceError::from)?;
        self.metrics.decisions_took(planning, 1);
        let (answered, planned) =
            (self.runtime.monotonic(), Planned { request: &request, plan: &plan, overlay });
        Ok(self.conclude(live, answered, planned, &applied, |decision| render(&request, decision)))
    }

    /// Explains what this request would get now, under these rules. Nothing is charged, and no decision is counted.
    /// Fails when the counters are shared, and the store does not answer for one.
    pub async fn explain<T>(
        &self,
        live: InForce<'_>,
        request: &Request<'_>,
        render: impl FnOnce(&Explanation<'_>) -> T,
    ) -> Result<T, ServiceError> {
        let request = &live.rules().asked(request);
        let (exceptions, found) = (self.exceptions.hold(), self.find(live, request, None).await);
        let overlay = Overlay { records: found.as_ref(), exceptions: exceptions.as_deref() };
        let plan = live.rules().plan_under(request, self.modes, overlay);
        live.rules().check_calls(request, &plan)?;
        let looks = self.counters.look(request, &plan, self.now()).await?;
        let (cold, now) = (self.counters.coldness(), self.now());
        let explanation = explain(live.rules(), request, &plan, looks).under(overlay, request, &plan);
        let explanation = explanation.denied_lately(&plan, |check| self.denied.as_ref()?.of(check.key));
        Ok(render(&explanation.while_cold(|limit| cold.nanos_left_of(limit, now))))
    }

    /// For how many more nanoseconds lost counters of windows of this length count as full.
    pub fn cold_nanos_left(&self, window_nanos: u64) -> u64 {
        self.counters.coldness().nanos_left(window_nanos, self.now())
    }

    /// The end of every decision: concludes, counts, logs and renders it. `at` is a clock reading that the decision
    /// has made anyway.
    fn conclude<T>(
        &self,
        live: InForce<'_>,
        at: Instant,
        Planned { request, plan, overlay }: Planned<'_, '_, '_>,
        Applied { verdicts, remembered }: &Applied,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> T {
        let mut decision = Decision::empty();
        conclude_into(plan, verdicts, &mut decision);
        let Loaded { rules, handles, denials, rule_events, watches, .. } = live.loaded;
        if plan.learns_costs {
            rules.observe_costs(request, plan);
        }
        if request.reservation().is_some() {
            rules.observe_commit(request, plan, decision.found());
        }
        // Before anything is counted, because it may change which limit of a descriptor is shown.
        if overlay.exceptions.is_some() {
            self.exceptions.report(overlay, request, plan, &mut decision, || self.runtime.wall());
        }
        self.metrics.observe(handles, request, &decision);
        if DecisionLog::is_on() {
            let context = Context { rules, denials, overlay, metrics: &self.metrics };
            self.log.decided(context, at, request, &decision);
        }
        if let Some(events) = &self.events {
            events.decided(rule_events, Decided { request, plan, overlay, decision: &decision }, at);
        }
        if let Some(denied) = &self.denied {
            denied.observe(request, plan, &decision, || self.clock.at(at));
        }
        watches.observe(request, plan, &decision, at);
        if !decision.bans().is_empty() {
            self.note_bans(rule_events, request, &decision, at);
        }
        if !remembered.is_empty() {
            self.metrics.observe_remembered(handles, request, &decision, remembered);
        }
        if self.retry_jitter > 0.0 {
            decision.lengthen_waits(self.retry_jitter * random_share());
        }
        render(&decision)
    }

    /// Puts these rules in force. Requests that have begun keep the set that they began with. Returns the number of
    /// rules that have no room for metric series of their own.
    pub fn install(&self, mut rules: RuleSet) -> usize {
        let epochs = self.epochs.lock();
        if let Ok(live) = self.snapshot() {
            rules.keep_learnt(live.rules());
        }
        self.put_in_force(rules.in_epochs(&epochs))
    }

    /// The resets that the rules in force know of.
    pub fn epochs(&self) -> Epochs {
        self.epochs.lock().clone()
    }

    /// Puts the rules in force again, also under these epochs: counters below these paths start at zero. Takes some
    /// milliseconds for 10,000 rules.
    pub fn begin_epochs(&self, others: &Epochs) {
        let mut epochs = self.epochs.lock();
        if epochs.merge(others)
            && let Ok(live) = self.snapshot()
        {
            self.put_in_force(live.rules().clone().in_epochs(&epochs));
        }
    }

    fn put_in_force(&self, rules: RuleSet) -> usize {
        let (handles, denials) = (self.metrics.handles(&rules), Denials::of(rules.rules().len()));
        let without_room = handles.without_room();
        let rule_events = self.events.as_ref().map(|events| events.of_rules(&rules)).unwrap_or_default();
        let (watches, by_path, by_series) = Default::default();
        self.live.install(Some(Loaded { rules, handles, denials, rule_events, watches, by_path, by_series }));
        if let Counters::Shared(shared) = &self.counters {
            shared.clear_deny_cache();
        }
        without_room
    }

    /// Puts these exceptions in force, instead of the previous ones.
    pub fn except(&self, exceptions: Exceptions) {
        self.exceptions.install(exceptions);
        if let Counters::Shared(shared) = &self.counters {
            shared.clear_deny_cache();
        }
    }

    /// Descriptors that met an exception, in the order of [`EFFECTS`].
    pub fn exceptions_met(&self) -> [u64; EFFECTS.len()] {
        self.exceptions.met()
    }

    /// The fullest counters of the rule with this number, and those that deny most: `most` of each at most, since the
    /// first question about it.
    /// Fails when too many rules are watched.
    pub fn watched(&self, live: InForce<'_>, rule: usize, most: usize) -> Result<Watched, TooManyWatches> {
        live.loaded.watches.ask(rule, most, self.runtime.monotonic())
    }

    /// Forgets counters that nobody asks about any more, and bans that are over, and frees rules that are no longer in force and that no
    /// request reads any more. It runs on the calling thread, so that no request pays for it.
    pub fn reclaim(&self) {
        self.load_rules();
        if let Ok(live) = self.snapshot() {
            live.in_force().loaded.watches.end_unwanted(self.runtime.monotonic());
        }
        self.live.reclaim();
        self.end_bans();
    }

    /// Runs a worker: `serving`, and the tasks that it needs. Connects the shared store from the worker's runtime,
    /// and at the end returns what the worker has of it, within a bound. Reads the rules after each reload: without
    /// requests, the worker would keep the old ones alive.
    pub async fn work<T>(&self, serving: impl Future<Output = T>) -> T {
        let shared = self.counters.shared();
        shared.inspect(|shared| shared.attach());
        self.records.iter().for_each(|records| records.attach());
        let (mut serving, mut installs) = (pin!(serving), self.live.installs());
        let served = loop {
            tokio::select! {
                biased;
                served = &mut serving => break served,
                _ = installs.changed() => self.load_rules(),
            }
        };
        if let Some(shared) = shared {
            shared.detach().await;
        }
        served
    }

    /// Reads the rules in force, so that this thread keeps no older ones.
    fn load_rules(&self) {
        self.with_reader(|_| ());
    }

    /// Calls `show` with the rules in force, if there are any.
    pub fn with_rules<T>(&self, show: impl FnOnce(Option<&RuleSet>) -> T) -> T {
        show(self.live.current().as_ref().as_ref().map(|live| &live.rules))
    }

    /// Calls `body` with the rules in force, from this thread's reader. `body` must not call this again.
    /// Fails when no rules were ever loaded (an empty set of rules counts). And those of `body`.
    pub fn under_rules<T, E: From<ServiceError>>(
        &self,
        body: impl FnOnce(InForce<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.with_reader(|shared| body(InForce::of(shared)?))
    }

    /// The rules in force now, held for a decision that waits.
    /// Fails when no rules were ever loaded.
    pub fn snapshot(&self) -> Result<Snapshot, ServiceError> {
        let current = self.live.current();
        InForce::of(&current)?;
        Ok(Snapshot(current))
    }

    fn with_reader<T>(&self, body: impl FnOnce(&Arc<Option<Loaded>>) -> T) -> T {
        readers::with_reader(&self.live, body)
    }
}
