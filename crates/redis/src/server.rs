//! What all connections of this node to one server share: whether the server answers, and its data.
//!
//! In: calls and waits for replicas, answered or not, on any connection. Out: when the circuit breaker opens, all
//! connections are closed, so that every waiting call fails at once.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::breaker::Breaker;
use crate::connect_error::ConnectError;
use crate::lost::{Mark, ServerData};
use crate::runtime::Runtime;
use crate::script::DataId;
use crate::wire::Wire;

/// A server that all of its connections share.
pub(super) struct Server<R: Runtime> {
    calls: Breaker,
    /// The breaker of waits for replicas.
    replicas: Breaker,
    /// Whether its connections were closed.
    cut: AtomicBool,
    wires: Mutex<Vec<Weak<Wire<R>>>>,
    data: Mutex<ServerData>,
}

// `derive` would require a default of the runtime.
impl<R: Runtime> Default for Server<R> {
    fn default() -> Self {
        Self {
            calls: Breaker::default(),
            replicas: Breaker::default(),
            cut: AtomicBool::default(),
            wires: Mutex::default(),
            data: Mutex::default(),
        }
    }
}

impl<R: Runtime> Server<R> {
    /// Adds a new connection's wire.
    pub(super) fn add(&self, wire: &Arc<Wire<R>>, connection: u64) {
        let mut wires = self.wires.lock();
        wires.retain(|wire| wire.strong_count() > 0);
        wires.push(Arc::downgrade(wire));
        drop(wires);
        self.data.lock().connected(connection);
    }

    /// Notes a call that was answered in time.
    pub(super) fn answered(&self) {
        self.calls.answered();
    }

    /// Notes a call without an answer at `now`, after `waited`.
    pub(super) fn unanswered(&self, now: Instant, waited: Duration, budget: Duration) {
        if self.calls.unanswered(now, waited, budget) {
            self.cut(&ConnectError::Unanswered);
        }
    }

    /// Notes that enough replicas acknowledged in time.
    pub(super) fn replicated(&self) {
        self.replicas.answered();
        self.cut.store(false, Relaxed);
    }

    /// Notes that too few replicas acknowledged by `now`, after `waited`.
    pub(super) fn unreplicated(&self, now: Instant, waited: Duration, budget: Duration) {
        if self.replicas.unanswered(now, waited, budget) {
            self.cut(&ConnectError::ReplicasBehind);
        }
    }

    /// Whether connections were closed, and replicas have not acknowledged in time since.
    pub(super) fn was_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }

    /// The data, as it was last read.
    pub(super) fn data(&self) -> Option<Arc<DataId>> {
        self.data.lock().known()
    }

    /// Keeps the generation that was read under this key.
    pub(super) fn generation(&self, key: &[u8], generation: &[u8]) {
        self.data.lock().generation(key, generation);
    }

    /// Whether hits that were charged in this data may go back, on a connection with this mark.
    pub(super) fn may_take_back(&self, data: &DataId, mark: Option<&Mark>) -> bool {
        self.data.lock().may_take_back(data, mark)
    }

    /// Closes all connections, and so fails all calls that wait.
    fn cut(&self, why: &ConnectError) {
        self.cut.store(true, Relaxed);
        let wires = std::mem::take(&mut *self.wires.lock());
        wires.iter().filter_map(Weak::upgrade).for_each(|wire| wire.cut(why.clone()));
    }
}
