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
//!
//! What is allowed nevertheless, and for how long:
//! - What a server loses may be admitted once more, and no more than that: everything that it counted before FLUSHALL,
//!   or what a replica did not have that takes over; for a window, and as long as leases last.
//! - `allow`: a node admits every request while it may have had no answer from Redis, so such windows are not judged.
//!   What it admitted then counts nowhere.
//! - `local`: a node may admit its share of N alone, while it may have had no answer from Redis and until it has
//!   recovered, or when its client waited for a shorter time than the answer took. Afterwards these hits count at
//!   Redis, for a window, unless the node died.
//! - A request that gives hits back while a node decides alone may make room there and at Redis, also for hits that
//!   `allow` charged nowhere.
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

mod bans;
mod census;
mod counter;
mod debts;
mod early;
mod holds;
mod record;
mod remembered;
mod slots;
mod starved;
mod trouble;

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use crate::scenario::{FULL, LimitSpec};
use crate::world::{MICRO, SECOND, Time};
pub use bans::wrong_bans;
pub use census::{Census, census};
pub use counter::Counter;
pub use holds::wrong_holds;
pub use record::{BanChange, Bans, Loss, Outcome, Record, Refund, Reserving};
pub use slots::{Release, wrong_slots};
pub use starved::starved;
pub use trouble::{Trouble, Troubles};

/// A message, and what a server takes.
const LATE: Time = SECOND / 100;
/// What a node admitted alone is at Redis after so long, if nothing fails meanwhile.
const SENT: Time = 2 * SECOND;

/// What all limits are judged with.
#[derive(Clone, Copy)]
pub struct Rules<'s> {
    /// The limits.
    pub limits: &'s [LimitSpec],

    // What happened.
    /// How often a node was started: each time with no hits of its own.
    pub starts: u64,
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
    /// How long after a loss hits are spent that were leased before.
    fn leased_for(&self, limit: &LimitSpec) -> Time {
        if limit.is_leased { self.lease_time + LATE } else { 0 }
    }

    /// Whether a node may have decided this without Redis.
    fn is_alone(&self, limit: &LimitSpec, it: &Record) -> bool {
        let decides = limit.failure != StoreFailure::Error;
        let is_far = it.asked < self.troubles.far_until(it.node);
        let was_short = || it.deadline.is_some_and(|deadline| it.answered - it.asked + LATE >= deadline);
        decides && (is_far || was_short() || self.troubles.of(it.node, it.asked, it.answered).is_some())
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
        let is_own = limit.excepted.is_none() && limit.recorded.is_none();
        is_fixed && is_asked && is_own && !self.stops_increment
    }

    /// Losses by which this counter may have admitted hits once more.
    fn losses_of(&self, limit: &LimitSpec, own: &[Record]) -> &[Loss] {
        let counts_as_full = self.knows_losses && own.first().is_some_and(|it| self.denies_cold(limit, it));
        if counts_as_full { &[] } else { self.losses }
    }

    /// Whether what was lost of this counter counts as full. A budget would be full for a day: it starts at zero.
    fn denies_cold(&self, limit: &LimitSpec, it: &Record) -> bool {
        limit.algorithm != Algorithm::Calendar
            && self.cold_max.is_some_and(|max| limit.empties_in(it.window) <= max)
    }

    /// Whether it is known when a window of this algorithm begins, and where it ends: not after a clock has stepped.
    fn knows_windows(&self, limit: &LimitSpec) -> bool {
        let is_aligned = matches!(
            limit.algorithm,
            Algorithm::FixedWindow | Algorithm::SlidingWindowWeighted | Algorithm::Calendar
        );
        self.lag + self.lead == 0 || !is_aligned
    }
}

/// More than may be, in a window.
pub fn too_much(rules: &Rules<'_>, counters: &[Counter]) -> Option<String> {
    counters.iter().find_map(|it| {
        let Counter { own, counting, .. } = it;
        let limit = &rules.limits[it.limit];
        let early = |there: &[Record]| early::too_early(rules, limit, own, there);
        let unpaid = || debts::unpaid(rules, limit, own.iter(), counting);
        let rules = &Rules { losses: rules.losses_of(limit, own), ..*rules };
        let there = match rules.may_count_denied(limit) {
            true => Cow::Owned(own.iter().copied().filter(|it| rules.counts(limit, it)).collect::<Vec<_>>()),
            false => Cow::Borrowed(&counting[..]),
        };
        let found = in_windows(rules, limit, counting).or_else(|| on_top(rules, limit, own, &there));
        found
            .or_else(unpaid)
            .or_else(|| in_spite(limit, own))
            .or_else(|| early(&there))
            .or_else(|| remembered::too_long(rules, limit, own))
            .map(|found| it.named(found))
    })
}

