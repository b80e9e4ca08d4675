//! What may not happen, judged from outside: when clients asked, when they were answered, and what.
//!
//! A hit counts at some moment between its question and its answer. So the hits of a window are those whose question and
//! answer are both within it: whatever the moments were, there were as many.
//!
//! - Strict algorithms: never more than N in any window of W, N being the largest that was in force.
//! - Buckets: never more than `burst` and what drains meanwhile.
//! - Fixed windows: never more than N in an aligned window.
//! - Hits that were reported are charged whether they fit or not, but nothing is admitted on top of N. A report without an
//!   answer is sent again, and may count twice.
//! - What a server forgets may be admitted once more, and no more than that: all that it was asked before FLUSHALL, or
//!   what a replica lacked that takes over.
//! - `local`: every node may admit N alone while Redis is away, and again when it was restarted.
//! - A request that gives hits back takes what it was admitted out of every window. When a counter begins anew, all that was
//!   admitted before may be admitted once more.
//! - An exception is another N. While one lets everything pass, what is admitted beside it still fits into N.
//! - Nobody is denied hits for which there is room, whatever may have counted. What fails may leave hits that count
//!   longer than they should, but those of a call without an answer are done before its deadline or never.

use std::collections::BTreeMap;

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use crate::redis::server::EPOCH_MICROS;
use crate::scenario::LimitSpec;
use crate::world::{MICRO, SECOND, Time};

/// What one descriptor of a request asked of a counter, and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// The number of the request.
    pub request: usize,
    /// Which limit.
    pub limit: usize,
    /// Which counter.
    pub key: u64,
    /// How many hits.
    pub hits: u64,
    /// When they were asked for.
    pub asked: Time,
    /// When that was answered, or nothing can happen any more.
    pub answered: Time,
    /// The N that the node had.
    pub requests: u32,
    /// And its W.
    pub window: Time,
    /// They were not asked for, but reported.
    pub is_reported: bool,
    /// An exception let everything pass.
    pub is_unlimited: bool,
    /// They were given back.
    pub is_refunded: bool,
    /// The client waited as long as it takes, and no other descriptor of the request is there.
    pub is_plain: bool,
    /// What was answered.
    pub outcome: Outcome,
}

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing, or an error: the hits may count or not.
    Unknown,
    /// The request passes.
    Admitted,
    /// The request does not pass. `over`: because of this counter.
    Denied {
        /// These hits do not fit.
        over: bool,
    },
}

impl Record {
    /// It surely counts.
    fn counts(&self) -> bool {
        let charged = match self.outcome {
            Outcome::Unknown => false,
            Outcome::Admitted => true,
            Outcome::Denied { .. } => self.is_reported,
        };
        charged && self.hits > 0 && !self.is_refunded && !self.is_unlimited
    }

    /// It may count at a time. What is charged in one slot and denied in another goes back within a second, where
    /// nothing fails.
    fn may_count_until(&self, is_calm: bool) -> Option<Time> {
        match self.outcome {
            Outcome::Denied { .. } if self.is_reported => Some(Time::MAX),
            Outcome::Denied { .. } if self.is_plain => None,
            Outcome::Denied { .. } if is_calm => Some(self.answered + SECOND),
            Outcome::Denied { .. } | Outcome::Unknown | Outcome::Admitted => Some(Time::MAX),
        }
    }

    /// How many hits may count.
    fn hits_at_most(&self) -> u64 {
        if self.is_reported && self.outcome == Outcome::Unknown { 2 * self.hits } else { self.hits }
    }

    /// When it is charged at the latest. A node knows a server's clock no better than by what a call took there. A report
    /// without an answer is sent again, and joins the newest hits then.
    fn charged_until(&self, timeout: Time) -> Time {
        match self.outcome {
            Outcome::Unknown if self.is_reported => Time::MAX,
            Outcome::Unknown => self.answered + timeout,
            Outcome::Admitted | Outcome::Denied { .. } => self.answered,
        }
    }
}

