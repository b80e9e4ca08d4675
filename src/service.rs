//! The spine: the whole way of a request from question to decision, in one function. It knows every stage and holds
//! no logic of its own.

pub(crate) mod fixture;

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::{Clock, monotonic, nanos_since};
use crate::engine::decision::{Decision, Verdicts, conclude};
use crate::engine::explain::{Explanation, explain};
use crate::engine::plan::{Modes, Plan};
use crate::engine::request::{Request, RequestBuf};
use crate::engine::rules::RuleSet;
use crate::metrics::{Metrics, RuleHandles};
use crate::source::{LiveRules, Reader};
use crate::store::{MemoryStore, Moment, Question, SharedStore, SharedVerdicts, StoreError};

/// Requests that are best decided together: enough that memory has answered for the first once the last is asked for,
/// few enough that what is known of them stays in a processor's nearest cache.
pub const TOGETHER_MAX: usize = 8;

/// Decides requests under the rules in force.
pub struct Service {
    live: Arc<LiveRules<Option<InForce>>>,
    store: Arc<MemoryStore>,
    /// Where counters live instead, if several nodes share them.
    shared: Option<Arc<SharedStore>>,
    metrics: Arc<Metrics>,
    clock: Clock,
    modes: Modes,
}

/// A set of rules, and the counters in metrics that belong to it.
struct InForce {
    rules: RuleSet,
    handles: RuleHandles,
}

/// The rules in force at one moment, held for a decision that waits.
pub struct Snapshot(Arc<Option<InForce>>);

impl Snapshot {
    fn in_force(&self) -> &InForce {
        self.0.as_ref().as_ref().expect("a snapshot is only taken where there are rules")
    }

    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        &self.in_force().rules
    }
}

/// Why no decision could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No set of rules was ever loaded.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// The shared store did not answer, where that is an error.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a thread keeps of the service that it served last: its own way to the rules in force.
struct ThreadReader {
    live: Arc<LiveRules<Option<InForce>>>,
    reader: Reader<Option<InForce>>,
}

thread_local! {
    // A shared reference count would bounce between the cores with every request.
    static READER: RefCell<Option<ThreadReader>> = const { RefCell::new(None) };
}

impl Service {
    /// A service without rules.
    pub fn new(store: Arc<MemoryStore>, metrics: Arc<Metrics>, clock: Clock, modes: Modes) -> Self {
        Self { live: Arc::new(LiveRules::new(None)), store, shared: None, metrics, clock, modes }
    }

    /// The same with counters that several nodes share.
    #[must_use]
    pub fn sharing(self, shared: Arc<SharedStore>) -> Self {
        Self { shared: Some(shared), ..self }
    }

    /// The store that several nodes share: with one, ask [`decide_later`](Self::decide_later).
    pub fn shared(&self) -> Option<&Arc<SharedStore>> {
        self.shared.as_ref()
    }

    /// Decides, and renders the decision while the rules that it refers to are held.
    ///
    /// # Errors
    /// When there are no rules at all. (An empty set of rules is a set.)
    pub fn decide<T>(
        &self,
        request: &Request<'_>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> Result<T, ServiceError> {
        self.with_live(|live| Ok(self.decide_under(live.ok_or(ServiceError::NoRules)?, request, render)))
    }

