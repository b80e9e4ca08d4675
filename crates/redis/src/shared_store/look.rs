//! The verdicts that the counters in Redis would give a request, without charging it, for explanations.
//!
//! In: a request and its plan. Out: each counter's verdict for the hits of the request and for a single hit, and, to
//! draw the hits that count, for some other numbers of hits. Each is a call of its own; leases and the deny cache are
//! not used, and the deny cache learns nothing.

use smallvec::smallvec;

use super::{Outcome, SharedStore, StoreError};
use crate::runtime::Runtime;
use tidegate_engine::decision::Verdicts;
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, Limit, Verdict};
use tidegate_engine::look::{Leaving, Look, Looks};
use tidegate_engine::plan::{Check, Hits, Modes, Origin, Plan, Step};
use tidegate_engine::request::Request;
use tidegate_engine::rules::Unit;
use tidegate_engine::time::SECOND_NANOS;
use tidegate_engine::unit::Window;

/// How many numbers of hits a drawing asks about. Counters of smaller limits are drawn exactly.
const STEPS: u64 = 64;

impl<R: Runtime> SharedStore<R> {
    /// The verdicts of all counters of the request, each as if the request asked for it alone: when a request asks
    /// for one counter several times, the charges of its earlier descriptors are not included.
    /// Fails when Redis does not answer for one of the counters.
    pub async fn look(&self, request: &Request<'_>, plan: &Plan<'_>) -> Result<Looks, StoreError> {
        // Fixed windows count denied hits too. Their wait does not depend on the hits.
        let asked = |_, check: &Check<'_>| match check.hits {
            Hits::Take(hits) if check.limit.algorithm() != Algorithm::FixedWindow => hits,
            _ => 0,
        };
        // 0 hits are over where a single hit is, but for slots: there they release one, which always fits.
        let one = |_, check: &Check<'_>| u64::from(check.limit.algorithm() == Algorithm::Concurrency);
        let (asked, one) = (self.say(request, plan, asked).await?, self.say(request, plan, one).await?);
        let waits = self.waits(request, plan, &one).await?;
        let mut looks: Looks = (0..plan.places()).map(|_| None).collect();
        for (place, check) in plan.checks() {
            if let (Some(asked), Some(one)) = (asked[place], one[place]) {
                let free = one.remaining;
                let leaving = Leaving::of_waits(&check.limit, one.before, free, |hits| waits[place].of(hits));
                looks[place] = Some(Look { leaving, ..look(check, asked, one) });
            }
        }
        Ok(looks)
    }

    /// How long some numbers of hits would have to wait, by place: the smallest that does not fit, and then up to
    /// [`STEPS`] more, up to N.
    async fn waits(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        now: &Verdicts,
    ) -> Result<Vec<Waits>, StoreError> {
        let mut waits = vec![Waits::default(); plan.places()];
        let mut used = vec![0; plan.places()];
        for (place, check) in plan.checks() {
            let now = now[place].filter(|now| check.limit.algorithm().is_strict() && now.before > 0);
            used[place] = now.map_or(0, |now| check.limit.capacity().saturating_sub(now.remaining));
        }
        let steps = used.iter().copied().max().unwrap_or(0).min(STEPS);
        if steps == 0 {
            return Ok(waits);
        }
        for step in 0..=steps {
            let hits = |place: usize, check: &Check<'_>| match used[place] {
                0 => 0,
                used => {
                    let part = (used * step).div_ceil(steps).max(1);
                    check.limit.capacity() - used + part
                }
            };
            let said = self.say(request, plan, hits).await?;
            for (place, check) in plan.checks().filter(|&(place, _)| used[place] > 0) {
                let wait = said[place].filter(|said| said.over).map_or(0, |said| said.reset_nanos);
                waits[place].push(hits(place, check), wait);
            }
        }
        Ok(waits)
    }

    /// The verdicts for other hits than those of the plan, in a request that is denied for another reason. So nothing
    /// is charged.
    async fn say(
        &self,
        request: &Request<'_>,
        plan: &Plan<'_>,
        hits: impl Fn(usize, &Check<'_>) -> u64,
    ) -> Result<Verdicts, StoreError> {
        let mut own = plan.clone();
        own.modes = Modes::default();
        let of_steps = own.steps.iter_mut().map(|step| match step {
            Step::Check(check) => Some(check),
            _ => None,
        });
        let of_candidates = own.candidates.iter_mut().map(|candidate| Some(&mut candidate.check));
        for (place, check) in of_steps.chain(of_candidates).enumerate() {
            if let Some(check) = check {
                *check = Check { hits: Hits::Take(hits(place, check)), reported: false, ..*check };
            }
        }
        let denying = own.steps.len();
        own.steps.push(Step::Check(denying_check()));
        own.further.push(0);
        let mut known: Verdicts = smallvec![None; own.places()];
        known[denying] = Some(OVER);
        let mut parts = self.parts(request, &own, &known);
        parts.iter_mut().for_each(|part| part.demands.clear());
        let outcomes = self.ask_all(&own, &parts, &known, self.times(None)).await;
        let verdict = |outcome: Outcome| outcome.transpose().map(|counter| Some(counter?.verdict));
        let mut verdicts: Verdicts =
            outcomes.into_iter().map(verdict).collect::<Result<_, _>>().map_err(StoreError)?;
        verdicts.remove(denying);
        Ok(verdicts)
    }
}

/// Numbers of hits, in order, and how many nanoseconds each would have to wait.
#[derive(Clone, Debug, Default)]
struct Waits(Vec<(u64, u64)>);

