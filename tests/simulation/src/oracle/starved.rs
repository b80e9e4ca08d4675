//! Denials for which there was no reason.
//!
//! In: the records of all counters. Out: the first that was denied hits for which there was room, whatever may have counted.

use std::cell::OnceCell;

use tidegate_engine::limit::{Algorithm, DEFAULT_BUCKETS};
use tidegate_engine::rules::StoreFailure;

use super::debts::owed;
use super::remembered::LEASE_TIMES;
use super::{Counter, LATE, Outcome, Record, Refund, Rules, SENT, before};
use crate::scenario::{FULL, LimitSpec};
use crate::world::{MICRO, SECOND, Time};

/// Leases of one counter that a node holds at most, and the part of the rest that each of them is.
const LEASES_MAX: u32 = 4;
const LEASE_PART: u64 = 8;

/// More calls than are made while something fails.
const MANY: u64 = 1_000;

impl Rules<'_> {
    /// Whether a denial by this limit can be explained from outside.
    pub(super) fn explains(&self, limit: &LimitSpec, it: &Record) -> bool {
        let is_bucket = limit.algorithm.is_bucket();
        // A log has N entries at most: what is reported beyond them moves the newest one. What is reported while Redis
        // is away fills a bucket later.
        let is_beyond = limit.is_reported || limit.shape.reserve.is_some();
        let moves_times = is_beyond && limit.algorithm == Algorithm::SlidingLog
            || limit.is_reported && is_bucket && !self.is_calm;
        // When N changes, the level of a bucket does too.
        let is_known = limit.is_steady() || !is_bucket;
        let from = it.asked.saturating_sub(self.counts_for(limit, it) + self.lease_time);
        // What went back of a lease may be lost.
        let loses_leases = limit.is_leased && self.troubles.touch(from, it.answered);
        !it.is_full
            && !moves_times
            && is_known
            && !self.is_alone(limit, it)
            && !loses_leases
            && !self.may_be_cold(limit, it)
            && self.knows_windows(limit)
            && limit.algorithm != Algorithm::SlidingWindowWeighted
    }

    /// By which N this was denied. A denial that is remembered was by the N of then.
    fn requests_of_denial(&self, own: &[Record], it: &Record) -> u64 {
        if !self.remembers_denials {
            return it.requests.into();
        }
        let since = it.asked.saturating_sub(2 * it.window);
        let recent = own[own.partition_point(|other| other.asked < since)..].iter();
        let others = recent.take_while(|other| other.asked <= it.answered);
        others.map(|other| other.requests).fold(it.requests, u32::min).into()
    }

    /// How long hits count at most: a bucket of a sliding window counts as a whole. A lease counts from its end.
    fn counts_for(&self, limit: &LimitSpec, it: &Record) -> Time {
        // What a node admitted alone is sent in parts of a window.
        let part = if it.granularity > 0 { it.granularity } else { it.window / DEFAULT_BUCKETS };
        it.window + part + LATE + self.leased_for(limit) + self.lag
    }

    /// When hits are charged at the latest. A node knows a server's clock no better than by what a call took there. A report
    /// without an answer is sent again, and joins the newest hits then. What is admitted alone is sent later.
    fn charged_until(&self, limit: &LimitSpec, it: &Record) -> Time {
        let sent = match limit.failure {
            StoreFailure::Error => 0,
            _ if it.outcome != Outcome::Unknown && !self.is_alone(limit, it) => 0,
            _ => self
                .troubles
                .of(it.node, it.asked, it.answered + SENT)
                .map_or(0, |trouble| trouble.until)
                .max(it.answered + SENT),
        };
        let called = match it.outcome {
            Outcome::Unknown if it.is_reported => Time::MAX,
            Outcome::Unknown => it.answered + self.timeout,
            Outcome::Admitted | Outcome::Denied { .. } => it.answered,
        };
        called.max(sent)
    }

    /// How many hits may count. What is reported or was admitted without an answer from Redis is sent until there is one: each of
    /// these calls may have charged it.
    fn hits_at_most(&self, limit: &LimitSpec, it: &Record) -> u64 {
        let is_unknown = it.outcome == Outcome::Unknown;
        let may_be_alone = limit.failure != StoreFailure::Error && (is_unknown || self.is_alone(limit, it));
        let times = if may_be_alone || is_unknown && it.is_reported { MANY } else { 1 };
        times * it.hits
    }

    /// Until when hits may count. What is charged in one slot and denied in another goes back within a second, where nothing
    /// fails, and calls have the time that they take.
    pub(super) fn may_count_until(&self, limit: &LimitSpec, it: &Record) -> Option<Time> {
        let Outcome::Denied { .. } = it.outcome else { return Some(Time::MAX) };
        let back = it.answered + SECOND;
        let is_hurried = it.deadline.is_some() || it.asked < self.troubles.far_until(it.node);
        match self.troubles.of(it.node, it.asked, back) {
            // Redis may have charged what the node denied without its answer.
            _ if it.is_reported || self.is_alone(limit, it) => Some(Time::MAX),
            // Only what its own request asks of the counter in addition may be denied because of it.
            _ if !self.has_redis => Some(it.answered),
            _ if it.is_plain => None,
            None if !is_hurried => Some(back),
            _ => Some(Time::MAX),
        }
    }
}

