//! Whether there was room for what was admitted.
//!
//! In: what was asked of a counter, and what surely counts of it. Out: the first request that was admitted though what was surely there
//! before left no room.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::{Outcome, Record, Refund, Rules, holds};
use crate::scenario::LimitSpec;
use crate::world::{MICRO, Time};

/// Something that was admitted where nothing may pass.
pub(super) fn in_spite(limit: &LimitSpec, own: &[Record]) -> Option<String> {
    let is_closed = |it: &&Record| it.requests == 0 || it.capacity(limit) == 0;
    let mut admitted = own.iter().filter(is_closed).filter(|it| it.outcome == Outcome::Admitted);
    let admitted = admitted.find(|it| it.hits > 0 || limit.algorithm != Algorithm::FixedWindow)?;
    Some(format!("request {} was admitted {} hits of none", admitted.request, admitted.hits))
}

/// Something that was admitted although what was surely there before left no room. `own`: what was asked of the counter.
/// `counting`: what surely counts of it.
pub(super) fn on_top(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    own: &[Record],
    counting: &[Record],
) -> Option<String> {
    own.iter().filter(|it| it.outcome == Outcome::Admitted && rules.judges(limit, it)).find_map(|it| {
        let window = [it.asked.saturating_sub(it.window), it.answered];
        let before = before(rules, limit, counting, it)?;
        let before = before.saturating_sub(given_back_alone(rules, limit, it, window));
        // A lease was taken before others admitted the hits that it is judged with, perhaps by a larger N.
        let max = if limit.is_leased { limit.capacity(limit.most() as u32, it.share) } else { it.capacity(limit) };
        // Nothing at all fits where N are there, but a bucket drains meanwhile, and a fixed window is asked for what is over.
        let wanted = if limit.algorithm.is_strict() { it.hits.max(1) } else { it.hits };
        let (answered, hits) = (it.answered / MICRO, it.hits);
        // What a node has of leases is not left to others.
        let leaves_too_much = !limit.is_leased && before + hits + it.remaining > max;
        match before + wanted > max {
            true => Some(format!(
                "request {} was admitted {hits} hits at {answered} us, though {before} of {max} were there",
                it.request
            )),
            false => leaves_too_much.then(|| {
                format!(
                    "request {} left {} at {answered} us with {hits} hits, though {before} of {max} were there",
                    it.request, it.remaining
                )
            }),
        }
    })
}

/// The hits that were surely there when this was asked for. `None`: the window changed meanwhile.
pub(super) fn before(rules: &Rules<'_>, limit: &LimitSpec, counting: &[Record], it: &Record) -> Option<u64> {
    // Hits may be leased before others are reported.
    let surely = it.asked.saturating_sub(if limit.is_reported { rules.leased_for(limit) } else { 0 });
    let since = match limit.algorithm {
        Algorithm::FixedWindow | Algorithm::Calendar => {
            let begins = |time: Time| limit.window_around(it.window, time)[0];
            Some(begins(it.asked)).filter(|&since| since == begins(it.answered))?
        }
        _ => (it.answered + rules.lead + 1).saturating_sub(it.window),
    };
    let first = counting.partition_point(|other| other.asked < since);
    let there = counting[first..].iter().take_while(|other| other.asked < it.asked);
    let there = there.filter(|other| rules.counts_from(limit, other) < surely);
    // Higher classes may have been admitted theirs when this class had its lease already.
    let there = there.filter(|other| !limit.is_leased || other.share <= it.share);
    if !limit.algorithm.is_bucket() {
        return Some(there.map(|other| other.hits).sum());
    }
    // Each was charged when it was asked for at the earliest. What is there is rounded up.
    let drained = |from: Time, to: Time| (to - from) as f64 * limit.most() as f64 / it.window as f64;
    let (mut level, mut at) = (0.0_f64, 0);
    for other in there {
        level = (level - drained(at, other.asked)).max(0.0) + other.hits as f64;
        (level, at) = (level.min(holds::level_max(limit)), other.asked);
    }
    let level = (level - drained(at, it.answered + rules.lead)).max(0.0) as u64;
    Some(level.saturating_sub(1 + given_back(rules, it, [since, it.answered])))
}

/// Hits that may have gone back to a node alone between these times, and to Redis too: they make room twice. Or they were charged
/// nowhere, because a node alone had admitted them. The oldest hits go, so what is asked for later stays; but a lease may have been
/// taken before. What went so may be given back too, and then others go in its place: from then on each refund may make room twice.
pub(super) fn given_back_alone(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    it: &Record,
    [from, until]: [Time; 2],
) -> u64 {
    if !matches!(limit.failure, StoreFailure::Local | StoreFailure::Allow) {
        return 0;
    }
    let is_own =
        |refund: &&Refund| refund.is_of(it) && refund.taken.epoch == it.epoch && refund.asked <= until;
    let is_alone = |refund: &Refund| {
        rules.may_lack_answer(refund.node, refund.asked, rules.refunded_until(refund))
            || rules.is_alone(limit, &refund.taken)
    };
    let own = rules.refunds.iter().filter(is_own);
    let Some(first) = own.clone().filter(|refund| is_alone(refund)).map(|refund| refund.asked).min() else {
        return 0;
    };
    let later = own.filter(|refund| {
        let done = rules.refunded_until(refund);
        done >= first && done + rules.leased_for(limit) >= from
    });
    later.map(|refund| refund.taken.hits).sum()
}

/// Hits that may have gone back to the counter of a record between these times.
pub(super) fn given_back(rules: &Rules<'_>, it: &Record, [from, until]: [Time; 2]) -> u64 {
    let own = rules.refunds.iter().filter(|refund| refund.is_of(it));
    own.filter(|refund| refund.asked <= until && refund.done >= from).map(|refund| refund.taken.hits).sum()
}
