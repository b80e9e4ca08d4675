//! Debts that are carried: nothing is admitted while a part of one waits. So when something is, all that was charged from any
//! time on is at most N for each window that has begun since.
//!
//! What is allowed nevertheless, and for how long:
//! - What exceeds 16 windows of N is not carried. Wherever that was so, nothing is admitted for 15 windows: no more than these are
//!   counted together.
//! - What a node kept or admitted alone is charged later without being carried: it is left out. But it may take the room of debts,
//!   so that reports are dropped, until it leaves with the last of them: nothing is judged that is asked for up to so long after.
//! - What a server loses it loses with the debts: nothing before a loss is counted.
//! - Hits that a lease had before a debt are spent as well: leased limits are not judged.
//! - A clock that goes ahead pays sooner.
//! - What went back while a node decided alone may have made room twice.

use super::{Outcome, Record, Rules, given_back_alone};
use crate::scenario::LimitSpec;
use crate::world::{MICRO, Time};

/// Windows of N that are counted together at most.
const WINDOWS_MAX: u64 = 15;
/// In so many windows the last debt has left that was there when another one began.
const LEAVES_IN: u64 = 2 * (WINDOWS_MAX + 3);

/// Something that was admitted while a debt waited. `counting`: what surely counts of the same counter, by the time at which it
/// was asked.
pub(super) fn unpaid<'r>(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    mut own: impl Iterator<Item = &'r Record>,
    counting: &[Record],
) -> Option<String> {
    if !limit.shape.carries_debt || limit.is_leased {
        return None;
    }
    let is_later = |it: &&Record| it.is_kept || rules.is_alone(limit, it);
    let later: Vec<&Record> = counting.iter().filter(is_later).collect();
    own.find_map(|it| {
        let may_fill = |other: &&Record| (other.asked..other.answered.saturating_add(LEAVES_IN * it.window)).contains(&it.asked);
        if it.outcome != Outcome::Admitted || !rules.judges(limit, it) || later.iter().any(may_fill) {
            return None;
        }
        let most = u64::from(it.requests);
        let lost = rules.losses.iter().filter(|loss| loss.since <= it.answered).map(|loss| loss.until);
        let since = lost.max().map_or(0, |until| until + 1).max(it.asked.saturating_sub(WINDOWS_MAX * it.window));
        let earlier = counting[..counting.partition_point(|other| other.asked < it.asked)].iter().rev();
        let earlier = earlier.take_while(|first| first.asked >= since);
        let mut before = 0;
        earlier.filter(|first| first.answered < it.asked && !is_later(first)).find_map(|first| {
            before += first.hits;
            let back = given_back_alone(rules, limit, it, [first.asked, it.answered]);
            let there = before.min(WINDOWS_MAX * most).saturating_sub(back);
            let windows = (it.answered + rules.lead - first.asked) / it.window + 1;
            (there + it.hits.max(1) > windows * most).then(|| {
                format!(
                    "request {} was admitted {} hits at {} us, though {there} were charged in {windows} windows of {most}",
                    it.request,
                    it.hits,
                    it.answered / MICRO
                )
            })
        })
    })
}

/// The most hits of a counter that count at a time, where debts are carried. In: when each cost was charged at the latest, and its
/// hits. A cost counts as a whole until its last hit has left, a window after there was room for that.
pub(super) fn owed(most: u64, lasts: Time, costs: &mut [(Time, u64)], at: Time) -> u64 {
    costs.sort_unstable();
    let mut leaves: Vec<(u64, Time)> = Vec::with_capacity(costs.len());
    let mut all = 0;
    for &(charged, hits) in costs.iter() {
        let (before, waits) = if hits > most {
            (all, hits.div_ceil(most) * lasts)
        } else {
            ((all + hits).saturating_sub(most), 0)
        };
        let left = leaves.partition_point(|&(sum, _)| sum < before);
        let left = leaves.get(left).filter(|_| before > 0).map_or(0, |&(_, leaves)| leaves);
        all += hits;
        leaves.push((all, charged.max(left).saturating_add(waits + lasts)));
    }
    let gone = leaves.partition_point(|&(_, leaves)| leaves <= at);
    all - gone.checked_sub(1).map_or(0, |gone| leaves[gone].0)
}
