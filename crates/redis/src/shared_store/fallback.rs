//! The fallback: what requests get when Redis does not answer, by each rule. This node may decide alone.
//!
//! In: a plan, the answers to its checks, and the known verdicts. Out: the missing verdicts, or an error where a
//! rule wants one. Hits that this node admits alone are noted as unsynced, and reported to Redis later.

use smallvec::SmallVec;

use super::unsynced::CounterPlace;
use super::{KEY_BYTES_MAX, Outcome, Part, SharedStore, check_at, checks};
use crate::failure::{Failure, StoreError};
use crate::runtime::Runtime;
use tidegate_engine::decision::Verdicts;
use tidegate_engine::limit::{Algorithm, Limit, Verdict};
use tidegate_engine::plan::{Check, Hits, Plan, ReservationStep, Step};
use tidegate_engine::rules::StoreFailure;
use tidegate_engine::settle::settle;
use tidegate_engine::time::SECOND_NANOS;

/// Steps that this node decides alone, and the failure of each.
type Alone = SmallVec<[(usize, Failure); 4]>;

impl<R: Runtime> SharedStore<R> {
    /// Adds the verdicts of checks without an answer from Redis. Returns whether there are any.
    pub(super) fn fall_back(
        &self,
        plan: &Plan<'_>,
        parts: &[Part<'_, R>],
        outcomes: &[Outcome],
        verdicts: &mut Verdicts,
    ) -> Result<bool, StoreError> {
        let mut alone = Alone::new();
        let (mut failed, mut error) = (false, None);
        for (index, check) in checks(plan) {
            let Some(Err(failure)) = outcomes[index] else { continue };
            failed = true;
            self.keep_reported(check, failure, || place_of(plan, parts, index));
            match self.mode_of(check) {
                StoreFailure::Error => error = error.or(Some(failure)),
                StoreFailure::Deny => verdicts[index] = Some(denied(check)),
                StoreFailure::Allow if lets_nothing_pass(check) && !check.is_of_holds() => {
                    verdicts[index] = Some(denied(check))
                }
                StoreFailure::Allow => verdicts[index] = Some(allowed(check)),
                StoreFailure::Local => alone.push((index, failure)),
            }
        }
        if let Some(failure) = error {
            return Err(StoreError(failure));
        }
        if !alone.is_empty() {
            self.decide_alone(plan, parts, &alone, verdicts);
        }
        Ok(failed)
    }

    /// Notes a reported cost as unsynced: it was spent, whatever the answer is.
    fn keep_reported(
        &self,
        check: &Check<'_>,
        failure: Failure,
        place: impl FnOnce() -> Option<CounterPlace>,
    ) {
        let Hits::Take(hits) = check.hits else { return };
        // An unreplicated charge is in Redis already. Who commits a reservation does so again.
        if check.reported
            && check.reservation == ReservationStep::None
            && !check.is_of_holds()
            && failure != Failure::Unreplicated
            && !self.unsynced.note(check.key, &check.limit, hits, self.runtime.monotonic(), place)
        {
            self.reported.count(check, 0, 0);
        }
    }

    /// Decides these steps in memory, with this node's share of their limits.
    fn decide_alone(&self, plan: &Plan<'_>, parts: &[Part<'_, R>], alone: &Alone, verdicts: &mut Verdicts) {
        let mut own = plan.clone();
        own.candidates.clear();
        for (index, check) in checks(plan) {
            own.steps[index] = Step::Check(match verdicts[index] {
                Some(verdict) => decided_check(check, verdict.over),
                None => self.share_of(check),
            });
        }
        let decided = self.local.apply(&own, self.clock.at(self.runtime.monotonic()));
        let settlement = settle(&own, |index| decided[index].is_some_and(|verdict| verdict.over));
        for &(index, failure) in alone {
            let (Some(check), Some(verdict)) = (check_at(&own, index), decided[index]) else {
                continue;
            };
            verdicts[index] = Some(verdict);
            let now = self.runtime.monotonic();
            match (check.hits, settlement.charged(check, verdict.over)) {
                // Redis may have given these back already. Unless it certainly did not, they are not given back
                // again.
                (Hits::GiveBack(hits), _) if failure.did_nothing() => {
                    self.unsynced.give_back(check.key, hits);
                }
                (Hits::GiveBack(_), _) | (Hits::Take(_), 0) => {}
                // `keep_reported` has noted these.
                (Hits::Take(_), _) if check.reported => {}
                (Hits::Take(_), charged) => {
                    let place = || place_of(plan, parts, index);
                    self.unsynced.note(check.key, &check.limit, charged, now, place);
                }
            }
        }
    }

