//! The usual case of a check: its counter exists, hits are taken, and charging them needs no memory. Then one access to the
//! counter is enough.

use super::{Shard, hits_wanted, state_invariants, status};
use crate::limit::{Counter, Pending, Preview, Verdict};
use crate::plan::{Check, Hits};
use crate::settle::Settlement;
use crate::time::Timestamp;

/// A check in the usual case, before the request is settled: only the state of the counter in this slot changes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Usual {
    slot: usize,
    pub(in super::super) preview: Preview,
    pub(in super::super) hits: u64,
}

impl Usual {
    #[inline(always)]
    fn verdict(&self, remaining: u64, reset_nanos: u64) -> Verdict {
        let Self { preview: Preview { over, before, .. }, hits, .. } = *self;
        let after = before.saturating_add(hits);
        Verdict { over, before, after, remaining, reset_nanos, is_counted: true }
    }
}

impl<S: Counter> Shard<S> {
    /// Decides a request of this check alone in the usual case. Same as [`prepare`](super::ShardOps::prepare) and
    /// [`finish_at`](super::ShardOps::finish_at), but in one step: without it a call takes 7 % longer (`cargo bench --bench lane`).
    #[inline]
    pub(in super::super) fn decide_usual(&mut self, check: &Check<'_>, now: Timestamp) -> Option<Verdict> {
        let usual = self.see_usual(check, now)?;
        Some(self.charge_usual(&usual, check, Settlement::PASSES.charged(check, usual.preview.over)))
    }

    /// Reads the counter in the usual case: it exists, hits are taken, and charging them needs no memory.
    #[inline(always)]
    pub(in super::super) fn see_usual(&mut self, check: &Check<'_>, now: Timestamp) -> Option<Usual> {
        self.see_after(check, now, Pending::default())
    }

    /// The same after pending hits, none of which is charged to it.
    ///
    /// Always inlined, as [`charge_usual`](Self::charge_usual): with a hint alone a decision took a quarter longer.
    #[inline(always)]
    pub(in super::super) fn see_after(
        &mut self,
        check: &Check<'_>,
        now: Timestamp,
        pending: Pending,
    ) -> Option<Usual> {
        let Hits::Take(hits) = check.hits else { return None };
        let (limit, now) = (&check.limit, now.max(self.swept_at));
        let slot = self.table.find(check.key)?;
        let state = self.table.state_mut(slot);
        let heap_bytes = state.heap_bytes() as u64;
        state.advance(limit, now);
        self.heap_bytes = self.heap_bytes - heap_bytes + state.heap_bytes() as u64;
        let mut preview = state.look(limit, pending, hits);
        preview.over |= check.denied;
        let charges = Settlement::PASSES.charged(check, preview.over) > 0;
        // A reported cost that does not fit has a bound of its own, and is counted.
        let is_beyond = preview.over && check.reported;
        debug_assert_eq!(state_invariants(state, limit, now), Ok(()));
        (!charges || !is_beyond && state.growth_bytes(limit) == 0).then_some(Usual { slot, preview, hits })
    }

    /// Charges so many hits, which need no memory, to a counter that was just read.
    #[inline(always)]
    pub(in super::super) fn charge_usual(
        &mut self,
        usual: &Usual,
        check: &Check<'_>,
        charged: u64,
    ) -> Verdict {
        let Usual { preview, hits, .. } = *usual;
        let (limit, state) = (&check.limit, self.charge_state(usual, check, charged));
        let now_left = state.after(limit, preview, charged);
        let reset_nanos = state.reset_nanos(limit, now_left, hits, preview.over);
        usual.verdict(now_left.left, reset_nanos)
    }

    /// The same for the limit of a reservation, while `held` hits of others are pending.
    #[inline]
    pub(in super::super) fn charge_while_held(
        &mut self,
        usual: &Usual,
        check: &Check<'_>,
        charged: u64,
        held: u64,
    ) -> Verdict {
        let wanted = hits_wanted(check, 0);
        let state = self.charge_state(usual, check, charged);
        let (left, reset_nanos) = status(state, check, usual.preview, held, wanted);
        usual.verdict(left.saturating_sub(held), reset_nanos)
    }

    #[inline(always)]
    fn charge_state(&mut self, usual: &Usual, check: &Check<'_>, charged: u64) -> &S {
        let (limit, state) = (&check.limit, self.table.state_mut(usual.slot));
        if charged > 0 {
            let heap_bytes = state.heap_bytes() as u64;
            state.charge(limit, charged);
            self.heap_bytes = self.heap_bytes - heap_bytes + state.heap_bytes() as u64;
        }
        debug_assert_eq!(state.invariants(limit), Ok(()));
        state
    }
}
