//! The exceptions in force, as decisions read them: one load and one branch while there are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;

use tidegate_engine::decision::Decision;
use tidegate_engine::exceptions::{Effect, Exceptions};
use tidegate_engine::plan::Plan;
use tidegate_engine::request::Request;

/// What an exception may do, as metrics call it.
pub const EFFECTS: [&str; 3] = ["limit", "unlimited", "deny"];

/// Exceptions in force, replaced as a whole.
#[derive(Default)]
pub(super) struct InForce {
    is_any: AtomicBool,
    current: ArcSwap<Exceptions>,
    /// Descriptors that met one, in the order of [`EFFECTS`].
    met: [AtomicU64; EFFECTS.len()],
}

impl InForce {
    /// Puts these in force.
    pub(super) fn install(&self, exceptions: Exceptions) {
        let is_any = !exceptions.is_empty();
        self.current.store(Arc::new(exceptions));
        self.is_any.store(is_any, Relaxed);
    }

    /// Those in force now; `None` if there are none. A decision that waits holds them, because it plans twice.
    #[inline]
    pub(super) fn hold(&self) -> Option<Arc<Exceptions>> {
        self.is_any.load(Relaxed).then(|| self.current.load_full())
    }

    /// Puts a plan of this request under them.
    #[inline]
    pub(super) fn apply(&self, request: &Request<'_>, plan: &mut Plan<'_>) {
        if self.is_any.load(Relaxed) {
            self.current.load().apply(request, plan);
        }
    }

    /// Counts those that a decision met, and adds them to it.
    #[inline]
    pub(super) fn tell(&self, request: &Request<'_>, plan: &Plan<'_>, decision: &mut Decision<'_>) {
        if self.is_any.load(Relaxed) {
            self.tell_met(request, plan, decision);
        }
    }

    #[inline(never)] // Most have no exceptions: the way of a decision stays short.
    fn tell_met(&self, request: &Request<'_>, plan: &Plan<'_>, decision: &mut Decision<'_>) {
        let met: Vec<_> = self.current.load().met(request, plan).collect();
        met.iter().for_each(|met| _ = self.met[place_of(met.effect)].fetch_add(1, Relaxed));
        if !met.is_empty() {
            decision.rare.get_or_insert_default().exceptions = met;
        }
    }

    /// Descriptors that met one, in the order of [`EFFECTS`].
    pub(super) fn met(&self) -> [u64; EFFECTS.len()] {
        self.met.each_ref().map(|met| met.load(Relaxed))
    }
}

fn place_of(effect: Effect) -> usize {
    match effect {
        Effect::Limit { .. } => 0,
        Effect::Unlimited => 1,
        Effect::Deny => 2,
    }
}
