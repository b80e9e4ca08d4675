//! The way of a request through a node, step by step as the program's `Service` goes it, with the same calls: first what the
//! node can answer by itself, and then what Redis has to be asked. Who waits for Redis plans again when the answer is there.
//!
//! In: a request. Out: its plan and its verdicts. What `Service` does beside that is not here: metrics, logs and events.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::Duration;

use tidegate_engine::decision::Verdicts;
use tidegate_engine::exceptions::{Effect, Exception, Exceptions, Level};
use tidegate_engine::plan::{Hits, Modes, Plan, Step};
use tidegate_engine::request::Request;
use tidegate_engine::rules::{Epochs, RuleSet};
use tidegate_redis::runtime::Runtime as _;
use tidegate_redis::{Applied, SharedStore, StoreError};

use super::Run;
use super::ask::{KEYS, LIMITS};
use crate::node::Node;
use crate::world::lock;

/// How long the shared store may take to forget a counter.
const RESET_TIMEOUT: Duration = Duration::from_secs(5);

/// What a request needs of a node.
pub(super) struct Way {
    run: Arc<Run>,
    node: usize,
    store: Arc<SharedStore<Node>>,
    /// Requests to this store that wait for an answer.
    pub(super) asking: Arc<AtomicU64>,
    runtime: Node,
    /// Those that were in force when it came.
    rules: Arc<RuleSet>,
    /// The resets that they know of.
    pub(super) epochs: Epochs,
}

/// Exceptions of one node, in the order in which they were made.
#[derive(Default)]
pub(super) struct Excepted {
    made: Vec<Exception>,
    /// `None`: there are none.
    pub(super) in_force: Option<Arc<Exceptions>>,
}

impl Excepted {
    /// Makes an exception, instead of the one before for the same counters.
    pub(super) fn make(&mut self, limit: usize, key: Option<u64>, effect: Effect) {
        let entries = entries(limit, key);
        self.made.retain(|other| other.entries != entries);
        self.made.push(Exception { domain: "sim".into(), entries, effect });
        self.in_force = Some(Arc::new(Exceptions::new(&self.made)));
    }

    /// Ends the exception for these counters.
    pub(super) fn end(&mut self, limit: usize, key: Option<u64>) {
        let entries = entries(limit, key);
        self.made.retain(|other| other.entries != entries);
        self.in_force = (!self.made.is_empty()).then(|| Arc::new(Exceptions::new(&self.made)));
    }
}

fn entries(limit: usize, key: Option<u64>) -> Vec<Level> {
    vec![Level { key: LIMITS[limit].to_owned(), value: key.map(|key| KEYS[key as usize].to_owned()) }]
}

impl Way {
    /// The way through a node, unless it is away.
    pub(super) fn through(run: &Arc<Run>, node: usize) -> Option<Self> {
        let state = &mut lock(&run.nodes)[node];
        let (store, runtime) = (state.store.clone()?, state.runtime.clone()?);
        let (rules, epochs) = (run.rules_of(state), state.epochs.clone());
        let asking = Arc::clone(&state.asking);
        Some(Self { run: Arc::clone(run), node, store, asking, runtime, rules, epochs })
    }

    /// Decides a request as `Service::decide` and `Service::finish` do. `planned` gets each plan before a counter is asked,
    /// `conclude` the last one, with its verdicts: plans are large, and are not handed on.
    pub(super) async fn decide<T>(
        &self,
        request: &Request<'_>,
        deadline: Option<Duration>,
        planned: impl Fn(&Plan<'_>),
        conclude: impl FnOnce(&Plan<'_>, &Verdicts) -> T,
    ) -> Result<T, StoreError> {
        if self.store.remembers() {
            let (plan, mut applied) = (self.plan(request, &self.exceptions()), Applied::default());
            planned(&plan);
            if self.store.apply_known(&plan, self.store.moment(self.runtime.monotonic()), &mut applied) {
                return Ok(conclude(&plan, &applied.verdicts));
            }
        }
        // A front goes on with other requests first.
        give_way().await;
        // The second plan has to be the same as the first.
        let exceptions = self.exceptions();
        let question = {
            let plan = self.plan(request, &exceptions);
            planned(&plan);
            self.store.question(request, &plan, deadline)
        };
        let Some(question) = question else {
            let plan = self.plan(request, &exceptions);
            let applied = self.store.apply(request, &plan, deadline).await?;
            return Ok(conclude(&plan, &applied.verdicts));
        };
        let reply = question.ask().await;
        let plan = self.plan(request, &exceptions);
        let applied = self.store.answered(&plan, question, reply)?;
        Ok(conclude(&plan, &applied.verdicts))
    }

    /// Gives all hits of the counters of a request back, as `Service::reset` does.
    pub(super) async fn reset(&self, request: &Request<'_>) -> Result<(), StoreError> {
        let mut plan = self.plan(request, &None);
        for step in &mut plan.steps {
            if let Step::Check(check) = step {
                check.hits = Hits::GiveBack(u64::from(u32::MAX));
            }
        }
        self.store.apply(request, &plan, Some(RESET_TIMEOUT)).await.map(drop)
    }

    /// The exceptions in force now.
    fn exceptions(&self) -> Option<Arc<Exceptions>> {
        lock(&self.run.nodes)[self.node].excepted.in_force.clone()
    }

    fn plan(&self, request: &Request<'_>, exceptions: &Option<Arc<Exceptions>>) -> Plan<'_> {
        let mut plan = self.rules.plan(request, Modes::default());
        exceptions.iter().for_each(|all| all.apply(request, &mut plan));
        plan
    }
}

/// Lets every task run that can.
async fn give_way() {
    let mut has_waited = false;
    std::future::poll_fn(move |context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