impl Waits {
    /// Time passes between two calls, so a wait may seem shorter than that of fewer hits.
    fn push(&mut self, hits: u64, nanos: u64) {
        let least = self.0.last().map_or(0, |&(_, nanos)| nanos);
        self.0.push((hits, nanos.max(least)));
    }

    /// The wait for so many hits: that of the next number in the list.
    fn of(&self, hits: u64) -> u64 {
        let known = self.0.iter().find(|(asked, _)| *asked >= hits).or(self.0.last());
        known.map_or(0, |&(_, nanos)| nanos)
    }
}

/// A check with a known verdict, which denies the request.
fn denying_check() -> Check<'static> {
    Check::new(
        Origin::Override { window: Window::of(Unit::Second) },
        Limit::new(Algorithm::SlidingLog, 0, SECOND_NANOS),
        Key(0),
        Hits::Take(1),
    )
}

const OVER: Verdict =
    Verdict { over: true, before: 0, after: 1, remaining: 0, reset_nanos: SECOND_NANOS, is_counted: true };

/// A counter's verdict for a check, from its verdicts for the hits that were asked for instead, and for a single hit.
fn look(check: &Check<'_>, asked: Verdict, one: Verdict) -> Look {
    let (limit, is_fixed) = (check.limit.capacity(), check.limit.algorithm() == Algorithm::FixedWindow);
    let one_is_over = if is_fixed { one.before.saturating_add(1) > limit } else { one.over };
    let wait_one_nanos = if one_is_over { one.reset_nanos } else { 0 };
    let verdict = match check.hits {
        // A cold counter stays full, and a release needs no room.
        Hits::GiveBack(_) if !one.is_counted || check.limit.algorithm() == Algorithm::Concurrency => {
            Verdict { over: false, after: one.before, ..one }
        }
        Hits::GiveBack(hits) => {
            let before = one.before.saturating_sub(hits);
            let remaining = limit.saturating_sub(before);
            let over = if is_fixed { before > limit } else { remaining == 0 };
            Verdict { over, before, after: before, remaining, ..one }
        }
        Hits::Take(hits) if is_fixed => {
            let after = one.before.saturating_add(hits);
            Verdict { over: after > limit || check.denied, after, ..one }
        }
        Hits::Take(_) if check.reported && asked.over => Verdict { reset_nanos: wait_one_nanos, ..asked },
        Hits::Take(_) => asked,
    };
    Look { verdict, wait_one_nanos, leaving: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_window_is_asked_for_no_hits_and_looked_at_for_those_of_the_request() {
        let five = Limit::new(Algorithm::FixedWindow, 5, 60 * SECOND_NANOS);
        let four =
            Verdict { over: false, before: 4, after: 4, remaining: 1, reset_nanos: 7, is_counted: true };
        for (hits, over) in [(0, false), (1, false), (2, true)] {
            let origin = Origin::Override { window: Window::of(Unit::Minute) };
            let verdict = look(&Check::new(origin, five, Key(0), Hits::Take(hits)), four, four).verdict;
            assert_eq!((verdict.over, verdict.before, verdict.after), (over, 4, 4 + hits));
        }
    }

    /// An answer of a counter of five hits an hour that has so many.
    fn answer(before: u64) -> Verdict {
        let (over, remaining) = (before >= 5, 5_u64.saturating_sub(before));
        Verdict { over, before, after: before, remaining, reset_nanos: 7, is_counted: true }
    }

    fn check(algorithm: Algorithm, hits: Hits) -> Check<'static> {
        let origin = Origin::Override { window: Window::of(Unit::Hour) };
        Check::new(origin, Limit::new(algorithm, 5, 3_600 * SECOND_NANOS), Key(0), hits)
    }

    #[test]
    fn one_hit_waits_where_a_fixed_window_has_no_room() {
        let wait = |before| {
            let asked = Verdict { over: false, ..answer(before) };
            look(&check(Algorithm::FixedWindow, Hits::Take(0)), asked, asked).wait_one_nanos
        };
        assert_eq!([4, 5, 6].map(wait), [0, 7, 7]);
    }

    /// Reported costs go beyond N.
    #[test]
    fn what_goes_back_makes_room_only_below_the_limit() {
        for algorithm in [Algorithm::SlidingWindow, Algorithm::TokenBucket, Algorithm::FixedWindow] {
            let after = |before| {
                let verdict =
                    look(&check(algorithm, Hits::GiveBack(4)), answer(before), answer(before)).verdict;
                (verdict.before, verdict.remaining)
            };
            assert_eq!([2, 7, 12].map(after), [(0, 5), (3, 2), (8, 0)], "{algorithm:?}");
        }
    }

    #[test]
    fn what_goes_back_is_never_over_in_a_cold_counter_or_one_of_slots() {
        let shown = |check: &Check<'_>, one: Verdict| {
            let verdict = look(check, one, one).verdict;
            (verdict.over, verdict.before, verdict.remaining)
        };
        let cold = Verdict { is_counted: false, ..answer(5) };
        assert_eq!(shown(&check(Algorithm::SlidingWindow, Hits::GiveBack(4)), cold), (false, 5, 0));
        let slots = Check {
            limit: Limit::concurrency(5, SECOND_NANOS),
            ..check(Algorithm::SlidingLog, Hits::GiveBack(0))
        };
        assert_eq!(shown(&slots, answer(5)), (false, 5, 0));
    }
}