    /// The same for requests that came in together, one after the other, at one time. What they need is brought from
    /// memory side by side. `tell` gets each decision with the place of its request; `None` where counters are shared
    /// and the store has to be asked.
    ///
    /// # Errors
    /// When there are no rules at all: nothing is told.
    pub fn decide_together(
        &self,
        requests: &[Request<'_>],
        mut tell: impl FnMut(usize, Option<&Decision<'_>>),
    ) -> Result<(), ServiceError> {
        if let Some(shared) = &self.shared {
            self.decide_known_together(shared, requests, tell);
            return Ok(());
        }
        self.with_live(|live| {
            let InForce { rules, handles } = live.ok_or(ServiceError::NoRules)?;
            let began = monotonic();
            // Filled where they lie: they are too large to be handed around.
            let mut plans: SmallVec<[Plan<'_>; TOGETHER_MAX]> = SmallVec::new();
            plans.extend(requests.iter().map(|request| rules.plan(request, self.modes)));
            self.store.fetch(plans.iter());
            let now = self.clock.at(began);
            let mut verdicts: SmallVec<[Verdicts; TOGETHER_MAX]> = SmallVec::new();
            verdicts.extend(plans.iter().map(|plan| self.store.apply(plan, now)));
            self.metrics.decisions_took(nanos_since(began) / plans.len().max(1) as u64, plans.len());
            for (place, (request, plan)) in requests.iter().zip(&plans).enumerate() {
                let decision = conclude(plan, &verdicts[place]);
                self.metrics.observe(handles, request, &decision);
                tell(place, Some(&decision));
            }
            Ok(())
        })
    }

    /// [`decide`](Self::decide) for a question that depends on the rules: `ask` forms it under the set that decides it.
    ///
    /// # Errors
    /// When there are no rules at all; and those of `ask`.
    pub fn decide_asked<T, E: From<ServiceError>>(
        &self,
        ask: impl FnOnce(&RuleSet) -> Result<RequestBuf, E>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> Result<T, E> {
        self.with_live(|live| {
            let live = live.ok_or(ServiceError::NoRules)?;
            let question = ask(&live.rules)?;
            Ok(self.decide_under(live, &question.as_request(), render))
        })
    }

    /// The rules in force now, for a decision that waits.
    ///
    /// # Errors
    /// When there are none at all.
    pub fn snapshot(&self) -> Result<Snapshot, ServiceError> {
        let live = self.live.current();
        if live.is_some() { Ok(Snapshot(live)) } else { Err(ServiceError::NoRules) }
    }

    /// [`decide`](Self::decide) where counters are shared and this node knows all that is asked: nobody has to wait.
    pub fn decide_known<T>(
        &self,
        shared: &SharedStore,
        request: &Request<'_>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> Option<T> {
        self.with_live(|live| self.decide_known_under(live?, shared, request, render))
    }

    /// The same for requests that came in together.
    fn decide_known_together(
        &self,
        shared: &SharedStore,
        requests: &[Request<'_>],
        mut tell: impl FnMut(usize, Option<&Decision<'_>>),
    ) {
        self.with_live(|live| {
            let Some(InForce { rules, handles }) = live.filter(|_| shared.remembers()) else {
                return (0..requests.len()).for_each(|place| tell(place, None));
            };
            let (began, now) = (monotonic(), Moment::now());
            let mut plans: SmallVec<[Plan<'_>; TOGETHER_MAX]> = SmallVec::new();
            plans.extend(requests.iter().map(|request| rules.plan(request, self.modes)));
            let mut known: SmallVec<[Option<SharedVerdicts>; TOGETHER_MAX]> = SmallVec::new();
            known.extend(plans.iter().map(|plan| shared.apply_known(plan, now)));
            let took = nanos_since(began) / plans.len().max(1) as u64;
            self.metrics.decisions_took(took, known.iter().flatten().count());
            for (place, (request, plan)) in requests.iter().zip(&plans).enumerate() {
                let Some(SharedVerdicts { verdicts, remembered }) = &known[place] else {
                    tell(place, None);
                    continue;
                };
                let decision = conclude(plan, verdicts);
                self.metrics.observe(handles, request, &decision);
                self.metrics.observe_remembered(handles, request, &decision, remembered);
                tell(place, Some(&decision));
            }
        });
    }

    /// The same under these rules.
    pub fn decide_known_in<T>(
        &self,
        live: &Snapshot,
        shared: &SharedStore,
        request: &Request<'_>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> Option<T> {
        self.decide_known_under(live.in_force(), shared, request, render)
    }

    fn decide_known_under<T>(
        &self,
        InForce { rules, handles }: &InForce,
        shared: &SharedStore,
        request: &Request<'_>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> Option<T> {
        if !shared.remembers() {
            return None;
        }
        let began = monotonic();
        let plan = rules.plan(request, self.modes);
        let SharedVerdicts { verdicts, remembered } = shared.apply_known(&plan, Moment::now())?;
        let decision = conclude(&plan, &verdicts);
        self.metrics.decisions_took(nanos_since(began), 1);
        self.metrics.observe(handles, request, &decision);
        self.metrics.observe_remembered(handles, request, &decision, &remembered);
        Some(render(&decision))
    }

    /// [`decide`](Self::decide) where counters are shared: asks the store, for as long as it may take and the caller has
    /// `patience`.
    ///
    /// # Errors
    /// When the store does not answer and that is no answer either.
    pub async fn decide_later<T>(
        &self,
        live: &Snapshot,
        request: &Request<'_>,
        patience: Option<Duration>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> Result<T, ServiceError> {
        let InForce { rules, handles } = live.in_force();
        let began = monotonic();
        let plan = rules.plan(request, self.modes);
        let planned = nanos_since(began);
        let SharedVerdicts { verdicts, remembered } = match &self.shared {
            Some(shared) => shared.apply(request, &plan, patience).await?,
            None => {
                let verdicts = self.store.apply(&plan, self.clock.at(began));
                SharedVerdicts { verdicts, remembered: SmallVec::new() }
            }
        };
        let answered = monotonic();
        let decision = conclude(&plan, &verdicts);
        self.metrics.decisions_took(planned + nanos_since(answered), 1);
        self.metrics.observe(handles, request, &decision);
        self.metrics.observe_remembered(handles, request, &decision, &remembered);
        Ok(render(&decision))
    }

    /// The same for a request of one counter, of which little is kept while the store is asked: `read` tells it again
    /// when there is an answer. `None`: it is none of those.
    pub async fn decide_one_later<'r, T>(
        &self,
        live: &Snapshot,
        read: impl Fn() -> Option<Request<'r>>,
        patience: Option<Duration>,
        render: impl FnOnce(&Request<'_>, &Decision<'_>) -> T,
    ) -> Option<Result<T, ServiceError>> {
        let (shared, began) = (self.shared.as_deref()?, monotonic());
        let question = self.question(shared, live, &read()?, patience)?;
        let asked = nanos_since(began);
        let told = question.ask().await;
        let answered = monotonic();
        let request = read()?;
        let plan = live.rules().plan(&request, self.modes);
        let decided = shared.answered(&plan, question, told).map(|SharedVerdicts { verdicts, .. }| {
            let decision = conclude(&plan, &verdicts);
            self.metrics.decisions_took(asked + nanos_since(answered), 1);
            self.metrics.observe(&live.in_force().handles, &request, &decision);
            render(&request, &decision)
        });
        Some(decided.map_err(ServiceError::from))
    }

    fn question<'s>(
        &self,
        shared: &'s SharedStore,
        live: &Snapshot,
        request: &Request<'_>,
        patience: Option<Duration>,
    ) -> Option<Question<'s>> {
        shared.question(request, &live.rules().plan(request, self.modes), patience)
    }

    /// Explains what `hits` of each descriptor of a request that only asks (0 hits) would get now, under these rules.
    /// Neither counters nor metrics of decisions change.
    ///
    /// # Errors
    /// When the counters are shared, and the store does not answer for one.
    pub async fn explain<T>(
        &self,
        live: &Snapshot,
        request: &Request<'_>,
        hits: u64,
        tell: impl FnOnce(&Explanation<'_>) -> T,
    ) -> Result<T, ServiceError> {
        let plan = live.rules().plan(request, self.modes);
        let verdicts = match &self.shared {
            Some(shared) => shared.look(request, &plan).await?,
            None => self.store.apply(&plan, self.clock.now()),
        };
        Ok(tell(&explain(live.rules(), request, &plan, verdicts, hits)))
    }

    fn decide_under<T>(
        &self,
        InForce { rules, handles }: &InForce,
        request: &Request<'_>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> T {
        let began = monotonic();
        let plan = rules.plan(request, self.modes);
        let verdicts = self.store.apply(&plan, self.clock.at(began));
        let decision = conclude(&plan, &verdicts);
        self.metrics.decisions_took(nanos_since(began), 1);
        self.metrics.observe(handles, request, &decision);
        render(&decision)
    }

    /// Puts these rules in force. Requests that have begun keep the set that they began with.
    pub fn install(&self, rules: RuleSet) {
        rules.algorithms().for_each(|algorithm| self.store.prepare(algorithm));
        let handles = self.metrics.handles(rules.rules());
        self.live.install(Some(InForce { rules, handles }));
        if let Some(shared) = &self.shared {
            shared.forget_over();
        }
    }

    /// Frees rules that are no longer in force and that no request reads any more: on the calling thread, so that no
    /// request pays for it.
    pub fn reclaim(&self) {
        self.live.reclaim();
    }

    /// The rules in force, for those who show them.
    pub fn with_rules<T>(&self, show: impl FnOnce(Option<&RuleSet>) -> T) -> T {
        show(self.live.current().as_ref().as_ref().map(|live| &live.rules))
    }

    /// Hands the rules in force to `body`, by way of this thread's own reader. `body` must not come back here.
    fn with_live<T>(&self, body: impl FnOnce(Option<&InForce>) -> T) -> T {
        READER.with_borrow_mut(|thread| {
            let mut own = thread
                .take()
                .filter(|own| Arc::ptr_eq(&own.live, &self.live))
                .unwrap_or_else(|| ThreadReader { live: Arc::clone(&self.live), reader: self.live.reader() });
            let result = body(own.reader.load().as_ref().as_ref());
            *thread = Some(own);
            result
        })
    }
}
