//! Puts lines in the order of their timestamps. A log is written when requests end, so its timestamps go back a
//! little now and then.
//!
//! In: lines in the order of the log. Out: lines in the order of time, except lines that come after a line whose
//! timestamp is greater by more than the bound. Lines with equal timestamps keep their order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_engine::Timestamp;

/// The most lines that wait. Beyond it, the earliest is released before its time.
const HELD_MAX: usize = 200_000;

/// The most runs. Each line is compared with the ends of all.
const RUNS_MAX: usize = 8;

/// A timestamp that is this far ahead of all others of the log, in nanoseconds, is not used until a second one
/// confirms it: 30 days. Otherwise one wrong timestamp would make all following lines late.
const LEAP_NANOS: u64 = 30 * 86_400 * 1_000_000_000;

/// Lines that wait for earlier ones.
#[derive(Debug)]
pub(super) struct Order<T> {
    bound_nanos: u64,
    held_max: usize,
    /// Lines in runs, each in the order of time. Almost all lines of a log fit into a few: timestamps go back a
    /// little, and many are equal.
    runs: Vec<VecDeque<Held<T>>>,
    /// Lines that fit no run. A heap is slower: it moves lines again and again.
    others: BinaryHeap<Reverse<Held<T>>>,
    /// How many lines wait.
    held: usize,
    /// The latest confirmed timestamp.
    latest: Timestamp,
    /// A timestamp that is not confirmed yet.
    doubted: Option<Timestamp>,
    /// The time of the last line that was released.
    clock: Timestamp,
    next_number: u64,
}

#[derive(Debug)]
struct Held<T> {
    at: Timestamp,
    number: u64,
    line: T,
}

/// A line in its turn.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turn<T> {
    pub(super) at: Timestamp,
    pub(super) line: T,
    /// Lines with a greater timestamp were released before it. It gets their time.
    pub(super) is_late: bool,
}

impl<T> Order<T> {
    /// Lines may be out of order by this much.
    pub(super) fn new(bound_nanos: u64) -> Self {
        Self {
            bound_nanos,
            held_max: HELD_MAX,
            runs: Vec::new(),
            others: BinaryHeap::new(),
            held: 0,
            latest: Timestamp::default(),
            doubted: None,
            clock: Timestamp::default(),
            next_number: 0,
        }
    }

    /// Takes the next line of the log.
    #[inline]
    pub(super) fn push(&mut self, at: Timestamp, line: T) {
        self.believe(at);
        let held = Held { at, number: self.next_number, line };
        self.next_number += 1;
        self.held += 1;
        let fits = |run: &VecDeque<Held<T>>| run.back().is_none_or(|last| last.at <= at);
        match self.runs.iter().position(fits) {
            Some(run) => self.runs[run].push_back(held),
            None if self.runs.len() < RUNS_MAX => self.runs.push(VecDeque::from([held])),
            None => self.others.push(Reverse(held)),
        }
    }

    /// The next line whose turn has come.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Turn<T>> {
        let (first, run) = self.first()?;
        let is_due = self.latest.nanos_since(first) > self.bound_nanos || self.held > self.held_max;
        if is_due { self.take_of(run) } else { None }
    }

    /// The next line at the end of the log, when no other can follow.
    pub(super) fn take(&mut self) -> Option<Turn<T>> {
        let (_, run) = self.first()?;
        self.take_of(run)
    }

    /// The timestamp of the earliest line, and its run. `None` for the run: it is one of the others.
    #[inline]
    fn first(&self) -> Option<(Timestamp, Option<usize>)> {
        let fronts =
            self.runs.iter().enumerate().filter_map(|(run, lines)| Some((lines.front()?.place(), run)));
        let run = fronts.min();
        match (self.others.peek(), run) {
            (Some(Reverse(other)), run) if run.is_none_or(|(place, _)| other.place() < place) => {
                Some((other.at, None))
            }
            (_, run) => run.map(|((at, _), run)| (at, Some(run))),
        }
    }

    /// Releases the earliest line of a run.
    #[inline]
    fn take_of(&mut self, run: Option<usize>) -> Option<Turn<T>> {
        let held = match run {
            Some(run) => self.runs[run].pop_front()?,
            None => self.others.pop()?.0,
        };
        self.held -= 1;
        let is_late = held.at < self.clock;
        self.clock = self.clock.max(held.at);
        Some(Turn { at: self.clock, line: held.line, is_late })
    }

    /// The latest confirmed timestamp.
    pub(super) fn latest(&self) -> Timestamp {
        self.latest
    }

    /// Notes a timestamp: the latest one decides which line is next.
    fn believe(&mut self, at: Timestamp) {
        if at <= self.latest {
            return;
        }
        let leaps = self.next_number > 0 && at.nanos_since(self.latest) > LEAP_NANOS;
        let near = |doubted: Timestamp| at.nanos_since(doubted).max(doubted.nanos_since(at)) <= LEAP_NANOS;
        if !leaps || self.doubted.is_some_and(near) {
            (self.latest, self.doubted) = (at, None);
        } else {
            self.doubted = Some(at);
        }
    }
}

