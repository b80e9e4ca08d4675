//! The spine: the whole way of a request from question to decision, in one function. It knows every stage and holds
//! no logic of its own.

pub(crate) mod fixture;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::clock::{Clock, monotonic, nanos_since};
use crate::decisions::{DecisionLog, Denials, Under};
use crate::metrics::{Metrics, RuleHandles};
use crate::source::{LiveRules, Reader};
use tidegate_engine::decision::{Decision, conclude_into};
use tidegate_engine::explain::{Explanation, explain};
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::plan::{Modes, Plan};
use tidegate_engine::request::{Request, RequestBuf};
use tidegate_engine::rules::RuleSet;
use tidegate_redis::{Applied, Moment, Question, SharedStore, StoreError};

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
    log: DecisionLog,
}

/// A set of rules, and what belongs to it: its counters in metrics, and the times of lines in the log.
struct InForce {
    rules: RuleSet,
    handles: RuleHandles,
    /// When a line was last logged of their denials.
    denials: Denials,
    /// The numbers of all rules in the order of their paths, once somebody has asked.
    by_path: OnceLock<Box<[usize]>>,
}

/// The rules in force at one moment, held for a decision that waits or a page that is sent.
pub struct Snapshot(Arc<Option<InForce>>);

impl Snapshot {
    fn in_force(&self) -> &InForce {
        self.0.as_ref().as_ref().expect("a snapshot is only taken where there are rules")
    }

    /// The rules.
    pub fn rules(&self) -> &RuleSet {
        &self.in_force().rules
    }

    /// The numbers of all rules in the order of their paths. The first call takes its time: a millisecond or so for
    /// a thousand rules.
    pub fn by_path(&self) -> &[usize] {
        self.in_force().by_path.get_or_init(|| {
            let rules = self.rules().rules();
            let mut order: Box<[_]> = (0..rules.len()).collect();
            order.sort_by_cached_key(|&id| rules[id].path());
            order
        })
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
        let (live, log) = (Arc::new(LiveRules::new(None)), DecisionLog::new(monotonic()));
        Self { live, store, shared: None, metrics, clock, modes, log }
    }