/// How many of these hits nodes may have admitted alone, in addition to the N that Redis admits: each node its share,
/// as often as it was started. `None`: without a bound. `of`: so many percent of what may be.
fn alone<'r>(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    of: impl Fn(u64) -> u64,
    mut own: impl Iterator<Item = &'r Record>,
) -> Option<u64> {
    match limit.failure {
        _ if !own.any(|it| rules.is_alone(limit, it)) => Some(0),
        StoreFailure::Allow => None,
        StoreFailure::Local => Some(rules.starts * of(rules.local_share_percent.into())),
        StoreFailure::Error | StoreFailure::Deny => Some(0),
    }
}

/// Hits of a window that servers may have forgotten: of each loss its sum, as they are added one after the other.
struct Forgotten<'r> {
    losses: SmallVec<[(&'r Loss, u64); 4]>,
    /// Those of a lease are spent until its end.
    later: Time,
}

impl<'r> Forgotten<'r> {
    fn none(rules: &Rules<'r>, limit: &LimitSpec) -> Self {
        let may_lack = |loss: &&Loss| loss.acknowledged || limit.is_candidate();
        let losses = rules.losses.iter().filter(may_lack).map(|loss| (loss, 0));
        Self { losses: losses.collect(), later: rules.leased_for(limit) }
    }

    fn add(&mut self, it: &Record) {
        for (loss, hits) in &mut self.losses {
            let is_in = it.answered >= loss.since && it.asked <= loss.until + self.later;
            *hits += if is_in { it.hits } else { 0 };
        }
    }

    /// How many these are, at most so many each time.
    fn hits(&self, most: u64) -> u64 {
        self.losses.iter().map(|&(_, hits)| most.min(hits)).sum()
    }
}

/// A window that holds too much: of all hits, or of those of a class and all lower ones. The last of them that was charged
/// fitted below its own threshold together with all others.
fn in_windows(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record]) -> Option<String> {
    let mut shares: SmallVec<[u64; 4]> = own.iter().map(|it| it.share).collect();
    shares.sort_unstable();
    shares.dedup();
    let highest = shares.pop()?;
    let in_lower = |share: u64| {
        let lower: Vec<Record> = own.iter().copied().filter(|it| it.share <= share).collect();
        in_windows_up_to(rules, limit, &lower, share)
    };
    in_windows_up_to(rules, limit, own, highest).or_else(|| shares.into_iter().find_map(in_lower))
}

/// The same of hits that belong to classes of this share at most.
fn in_windows_up_to(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record], share: u64) -> Option<String> {
    // What was reported may be beyond N. What was admitted is not.
    let is_admitted = |it: &Record| it.outcome == Outcome::Admitted;
    let admitted = limit.is_reported.then(|| own.iter().copied().filter(is_admitted).collect::<Vec<_>>());
    let own = admitted.as_deref().unwrap_or(own);
    let window = own.first()?.window.saturating_sub(rules.lead);
    if !rules.knows_windows(limit) {
        return None;
    }
    let places = own.iter().enumerate();
    let mut windows = places.map(|(place, first)| (first.asked, &own[place..]));
    match limit.algorithm {
        Algorithm::SlidingLog | Algorithm::SlidingWindow => {
            windows.find_map(|(from, own)| too_many_until(rules, limit, own, (from, from + window)))
        }
        Algorithm::FixedWindow | Algorithm::SlidingWindowWeighted | Algorithm::Calendar => {
            windows.find_map(|(from, own)| {
                let [_, end] = limit.window_around(window, from);
                too_many_until(rules, limit, own, (from, end))
            })
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            windows.find_map(|(from, own)| too_fast(rules, limit, (own, share), from))
        }
        Algorithm::Concurrency | Algorithm::Ban | Algorithm::Holds => {
            unreachable!("they have judges of their own")
        }
    }
}

/// More than N of these hits, which were asked in this order, that surely counted in a window.
fn too_many_until(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    own: &[Record],
    (from, end): (Time, Time),
) -> Option<String> {
    let within = own.iter().take_while(|it| it.asked < end).filter(|it| it.answered < end);
    // The last of these that was charged fitted into its own N together with all others.
    let of = |percent: u64| {
        let part = |it: &Record| limit.capacity((u64::from(it.requests) * percent / 100) as u32, it.share);
        within.clone().map(part).max()
    };
    let most = of(100)? + alone(rules, limit, |percent| of(percent).unwrap_or(0), within.clone())?;
    let hits: u64 = within.clone().map(|it| it.hits).sum();
    if hits <= most {
        return None;
    }
    let mut forgotten = Forgotten::none(rules, limit);
    within.for_each(|it| forgotten.add(it));
    let max = most + forgotten.hits(most) + given_back_alone(rules, limit, &own[0]);
    (hits > max).then(|| excess(hits, max, from, end - from))
}