/// A server forgot what was written last.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// It forgot what was written from then on.
    pub since: Time,
    /// Nothing is forgotten that is written later.
    pub until: Time,
    /// It forgot hits that were admitted too. Otherwise only those whose clients had another answer.
    pub acknowledged: bool,
    /// Only one counter was forgotten: this one of this limit.
    pub of: Option<(usize, u64)>,
}

/// What all limits are judged with.
#[derive(Clone, Copy)]
pub struct Rules<'s> {
    /// The limits.
    pub limits: &'s [LimitSpec],
    /// How often a node was started: each time with no hits of its own.
    pub starts: u64,
    /// What servers forgot.
    pub losses: &'s [Loss],
    /// For so long after that hits may be spent that were leased before.
    pub lease_time: Time,
    /// How long a call waits for its answer at most.
    pub timeout: Time,
    /// Nothing fails, and no message is slow.
    pub is_calm: bool,
    /// Whatever servers may have lost counts as full: no denial is judged.
    pub denies_cold: bool,
}

impl Rules<'_> {
    /// Whether every denial by this limit can be explained from outside.
    fn explains(&self, limit: &LimitSpec) -> bool {
        // A log has N times at most: what is reported beyond them moves the newest one. What is reported while Redis
        // is away fills a bucket later.
        let moves_times = limit.is_reported && (limit.algorithm == Algorithm::SlidingLog || !self.is_calm);
        !self.denies_cold
            && limit.failure == StoreFailure::Error
            && !moves_times
            && !limit.is_leased
            && !limit.is_shadow
            && limit.excepted.is_none()
            && limit.requests[0] == limit.requests[1]
    }

    /// How long after a loss hits are spent that were leased before.
    fn leased_for(&self, limit: &LimitSpec) -> Time {
        if limit.is_leased { self.lease_time + LATE } else { 0 }
    }
}

/// More than may be, in a window.
pub fn too_much(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    each_counter(records, |number, own| {
        let limit = &rules.limits[number];
        if limit.is_shadow {
            return None;
        }
        let counting: Vec<Record> = own.iter().copied().filter(Record::counts).collect();
        let is_own =
            |loss: &&Loss| loss.of.is_none_or(|of| own.first().is_some_and(|it| of == (number, it.key)));
        let losses: Vec<Loss> = rules.losses.iter().filter(is_own).copied().collect();
        let rules = &Rules { losses: &losses, ..*rules };
        let found = in_windows(rules, limit, &counting).or_else(|| on_top(rules, limit, &counting));
        found.or_else(|| in_spite(&counting))
    })
}

/// A denial though there was room for the hits, whatever may have counted.
pub fn starved(rules: &Rules<'_>, records: &[Record]) -> Option<String> {
    each_counter(records, |number, own| {
        let limit = &rules.limits[number];
        let is_judged = rules.explains(limit);
        let denied = own.iter().filter(|it| it.is_plain && it.outcome == Outcome::Denied { over: true });
        denied.filter(|_| is_judged).find_map(|it| {
            let others = own.iter().filter(|other| other.request != it.request && other.asked <= it.answered);
            let others = others.filter(|other| {
                other.may_count_until(rules.is_calm).is_some_and(|until| until >= it.asked)
            });
            let (most, wanted) = (u64::from(it.requests), it.hits.max(1));
            let there = match limit.algorithm {
                Algorithm::SlidingLog | Algorithm::SlidingWindow => {
                    // A bucket counts as a whole, and is a sixtieth of the window at most.
                    let since = it.asked.saturating_sub(it.window + it.window / 60 + LATE);
                    let others = others.filter(|other| other.charged_until(rules.timeout) >= since);
                    others.map(Record::hits_at_most).sum()
                }
                // What is there is rounded up.
                Algorithm::TokenBucket | Algorithm::LeakyBucket => 1 + level(rules, limit, others, it),
                Algorithm::FixedWindow | Algorithm::SlidingWindowWeighted => return None,
            };
            (there + wanted <= most).then(|| {
                format!(
                    "request {} was denied {wanted} hits at {} us, though at most {there} of {most} were there",
                    it.request,
                    it.answered / MICRO
                )
            })
        })
    })
}