    /// The same, which logs decisions like this.
    #[must_use]
    pub fn logging(self, log: DecisionLog) -> Self {
        Self { log, ..self }
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

    /// The same for requests that came in together, one after the other. What they need is brought from memory side by
    /// side. `tell` gets each decision with the place of its request; `None` where counters are shared and the store has
    /// to be asked.
    ///
    /// # Errors
    /// When there are no rules at all: nothing is told.
    pub fn decide_together(
        &self,
        requests: &[Request<'_>],
        mut tell: impl FnMut(usize, Option<&Decision<'_>>),
    ) -> Result<(), ServiceError> {
        self.with_live(|live| match (live, &self.shared) {
            (None, None) => Err(ServiceError::NoRules),
            (Some(live), shared) if shared.as_ref().is_none_or(|shared| shared.remembers()) => {
                for (round, requests) in requests.chunks(TOGETHER_MAX).enumerate() {
                    self.decide_few(live, requests, |at, decision| tell(round * TOGETHER_MAX + at, decision));
                }
                Ok(())
            }
            _ => {
                (0..requests.len()).for_each(|place| tell(place, None));
                Ok(())
            }
        })
    }

    /// The same for [as many](TOGETHER_MAX) as there are places for, at one time.
    fn decide_few(
        &self,
        live: &InForce,
        requests: &[Request<'_>],
        mut tell: impl FnMut(usize, Option<&Decision<'_>>),
    ) {
        let began = monotonic();
        let mut plans: [Plan<'_>; TOGETHER_MAX] = std::array::from_fn(|_| Plan::empty(self.modes));
        let plans = &mut plans[..requests.len()];
        requests.iter().zip(&mut *plans).for_each(|(request, plan)| live.rules.plan_into(request, plan));
        let mut applied: [Applied; TOGETHER_MAX] = Default::default();
        let mut is_known = [true; TOGETHER_MAX];
        self.apply_known(plans, began, &mut applied, &mut is_known);
        let known = is_known[..plans.len()].iter().filter(|&&is_known| is_known).count();
        self.metrics.decisions_took(nanos_since(began) / plans.len().max(1) as u64, known);
        for (place, (request, plan)) in requests.iter().zip(plans).enumerate() {
            match is_known[place] {
                true => self.tell((live, began), request, plan, &applied[place], |decision| {
                    tell(place, Some(decision));
                }),
                false => tell(place, None),
            }
        }
    }

    /// Applies plans as far as nobody else has to be asked: `is_known` tells where.
    fn apply_known(
        &self,
        plans: &[Plan<'_>],
        began: Instant,
        applied: &mut [Applied],
        is_known: &mut [bool],
    ) {
        if let Some(shared) = &self.shared {
            let now = Moment::from(began);
            for ((plan, applied), is_known) in plans.iter().zip(applied).zip(is_known) {
                *is_known = shared.apply_known(plan, now, applied);
            }
            return;
        }
        self.store.fetch(plans.iter());
        let now = self.clock.at(began);
        for (plan, applied) in plans.iter().zip(applied) {
            self.store.apply_into(plan, now, &mut applied.verdicts);
        }
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
        live: &InForce,
        shared: &SharedStore,
        request: &Request<'_>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> Option<T> {
        if !shared.remembers() {
            return None;
        }
        let began = monotonic();
        let mut plan = Plan::empty(self.modes);
        live.rules.plan_into(request, &mut plan);
        let mut applied = Applied::default();
        let is_known = shared.apply_known(&plan, Moment::from(began), &mut applied);
        self.metrics.decisions_took(nanos_since(began), usize::from(is_known));
        is_known.then(|| self.tell((live, began), request, &plan, &applied, render))
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
        let live = live.in_force();
        let began = monotonic();
        let plan = live.rules.plan(request, self.modes);
        let planned = nanos_since(began);
        let applied = match &self.shared {
            Some(shared) => shared.apply(request, &plan, patience).await?,
            None => Applied { verdicts: self.store.apply(&plan, self.clock.at(began)), ..Applied::default() },
        };
        self.metrics.decisions_took(planned, 1);
        Ok(self.tell((live, began), request, &plan, &applied, render))
    }

    /// The same for a request of one counter, of which little is kept while the store is asked: `read` tells it again
    /// when there is an answer. `None`: it is none of those.
    pub async fn decide_one_later<'r, T>(
        &self,
        live: &Snapshot,
        read: impl Fn(&mut Request<'r>) -> Option<()>,
        patience: Option<Duration>,
        render: impl FnOnce(&Request<'_>, &Decision<'_>) -> T,
    ) -> Option<Result<T, ServiceError>> {
        let (shared, began) = (self.shared.as_deref()?, monotonic());
        let question = self.question(shared, live, &read, patience)?;
        let asked = nanos_since(began);
        let told = question.ask().await;
        let answered = monotonic();
        let mut request = Request::default();
        read(&mut request)?;
        let plan = live.rules().plan(&request, self.modes);
        let decided = shared.answered(&plan, question, told).map(|applied| {
            self.metrics.decisions_took(asked + nanos_since(answered), 1);
            let live = (live.in_force(), answered);
            self.tell(live, &request, &plan, &applied, |decision| render(&request, decision))
        });
        Some(decided.map_err(ServiceError::from))
    }

    fn question<'r, 's>(
        &self,
        shared: &'s SharedStore,
        live: &Snapshot,
        read: impl Fn(&mut Request<'r>) -> Option<()>,
        patience: Option<Duration>,
    ) -> Option<Question<'s>> {
        let mut request = Request::default();
        read(&mut request)?;
        shared.question(&request, &live.rules().plan(&request, self.modes), patience)
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
        live: &InForce,
        request: &Request<'_>,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> T {
        let began = monotonic();
        let mut plan = Plan::empty(self.modes);
        live.rules.plan_into(request, &mut plan);
        let mut applied = Applied::default();
        self.store.apply_into(&plan, self.clock.at(began), &mut applied.verdicts);
        self.metrics.decisions_took(nanos_since(began), 1);
        self.tell((live, began), request, &plan, &applied, render)
    }

    /// What every decision comes to in the end: it is concluded, counted, logged and rendered. `at` is a reading of the
    /// clock that the decision made anyway.
    fn tell<T>(
        &self,
        (live, at): (&InForce, Instant),
        request: &Request<'_>,
        plan: &Plan<'_>,
        Applied { verdicts, remembered }: &Applied,
        render: impl FnOnce(&Decision<'_>) -> T,
    ) -> T {
        let mut decision = Decision::empty();
        conclude_into(plan, verdicts, &mut decision);
        let InForce { rules, handles, denials, .. } = live;
        self.metrics.observe(handles, request, &decision);
        if DecisionLog::is_on() {
            let under = Under { rules, denials, metrics: &self.metrics };
            self.log.decided(under, at, request, &decision);
        }
        if !remembered.is_empty() {
            self.metrics.observe_remembered(handles, request, &decision, remembered);
        }
        render(&decision)
    }

    /// Puts these rules in force. Requests that have begun keep the set that they began with. The number of rules for whose
    /// own series in metrics there is no room.
    pub fn install(&self, rules: RuleSet) -> usize {
        let (handles, denials) = (self.metrics.handles(&rules), Denials::of(rules.rules().len()));
        let without_room = handles.without_room();
        self.live.install(Some(InForce { rules, handles, denials, by_path: OnceLock::new() }));
        if let Some(shared) = &self.shared {
            shared.forget_over();
        }
        without_room
    }

    /// Frees rules that are no longer in force and that no request reads any more: on the calling thread, so that no
    /// request pays for it.
    pub fn reclaim(&self) {
        self.load_rules();
        self.live.reclaim();
    }

    /// Changes whenever rules were installed. A thread that decides now and then holds the rules that it saw last, so it
    /// [loads](Self::load_rules) those in force when this changes.
    pub fn installs(&self) -> watch::Receiver<()> {
        self.live.installs()
    }

    /// Lets this thread see the rules in force: it holds no older ones any more.
    pub fn load_rules(&self) {
        self.with_live(|_| ());
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