/// Hits that may have gone back to a node alone, and to Redis too: they make room twice. Or they were charged nowhere.
fn given_back_alone(rules: &Rules<'_>, limit: &LimitSpec, it: &Record) -> u64 {
    let own = rules.refunds.iter().filter(|refund| refund.of == (it.limit, it.key));
    let may_make_room = matches!(limit.failure, StoreFailure::Local | StoreFailure::Allow);
    own.filter(|_| may_make_room).map(|refund| refund.hits).sum()
}

/// Hits that may have gone back to the counter of a record between these times.
fn given_back(rules: &Rules<'_>, it: &Record, [from, until]: [Time; 2]) -> u64 {
    let own = rules.refunds.iter().filter(|refund| refund.of == (it.limit, it.key));
    own.filter(|refund| refund.asked <= until && refund.done >= from).map(|refund| refund.hits).sum()
}

/// More of these hits than a bucket holds, and lets through meanwhile.
fn too_fast(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    (own, share): (&[Record], u64),
    from: Time,
) -> Option<String> {
    let mut later: Vec<_> = own.iter().collect();
    later.sort_by_key(|it| it.answered);
    let (mut hits, mut forgotten) = (0, Forgotten::none(rules, limit));
    let mut may_be_alone = Some(0);
    let room = limit.own_burst().map_or(limit.most(), u64::from) * share / FULL;
    later.iter().find_map(|it| {
        if may_be_alone == Some(0) {
            may_be_alone = alone(rules, limit, |percent| percent, std::iter::once(*it));
        }
        hits += it.hits;
        forgotten.add(it);
        let elapsed = it.answered - from;
        let drained = limit.most() * (elapsed + rules.lead) / it.window + 1;
        let most = (room + drained) * (100 + may_be_alone?) / 100;
        if hits <= most {
            return None;
        }
        let alone = given_back_alone(rules, limit, it);
        let max = most + forgotten.hits(most) + alone + given_back(rules, it, [from, it.answered]);
        (hits > max).then(|| excess(hits, max, from, elapsed))
    })
}

fn excess(hits: u64, max: u64, from: Time, lasts: Time) -> String {
    format!("{hits} hits where at most {max} may be, in the {} us from {} us", lasts / MICRO, from / MICRO)
}

/// Something that was admitted where nothing may pass.
fn in_spite(limit: &LimitSpec, own: &[Record]) -> Option<String> {
    let is_closed = |it: &&Record| it.requests == 0 || limit.capacity(it.requests, it.share) == 0;
    let mut admitted = own.iter().filter(is_closed).filter(|it| it.outcome == Outcome::Admitted);
    let admitted = admitted.find(|it| it.hits > 0 || limit.algorithm != Algorithm::FixedWindow)?;
    Some(format!("request {} was admitted {} hits of none", admitted.request, admitted.hits))
}

/// Something that was admitted although what was surely there before left no room. `own`: what was asked of the counter.
/// `counting`: what surely counts of it.
fn on_top(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record], counting: &[Record]) -> Option<String> {
    own.iter().filter(|it| it.outcome == Outcome::Admitted && rules.judges(limit, it)).find_map(|it| {
        let before = before(rules, limit, counting, it)?.saturating_sub(given_back_alone(rules, limit, it));
        // A lease was taken before others admitted the hits that it is judged with, perhaps by a larger N.
        let requests = if limit.is_leased { limit.most() as u32 } else { it.requests };
        let max = limit.capacity(requests, it.share);
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

impl Rules<'_> {
    /// Whether what this was admitted has to fit together with what was there before.
    fn judges(&self, limit: &LimitSpec, it: &Record) -> bool {
        let since = it.answered.saturating_sub(it.window);
        let later = self.leased_for(limit);
        let mut losses = self.losses.iter();
        let forgot = losses.any(|loss| loss.since <= it.answered && loss.until + later >= since);
        // When N changes, the level of a bucket does too.
        let is_steady = !limit.algorithm.is_bucket() || limit.is_steady();
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

/// The hits that were surely there when this was asked for. `None`: the window changed meanwhile.
fn before(rules: &Rules<'_>, limit: &LimitSpec, counting: &[Record], it: &Record) -> Option<u64> {
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

#[cfg(test)]
mod tests;
