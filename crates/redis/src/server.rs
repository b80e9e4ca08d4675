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
        push_live(&mut self.wires.lock(), wire);
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

/// Adds to a list whose dropped members leave.
fn push_live<T>(all: &mut Vec<Weak<T>>, new: &Arc<T>) {
    all.retain(|known| known.strong_count() > 0);
    all.push(Arc::downgrade(new));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;
    use crate::runtime::Tokio;

    #[test]
    fn connections_that_are_closed_take_no_memory() {
        let (mut all, kept) = (Vec::new(), Arc::new(0));
        push_live(&mut all, &kept);
        (1..100).for_each(|number| push_live(&mut all, &Arc::new(number)));
        push_live(&mut all, &Arc::clone(&kept));
        let live: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
        assert_eq!((all.len(), live), (2, vec![Arc::clone(&kept), kept]));
    }

    #[test]
    fn a_server_whose_replicas_acknowledge_again_is_used_as_before() {
        let (server, budget) = (Server::<Tokio>::default(), Duration::from_secs(1));
        (0..5).for_each(|_| server.unreplicated(monotonic(), budget, budget));
        assert!(server.was_cut());
        server.answered();
        assert!(server.was_cut(), "its calls say nothing of its replicas");
        server.replicated();
        assert!(!server.was_cut());
    }
}