/// A denial though there was room for the hits, whatever may have counted.
pub fn starved(rules: &Rules<'_>, counters: &[Counter]) -> Option<String> {
    counters.iter().find_map(|it| {
        let limit = &rules.limit_of(&it.own[0]);
        // `holds.rs` judges these.
        if limit.shape.reserve.is_some() {
            return None;
        }
        let counted = Counted::of(rules, limit, it);
        let found = (0..it.own.len()).find_map(|place| counted.denied_with_room(place));
        found.map(|found| it.named(found))
    })
}

/// Hits that may be there.
#[derive(Clone, Copy)]
struct There {
    /// The place of their record.
    place: usize,
    /// When they were asked for.
    asked: Time,
    /// Until when they may count.
    until: Time,
    /// They were charged then at the latest.
    charged: Time,
    /// So were all that were asked for before: what begins later has none of them.
    all_charged: Time,
    hits: u64,
}

/// The records of one counter, and what may count of each.
pub(super) struct Counted<'o> {
    rules: &'o Rules<'o>,
    limit: &'o LimitSpec,
    own: &'o [Record],
    /// What surely counts of them.
    counting: &'o [Record],
    /// What went back, or may have.
    refunds: Vec<&'o Refund>,
    /// What may count of them. Computed once, because each denial looks at all before it.
    each: OnceCell<Vec<There>>,
}

impl<'o> Counted<'o> {
    /// Those of this counter.
    pub(super) fn of(rules: &'o Rules<'o>, limit: &'o LimitSpec, counter: &'o Counter) -> Self {
        let Counter { own, counting, has_sibling, .. } = counter;
        let new = Self::new(rules, limit, (own, counting));
        // Nobody knows to which of them hits went back.
        let refunds = if *has_sibling { Vec::new() } else { new.refunds };
        Self { refunds, ..new }
    }

    pub(super) fn new(
        rules: &'o Rules<'o>,
        limit: &'o LimitSpec,
        (own, counting): (&'o [Record], &'o [Record]),
    ) -> Self {
        let is_own = |refund: &&Refund| own.first().is_some_and(|it| refund.is_of(it));
        let refunds = rules.refunds.iter().filter(is_own).collect();
        Self { rules, limit, own, counting, refunds, each: OnceCell::new() }
    }

    /// What is wrong with the record at this place, if it was denied: there was room, or its wait is too long.
    pub(super) fn denied_with_room(&self, place: usize) -> Option<String> {
        let it = &self.own[place];
        if !it.is_over() || !self.rules.explains(self.limit, it) {
            return None;
        }
        let (most, wanted) = (self.most_of_denial(it), it.hits.max(1));
        let enough = (most + 1).saturating_sub(wanted);
        let Some(there) = self.fewer_than(enough, place) else {
            return self.too_late(enough, place);
        };
        Some(format!(
            "request {} was denied {wanted} hits at {} us, though at most {there} of {most} were there",
            it.request,
            it.answered / MICRO
        ))
    }

    /// What is wrong with the record at this place, if it was admitted: more than it says was left without all that may be there.
    pub(super) fn leaves_too_little(&self, place: usize) -> Option<String> {
        let it = &self.own[place];
        if it.outcome != Outcome::Admitted || !self.rules.explains(self.limit, it) {
            return None;
        }
        let most = it.capacity(self.limit);
        let (answered, hits, left) = (it.answered / MICRO, it.hits, it.remaining);
        let there = self.fewer_than(most.saturating_sub(hits + left), place)?;
        Some(format!(
            "request {} left {left} at {answered} us with {hits} hits, though at most {there} of {most} were there",
            it.request
        ))
    }

