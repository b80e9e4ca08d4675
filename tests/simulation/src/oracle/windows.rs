//! More than may be in a window, or in what a bucket lets through meanwhile.
//!
//! In: what surely counts of a counter. Out: the first window that holds too much. A hit is in a window if both its request and its
//! answer are.

use smallvec::SmallVec;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use super::room::{given_back, given_back_alone};
use super::{Loss, Outcome, Record, Rules};
use crate::scenario::{FULL, LimitSpec};
use crate::world::{MICRO, Time};

/// A window that holds too much: of all hits, or of those of a class and all lower ones. The last of them that was charged
/// fitted below its own threshold together with all others.
pub(super) fn too_much(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record]) -> Option<String> {
    let mut shares: SmallVec<[u64; 4]> = own.iter().map(|it| it.share).collect();
    shares.sort_unstable();
    shares.dedup();
    let highest = shares.pop()?;
    let in_lower = |share: u64| {
        let lower: Vec<Record> = own.iter().copied().filter(|it| it.share <= share).collect();
        up_to(rules, limit, &lower, share)
    };
    up_to(rules, limit, own, highest).or_else(|| shares.into_iter().find_map(in_lower))
}

/// The same of hits that belong to classes of this share at most.
fn up_to(rules: &Rules<'_>, limit: &LimitSpec, own: &[Record], share: u64) -> Option<String> {
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
    let hits: u64 = within.clone().map(|it| it.hits).sum();
    let most = of(100)?;
    if hits <= most {
        return None;
    }
    let mut alone = Alone::none(rules, limit);
    within.clone().for_each(|it| alone.add(it));
    let most = most + alone.share(|percent| of(percent).unwrap_or(0))?;
    let mut forgotten = Forgotten::none(rules, limit);
    within.for_each(|it| forgotten.add(it));
    let max = most + forgotten.hits(most) + given_back_alone(rules, limit, &own[0], [from, end]);
    (hits > max).then(|| excess(hits, max, from, end - from))
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
    let mut alone = Alone::none(rules, limit);
    // When N changes, what is used stays the same part of it.
    let room = own.iter().map(|it| it.room(limit)).max().unwrap_or(0) * share / FULL;
    later.iter().find_map(|it| {
        hits += it.hits;
        alone.add(it);
        forgotten.add(it);
        let elapsed = it.answered - from;
        let drained = limit.most() * (elapsed + rules.lead) / it.window + 1;
        let most = (room + drained) * (100 + alone.share(|percent| percent)?) / 100;
        if hits <= most {
            return None;
        }
        let back = given_back_alone(rules, limit, it, [from, it.answered]);
        let max = most + forgotten.hits(most) + back + given_back(rules, it, [from, it.answered]);
        (hits > max).then(|| excess(hits, max, from, elapsed))
    })
}

fn excess(hits: u64, max: u64, from: Time, lasts: Time) -> String {
    format!("{hits} hits where at most {max} may be, in the {} us from {} us", lasts / MICRO, from / MICRO)
}

/// What nodes may have admitted alone, in addition to the N that Redis admits: each process its share.
struct Alone<'r> {
    rules: &'r Rules<'r>,
    limit: &'r LimitSpec,
    /// Those that may have decided some of the hits alone: their nodes, and how often these had been started.
    processes: SmallVec<[(usize, u64); 4]>,
}

impl<'r> Alone<'r> {
    fn none(rules: &'r Rules<'r>, limit: &'r LimitSpec) -> Self {
        Self { rules, limit, processes: SmallVec::new() }
    }

    fn add(&mut self, it: &Record) {
        let admits = matches!(self.limit.failure, StoreFailure::Local | StoreFailure::Allow);
        if admits && self.rules.is_alone(self.limit, it) {
            let process = (it.node, it.process);
            if !self.processes.contains(&process) {
                self.processes.push(process);
            }
        }
    }

    /// How many hits these are at most. `None`: without a bound. `of`: so many percent of what may be.
    fn share(&self, of: impl Fn(u64) -> u64) -> Option<u64> {
        match self.processes.len() as u64 {
            0 => Some(0),
            _ if self.limit.failure == StoreFailure::Allow => None,
            processes => Some(processes * of(self.rules.local_share_percent.into())),
        }
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
            if loss.touches(it.asked.saturating_sub(self.later), it.answered) {
                *hits += it.hits;
            }
        }
    }

    /// How many these are, at most so many each time.
    fn hits(&self, most: u64) -> u64 {
        self.losses.iter().map(|&(_, hits)| most.min(hits)).sum()
    }
}
