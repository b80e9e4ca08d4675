//! What may not happen, judged from outside: from the times of requests and answers, and from the answers.
//!
//! A hit counts at some moment between its request and its answer. So a hit is surely in a window if both its request
//! and its answer are in that window.
//!
//! - Strict algorithms: never more than N in any window of W, where N is the largest that was in force at the nodes.
//! - Buckets: never more than `burst` and what drains meanwhile.
//! - Classes of importance: the same of the hits of a class and all lower ones, with its threshold in place of N or `burst`. It is
//!   computed here once more. What a lower class is admitted has to fit below its threshold together with the hits of all classes.
//! - Fixed and weighted windows: never more than N in an aligned window.
//! - Nothing is admitted beyond N: what was surely counted before leaves room for the request, and for the remaining
//!   hits that its answer says. That holds for each hit that is admitted, also where reported hits are charged beyond
//!   N.
//! - A request that gives hits back removes what it was admitted from every window. The level of a bucket falls by as much.
//! - Nothing is admitted while a debt waits that is carried: `debts.rs`.
//! - Calls in flight have a judge of their own: `slots.rs`. So have reservations: `holds.rs`.
//! - No request is denied for whose hits there is room, even if everything counted that may have counted.
//! - No node remembers for long that a leased counter is full: other nodes may give hits back.
//! - No request is asked to wait for a shorter time than that in which what was surely counted leaves no room.
//! - No request is asked to wait for longer than until there is room, even if everything counted that may have counted. This is
//!   asked of windows. Leases count for a window from when they end, and a reported cost waits until it leaves itself.
//! - No explanation says what no answer might: `explained.rs`.
//! - No answer to what is admitted says that less is left than N without everything that may have counted.
//!
//! What is allowed nevertheless, and for how long:
//! - What a server loses may be admitted once more, and no more than that: everything that it counted before FLUSHALL,
//!   or what a replica did not have that takes over; for a window, and as long as leases last.
//! - `allow`: a node admits every request while it may have had no answer from Redis, so such windows are not judged.
//!   What it admitted then counts nowhere.
//! - `local`: a node may admit its share of N alone, while it may have had no answer from Redis and until it has
//!   recovered, or when its client waited for a shorter time than the answer took; and once more each time that it was
//!   started. Afterwards these hits count at Redis, for a window, unless the node died.
//! - A request that gives hits back may make room twice, at a node and at Redis, while the node may have had no answer from
//!   Redis; and so may one of hits that a node admitted alone, because they may have been charged nowhere. What goes are the
//!   hits of the window before it.
//! - A report without an answer is sent until there is one, and may count each time.
//! - A node without Redis that was killed may admit once more what it admitted since its last checkpoint.
//! - When the memory of a node is full, requests that need more of it are denied, or admitted and not counted. Counters
//!   that exist stay.
//! - After a boot a node's clock may be behind by STATE_SKEW, and clocks of Redis servers may step, or be others after
//!   a failover: hits count that much longer or shorter, and nobody knows where aligned windows end.
//! - When nodes differ in COLD_START, losses may be admitted once more, and a node may deny because of what was lost
//!   long ago.
//! - A candidate counts nothing while Redis does not answer, and when memory is small nobody knows whether it had room.
//!   A request that its limit denies waits for no replicas (REDIS_WAIT_REPLICAS), so they may lack what the candidate counted.
//! - After a reset, everything that was admitted before may be admitted once more.
//! - A failure may leave hits that count longer than they should, but those of a call without an answer are charged
//!   before its deadline or never.

// What is known.
mod record;
mod counter;
mod trouble;
mod cold;

// The judges of a counter.
mod windows;
mod room;
mod debts;
mod early;
mod remembered;
mod starved;
mod remaining;
mod explained;

// Those of what several counters share.
mod slots;
mod bans;
mod holds;
mod learnt;

