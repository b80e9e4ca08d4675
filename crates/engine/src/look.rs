//! The verdicts of counters while nothing is charged, for explanations.
//!
//! In: counters, checks. Out: verdicts as the decision would have them, when capacity comes back, and a drawing of
//! the hits that count. Not used on the request path.

use crate::limit::{Counter, Limit, Pending, Verdict};

/// Slices of a drawing.
pub const SLICES: usize = 40;

/// The state of each counter, by place of a plan.
pub type Looks = Vec<Option<Look>>;

/// The state of a counter for the hits of a check, before any are charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The verdict of the decision, except that `remaining` and `reset_nanos` are those before the charge.
    pub verdict: Verdict,
    /// How long a single hit would have to wait now. 0: it fits.
    pub wait_one_nanos: u64,
    /// When the hits that count leave the window. `None`: the algorithm keeps no single hits, or they are elsewhere.
    pub leaving: Option<Leaving>,
}

/// When the hits that count leave: in equal slices of the time until the last one has left, the oldest hits first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Hits by slice.
    pub slices: [u64; SLICES],
    /// How long until the first leaves, and until the last has left, in nanoseconds.
    pub nanos: (u64, u64),
}

impl Leaving {
    /// For a counter of a strict algorithm, at its latest time.
    pub(crate) fn of(counter: &impl Counter, limit: &Limit) -> Option<Self> {
        let now = counter.look(limit, Pending::default(), 0);
        Self::of_waits(limit, now.before, now.left, |hits| counter.wait_nanos(limit, hits))
    }

    /// For a counter with so many hits before and so many left, from the times that it asks clients to wait: `wait`
    /// gives the nanoseconds for so many hits. More hits never wait shorter. `None`: nothing counts, or the algorithm
    /// is not strict.
    pub fn of_waits(limit: &Limit, before: u64, free: u64, wait: impl Fn(u64) -> u64) -> Option<Self> {
        if !limit.algorithm().is_strict() || before == 0 || limit.capacity() == 0 {
            return None;
        }
        let (first, last) = (wait(free + 1), wait(limit.capacity()));
        let mut leaving = Self { slices: [0; SLICES], nanos: (first, last) };
        // The number of hits that fit grows with the wait. Hits beyond N leave before the first one that makes room.
        let mut fit = free;
        let mut gone = 0;
        for (slice, count) in (1_u128..).zip(&mut leaving.slices) {
            let until = (u128::from(last) * slice / SLICES as u128) as u64;
            fit = most(fit, limit.capacity(), |hits| wait(hits) <= until);
            let left = match fit > free {
                true => before.saturating_sub(limit.capacity() - fit),
                false => 0,
            };
            *count = left - gone;
            gone = left;
        }
        Some(leaving)
    }
}

/// The greatest number from `least` to `most` for which `holds` is true; it is true for all smaller ones.
fn most(least: u64, most: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (least, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if holds(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