    /// What a check gets without an answer from Redis. No node knows which slots the others hold, and who releases one
    /// has to know that it was not released. So has an operator who begins or lifts a ban.
    fn mode_of(&self, check: &Check<'_>) -> StoreFailure {
        let own = check.origin.rule().and_then(|rule| rule.on_store_failure);
        let mode = own.unwrap_or(self.options.mode);
        match (check.limit.algorithm(), check.hits, mode) {
            (Algorithm::Concurrency | Algorithm::Ban, Hits::GiveBack(_), _) => StoreFailure::Error,
            (Algorithm::Ban, Hits::Take(1..), _) => StoreFailure::Error,
            (Algorithm::Holds, Hits::Take(1..), _) if check.reported => StoreFailure::Error,
            (Algorithm::Holds, Hits::Take(1..), StoreFailure::Local) => StoreFailure::Deny,
            // No node knows what the others hold: the limit of the rule is decided here without it.
            (Algorithm::Holds, _, StoreFailure::Local) => StoreFailure::Allow,
            (Algorithm::Concurrency, Hits::Take(_), StoreFailure::Local) => StoreFailure::Deny,
            // The limit of its rule is decided here, and its denials are reported to Redis later.
            (Algorithm::Ban, _, StoreFailure::Local) => StoreFailure::Allow,
            _ => mode,
        }
    }

    fn share_of<'p>(&self, check: &Check<'p>) -> Check<'p> {
        let share = |number: u64| (number as f64 * self.options.local_share).floor() as u64;
        let limit =
            check.limit.with_requests(share(check.limit.requests())).with_burst(share(check.limit.burst()));
        Check { limit, ..*check }
    }
}

/// Whether the verdict is known without a counter: an exception or a record denies, or a rule allows 0. A question of
/// 0 hits asks whether one more would fit, except with a fixed window, where it asks whether the counter is over.
fn lets_nothing_pass(check: &Check<'_>) -> bool {
    let takes = match check.hits {
        Hits::Take(hits) => hits > 0 || check.limit.algorithm() != Algorithm::FixedWindow,
        Hits::GiveBack(_) => false,
    };
    takes && check.limit.capacity() == 0
}

/// A check that counts nothing, with the known verdict `over`: the decision depends on all checks of the request, so
/// the steps that are already decided need one too. It reads the log that this node keeps under the same key. So it
/// has the same window; with a shorter one the log would drop hits.
pub(super) fn decided_check<'p>(check: &Check<'p>, over: bool) -> Check<'p> {
    let limit =
        Limit::new(Algorithm::SlidingLog, if over { 0 } else { u64::MAX }, check.limit.window_nanos());
    Check { limit, hits: Hits::Take(0), reported: false, ..*check }
}

/// The place of this step's counter in Redis. `None`: its key is too long to keep.
fn place_of<R: Runtime>(plan: &Plan<'_>, parts: &[Part<'_, R>], step: usize) -> Option<CounterPlace> {
    let check = check_at(plan, step)?;
    let part = parts.iter().find(|part| part.steps.contains(&step))?;
    let key = &part.keys[part.steps.iter().position(|&own| own == step)?];
    let place = || CounterPlace { unit: check.unit(), slot: part.slot, key: key.clone(), limit: check.limit };
    (key.len() <= KEY_BYTES_MAX).then(place)
}

fn hits_of(check: &Check<'_>) -> u64 {
    match check.hits {
        Hits::Take(hits) => hits,
        Hits::GiveBack(_) => 0,
    }
}

/// Over the limit, for one second.
pub(super) fn denied(check: &Check<'_>) -> Verdict {
    let before = check.limit.capacity();
    let after = before.saturating_add(hits_of(check));
    Verdict { over: true, before, after, remaining: 0, reset_nanos: SECOND_NANOS, is_counted: false }
}

/// Within the limit, uncounted.
fn allowed(check: &Check<'_>) -> Verdict {
    let remaining = check.limit.capacity();
    Verdict { over: false, before: 0, after: 0, remaining, reset_nanos: 0, is_counted: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_engine::key::Key;
    use tidegate_engine::plan::Origin;
    use tidegate_engine::unit::{Unit, Window};

    #[test]
    fn where_nothing_may_pass_no_counter_is_asked_but_for_a_look_at_a_fixed_window() {
        use Algorithm::{FixedWindow, SlidingWindow, TokenBucket};
        for (algorithm, requests, hits, expected) in [
            (SlidingWindow, 0, Hits::Take(1), true),
            (SlidingWindow, 0, Hits::Take(0), true),
            (TokenBucket, 0, Hits::Take(0), true),
            (FixedWindow, 0, Hits::Take(1), true),
            (FixedWindow, 0, Hits::Take(0), false),
            (SlidingWindow, 0, Hits::GiveBack(1), false),
            (SlidingWindow, 1, Hits::Take(1), false),
            (SlidingWindow, 1, Hits::Take(9), false),
        ] {
            let check = Check::new(
                Origin::Override { window: Window { unit: Unit::Second, multiplier: 1 } },
                Limit::new(algorithm, requests, SECOND_NANOS).with_burst(7),
                Key(1),
                hits,
            );
            assert_eq!(lets_nothing_pass(&check), expected, "{check:?}");
        }
    }
}