// How much was judged.
mod census;

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use crate::scenario::LimitSpec;
use crate::world::{MICRO, MILLI, SECOND, Time};
pub use bans::wrong_bans;
pub use census::{Census, Tally, census};
pub use counter::Counter;
pub use explained::wrong_explanations;
pub use holds::{wrong_holds, wrongly_left_holds};
pub use record::{BanChange, Bans, Loss, Outcome, Record, Refund, Reserving};
pub use remaining::left_too_little;
use room::{before, given_back_alone};
pub use slots::{Release, wrong_slots, wrongly_left_slots};
pub use starved::starved;
pub use trouble::{Trouble, Troubles};

/// A message, and what a server takes.
const LATE: Time = SECOND / 100;
/// A node waits so much shorter for Redis than its client waits for the node, by its own clock.
const HEAD_START: Time = 3 * MILLI + MICRO;
/// What a node admitted alone is at Redis after so long, if nothing fails meanwhile.
const SENT: Time = 2 * SECOND;

/// What all limits are judged with.
#[derive(Clone, Copy)]
pub struct Rules<'s> {
    /// The limits.
    pub limits: &'s [LimitSpec],

    // What happened.
    /// What servers forgot.
    pub losses: &'s [Loss],
    /// Hits that went back.
    pub refunds: &'s [Refund],
    /// What operators did with bans.
    pub ban_changes: &'s [BanChange],
    /// When nodes may have decided alone.
    pub troubles: &'s Troubles,

    // How nodes are set.
    /// There is a Redis. Its counters may be cold at the beginning. A node without it checks and charges a request in one step.
    pub has_redis: bool,
    /// A denial is remembered until the time at which there is room again.
    pub remembers_denials: bool,
    /// For so long after that hits may be spent that were leased before.
    pub lease_time: Time,
    /// How much of N a node admits that decides alone by `local`.
    pub local_share_percent: u32,
    /// Of a request that has a counter over, fixed windows that are not count nothing.
    pub stops_increment: bool,
    /// How long a call waits for its answer at most.
    pub timeout: Time,

    // Which losses count as full.
    /// Whatever may have been lost counts as full, of windows up to this: no denial is judged.
    pub cold_max: Option<Time>,
    /// Whoever decides knows of all that was lost, so nothing of it is admitted once more where it counts as full. But whoever
    /// knows of a loss denies: denials are judged with all losses.
    pub knows_losses: bool,
    /// Some nodes do not look for losses, and others notice them late: when they ask, or begin.
    pub knows_late: bool,

    // What clocks did.
    /// The clock of counters may have gone back by so much, when a machine booted: hits count so much longer.
    pub lag: Time,
    /// The clock of counters may have gone ahead by so much: hits count so much shorter.
    pub lead: Time,

    /// Nothing fails, and no message is slow.
    pub is_calm: bool,
}

