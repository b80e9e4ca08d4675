//! What all connections of the process to one server share: whether that server answers, and which memory it has.
//!
//! In: calls that were answered or not, and waits for its replicas, on any connection. Out: all connections are cut at once when the server counts
//! as gone, so that whoever waits for an answer is told.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::breaker::Breaker;
use crate::connect_error::ConnectError;
use crate::runtime::Runtime;
use crate::script::Memory;
use crate::wire::Wire;

/// A server, as all of its connections know it.
pub(super) struct Peer<R: Runtime> {
    calls: Breaker,
    /// Waits for its replicas.
    replicas: Breaker,
    /// It was given up.
    cut: AtomicBool,
    wires: Mutex<Vec<Weak<Wire<R>>>>,
    memory: Mutex<Option<Arc<Memory>>>,
}

// Derived, it would want a default runtime.
impl<R: Runtime> Default for Peer<R> {
    fn default() -> Self {
        Self {
            calls: Breaker::default(),
            replicas: Breaker::default(),
            cut: AtomicBool::default(),
            wires: Mutex::default(),
            memory: Mutex::default(),
        }
    }
}

impl<R: Runtime> Peer<R> {
    /// There is one more connection.
    pub(super) fn add(&self, wire: &Arc<Wire<R>>) {
        let mut wires = self.wires.lock();
        wires.retain(|wire| wire.strong_count() > 0);
        wires.push(Arc::downgrade(wire));
    }

    /// A call was answered in time.
    pub(super) fn answered(&self) {
        self.calls.answered();
    }

    /// A call has no answer at `now`, for which its caller waited so long.
    pub(super) fn unanswered(&self, now: Instant, waited: Duration, budget: Duration) {
        if self.calls.unanswered(now, waited, budget) {
            self.cut(&ConnectError::Unanswered);
        }
    }

    /// As many replicas as there have to be had all in time.
    pub(super) fn replicated(&self) {
        self.replicas.answered();
        self.cut.store(false, Relaxed);
    }

    /// Too few replicas had it at `now`, for which somebody waited so long.
    pub(super) fn unreplicated(&self, now: Instant, waited: Duration, budget: Duration) {
        if self.replicas.unanswered(now, waited, budget) {
            self.cut(&ConnectError::ReplicasBehind);
        }
    }

    /// It was given up, and its replicas did not have all in time since then.
    pub(super) fn was_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }

    /// Its memory, as it was when it was asked last.
    pub(super) fn memory(&self) -> Option<Arc<Memory>> {
        self.memory.lock().clone()
    }

    /// Its memory is this.
    pub(super) fn remember(&self, memory: Memory) {
        let mut known = self.memory.lock();
        if known.as_deref() != Some(&memory) {
            *known = Some(Arc::new(memory));
        }
    }

    /// Ends all connections that there are, and all calls that wait on them.
    fn cut(&self, why: &ConnectError) {
        self.cut.store(true, Relaxed);
        let wires = std::mem::take(&mut *self.wires.lock());
        wires.iter().filter_map(Weak::upgrade).for_each(|wire| wire.cut(why.clone()));
    }
}
