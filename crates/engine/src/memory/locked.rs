//! A request with several checks: all its shards are locked, read, settled and charged together.

use smallvec::{SmallVec, smallvec};

use crate::decision::Verdicts;
use crate::key::Key;
use crate::limit::{Found, Pending, Verdict};
use crate::look::Looks;
use crate::memory::MemoryStore;
use crate::memory::due::Due;
use crate::memory::kind::{Guard, LockOrder};
use crate::memory::shard::{Prepared, Reserved, Usual};
use crate::plan::{Check, Hits, Plan, ReservationStep, Step};
use crate::settle::{Settlement, settle};
use crate::time::Timestamp;

/// All shards of one request, locked.
pub(super) struct Locked<'a> {
    store: &'a MemoryStore,
    guards: SmallVec<[(Guard<'a>, &'a Due); 8]>,
    /// For each place of the plan: its guard, and the first place of the same counter.
    targets: SmallVec<[Target; 8]>,
}

#[derive(Clone, Copy, Default)]
struct Target {
    guard: usize,
    first_place: usize,
}

impl<'a> Locked<'a> {
    /// Locks the shards of the plan's checks: each once, in ascending order, so that requests cannot deadlock.
    pub(super) fn new(store: &'a MemoryStore, plan: &Plan<'_>) -> Self {
        let kinds = &store.kinds;
        let mut order = SmallVec::<[(LockOrder, Key, usize); 8]>::new();
        order.extend(plan.checks().map(|(index, check)| (kinds.place(check), check.key, index)));
        order.sort_unstable();
        let mut guards = SmallVec::new();
        let mut targets: SmallVec<[Target; 8]> = smallvec![Target::default(); plan.places()];
        let mut previous: Option<(LockOrder, Key, usize)> = None;
        for &(place, key, index) in &order {
            if previous.is_none_or(|(last, ..)| last != place) {
                guards.push(kinds.lock(place));
            }
            let same = previous.filter(|&(last, last_key, _)| (last, last_key) == (place, key));
            let first_place = same.map_or(index, |(_, _, first)| first);
            targets[index] = Target { guard: guards.len() - 1, first_place };
            previous = Some((place, key, first_place));
        }
        Self { store, guards, targets }
    }

    /// Decides in the usual case: each check has a counter of its own, which exists, is warm, and needs no memory.
    /// Same as [`prepare_all`](Self::prepare_all) and [`finish_all`](Self::finish_all), with one access to each
    /// counter: without it a call with four descriptors takes 12 % more instructions (`tests/instructions/run`).
    /// `false`: this is not the usual case, and nothing was charged.
    pub(super) fn decide_usual(&mut self, plan: &Plan<'_>, now: Timestamp, verdicts: &mut Verdicts) -> bool {
        if !plan.candidates.is_empty() || plan.holds().next().is_some() {
            return false;
        }
        let (guards, targets) = (&mut self.guards[..], &self.targets[..]);
        let mut seen: SmallVec<[Option<Usual>; 8]> = smallvec![None; plan.places()];
        let seen = &mut seen[..];
        for (index, check) in plan.checks() {
            let Target { guard, first_place } = targets[index];
            let is_warm = self.store.cold.nanos_left_of(&check.limit, now) == 0;
            let usual = (is_warm && first_place == index).then(|| guards[guard].0.see(check, now)).flatten();
            if usual.is_none() {
                return false;
            }
            seen[index] = usual;
        }
        let usual_at = |place: usize| seen.get(place).and_then(Option::as_ref);
        let over = |place| usual_at(place).is_some_and(|usual| usual.preview.over);
        let settlement = settle(plan, over);
        for (index, check) in plan.checks() {
            let Some(usual) = usual_at(index) else { continue };
            let charged = settlement.charged(check, usual.preview.over);
            let (shard, _) = &mut guards[targets[index].guard];
            verdicts[index] = Some(shard.charge_seen(usual, check, charged));
        }
        true
    }