impl Rules<'_> {
    /// The limit that a record is about, as its counter counts.
    fn limit_of(&self, it: &Record) -> LimitSpec {
        let own = &self.limits[it.limit];
        let algorithm = it.algorithm.unwrap_or(own.algorithm);
        // Only strict limits are leased.
        let is_leased = own.is_leased && algorithm.is_strict();
        LimitSpec { algorithm, burst: own.burst.filter(|_| algorithm.is_bucket()), is_leased, ..*own }
    }

    /// How long after a loss hits are spent that were leased before.
    fn leased_for(&self, limit: &LimitSpec) -> Time {
        if limit.is_leased { self.lease_time + LATE } else { 0 }
    }

    /// Whether a node may have decided this without Redis.
    fn is_alone(&self, limit: &LimitSpec, it: &Record) -> bool {
        let decides = limit.failure != StoreFailure::Error;
        let was_short =
            || it.deadline.is_some_and(|deadline| it.answered - it.asked + HEAD_START >= deadline);
        decides && (was_short() || self.may_lack_answer(it.node, it.asked, it.answered))
    }

    /// Whether a node may have had no answer from Redis between these times, though it waited for one.
    fn may_lack_answer(&self, node: usize, from: Time, until: Time) -> bool {
        from < self.troubles.far_until(node) || self.troubles.of(node, from, until).is_some()
    }

    /// When hits have gone back, or never will. Redis may do so when the node has given up.
    fn refunded_until(&self, refund: &Refund) -> Time {
        let answered = if refund.done < Time::MAX { refund.done } else { refund.asked + self.timeout };
        let until = answered + self.timeout + LATE;
        let trouble = self.troubles.of(refund.node, refund.asked, until).filter(|_| refund.done == Time::MAX);
        trouble.map_or(until, |trouble| trouble.until.max(until))
    }

    /// When Redis has surely counted these hits.
    fn counts_from(&self, limit: &LimitSpec, it: &Record) -> Time {
        if !it.is_kept && !self.is_alone(limit, it) {
            return it.answered;
        }
        if limit.failure == StoreFailure::Allow && !it.is_reported {
            return Time::MAX;
        }
        let sent = it.answered + SENT;
        match self.troubles.of(it.node, it.asked, sent) {
            Some(trouble) if trouble.forgets => Time::MAX,
            Some(trouble) => sent.max(trouble.until),
            None => sent,
        }
    }

    /// Whether hits surely count. A fixed window counts what is denied too, where Redis or this node's memory said so.
    fn counts(&self, limit: &LimitSpec, it: &Record) -> bool {
        let is_counted = !it.is_full && it.hits > 0 && !it.bans.is_banned;
        it.counts()
            || is_counted && self.may_count_denied(limit) && matches!(it.outcome, Outcome::Denied { .. })
    }

    /// Whether hits of this limit may surely count that were denied.
    fn may_count_denied(&self, limit: &LimitSpec) -> bool {
        let is_fixed = limit.algorithm == Algorithm::FixedWindow && limit.failure == StoreFailure::Error;
        let is_asked = !self.remembers_denials && self.cold_max.is_none();
        let is_own = !limit.is_operated();
        is_fixed && is_asked && is_own && !self.stops_increment
    }

    /// Whether it is known when a window of this algorithm begins, and where it ends: not after a clock has stepped.
    fn knows_windows(&self, limit: &LimitSpec) -> bool {
        let is_aligned = matches!(
            limit.algorithm,
            Algorithm::FixedWindow | Algorithm::SlidingWindowWeighted | Algorithm::Calendar
        );
        self.lag + self.lead == 0 || !is_aligned
    }

    /// Whether what this was admitted has to fit together with what was there before.
    fn judges(&self, limit: &LimitSpec, it: &Record) -> bool {
        let since = it.answered.saturating_sub(it.window + self.leased_for(limit));
        let forgot = self.losses.iter().any(|loss| loss.touches(since, it.answered));
        // When N changes, the level of a bucket does too. Where an exception denies, it stays.
        let is_steady = !limit.algorithm.is_bucket() || limit.is_steady() || limit.shape.is_denied;
        // A question of no hits passes a fixed window that is cold.
        let is_exact = match limit.algorithm {
            Algorithm::FixedWindow => it.hits > 0,
            algorithm => algorithm != Algorithm::SlidingWindowWeighted,
        };
        !it.is_full
            && !forgot
            && is_steady
            && is_exact
            && self.knows_windows(limit)
            && !self.is_alone(limit, it)
    }
}

/// More that was admitted than may be, or denials that last too long or too short.
pub fn too_much(rules: &Rules<'_>, counters: &[Counter]) -> Option<String> {
    counters.iter().find_map(|it| {
        let Counter { own, counting, .. } = it;
        let limit = &rules.limit_of(&own[0]);
        // What counts as full is not admitted once more: losses of it allow for nothing.
        let strict = &Rules { losses: rules.losses_of(limit, own), ..*rules };
        let there = it.there(rules, limit);
        windows::too_much(strict, limit, counting)
            .or_else(|| room::on_top(strict, limit, own, &there))
            .or_else(|| debts::unpaid(rules, limit, own.iter(), counting))
            .or_else(|| room::in_spite(limit, own))
            .or_else(|| early::too_early(rules, limit, own, &there))
            .or_else(|| remembered::too_long(rules, limit, own))
            .map(|found| it.named(found))
    })
}

#[cfg(test)]
mod tests;
