//! Bans in the shared store: the strikes that lead to them, and which counters need not be asked for a banned key.
//!
//! In: a plan and its verdicts. Out: strikes, noted as unsynced hits of the ban's counter. They reach Redis with the next
//! call that asks for that counter, or within a fraction of a second. No request waits for them.

use std::time::Instant;

use smallvec::SmallVec;

use super::unsynced::CounterPlace;
use super::{BAN_REMEMBERED, KEY_BYTES_MAX, SharedStore, check_at};
use crate::runtime::Runtime;
use tidegate_engine::decision::Verdicts;
use tidegate_engine::limit::Verdict;
use tidegate_engine::plan::{Check, Plan};
use tidegate_engine::request::Request;
use tidegate_engine::strikes::{spared, strikes};

impl<R: Runtime> SharedStore<R> {
    /// Notes the denials of a request that count towards bans.
    #[cold]
    pub(super) fn note_strikes(&self, request: &Request<'_>, plan: &Plan<'_>, verdicts: &Verdicts) {
        let strikes = strikes(plan, verdicts);
        if strikes.is_empty() {
            return;
        }
        let descriptors: SmallVec<[_; 8]> = plan.descriptors_of(request).collect();
        for (step, check) in strikes {
            let store = self.store_for(&check);
            let place = || {
                let key = store.options().keys.key(request.domain(), &check, descriptors[step].entries);
                let place = CounterPlace {
                    unit: check.unit(),
                    slot: store.slot(&key),
                    limit: check.limit,
                    key: key.clone(),
                };
                (key.len() <= KEY_BYTES_MAX).then_some(place)
            };
            self.unsynced.note(check.key, &check.limit, 1, self.runtime.monotonic(), place);
        }
    }

    /// Remembers a ban that Redis replied when strikes were reported.
    pub(super) fn learn_ban(&self, check: &Check<'_>, verdict: &Verdict, asked: Instant) {
        if check.is_ban() && self.options.deny_cache_bytes > 0 {
            self.deny_cache.learn(check, verdict, asked, BAN_REMEMBERED);
        }
    }

    /// Answers checks that need not be asked, because this node remembers a denial of their descriptor. If it remembers a
    /// ban, these are all other checks. If it remembers that the limit is over, this is the check of the ban, unless the key
    /// may be banned already. Not asking it is safe: the reply to its strikes says when a ban begins.
    #[cold]
    pub(super) fn spare(&self, plan: &Plan<'_>, remembered: &[usize], now: Instant, verdicts: &mut Verdicts) {
        for place in 0..plan.steps.len() {
            let Some(check) = check_at(plan, place).filter(|_| verdicts[place].is_none()) else { continue };
            if check.is_ban() && self.deny_cache.may_be_over(check, now) {
                continue;
            }
            let mut own =
                plan.places_of(plan.descriptor_of(place)).filter(|other| remembered.contains(other));
            let denies = |other: usize| {
                let it = check_at(plan, other);
                it.is_some_and(|it| denies(plan, other, it) && (it.is_ban() || check.is_ban()))
            };
            if own.any(denies) {
                verdicts[place] = Some(spared(check));
            }
        }
    }
}

/// Whether a check need not be asked, because this node knows a ban of its descriptor.
#[cold]
pub(super) fn is_spared(plan: &Plan<'_>, place: usize, knows: impl Fn(&Check<'_>) -> bool) -> bool {
    let mut own = plan.places_of(plan.descriptor_of(place));
    own.any(|place| {
        check_at(plan, place).is_some_and(|ban| ban.is_ban() && denies(plan, place, ban) && knows(ban))
    })
}

/// Whether the request is denied if this check is over.
fn denies(plan: &Plan<'_>, place: usize, check: &Check<'_>) -> bool {
    !check.shadow && !check.reported && !plan.in_quota_mode(place, check)
}
