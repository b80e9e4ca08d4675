//! What may not happen, judged from outside: when clients asked, when they were answered, and what.
//!
//! A hit counts at some moment between its question and its answer. So the hits of a window are those whose question and
//! answer are both within it: whatever the moments were, there were as many.
//!
//! - Strict algorithms: never more than N in any window of W, N being the largest that was in force.
//! - Buckets: never more than `burst` and what drains meanwhile.
//! - Fixed windows: never more than N in an aligned window.
//! - Hits that were reported are charged whether they fit or not, but nothing is admitted on top of N.
//! - Each time that a server loses its memory its counts begin anew: N once more.
//! - `local`: every node may admit N alone while Redis is away, and again when it was restarted.
//! - A request that gives hits back takes what it was admitted out of every window.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use crate::redis::server::EPOCH_MICROS;
use crate::scenario::LimitSpec;
use crate::world::{MICRO, SECOND, Time};

/// Hits of one answer that count.
#[derive(Clone, Copy, Debug)]
pub struct Admitted {
    /// Which limit.
    pub limit: usize,
    /// Which counter.
    pub key: u64,
    /// How many.
    pub hits: u64,
    /// When they were asked for.
    pub asked: Time,
    /// When that was answered.
    pub answered: Time,
    /// The N that the node had.
    pub requests: u32,
    /// They were not asked for, but reported.
    pub is_reported: bool,
    /// They were given back.
    pub is_refunded: bool,
    /// The number of the request.
    pub request: usize,
}

/// What all limits are judged with.
pub struct Rules<'s> {
    /// The limits.
    pub limits: &'s [LimitSpec],
    /// How often a node was started: each time with no hits of its own.
    pub starts: u64,
    /// When a server lost its memory.
    pub losses: &'s [Time],
}

/// The first thing that may not be, if there is one.
pub fn judge(rules: &Rules<'_>, admitted: &[Admitted]) -> Result<(), String> {
    let mut counters: Vec<(usize, u64)> = admitted.iter().map(|it| (it.limit, it.key)).collect();
    counters.sort_unstable();
    counters.dedup();
    for (limit, key) in counters {
        let own = admitted.iter().filter(|it| (it.limit, it.key) == (limit, key) && !it.is_refunded);
        let mut own: Vec<Admitted> = own.copied().filter(|it| it.hits > 0).collect();
        own.sort_by_key(|it| it.asked);
        let found = in_windows(rules, &rules.limits[limit], &own)
            .or_else(|| on_top(rules, &rules.limits[limit], &own));
        if let Some(found) = found {
            return Err(format!("limit {limit}, key {key}: {found}"));
        }
    }
    Ok(())
}

/// How often N may be there in a window, and how many times a server lost its memory in it.
fn times(rules: &Rules<'_>, limit: &LimitSpec, from: Time, to: Time) -> u64 {
    let before = from.saturating_sub(limit.window_secs * SECOND);
    let losses = rules.losses.iter().filter(|&&loss| loss >= before && loss <= to).count() as u64;
    let alone = if limit.failure == StoreFailure::Local { rules.starts } else { 0 };
    1 + losses + alone
}

/// A window that holds too much.
fn in_windows(rules: &Rules<'_>, limit: &LimitSpec, own: &[Admitted]) -> Option<String> {
    // What was reported may be beyond N: only what is admitted on top of it is judged.
    if limit.is_reported || limit.failure == StoreFailure::Allow {
        return None;
    }
    let window = limit.window_secs * SECOND;
    let most = u64::from(limit.requests.into_iter().max().unwrap_or(0));
    own.iter().enumerate().find_map(|(place, first)| {
        let from = first.asked;
        match limit.algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingWindow => {
                let within = own[place..].iter().take_while(|it| it.asked < from + window);
                let within = within.filter(|it| it.answered < from + window);
                let (hits, max) =
                    (within.map(|it| it.hits).sum::<u64>(), most * times(rules, limit, from, from + window));
                (hits > max).then(|| told(hits, max, from, window))
            }
            Algorithm::FixedWindow => {
                let unix = EPOCH_MICROS * MICRO + from;
                let end = from + window - unix % window;
                let within =
                    own[place..].iter().take_while(|it| it.asked < end).filter(|it| it.answered < end);
                let (hits, max) =
                    (within.map(|it| it.hits).sum::<u64>(), most * times(rules, limit, from, end));
                (hits > max).then(|| told(hits, max, from, end - from))
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                let mut later: Vec<_> = own[place..].iter().collect();
                later.sort_by_key(|it| it.answered);
                let mut hits = 0;
                later.into_iter().find_map(|it| {
                    hits += it.hits;
                    let elapsed = it.answered - from;
                    let drained = most * elapsed / window + 1;
                    let max = (most + drained) * times(rules, limit, from, it.answered);
                    (hits > max).then(|| told(hits, max, from, elapsed))
                })
            }
            Algorithm::SlidingWindowWeighted => None,
        }
    })
}

fn told(hits: u64, max: u64, from: Time, lasts: Time) -> String {
    format!("{hits} hits where at most {max} may be, in the {} us from {} us", lasts / MICRO, from / MICRO)
}

/// Something that was admitted although what was surely there before left no room.
fn on_top(rules: &Rules<'_>, limit: &LimitSpec, own: &[Admitted]) -> Option<String> {
    // A node that decides alone knows of nobody else's hits.
    let may_be_alone = matches!(limit.failure, StoreFailure::Allow | StoreFailure::Local);
    if !limit.algorithm.is_strict() || may_be_alone {
        return None;
    }
    let window = limit.window_secs * SECOND;
    own.iter().filter(|it| !it.is_reported).find_map(|it| {
        let since = it.answered.saturating_sub(window);
        let before = own.iter().filter(|other| other.answered < it.asked && other.asked > since);
        let before: u64 = before.map(|other| other.hits).sum();
        let max = u64::from(it.requests);
        let forgot = times(rules, limit, since, it.answered) > 1;
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
            window_secs: 1,
            is_leased: false,
            is_reported: false,
            failure: StoreFailure::Error,
        }
    }

    fn admitted(asked: Time, answered: Time) -> Admitted {
        let (limit, key, hits, requests) = (0, 0, 1, 2);
        Admitted {
            limit,
            key,
            hits,
            asked,
            answered,
            requests,
            is_reported: false,
            is_refunded: false,
            request: 0,
        }
    }

    fn is_fine(algorithm: Algorithm, losses: &[Time], times: &[(Time, Time)]) -> bool {
        let admitted: Vec<_> = times.iter().map(|&(asked, answered)| admitted(asked, answered)).collect();
        judge(&Rules { limits: &[limit(algorithm)], starts: 1, losses }, &admitted).is_ok()
    }

    #[test]
    fn three_of_two_in_a_window_are_noticed_wherever_it_begins() {
        let strict = Algorithm::SlidingWindow;
        assert!(is_fine(strict, &[], &[(0, 1), (5, 6), (SECOND + 1, SECOND + 2)]));
        assert!(!is_fine(strict, &[], &[(0, 1), (5, 6), (SECOND - 2, SECOND - 1)]));
        assert!(is_fine(strict, &[7], &[(0, 1), (5, 6), (SECOND - 2, SECOND - 1)]), "a server forgot");
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
