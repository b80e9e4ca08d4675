//! Asks for counters, in memory or shared, in two steps: [`begin`](Counters::begin) answers what this node knows by
//! itself, [`finish`](Counters::finish) asks the shared store for the rest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use tidegate_engine::look::Looks;
use tidegate_engine::memory::{Cold, MemoryStore};
use tidegate_engine::plan::Plan;
use tidegate_engine::request::Request;
use tidegate_engine::time::Timestamp;
use tidegate_redis::runtime::{Runtime, Tokio};
use tidegate_redis::{Applied, SharedStore, StoreError};

/// Where counters are.
pub enum Counters<R: Runtime = Tokio> {
    /// In this process.
    Memory(Arc<MemoryStore>),
    /// In a store that several nodes share.
    Shared(Arc<SharedStore<R>>),
}

/// A set of plans that were answered, by place.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answered(u32);

impl Answered {
    /// Whether this plan was answered.
    #[inline]
    pub fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    /// Adds this plan, below 32.
    pub(super) fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
    }

    /// Those in this set and not in the other.
    #[inline]
    pub(super) fn without(self, those: Self) -> Self {
        Self(self.0 & !those.0)
    }
}

impl<R: Runtime> Counters<R> {
    /// Whether [`begin`](Self::begin) may answer anything.
    #[inline]
    pub fn may_answer_now(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Shared(shared) => shared.remembers(),
        }
    }

    /// Checks and charges all counters of each plan that this node can answer by itself, one plan after the other.
    /// Charges nothing for the others. `applied` has a place for each plan; there are at most 32. `began` is a clock
    /// reading of a moment ago.
    pub fn begin(
        &self,
        plans: &[Plan<'_>],
        began: Instant,
        clock: &Clock,
        applied: &mut [Applied],
    ) -> Answered {
        let mut answered = Answered::default();
        let places = plans.iter().zip(applied).enumerate();
        match self {
            Self::Memory(store) => {
                if plans.len() > 1 {
                    store.fetch(plans.iter());
                }
                let now = clock.at(began);
                for (place, (plan, applied)) in places {
                    store.apply_into(plan, now, &mut applied.verdicts);
                    answered.0 |= 1 << place;
                }
            }
            Self::Shared(shared) => {
                let now = shared.moment(began);
                for (place, (plan, applied)) in places {
                    answered.0 |= u32::from(shared.apply_known(plan, now, applied)) << place;
                }
            }
        }
        answered
    }

    /// Checks and charges all counters of one plan, the shared store's too. The caller waits for `timeout`. `now` is a
    /// reading of a moment ago.
    /// Fails when the shared store does not answer for a counter whose fallback is an error.
    pub async fn finish(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        timeout: Option<Duration>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        match self {
            Self::Memory(store) => Ok(Applied { verdicts: store.apply(plan, now), ..Applied::default() }),
            Self::Shared(shared) => shared.apply(request, plan, timeout).await,
        }
    }

    /// The shared store, if counters are there.
    pub fn shared(&self) -> Option<&Arc<SharedStore<R>>> {
        match self {
            Self::Memory(_) => None,
            Self::Shared(shared) => Some(shared),
        }
    }

    /// For how long lost counters count as full.
    pub fn coldness(&self) -> Cold {
        match self {
            Self::Memory(store) => *store.coldness(),
            Self::Shared(shared) => shared.coldness(),
        }
    }

    /// The verdicts of all counters of a request, in memory or shared. Charges nothing.
    /// Fails when the shared store does not answer for one.
    pub async fn look(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        now: Timestamp,
    ) -> Result<Looks, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.look(plan, now)),
            Self::Shared(shared) => shared.look(request, plan).await,
        }
    }
}