    /// The plan of a commit, with what is still to be charged of its cost in place of the cost.
    pub(super) fn owed<'p>(&mut self, plan: &Plan<'p>, now: Timestamp) -> Option<Plan<'p>> {
        let budget = &self.store.budget;
        let ends = |check: &Check<'_>| check.limit.ends_hold() && check.hits != Hits::Take(0);
        plan.holds().any(|(.., check)| ends(check)).then(|| {
            let mut owed = plan.clone();
            for (place, of, holds) in plan.holds().filter(|(.., check)| ends(check)) {
                let (shard, _) = &mut self.guards[self.targets[place].guard];
                let prepared =
                    shard.prepare(holds, now, Pending::default(), &mut Reserved::default(), budget);
                if let Step::Check(Check { hits: Hits::Take(cost), .. }) = &mut owed.steps[of] {
                    *cost = Found::numbered(prepared.preview.left).owes(*cost);
                }
            }
            owed
        })
    }

    /// Prepares the checks of holds. What is held is pending in the counters of their limits.
    fn prepare_holds(
        &mut self,
        plan: &Plan<'_>,
        now: Timestamp,
        reserved: &mut [Reserved],
        pending: &mut [Pending],
        all: &mut [Option<Prepared>],
    ) {
        let MemoryStore { budget, full, cold, .. } = self.store;
        for (place, of, check) in plan.holds() {
            let Target { guard, .. } = self.targets[place];
            let (shard, _) = &mut self.guards[guard];
            let prepared = shard.prepare(check, now, Pending::default(), &mut reserved[guard], budget);
            pending[self.targets[of].first_place] = Pending::held(prepared.preview.before);
            if let Some(bound) = plan.bound_of(of) {
                pending[bound] = Pending::held(shard.worst_case(check));
            }
            // What ends a hold finds it in a cold counter too.
            let cold_nanos = if check.limit.ends_hold() { 0 } else { cold.nanos_left_of(&check.limit, now) };
            all[place] = Some(prepared.while_cold(check, cold_nanos).answered(*full));
        }
    }

    /// Prepares every check before anything is charged, in request order. Candidates come last, so that they take no
    /// room from checks that are answered.
    pub(super) fn prepare_all(&mut self, plan: &Plan<'_>, now: Timestamp) -> SmallVec<[Option<Prepared>; 8]> {
        let MemoryStore { budget, full, cold, .. } = self.store;
        let mut pending: SmallVec<[Pending; 8]> = smallvec![Pending::default(); plan.places()];
        let mut reserved: SmallVec<[Reserved; 8]> = smallvec![Reserved::default(); self.guards.len()];
        let mut all: SmallVec<[Option<Prepared>; 8]> = smallvec![None; plan.places()];
        if !plan.further.is_empty() {
            self.prepare_holds(plan, now, &mut reserved, &mut pending, &mut all);
        }
        for (index, check) in plan.checks() {
            if all[index].is_some() {
                continue;
            }
            let Target { guard, first_place } = self.targets[index];
            let before = match check.is_bound() {
                true => bounded(plan, index, pending[index], &all),
                false => pending[first_place],
            };
            let mut prepared = self.guards[guard]
                .0
                .prepare(check, now, before, &mut reserved[guard], budget)
                .while_cold(check, cold.nanos_left_of(&check.limit, now))
                .answered(*full);
            // A reservation that is made again is answered as the first time, also if costs have gone beyond the limit since.
            if reserves(plan, index) && repeats(plan, index, &all) {
                prepared.preview.over = false;
            }
            match check.hits {
                _ if check.is_bound() => {}
                Hits::GiveBack(hits) => pending[first_place].give_back(hits),
                Hits::Take(hits) if check.reservation == ReservationStep::Hold => {
                    pending[first_place].take(if prepared.preview.over { 0 } else { hits });
                }
                Hits::Take(_) => {
                    let charged = prepared.charged(Settlement::PASSES, check, prepared.charge_max);
                    pending[first_place].take(charged);
                }
            }
            all[index] = Some(prepared);
        }
        all
    }

    /// The verdicts of the counters for the prepared checks.
    pub(super) fn look_all(&self, plan: &Plan<'_>, now: Timestamp, prepared: &[Option<Prepared>]) -> Looks {
        let mut looks: Looks = (0..plan.places()).map(|_| None).collect();
        for (index, check) in plan.checks() {
            let Target { guard, .. } = self.targets[index];
            looks[index] = prepared[index].map(|prepared| self.guards[guard].0.look(check, now, &prepared));
        }
        looks
    }

    /// Charges what was settled and sets the verdicts, in request order. The first settlement is that of the request;
    /// one for each candidate follows. Calls `observe` for each check of a step, with the prepared check and the
    /// charged hits.
    pub(super) fn finish_all(
        &mut self,
        plan: &Plan<'_>,
        now: Timestamp,
        prepared: &[Option<Prepared>],
        settlements: &[Settlement],
        verdicts: &mut Verdicts,
        mut observe: impl FnMut(&Check<'_>, &Prepared, u64),
    ) {
        let mut charged_so_far: SmallVec<[u64; 8]> = smallvec![0; plan.places()];
        for (index, check) in plan.checks() {
            let Some(prepared) = prepared[index] else { continue };
            let candidate = (index + 1).saturating_sub(plan.steps.len());
            let Target { guard, first_place } = self.targets[index];
            let (shard, due) = &mut self.guards[guard];
            let (slot, charge_max) = shard.find_report_max(check);
            let charged = prepared.charged(settlements[candidate], check, charge_max);
            let uncharged = prepared.pending.charged().saturating_sub(charged_so_far[first_place]);
            let verdict = shard.finish_at(slot, check, now, &prepared, charged, uncharged);
            let reserved = match check.hits {
                Hits::Take(hits) if reserves(plan, index) && settlements[0].passes && !verdict.over => hits,
                _ => 0,
            };
            let remaining = verdict.remaining.saturating_sub(prepared.pending.held).saturating_sub(reserved);
            verdicts[index] = Some(Verdict { remaining, ..verdict });
            due.note(shard.earliest_secs());
            charged_so_far[first_place] = charged_so_far[first_place].saturating_add(charged);
            if candidate == 0 {
                observe(check, &prepared, charged);
            }
        }
    }
}

/// Whether the hits of this place are held, if they fit: of the limit itself, or of the bound on its worst cases.
fn reserves(plan: &Plan<'_>, place: usize) -> bool {
    let is = |place: usize, step| matches!(&plan.steps.get(place), Some(Step::Check(check)) if check.reservation == step);
    is(place, ReservationStep::Hold)
        || is(place, ReservationStep::Bound) && is(plan.descriptor_of(place), ReservationStep::Hold)
}

/// What is pending for the bound at this place: what it is for its limit, with the worst cases in place of the holds.
fn bounded(plan: &Plan<'_>, place: usize, worst: Pending, all: &[Option<Prepared>]) -> Pending {
    let limited = all[plan.descriptor_of(place)].map_or_else(Pending::default, |limited| limited.pending);
    let taken = limited.charged().saturating_add(worst.held);
    Pending { taken, given_back: limited.given_back, held: worst.held }
}

/// Whether the reservation at this place is open already.
fn repeats(plan: &Plan<'_>, place: usize, all: &[Option<Prepared>]) -> bool {
    let holds = plan.hold_of(plan.descriptor_of(place)).and_then(|place| all[place]);
    holds.is_some_and(|holds| Found::numbered(holds.preview.left) == Found::Open)
}
