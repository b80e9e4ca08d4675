//! The usual request, which asks for one counter: one call, and little to keep while Redis answers.
//!
//! In: a request and its plan, and the same plan again when Redis has answered. Plans are large, and everything that
//! waits is copied into the runtime. Recomputing the plan is cheaper than holding it across the await.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::unsynced::Taken;
use super::{Applied, Outcomes, Part, SharedStore, Times, checks};
use crate::failure::{Failure, StoreError};
use crate::runtime::{Runtime, Tokio};
use crate::script::{Answered, Call};
use tidegate_engine::decision::Verdicts;
use tidegate_engine::plan::{Hits, Plan};
use tidegate_engine::request::Request;

/// A question to one counter.
pub struct Question<'s, R: Runtime = Tokio> {
    part: Part<'s, R>,
    call: Call,
    taken: Taken<'s>,
    times: Times,
}

impl<R: Runtime> Question<'_, R> {
    /// Sends the call, and returns the numbers of the reply.
    pub async fn ask(&self) -> Result<Vec<i64>, Failure> {
        let Part { store, slot, .. } = self.part;
        let _waiting = store.wait()?;
        Ok(store.decide(slot, &self.call, self.times.until(store)).await?.numbers)
    }
}

impl<R: Runtime> SharedStore<R> {
    /// The question of a request whose caller waits for `caller_timeout`. `None`: use [`apply`](Self::apply), because
    /// the request asks for no counter or several, meets a candidate, gives hits back, or has to wait for replicas or
    /// for another call. Nor one that takes a slot: its second plan would have another; or one that is over in any case.
    pub fn question(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        caller_timeout: Option<Duration>,
    ) -> Option<Question<'_, R>> {
        if !plan.candidates.is_empty() {
            return None;
        }
        let times = self.times(caller_timeout);
        let mut all = checks(plan);
        let (Some((step, check)), None) = (all.next(), all.next()) else { return None };
        let store = self.store_for(check);
        let waits = store.options().wait_replicas > 0;
        if waits
            || check.denied
            || check.limit.slot().is_some()
            || !matches!(check.hits, Hits::Take(_))
            || self.deny_cache.knows(check, times.began)
        {
            return None;
        }
        let held = if self.is_leased(check) { self.leases.hold(check, times.leases_from) } else { None };
        if let Some(held) = held {
            self.release(&held, held.hits);
            return None;
        }
        let mut taken = self.unsynced.take(std::iter::once((check.key, &check.limit)), times.began).ok()?;
        let entries = request.descriptors().nth(step)?.entries;
        let key = store.options().keys.key(request.domain(), check, entries);
        let (mut part, demand) = (Part::new(store, store.slot(&key)), self.demand(check, &key));
        part.add(step, key, demand);
        let unknown: Verdicts = smallvec![None; plan.steps.len()];
        let call = self.call(plan, &part, &unknown, &mut taken);
        Some(Question { part, call, taken, times })
    }

    /// The verdicts of the request, of the same plan, from the reply to its question.
    /// Fails when Redis did not answer, and the rule wants an error then.
    pub fn answered(
        &self,
        plan: &Plan<'_>,
        question: Question<'_, R>,
        reply: Result<Vec<i64>, Failure>,
    ) -> Result<Applied, StoreError> {
        let Question { part, taken, times, .. } = question;
        let asked = checks(plan).map(|(_, check)| check);
        let answered = reply.and_then(|numbers| Answered::read(&numbers, asked).ok_or(Failure::Garbage));
        let counter = match &answered {
            Ok(answered) => {
                taken.charged();
                part.answered(answered);
                self.take_leases(plan, &part, answered, times.leases_from);
                answered.counters.first().copied().ok_or(Failure::Late)
            }
            Err(failure) => {
                part.store.failed(*failure);
                Err(*failure)
            }
        };
        let mut outcomes: Outcomes = smallvec![None; plan.steps.len()];
        part.steps.iter().for_each(|&step| outcomes[step] = Some(counter));
        let mut verdicts: Verdicts = smallvec![None; plan.steps.len()];
        self.take_in(plan, &[part], &outcomes, &mut verdicts, times.began)?;
        Ok(Applied { verdicts, remembered: SmallVec::new() })
    }
}
