//! Waits that end before there can be room.
//!
//! In: what was asked of a counter. Out: the first denial whose reset time is too early. What surely counted before it was asked
//! still counts then, and leaves no room.

use tidegate_engine::rules::StoreFailure;

use super::{LATE, Outcome, Record, Rules, before, given_back_alone};
use crate::scenario::{DAY_ENDS, LimitSpec};
use crate::world::{MICRO, Time};

/// A denial that says too early when there is room. `counting`: what surely counts of `own`.
pub(super) fn too_early(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    own: &[Record],
    counting: &[Record],
) -> Option<String> {
    // What is remembered was answered a little earlier, for fewer hits perhaps; and before others reported theirs, passed by a
    // larger N, were admitted alone, or gave hits back at another node.
    let (slack, remembers) = (LATE + rules.timeout, rules.remembers_denials || limit.is_leased);
    let goes_back = |it: &Record| rules.refunds.iter().any(|refund| refund.is_of(it));
    let may_be_old = limit.is_reported || !limit.is_steady() || own.first().is_some_and(goes_back);
    if remembers && may_be_old {
        return None;
    }
    // From when to when hits may come to Redis, or count there, that a node admitted alone.
    let is_alone = |it: &&Record| it.outcome == Outcome::Admitted && rules.is_alone(limit, it);
    let reports_alone = remembers && limit.failure == StoreFailure::Local;
    let alone = own.iter().filter(|_| reports_alone).filter(is_alone);
    let alone: Vec<[Time; 2]> =
        alone.map(|it| [it.asked, rules.counts_from(limit, it).saturating_add(it.window)]).collect();
    let knows_all = |it: &&Record| alone.iter().all(|[from, until]| it.answered < *from || it.asked > *until);
    // The wait of a reported cost is that of one hit.
    let is_of_one = remembers || limit.is_reported;
    // Higher classes may have been admitted hits since a lower one was denied, at this node by an answer of Redis perhaps; and fewer
    // hits since many were.
    let has_classes = limit.shape.classes.is_some();
    let is_asked = |it: &&Record| it.is_single && limit.recorded.is_none() && it.answered > it.asked;
    let is_last = |it: &&Record| !remembers || !has_classes && it.hits <= 1 || is_asked(it);
    own.iter().filter(|it| it.is_over()).filter(is_last).filter(knows_all).filter(|it| rules.judges(limit, it) && rules.explains(limit, it)).find_map(|it| {
        let until = it.answered + it.reset_nanos;
        // The wait begins when Redis answers. A node that stands still then passes it on later.
        let ends = limit.window_around(it.window, it.answered)[1] + slack.max(LATE + it.answered - it.asked);
        if limit.shape.ending.is_some() && it.answered < DAY_ENDS && it.hits <= it.capacity(limit) && until > ends {
            let (request, until) = (it.request, until / MICRO);
            return Some(format!("request {request} was denied until {until} us, after the end of the period"));
        }
        let (room, wanted) = (it.capacity(limit), if is_of_one { 1 } else { it.hits.max(1) });
        let at = Record { answered: until + slack, ..*it };
        let window = [it.asked.saturating_sub(it.window), it.answered];
        let there = before(rules, limit, counting, &at)?;
        let there = there.saturating_sub(given_back_alone(rules, limit, it, window));
        (wanted <= room && there + wanted > room).then(|| {
            format!(
                "request {} was denied {wanted} hits at {} us for {} us, though {there} of {room} are there still",
                it.request,
                it.answered / MICRO,
                it.reset_nanos / MICRO
            )
        })
    })
}
