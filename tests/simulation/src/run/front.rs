//! How a node is asked: the program's own `Service`, called as its fronts do. First it decides what the node can decide by
//! itself. If Redis has to be asked, the front goes on with other requests before it waits.
//!
//! In: requests. Out: what was decided.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use std::time::Duration;

use tidegate_engine::decision::Decision;
use tidegate_engine::explain::Explanation;
use tidegate_engine::memory::FullTotal;
use tidegate_engine::request::Request;
use tidegate_serve::service::{Batch, Counters, Service, ServiceError, Snapshot};

use super::Run;
use super::decided::Decided;
use super::explained::Explained;
use super::resets::EpochNumbers;
use super::sums::Sums;
use crate::node::Node;
use crate::world::lock;

/// What a request needs of a node.
pub(super) struct Front {
    pub(super) node: usize,
    /// How often the node had been started.
    pub(super) process: u64,
    service: Arc<Service<Node>>,
    /// Those that were in force when it came.
    rules: Snapshot,
    /// In which epoch each counter is there.
    pub(super) epochs: EpochNumbers,
    /// Which rules these are.
    pub(super) version: usize,
    /// Requests to this service that wait for an answer.
    pub(super) asking: Arc<AtomicU64>,
    sums: Arc<Sums>,
}

impl Front {
    /// The front of a node, unless it is away.
    pub(super) fn of(run: &Run, node: usize) -> Option<Self> {
        let state = &lock(&run.nodes)[node];
        let service = Arc::clone(state.service.as_ref()?);
        let rules = service.snapshot().ok()?;
        let (epochs, asking) = (state.epoch_numbers, Arc::clone(&state.asking));
        run.note_late_resets(node, &epochs);
        let (version, process, sums) = (state.version, state.starts, Arc::clone(&run.sums));
        Some(Self { node, process, service, rules, epochs, version, asking, sums })
    }

    /// Decides those requests of a batch that the node can decide by itself.
    pub(super) fn decide(
        &self,
        batch: &Batch<'_>,
        render: impl FnMut(usize, &Request<'_>, Option<&Decision<'_>>),
    ) {
        self.service.decide(self.rules.in_force(), batch, render);
    }

    /// A decision, as it is rendered.
    pub(super) fn decided(&self, request: &Request<'_>, decision: &Decision<'_>) -> Decided {
        self.sums.add(request, decision);
        Decided::of(decision)
    }

    /// How often there was no room in memory for what had to be counted.
    pub(super) fn full(&self) -> (FullTotal, u64) {
        match self.service.counters() {
            Counters::Memory(store) => (store.full_total(), store.reported_total().dropped),
            Counters::Shared(_) => Default::default(),
        }
    }

    /// Decides the request that `read` fills in, whose client waits for `timeout`, with Redis.
    pub(super) async fn finish<'r>(
        &'r self,
        read: impl Fn(&mut Request<'r>),
        timeout: Option<Duration>,
    ) -> Result<Decided, ServiceError> {
        // A front goes on with other requests first.
        give_way().await;
        let read = |request: &mut Request<'r>| {
            read(request);
            Ok::<_, ServiceError>(())
        };
        let decided = |request: &Request<'_>, decision: &Decision<'_>| self.decided(request, decision);
        self.service.finish(self.rules.in_force(), read, timeout, decided).await
    }

    /// Explains what the request would get that `read` fills in. Its text is for people, and is not judged.
    pub(super) async fn explain<'r>(
        &'r self,
        read: impl FnOnce(&mut Request<'r>),
    ) -> Result<Explained, ServiceError> {
        give_way().await;
        let mut request = Request::default();
        read(&mut request);
        let explained = |it: &Explanation<'_>| {
            let (_, json) = (it.to_string(), it.json());
            let descriptors = json["descriptors"].as_array().into_iter().flatten();
            let exceptions =
                descriptors.map(|it| it["exception"]["effect"].as_str().map(str::to_owned)).collect();
            Explained { decided: Decided::of(it.decision()), exceptions }
        };
        self.service.explain(self.rules.in_force(), &request, explained).await
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