/// A message, and what a server takes.
const LATE: Time = SECOND / 100;

/// The most that may be in a bucket when this one is asked for.
fn level<'r>(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    others: impl Iterator<Item = &'r Record>,
    it: &Record,
) -> u64 {
    let charged = |other: &Record| other.charged_until(rules.timeout).min(it.asked);
    let mut others: Vec<_> = others.map(|other| (charged(other), other.hits_at_most())).collect();
    others.sort_unstable();
    let (mut level, mut since) = (0.0_f64, 0);
    let drained = |elapsed: Time| elapsed as f64 * f64::from(limit.requests[0]) / it.window as f64;
    for (at, hits) in others {
        level = (level - drained(at - since)).max(0.0) + hits as f64;
        since = at;
    }
    (level - drained(it.asked - since)).max(0.0).ceil() as u64
}

/// What a judge finds in the records of a counter, by the time at which they were asked.
fn each_counter(records: &[Record], judge: impl Fn(usize, &[Record]) -> Option<String>) -> Option<String> {
    let mut counters: BTreeMap<(usize, u64, Time), Vec<Record>> = BTreeMap::new();
    records.iter().for_each(|it| counters.entry((it.limit, it.key, it.window)).or_default().push(*it));
    counters.into_iter().find_map(|((limit, key, _), mut own)| {
        own.sort_by_key(|it| it.asked);
        judge(limit, &own).map(|found| format!("limit {limit}, key {key}: {found}"))
    })
}

/// How many nodes, each as often as it was started, may admit N alone.
fn alone(rules: &Rules<'_>, limit: &LimitSpec) -> u64 {
    if limit.failure == StoreFailure::Local { rules.starts } else { 0 }
}

/// How many of these hits servers may have forgotten: at most so many each time. Those of a lease are spent until its
/// end.
fn forgotten<'r>(
    rules: &Rules<'_>,
    limit: &LimitSpec,
    most: u64,
    hits: impl Iterator<Item = &'r Record> + Clone,
) -> u64 {
    let later = rules.leased_for(limit);
    let in_loss = |loss: &Loss| {
        let (since, until) = (loss.since, loss.until + later);
        hits.clone().filter(|it| it.answered >= since && it.asked <= until).map(|it| it.hits).sum()
    };
    let losses = rules.losses.iter().filter(|loss| loss.acknowledged);
    losses.map(|loss| most.min(in_loss(loss))).sum()
}

/// A window that holds too much.
fn in_windows(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record]) -> Option<String> {
    // What was reported may be beyond N: only what is admitted on top of it is judged.
    if limit.is_reported || limit.failure == StoreFailure::Allow {
        return None;
    }
    let window = own.first()?.window;
    let places = own.iter().enumerate();
    let mut windows = places.map(|(place, first)| (first.asked, &own[place..]));
    match limit.algorithm {
        Algorithm::SlidingLog | Algorithm::SlidingWindow => {
            windows.find_map(|(from, own)| too_many_until(rules, limit, own, (from, from + window)))
        }
        Algorithm::FixedWindow => windows.find_map(|(from, own)| {
            let end = from + window - (EPOCH_MICROS * MICRO + from) % window;
            too_many_until(rules, limit, own, (from, end))
        }),
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {
            windows.find_map(|(from, own)| too_fast(rules, limit, own, from))
        }
        Algorithm::SlidingWindowWeighted => None,
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
    let most = limit.most() * (1 + alone(rules, limit));
    let hits: u64 = within.clone().map(|it| it.hits).sum();
    if hits <= most {
        return None;
    }
    let max = most + forgotten(rules, limit, most, within);
    (hits > max).then(|| told(hits, max, from, end - from))
}

/// More of these hits than a bucket holds, and lets through meanwhile.
fn too_fast(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record], from: Time) -> Option<String> {
    let mut later: Vec<_> = own.iter().collect();
    later.sort_by_key(|it| it.answered);
    let mut hits = 0;
    later.iter().enumerate().find_map(|(place, it)| {
        hits += it.hits;
        let elapsed = it.answered - from;
        let drained = limit.most() * elapsed / it.window + 1;
        let most = (limit.most() + drained) * (1 + alone(rules, limit));
        if hits <= most {
            return None;
        }
        let max = most + forgotten(rules, limit, most, later[..=place].iter().copied());
        (hits > max).then(|| told(hits, max, from, elapsed))
    })
}

