//! The checks of a request by store and slot: a part is what one call asks for.
//!
//! In: a plan, and its known verdicts. Out: parts, with the keys of their counters and the leases to ask for; and
//! the call of each part.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::unsynced::{Admitted, Taken};
use super::{SharedStore, check_at};
use crate::lease::Demand;
use crate::runtime::Runtime;
use crate::script::{Answered, Call, DataId, RequestSummary};
use crate::store::RedisStore;
use tidegate_engine::decision::Verdicts;
use tidegate_engine::plan::{Plan, Step};
use tidegate_engine::request::Request;

/// The checks of a request whose counters live in one slot of one Redis.
pub(super) struct Part<'s, R: Runtime> {
    pub(super) store: &'s RedisStore<R>,
    pub(super) slot: u16,
    pub(super) steps: SmallVec<[usize; 4]>,
    pub(super) keys: SmallVec<[Vec<u8>; 4]>,
    /// The candidates of these checks: their indices in the plan, and the keys of their counters.
    pub(super) candidates: Vec<(usize, Vec<u8>)>,
    /// The leases to ask for, by place.
    pub(super) demands: SmallVec<[(usize, Demand<'s>); 1]>,
    /// The server's data in which hits are charged, if some of them may go back.
    pub(super) data: OnceLock<Arc<DataId>>,
    pub(super) may_go_back: bool,
}

impl<'s, R: Runtime> Part<'s, R> {
    pub(super) fn new(store: &'s RedisStore<R>, slot: u16) -> Self {
        let (steps, keys, demands) = (SmallVec::new(), SmallVec::new(), SmallVec::new());
        let (candidates, data) = (Vec::new(), OnceLock::new());
        Self { store, slot, steps, keys, candidates, demands, data, may_go_back: false }
    }

    /// Adds a step's check of the counter under `key`, and the lease to ask for along with it.
    pub(super) fn add(&mut self, step: usize, key: Vec<u8>, demand: Option<Demand<'s>>) {
        if demand.is_some() {
            self.may_go_back();
        }
        self.demands.extend(demand.map(|demand| (self.steps.len(), demand)));
        self.steps.push(step);
        self.keys.push(key);
    }

    /// Adds the candidate of the last check, if there is one and its counter is in the same slot. It is in another
    /// slot if the prefix of all keys has braces that are no hash tag; such a candidate is never asked.
    fn add_candidate(&mut self, plan: &Plan<'_>, step: usize) {
        let candidate = plan.candidates.iter().position(|candidate| candidate.step == step);
        let (Some(candidate), Some(key)) = (candidate, self.keys.last()) else { return };
        let key = self.store.options().keys.candidate(key);
        if self.store.slot(&key) == self.slot {
            self.candidates.push((candidate, key));
        }
    }

    /// The places of the part's checks in the plan, in the order of its call.
    pub(super) fn places(&self, plan: &Plan<'_>) -> impl Iterator<Item = usize> {
        let first = plan.steps.len();
        self.steps.iter().copied().chain(self.candidates.iter().map(move |(candidate, _)| first + candidate))
    }

    /// Notes the server's data: hits may go back, if the server still has that data then.
    fn may_go_back(&mut self) {
        if !std::mem::replace(&mut self.may_go_back, true) {
            self.store.data(self.slot).into_iter().for_each(|data| self.is_charged_in(data));
        }
    }

    fn is_charged_in(&self, data: Arc<DataId>) {
        // The first one is kept: it was read before the call.
        let _ = self.data.set(data);
    }

    /// Notes the data in which hits were charged, as a reply has it.
    pub(super) fn answered(&self, answered: &Answered) {
        if let (true, Some(since_micros)) = (self.may_go_back, answered.complete_since_micros) {
            let data = self.store.data_since(self.slot, since_micros);
            data.into_iter().for_each(|data| self.is_charged_in(data));
        }
    }

    /// The hits of the lease to ask for along with the check at this place.
    fn demanded(&self, place: usize) -> Option<u64> {
        self.demands.iter().find(|demand| demand.0 == place).map(|(_, demand)| demand.hits)
    }
}

impl<R: Runtime> SharedStore<R> {
    /// Groups the checks without a verdict by store and slot.
    pub(super) fn parts<'s>(
        &'s self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        known: &Verdicts,
    ) -> Vec<Part<'s, R>> {
        let mut parts: Vec<Part<'s, R>> = Vec::new();
        for (index, descriptor) in plan.descriptors_of(request).enumerate() {
            let (Some(Step::Check(check)), None) = (plan.steps.get(index), known[index]) else { continue };
            let store = self.store_for(check);
            let keys = &store.options().keys;
            let key = match check_at(plan, plan.descriptor_of(index)).filter(|_| check.is_of_holds()) {
                Some(limited) => keys.holds(&keys.key(request.domain(), limited, descriptor.entries)),
                None => keys.key(request.domain(), check, descriptor.entries),
            };
            let slot = store.slot(&key);
            let same = |part: &&mut Part<'_, R>| std::ptr::eq(part.store, store) && part.slot == slot;
            let part = match parts.iter_mut().position(|part| same(&part)) {
                Some(part) => &mut parts[part],
                None => {
                    parts.push(Part::new(store, slot));
                    parts.last_mut().expect("it was just added")
                }
            };
            // A candidate has no lease, so Redis is asked for every request that meets one.
            let demand = if plan.candidates.is_empty() { self.demand(check, &key) } else { None };
            part.add(index, key, demand);
            part.add_candidate(plan, index);
        }
        // Hits go back when another slot denies the request, or when a known verdict denies it.
        if parts.len() > 1 || known.iter().any(Option::is_some) {
            parts.iter_mut().for_each(Part::may_go_back);
        }
        parts
    }

    /// The call of a part.
    pub(super) fn call(
        &self,
        plan: &Plan<'_>,
        part: &Part<'_, R>,
        known: &Verdicts,
        taken: &mut Taken<'_>,
    ) -> Call {
        let mut call = Call::new(&request_summary(plan, part, known));
        for (place, (&step, key)) in part.steps.iter().zip(&part.keys).enumerate() {
            let Some(check) = check_at(plan, step) else { continue };
            call.push(key.clone(), check, plan.in_quota_mode(step, check));
            if check.is_of_holds() {
                let of = plan.descriptor_of(step);
                let place = |of: usize| part.steps.iter().position(|&step| step == of);
                let bound = plan.bound_of(of).and_then(place);
                place(of).into_iter().for_each(|place| call.holds_of(place, bound));
            }
            part.demanded(place).into_iter().for_each(|hits| call.lease(hits, self.lease_micros()));
            let admitted = taken.of(check.key);
            let note = |entry: &Admitted| call.add_unsynced(entry.age_and_hits(self.runtime.monotonic()));
            admitted.iter().for_each(note);
        }
        for (candidate, key) in &part.candidates {
            let candidate = &plan.candidates[*candidate];
            if let Some(place) = part.steps.iter().position(|&step| step == candidate.step) {
                call.push_candidate(key.clone(), candidate, plan.modes.quota, place);
            }
        }
        call
    }
}

/// What a part has to know about the other descriptors. Those of other slots count as not over; `give_back` settles
/// the request when all have answered.
pub(super) fn request_summary<R: Runtime>(
    plan: &Plan<'_>,
    part: &Part<'_, R>,
    known: &Verdicts,
) -> RequestSummary {
    let mut summary = RequestSummary {
        stop_increment_when_over: plan.modes.stop_increment_when_over,
        quota: plan.modes.quota,
        ..RequestSummary::default()
    };
    for (index, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Unlimited(_) => {}
            Step::Unmatched | Step::Replaced(_) => summary.quotas += u32::from(plan.modes.quota),
            Step::Check(_) if part.steps.contains(&index) => {}
            Step::Check(check) => {
                let over = known[index].is_some_and(|verdict| verdict.over);
                let (quota, counts) = (plan.in_quota_mode(index, check), over && !check.shadow);
                summary.any_over |= over && (counts || !check.is_ban());
                summary.is_banned |= counts && check.is_ban();
                summary.denied |= counts && !quota;
                summary.quotas += u32::from(quota);
                summary.quotas_over += u32::from(quota && counts);
            }
        }
    }
    summary
}
