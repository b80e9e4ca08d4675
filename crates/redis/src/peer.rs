//! What all connections of the process to one server share: whether that server answers, and which memory it has.
//!
//! In: calls that were answered or not, and waits for its replicas, on any connection. Out: all connections are cut at once when the server counts
//! as gone, so that whoever waits for an answer is told.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::breaker::Breaker;
use crate::link::Link;
use crate::script::Memory;

/// A server, as all of its connections know it.
#[derive(Default)]
pub(super) struct Peer {
    calls: Breaker,
    /// Waits for its replicas.
    replicas: Breaker,
    /// It was given up.
    cut: AtomicBool,
    links: Mutex<Vec<Weak<Link>>>,
    memory: Mutex<Option<Arc<Memory>>>,
}

impl Peer {
    /// There is one more connection.
    pub(super) fn add(&self, link: &Arc<Link>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(link));
    }

    /// A call was answered in time.
    pub(super) fn answered(&self) {
        self.calls.answered();
    }

    /// A call has no answer at `now`, for which its caller waited so long.
    pub(super) fn unanswered(&self, now: Instant, waited: Duration, budget: Duration) {
        if self.calls.unanswered(now, waited, budget) {
            self.cut("several calls in a row had no answer");
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
            self.cut("several times in a row too few replicas had what was written");
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
    fn cut(&self, why: &str) {
        self.cut.store(true, Relaxed);
        let links = std::mem::take(&mut *self.links.lock());
        links.iter().filter_map(Weak::upgrade).for_each(|link| link.cut(why));
    }
}