    /// The most hits that may have counted for the record at this place, without its own. `None`: these, or more.
    pub(super) fn fewer_than(&self, enough: u64, place: usize) -> Option<u64> {
        let (limit, it) = (self.limit, &self.own[place]);
        let hits = match limit.algorithm {
            Algorithm::TokenBucket | Algorithm::LeakyBucket => self.in_bucket(enough, place)?,
            Algorithm::FixedWindow => {
                let begins = limit.window_around(it.window, it.asked)[0].saturating_sub(LATE);
                sum_below(enough, self.others(place, begins))?
            }
            _ => self.in_window(enough, place)? + self.leased_at_most(it),
        };
        (hits < enough && hits + self.kept(it) < enough).then_some(hits)
    }

    /// The most that a bucket may keep, until it has drained, of hits that several requests gave back at the same time because another
    /// slot denied them: it knows how many hits are in it, and not whose.
    fn kept(&self, it: &Record) -> u64 {
        if !self.limit.algorithm.is_bucket() {
            return 0;
        }
        let since = it.asked.saturating_sub(self.limit.empties_by(it.window, it.requests));
        let gave_back = |other: &&Record| {
            let is_of_others = other.outcome == Outcome::Denied { over: false } && !other.is_plain;
            is_of_others && other.hits > 0 && other.answered >= since && other.asked <= it.answered
        };
        let gave_back: Vec<&Record> = self.own.iter().filter(gave_back).collect();
        let meets = |one: &Record, other: &Record| one.asked <= other.answered && other.asked <= one.answered;
        let several =
            gave_back.iter().filter(|one| gave_back.iter().filter(|other| meets(one, other)).count() > 1);
        several.map(|one| one.hits).sum()
    }

    /// The most that was there where this was denied.
    fn most_of_denial(&self, it: &Record) -> u64 {
        let by = || self.rules.requests_of_denial(self.own, it);
        self.limit.own_burst().map_or_else(by, u64::from) * it.share / FULL
    }

    /// A denial that says too late when there is room: at a time at which fewer than `enough` of all hits are there that may count.
    /// Debts are not judged.
    fn too_late(&self, enough: u64, place: usize) -> Option<String> {
        let Self { rules, limit, .. } = *self;
        let it = &self.own[place];
        // Who begins a ban waits for its end. The answer of its rule's first limit says so, also for the others.
        let may_ban = limit.further.is_some_and(|(first, _)| rules.limits[first].shape.ban.is_some());
        if limit.shape.carries_debt || it.bans.left.is_some() || may_ban {
            return None;
        }
        // A node knows the time of Redis no better than by what a call took there.
        let until = (it.asked + it.reset_nanos).saturating_sub(LATE + rules.timeout);
        let since = until.saturating_sub(rules.counts_for(limit, it));
        let is_late = match limit.algorithm {
            Algorithm::FixedWindow | Algorithm::Calendar => {
                until > limit.window_around(it.window, it.answered)[1]
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let own = if it.is_reported { it.hits } else { 0 };
                // What a request asks of one counter repeatedly has to fit together.
                let with = self.own.iter().filter(|other| other.request == it.request);
                let more = with.map(|other| other.hits).sum::<u64>() - it.hits;
                until > it.answered && own + more + self.level(place, &[], until) < enough
            }
            // Nobody knows when leases were taken, and what is more than N never fits: a window is enough.
            Algorithm::SlidingLog | Algorithm::SlidingWindow if limit.is_leased || enough == 0 => {
                since > it.answered
            }
            Algorithm::SlidingLog | Algorithm::SlidingWindow => {
                // A reported cost counts, and who reports it waits for that too.
                let own = if it.is_reported && since <= it.answered { it.hits } else { 0 };
                own < enough && sum_below(enough - own, self.others(place, since)).is_some()
            }
            _ => false,
        };
        is_late.then(|| {
            format!(
                "request {} was denied {} hits at {} us for {} us, though there is room before",
                it.request,
                it.hits,
                it.answered / MICRO,
                it.reset_nanos / MICRO
            )
        })
    }

    /// Those in a bucket.
    fn in_bucket(&self, enough: u64, place: usize) -> Option<u64> {
        let (limit, it) = (self.limit, &self.own[place]);
        let back = self.went_back(it);
        if fill(enough + sum_of(&back), limit, self.others(place, 0), it) {
            return None;
        }
        Some(self.level(place, &back, it.asked))
    }