fn told(hits: u64, max: u64, from: Time, lasts: Time) -> String {
    format!("{hits} hits where at most {max} may be, in the {} us from {} us", lasts / MICRO, from / MICRO)
}

/// Something that was admitted where nothing may pass.
fn in_spite(own: &[Record]) -> Option<String> {
    let admitted = own.iter().find(|it| it.requests == 0 && !it.is_reported)?;
    Some(format!("request {} was admitted {} hits of none", admitted.request, admitted.hits))
}

/// Something that was admitted although what was surely there before left no room.
fn on_top(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record]) -> Option<String> {
    // A node that decides alone knows of nobody else's hits.
    let may_be_alone = matches!(limit.failure, StoreFailure::Allow | StoreFailure::Local);
    if !limit.algorithm.is_strict() || may_be_alone {
        return None;
    }
    own.iter().filter(|it| !it.is_reported).find_map(|it| {
        let since = it.answered.saturating_sub(it.window);
        let before = own.iter().filter(|other| other.answered < it.asked && other.asked > since);
        let before: u64 = before.map(|other| other.hits).sum();
        // A lease was taken before others admitted what it is judged beside, by a larger N perhaps.
        let max = if limit.is_leased { limit.most() } else { u64::from(it.requests) };
        let later = rules.leased_for(limit);
        let forgot = rules.losses.iter().any(|loss| loss.since <= it.answered && loss.until + later >= since);
        (!forgot && before + it.hits > max).then(|| {
            format!(
                "request {} was admitted {} hits at {} us, though {before} of {max} were there",
                it.request,
                it.hits,
                it.answered / MICRO
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(algorithm: Algorithm) -> LimitSpec {
        LimitSpec {
            algorithm,
            requests: [2, 2],
            window_secs: [1, 1],
            is_override: false,
            is_shadow: false,
            is_leased: false,
            is_reported: false,
            failure: StoreFailure::Error,
            excepted: None,
        }
    }

    fn record((asked, answered): (Time, Time), outcome: Outcome) -> Record {
        let (request, limit, key, hits, requests) = (asked as usize, 0, 0, 1, 2);
        let (is_reported, is_unlimited, is_refunded, is_plain) = (false, false, false, true);
        Record {
            request,
            limit,
            key,
            hits,
            asked,
            answered,
            requests,
            window: SECOND,
            is_reported,
            is_unlimited,
            is_refunded,
            is_plain,
            outcome,
        }
    }

    fn is_fine(algorithm: Algorithm, losses: &[Loss], times: &[(Time, Time)]) -> bool {
        let admitted: Vec<_> = times.iter().map(|&times| record(times, Outcome::Admitted)).collect();
        too_much(&rules(&[limit(algorithm)], losses, true), &admitted).is_none()
    }

    fn rules<'s>(limits: &'s [LimitSpec], losses: &'s [Loss], is_calm: bool) -> Rules<'s> {
        Rules { limits, starts: 1, losses, lease_time: 0, timeout: SECOND / 10, is_calm, denies_cold: false }
    }

    #[test]
    fn a_call_without_an_answer_is_done_in_time_or_never() {
        let (denied, timeout) = (Outcome::Denied { over: true }, SECOND / 10);
        let unknown = [record((0, timeout), Outcome::Unknown), record((1, timeout), Outcome::Unknown)];
        let is_fine = |at: Time| {
            let (records, limits) =
                ([unknown[0], unknown[1], record((at, at + 1), denied)], [limit(Algorithm::SlidingWindow)]);
            starved(&rules(&limits, &[], false), &records).is_none()
        };
        assert!(is_fine(SECOND / 2), "both may count");
        assert!(is_fine(SECOND + timeout), "and until a window after their deadline");
        assert!(!is_fine(2 * SECOND), "but no longer");
    }

    #[test]
    fn a_denial_is_noticed_where_there_was_room() {
        let is_fine = |algorithm, records: &[Record]| {
            starved(&rules(&[limit(algorithm)], &[], true), records).is_none()
        };
        let (admitted, over) = (Outcome::Admitted, Outcome::Denied { over: true });
        for algorithm in [Algorithm::SlidingWindow, Algorithm::SlidingLog, Algorithm::TokenBucket] {
            let denied = record((20, 21), over);
            assert!(is_fine(algorithm, &[record((0, 1), admitted), record((5, 6), admitted), denied]));
            assert!(is_fine(
                algorithm,
                &[record((0, 1), admitted), record((5, 6), Outcome::Unknown), denied]
            ));
            assert!(!is_fine(algorithm, &[record((5, 6), over), denied]), "{algorithm:?}");
            let late = record((3 * SECOND, 3 * SECOND + 1), over);
            assert!(!is_fine(algorithm, &[record((0, 1), admitted), record((5, 6), admitted), late]));
        }
    }

    #[test]
    fn three_of_two_in_a_window_are_noticed_wherever_it_begins() {
        let (strict, loss) =
            (Algorithm::SlidingWindow, Loss { since: 3, until: 7, acknowledged: true, of: None });
        assert!(is_fine(strict, &[], &[(0, 1), (5, 6), (SECOND + 1, SECOND + 2)]));
        assert!(!is_fine(strict, &[], &[(0, 1), (5, 6), (SECOND - 2, SECOND - 1)]));
        assert!(is_fine(strict, &[loss], &[(0, 1), (5, 6), (SECOND - 2, SECOND - 1)]), "a server forgot");
        // What was written before, or what replicas had, is not forgotten.
        let late = Loss { since: SECOND / 2, until: SECOND, ..loss };
        assert!(!is_fine(strict, &[late], &[(0, 1), (5, 6), (7, 8)]));
        let denied = Loss { acknowledged: false, ..loss };
        assert!(!is_fine(strict, &[denied], &[(0, 1), (5, 6), (SECOND - 2, SECOND - 1)]));
        // At the same time: nobody knows which was first, but all three are within.
        assert!(!is_fine(strict, &[], &[(0, 9), (1, 8), (2, 7)]));
        // The third may have counted when the first was over.
        assert!(is_fine(strict, &[], &[(0, 1), (5, 6), (SECOND - 2, SECOND + 3)]));
    }

    #[test]
    fn buckets_drain_and_fixed_windows_are_cut() {
        let bucket = Algorithm::TokenBucket;
        assert!(is_fine(bucket, &[], &[(0, 1), (2, 3), (SECOND / 2, SECOND / 2 + 1), (SECOND, SECOND + 1)]));
        assert!(!is_fine(bucket, &[], &[(0, 1), (2, 3), (4, 5), (6, 7)]));
        let cut = Algorithm::FixedWindow;
        let end = SECOND - EPOCH_MICROS * MICRO % SECOND;
        assert!(is_fine(cut, &[], &[(end - 9, end - 8), (end - 7, end - 6), (end + 1, end + 2)]));
        assert!(!is_fine(cut, &[], &[(end - 9, end - 8), (end - 7, end - 6), (end - 5, end - 4)]));
    }
}
