//! The exceptions in force, as decisions read them: one load and one branch while there are none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use arc_swap::{ArcSwap, Guard};

use tidegate_engine::decision::Decision;
use tidegate_engine::overlay::{Effect, Exceptions, Overlay};
use tidegate_engine::plan::Plan;
use tidegate_engine::request::Request;
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

/// The effects of exceptions, as metrics name them.
pub const EFFECTS: [&str; 3] = ["limit", "unlimited", "deny"];

/// A request that an exception denies is asked to wait no longer than an hour: somebody may end the exception
/// earlier.
const WAIT_NANOS_MAX: u64 = 3_600 * SECOND_NANOS;

/// Exceptions in force. A change replaces all of them at once.
#[derive(Default)]
pub(super) struct InForce {
    is_any: AtomicBool,
    current: ArcSwap<Exceptions>,
    /// Descriptors that met an exception, in the order of [`EFFECTS`].
    met: [AtomicU64; EFFECTS.len()],
}

impl InForce {
    pub(super) fn install(&self, exceptions: Exceptions) {
        let is_any = !exceptions.is_empty();
        self.current.store(Arc::new(exceptions));
        self.is_any.store(is_any, Relaxed);
    }

    /// Those in force now; `None` if there are none.
    #[inline]
    pub(super) fn load(&self) -> Option<Guard<Arc<Exceptions>>> {
        self.is_any.load(Relaxed).then(|| self.current.load())
    }

    /// The same, for a decision that waits.
    #[inline]
    pub(super) fn hold(&self) -> Option<Arc<Exceptions>> {
        self.is_any.load(Relaxed).then(|| self.current.load_full())
    }

    /// Counts the exceptions that a decision met, and adds them to it. The wait of a denied request is the time until
    /// the exception ends, by the `wall` clock.
    #[inline(never)] // Most have no exceptions: the way of a decision stays short.
    pub(super) fn report(
        &self,
        overlay: Overlay<'_>,
        request: &Request<'_>,
        plan: &Plan<'_>,
        decision: &mut Decision<'_>,
        wall: impl Fn() -> Timestamp,
    ) {
        let met: Vec<_> = overlay.met(request, plan).collect();
        for met in met.iter().filter(|met| met.effect == Effect::Deny) {
            if let Some(label) = &met.label {
                let wait = label.until.map_or(u64::MAX, |until| until.nanos_since(wall()));
                decision.deny_first_for(plan, met.descriptor, wait.min(WAIT_NANOS_MAX));
            }
        }
        met.iter().for_each(|met| _ = self.met[place_of(met.effect)].fetch_add(1, Relaxed));
        if !met.is_empty() {
            decision.rare.get_or_insert_default().exceptions = met;
        }
    }

    /// Descriptors that met an exception, in the order of [`EFFECTS`].
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
