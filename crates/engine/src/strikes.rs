//! Strikes: which denials of a request count towards a ban.
//!
//! In: a plan and its verdicts. Out: strikes, one for each ban whose limit denied the request. A store counts them after
//! the decision, so no request waits for that.

use smallvec::SmallVec;

use crate::decision::Verdicts;
use crate::limit::{Algorithm, BanTerms, Limit, Verdict};
use crate::plan::{Check, Hits, Plan, Step};
use crate::settle::settle;

/// The denials that count towards bans: the place of each ban in the plan, and its check, which takes one hit. A denial
/// counts if the request is denied, and a limit of this rule has no room for it. It does not count for a question, in shadow
/// mode, during a ban, under a limit of 0 (an operator may have set it), or when the counter did not decide.
pub fn strikes<'a>(plan: &Plan<'a>, verdicts: &Verdicts) -> SmallVec<[(usize, Check<'a>); 1]> {
    let mut strikes = SmallVec::new();
    let verdict_of = |place: usize| verdicts.get(place).copied().flatten();
    let over = |place: usize| verdict_of(place).is_some_and(|verdict| verdict.over);
    if !has_bans(plan) || settle(plan, over).passes {
        return strikes;
    }
    for (place, &descriptor) in (plan.descriptors()..).zip(&plan.further) {
        let Step::Check(ban) = &plan.steps[place] else { continue };
        if !ban.is_ban() || ban.shadow || verdict_of(place).is_none_or(|verdict| verdict.over) {
            continue;
        }
        let own = plan.places_of(descriptor);
        let denies = own.filter_map(|place| match &plan.steps[place] {
            Step::Check(check) => Some((check, verdict_of(place)?)),
            _ => None,
        });
        if denies.into_iter().any(|(check, verdict)| counts(check, &verdict)) {
            strikes.push((place, Check { hits: Hits::Take(1), ..*ban }));
        }
    }
    strikes
}

/// Whether a plan asks for a ban.
pub(crate) fn has_bans(plan: &Plan<'_>) -> bool {
    plan.steps[plan.descriptors()..].iter().any(|step| matches!(step, Step::Check(check) if check.is_ban()))
}

/// Whether a denial by this check counts towards a ban.
fn counts(check: &Check<'_>, verdict: &Verdict) -> bool {
    let is_hits = Algorithm::OF_HITS.contains(&check.limit.algorithm()) && check.limit.capacity() > 0;
    let asks = matches!(check.hits, Hits::Take(1..)) && !check.reported;
    is_hits && asks && !check.shadow && verdict.over && verdict.is_counted
}

/// Fills in the verdicts of the checks that have none: a ban denies the request, so their counters need not be asked.
pub fn spare(plan: &Plan<'_>, verdicts: &mut Verdicts) {
    for (step, verdict) in plan.steps.iter().zip(verdicts) {
        if let (Step::Check(check), None) = (step, &verdict) {
            *verdict = Some(spared(check));
        }
    }
}

/// The verdict of a counter that is not asked.
pub fn spared(check: &Check<'_>) -> Verdict {
    let after = if let Hits::Take(hits) = check.hits { hits } else { 0 };
    let remaining = check.limit.capacity();
    Verdict { over: false, before: 0, after, remaining, reset_nanos: 0, is_counted: false }
}

/// The check that begins a ban of this length at once.
pub fn beginning<'a>(ban: &Check<'a>, secs: u32) -> Option<Check<'a>> {
    let terms = BanTerms { first_secs: secs, longest_secs: secs, ..ban.limit.ban_terms()? };
    Some(Check { limit: Limit::ban(&terms), hits: Hits::Take(u64::from(terms.strikes).max(2)), ..*ban })
}

/// The check that lifts a ban, and forgets strikes and earlier bans.
pub fn lifting<'a>(ban: &Check<'a>) -> Check<'a> {
    Check { hits: Hits::GiveBack(1), ..*ban }
}

/// The verdict of a ban after a strike: banned if the strike has begun a ban, otherwise the verdict from before.
pub fn after_strike(before: Verdict, strike: &Verdict) -> Verdict {
    let has_begun = strike.is_counted && !strike.over && strike.remaining == 0;
    if has_begun { Verdict { over: true, ..*strike } } else { before }
}