    /// The most that may be in a bucket at this time, of what may count where the record at this place was asked for.
    fn level(&self, place: usize, back: &[&Refund], at: Time) -> u64 {
        let (limit, it) = (self.limit, &self.own[place]);
        let level = level(limit, self.others(place, 0), back, it, at);
        1 + level + (self.rules.lag * limit.most()).div_ceil(it.window)
    }

    /// Those in a window that ends when the record at this place was asked for, or in a period.
    fn in_window(&self, enough: u64, place: usize) -> Option<u64> {
        let Self { rules, limit, .. } = *self;
        let it = &self.own[place];
        if limit.shape.carries_debt {
            let there = self.others(place, 0);
            let mut costs: Vec<_> = there.map(|there| (there.charged, there.hits)).collect();
            return Some(owed(limit.most(), rules.counts_for(limit, it), &mut costs, it.asked));
        }
        // A node knows the time of Redis no better than by what a call took there.
        let slack = LATE + rules.timeout;
        let since = match limit.algorithm {
            Algorithm::Calendar => limit.window_around(it.window, it.asked.saturating_sub(slack))[0],
            _ => it.asked.saturating_sub(rules.counts_for(limit, it)),
        };
        let back = self.went_back(it);
        let hits = sum_below(enough + sum_of(&back), self.others(place, since))?;
        if back.is_empty() {
            return Some(hits);
        }
        let mut there: Vec<There> = self.others(place, 0).collect();
        give_back(rules, limit, it, &back, &mut there);
        Some(there.iter().filter(|there| there.charged >= since).map(|there| there.hits).sum())
    }

    /// What others may have charged since this time, before the record at this place was answered.
    fn others(&self, place: usize, since: Time) -> impl DoubleEndedIterator<Item = There> {
        let each = self.each.get_or_init(|| {
            let mut latest = 0;
            let places = 0..self.own.len();
            let may_count = places.filter_map(|place| {
                let there = self.may_count(place)?;
                latest = there.charged.max(latest);
                Some(There { all_charged: latest, ..there })
            });
            may_count.collect()
        });
        let it = &self.own[place];
        let asked = each.partition_point(|there| there.asked <= it.answered);
        let first = each[..asked].partition_point(|there| there.all_charged < since);
        let may_count =
            move |there: &&There| there.place != place && there.charged >= since && there.until >= it.asked;
        each[first..asked].iter().filter(may_count).copied()
    }

    /// What may count of the record at this place, without those before it. `None`: nothing.
    fn may_count(&self, place: usize) -> Option<There> {
        let (rules, limit, it) = (self.rules, self.limit, &self.own[place]);
        // A fixed window counts what is denied, but not by a ban.
        let counts_denied = limit.algorithm == Algorithm::FixedWindow
            && !it.bans.is_banned
            && (!rules.stops_increment || it.outcome == Outcome::Denied { over: true });
        let until = if counts_denied { Some(Time::MAX) } else { rules.may_count_until(limit, it) };
        let (until, hits) = (until?, rules.hits_at_most(limit, it));
        let charged = rules.charged_until(limit, it);
        Some(There { place, asked: it.asked, until, charged, all_charged: charged, hits })
    }

    /// The most hits that nodes may have leased and not spent: each lease is a part of what the ones before left, and of what
    /// was left when the oldest of them was taken.
    fn leased_at_most(&self, it: &Record) -> u64 {
        let Self { rules, limit, own, .. } = *self;
        if !limit.is_leased {
            return 0;
        }
        // A node that did not ask may remember what others had leased then.
        let remembered = if it.answered == it.asked { LEASE_TIMES } else { 0 };
        let since = it.asked.saturating_sub((remembered + 3) * rules.lease_time + LATE);
        let recent = own[own.partition_point(|other| other.asked < since)..].iter();
        let nodes =
            recent.take_while(|other| other.asked <= it.answered).fold(0_u64, |all, it| all | 1 << it.node);
        // Each class has leases of its own.
        let classes = limit.shape.classes.map_or(1, |shares| shares.len() as u32);
        let leases = nodes.count_ones() * LEASES_MAX * classes;
        let before = before(rules, limit, self.counting, &Record { asked: since, ..*it }).unwrap_or(0);
        let most = limit.most().saturating_sub(before);
        let rest = (0..leases).fold(most, |rest, _| rest - rest.div_ceil(LEASE_PART));
        most - rest + self.leases_lost(it) * limit.most().div_ceil(LEASE_PART)
    }

