//! What slots of a Cluster charged although the request does not owe it: it goes back, and no request waits for that.
//!
//! In: a plan, and what each slot answered. Out: a call for each slot. Hits go back once. What has a name (the slot of a call in
//! flight, the hold of a reservation) is given back until Redis has done it.

use std::time::Duration;

use smallvec::SmallVec;

use super::deny_cache::Refunds;
use super::part::Part;
use super::{Outcome, SharedStore, check_at};
use crate::runtime::Runtime;
use crate::script::{Call, CounterAnswered, DataId};
use tidegate_engine::decision::Verdicts;
use tidegate_engine::key::Key;
use tidegate_engine::limit::Verdict;
use tidegate_engine::plan::{Check, Plan};
use tidegate_engine::settle::{Settlement, settle, settle_trial};

impl<R: Runtime> SharedStore<R> {
    /// Gives back what a slot charged although the request does not owe it. To candidates it gives back what the
    /// request would not owe with the candidates in place of their limits.
    pub(super) fn give_back(
        &self,
        plan: &Plan<'_>,
        parts: &[Part<'_, R>],
        outcomes: &[Outcome],
        verdicts: &mut Verdicts,
    ) {
        let overs: SmallVec<[bool; 8]> =
            verdicts.iter().map(|it| it.is_some_and(|verdict: Verdict| verdict.over)).collect();
        let over = |place: usize| overs[place];
        let settlement = settle(plan, over);
        for part in parts {
            let Some(data) = part.data.get() else { continue };
            let mut back = GiveBacks::default();
            for (candidate, key) in &part.candidates {
                let (place, candidate) = (plan.steps.len() + candidate, &plan.candidates[*candidate]);
                let Some(Ok(counter)) = &outcomes[place] else { continue };
                let settlement = settle_trial(plan, candidate.rule, over);
                let surplus = surplus(settlement, &candidate.check, counter);
                if surplus > 0 {
                    let call = back.hits.get_or_insert_with(|| Call::giving_back(data));
                    call.push_give_back(key.clone(), &candidate.check.limit, counter.stamp, surplus);
                }
            }
            for (&step, key) in part.steps.iter().zip(&part.keys) {
                let (Some(check), Some(Ok(counter))) = (check_at(plan, step), &outcomes[step]) else {
                    continue;
                };
                let surplus = surplus(settlement, check, counter);
                if surplus == 0 {
                    continue;
                }
                back.push(data, (key, check), counter, surplus);
                // What was found under the id of a hold stays as it was.
                if !check.is_of_holds() {
                    verdicts[step] = Some(uncharged(check, &counter.verdict, surplus));
                }
            }
            self.send(part, data, back);
        }
    }

    fn send(
        &self,
        part: &Part<'_, R>,
        data: &DataId,
        GiveBacks { hits, counters, named, ends_in }: GiveBacks,
    ) {
        if let Some(hits) = hits {
            let refunds = Refunds::begin(&self.runtime, &self.deny_cache, counters);
            part.store.give_back(part.slot, data, hits, refunds);
        }
        if let Some(named) = named {
            part.store.give_back_named(part.slot, named, ends_in);
        }
    }
}

/// What one slot gives back of a request: most give nothing.
#[derive(Default)]
struct GiveBacks {
    hits: Option<Call>,
    /// The counters of these hits that may be in the deny cache.
    counters: SmallVec<[Key; 1]>,
    named: Option<Call>,
    /// All that has a name has ended by itself after this time.
    ends_in: Duration,
}

impl GiveBacks {
    fn push(
        &mut self,
        data: &DataId,
        (key, check): (&[u8], &Check<'_>),
        counter: &CounterAnswered,
        surplus: u64,
    ) {
        let call = match check.limit.slot() {
            Some(_) => {
                self.ends_in = self.ends_in.max(Duration::from_nanos(check.limit.window_nanos()));
                &mut self.named
            }
            None => {
                self.counters.push(check.key);
                &mut self.hits
            }
        };
        let call = call.get_or_insert_with(|| Call::giving_back(data));
        call.push_give_back(key.to_vec(), &check.limit, counter.stamp, surplus);
    }
}

/// What was charged beyond what the request owes.
fn surplus(settlement: Settlement, check: &Check<'_>, counter: &CounterAnswered) -> u64 {
    counter.charged.saturating_sub(settlement.charged(check, counter.verdict.over))
}

/// The verdict of a counter after so many hits have gone back.
pub(super) fn uncharged(check: &Check<'_>, verdict: &Verdict, hits: u64) -> Verdict {
    let remaining = verdict.remaining.saturating_add(hits).min(check.limit.capacity());
    let reset_nanos = if verdict.before == 0 { 0 } else { verdict.reset_nanos };
    Verdict { remaining, reset_nanos, ..*verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::ChargeId;
    use tidegate_engine::limit::{Algorithm, Limit, Slot};
    use tidegate_engine::plan::{Hits, Origin};
    use tidegate_engine::rules::Unit;
    use tidegate_engine::unit::Window;

    fn data() -> DataId {
        DataId { key: Vec::new(), generation: Vec::new(), connection: 1 }
    }

    /// A slot has no denials to forget.
    #[test]
    fn the_denials_of_counters_are_forgotten_to_which_hits_go_back() {
        let mut back = GiveBacks::default();
        let slot = Limit::new(Algorithm::Concurrency, 9, 1_000_000_000).for_slot(Slot::of(1, 1));
        for (key, limit) in [(7, Limit::new(Algorithm::SlidingLog, 9, 1_000_000_000)), (8, slot)] {
            let check = Check::new(
                Origin::Override { window: Window::of(Unit::Second) },
                limit,
                Key(key),
                Hits::Take(1),
            );
            let verdict =
                Verdict { over: false, before: 0, after: 1, remaining: 8, reset_nanos: 0, is_counted: true };
            let counter = CounterAnswered { verdict, charged: 1, stamp: ChargeId::default(), quiet_nanos: 0 };
            back.push(&data(), (b"k", &check), &counter, 1);
        }
        assert_eq!(back.counters[..], [Key(7)]);
    }

    #[test]
    fn what_has_a_name_is_given_back_until_the_last_of_it_has_ended() {
        let data = data();
        let mut back = GiveBacks::default();
        for secs in [60, 3_600, 5] {
            let limit = Limit::new(Algorithm::Concurrency, 9, secs * 1_000_000_000);
            let check = Check::new(
                Origin::Override { window: Window::of(Unit::Hour) },
                limit.for_slot(Slot::of(1, 1)),
                Key(7),
                Hits::Take(1),
            );
            let verdict =
                Verdict { over: false, before: 0, after: 1, remaining: 8, reset_nanos: 0, is_counted: true };
            let counter = CounterAnswered { verdict, charged: 1, stamp: ChargeId::default(), quiet_nanos: 0 };
            back.push(&data, (b"k", &check), &counter, 1);
        }
        assert_eq!((back.ends_in, back.hits.is_none()), (Duration::from_secs(3_600), true));
    }
}