impl<T> Held<T> {
    /// Lines are sorted by their timestamps, and equal ones in the order of the log.
    fn place(&self) -> (Timestamp, u64) {
        (self.at, self.number)
    }
}

impl<T> PartialEq for Held<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Held<T> {}

impl<T> PartialOrd for Held<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Held<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.place().cmp(&other.place())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ordered(order: &mut Order<usize>, stamps: impl IntoIterator<Item = u64>) -> Vec<Turn<usize>> {
        let mut turns = Vec::new();
        for (line, stamp) in stamps.into_iter().enumerate() {
            order.push(Timestamp::from_nanos(stamp), line);
            turns.extend(std::iter::from_fn(|| order.pop()));
        }
        turns.extend(std::iter::from_fn(|| order.take()));
        turns
    }

    proptest! {
        #[test]
        fn lines_within_the_bound_come_in_order_and_all_come(
            bound in 0_u64..50,
            steps in prop::collection::vec((0_u64..20, 0_u64..50), 0..300),
        ) {
            let mut latest = 1_000;
            let stamps: Vec<_> = steps.iter().map(|(ahead, back)| {
                latest += ahead;
                latest - back.min(&bound)
            }).collect();
            let turns = ordered(&mut Order::new(bound), stamps.clone());
            let mut expected: Vec<_> = stamps.iter().copied().zip(0..).collect();
            expected.sort_unstable();
            let got: Vec<_> = turns.iter().map(|turn| (turn.at.as_nanos(), turn.line)).collect();
            prop_assert_eq!(got, expected);
            prop_assert!(turns.iter().all(|turn| !turn.is_late));
        }

        #[test]
        fn beyond_the_bound_no_line_is_lost_and_time_never_goes_back(
            bound in 0_u64..50,
            held_max in 1_usize..10,
            stamps in prop::collection::vec(0_u64..1_000, 0..300),
        ) {
            let mut order = Order { held_max, ..Order::new(bound) };
            let turns = ordered(&mut order, stamps.clone());
            prop_assert!(turns.is_sorted_by_key(|turn| turn.at));
            for turn in &turns {
                prop_assert_eq!(turn.is_late, turn.at.as_nanos() > stamps[turn.line]);
            }
            let mut lines: Vec<_> = turns.iter().map(|turn| turn.line).collect();
            lines.sort_unstable();
            prop_assert_eq!(lines, (0..stamps.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_stamp_from_far_ahead_makes_no_other_late() {
        let far = 100 * LEAP_NANOS;
        let turns = ordered(&mut Order::new(5), [1, 2, far, 10, 20, 4, 40]);
        let late: Vec<_> = turns.iter().filter(|turn| turn.is_late).map(|turn| turn.line).collect();
        assert_eq!((late, turns.last().map(|turn| turn.line)), (vec![5], Some(2)));
        let turns = ordered(&mut Order::new(5), [1, far, far + 1, far + 10, 2]);
        let late: Vec<_> = turns.iter().filter(|turn| turn.is_late).map(|turn| turn.line).collect();
        assert_eq!(late, [4], "a second one confirms it");
    }
}