    /// What surely went back before this was asked for.
    fn went_back(&self, it: &Record) -> Vec<&'o Refund> {
        let Self { rules, limit, .. } = *self;
        if limit.is_leased {
            return Vec::new();
        }
        let own = self.refunds.iter().copied().filter(|refund| refund.taken.epoch == it.epoch);
        // Where hits go back a node forgets its denials. Others remember theirs.
        let is_heard = |refund: &&Refund| !rules.remembers_denials || refund.node == it.node;
        // What was done since a checkpoint is lost with it: hits that went back count again.
        let is_lost = |done: Time| rules.losses.iter().any(|loss| loss.touches(done, done));
        let own = own.filter(|refund| !is_lost(refund.done));
        let fails = |refund: &Refund| rules.troubles.of(refund.node, refund.asked, refund.done).is_some();
        let own = own.filter(|refund| refund.done <= it.asked && !fails(refund));
        own.filter(is_heard).collect()
    }

    /// How many leases may count that nobody has: Redis granted them to requests that had no answer in time.
    fn leases_lost(&self, it: &Record) -> u64 {
        let since = it.asked.saturating_sub(self.rules.counts_for(self.limit, it));
        let recent = self.own[self.own.partition_point(|other| other.asked < since)..].iter();
        let before = recent.take_while(|other| other.asked <= it.answered);
        before.filter(|other| other.outcome == Outcome::Unknown).count() as u64
    }
}

/// How many hits went back.
fn sum_of(back: &[&Refund]) -> u64 {
    back.iter().map(|refund| refund.taken.hits).sum()
}

/// Takes out the hits that went back. The oldest ones go first: those that had left the window may have been there still.
fn give_back(rules: &Rules<'_>, limit: &LimitSpec, it: &Record, refunds: &[&Refund], there: &mut [There]) {
    there.sort_by_key(|there| there.charged);
    for refund in refunds {
        let since = refund.asked.saturating_sub(rules.counts_for(limit, it));
        let mut left = refund.taken.hits;
        for there in there.iter_mut().filter(|there| there.charged >= since) {
            if left == 0 {
                break;
            }
            let taken = left.min(there.hits);
            (there.hits, left) = (there.hits - taken, left - taken);
        }
    }
}

/// The sum of these, if it is below a bound. The newest are enough for most denials.
fn sum_below(bound: u64, there: impl DoubleEndedIterator<Item = There>) -> Option<u64> {
    let mut newest = there.rev();
    newest.try_fold(0_u64, |sum, there| Some(sum + there.hits).filter(|sum| *sum < bound))
}

/// Whether the newest of these fill a bucket up to here, as if it had been empty before them.
fn fill(enough: u64, limit: &LimitSpec, there: impl DoubleEndedIterator<Item = There>, it: &Record) -> bool {
    let (mut hits, mut since) = (0, it.asked);
    there.rev().any(|there| {
        (hits, since) = (hits + there.hits, since.min(there.charged));
        hits as f64 - drained(limit, it, it.asked - since) >= enough as f64
    })
}

/// The hits that drain from a bucket in a time.
fn drained(limit: &LimitSpec, it: &Record, elapsed: Time) -> f64 {
    elapsed as f64 * f64::from(limit.requests[0]) / it.window as f64
}

/// The most that may be in a bucket at this time. What went back did so at the earliest: the later, the more of it
/// found hits there.
fn level(
    limit: &LimitSpec,
    there: impl Iterator<Item = There>,
    back: &[&Refund],
    it: &Record,
    at: Time,
) -> u64 {
    let charged = there.map(|there| (there.charged.min(it.asked), there.hits as f64));
    let back = back.iter().map(|refund| (refund.asked, -(refund.taken.hits as f64)));
    let mut changes: Vec<(Time, f64)> = back.chain(charged).collect();
    changes.sort_by_key(|&(at, _)| at);
    let (mut level, mut since) = (0.0_f64, 0);
    let drained = |elapsed: Time| drained(limit, it, elapsed);
    for (changed, hits) in changes {
        level = ((level - drained(changed - since)).max(0.0) + hits).max(0.0);
        since = changed;
    }
    (level - drained(at - since)).max(0.0).ceil() as u64
}
