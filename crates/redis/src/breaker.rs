//! When a server counts as gone: after several calls in a row without an answer, on whatever connection.
//!
//! In: calls that were answered or not, and when. Out: whether the breaker opens now. It reads no clock, and whoever
//! asks it gives the connections up.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// So many calls in a row without an answer, and nobody waits for this server any more.
const UNANSWERED_MAX: u32 = 5;
/// A call that waited for less says nothing about the server by itself: its caller was in a hurry.
const PROOF: Duration = Duration::from_millis(10);

/// The breaker of one server.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// There is a silence: an answer to a server without one costs a look, and no lock.
    doubted: AtomicBool,
    silence: Mutex<Option<Silence>>,
}

/// Calls without an answer since the last answer.
#[derive(Debug)]
struct Silence {
    /// When the first of them was sent.
    since: Instant,
    proofs: u32,
}

impl Breaker {
    /// A call was answered in time.
    pub(super) fn answered(&self) {
        if self.doubted.load(Relaxed) {
            let mut silence = self.silence.lock();
            *silence = None;
            self.doubted.store(false, Relaxed);
        }
    }

    /// A call has no answer at `now`, for which its caller waited so long. Whether the breaker opens: it begins anew
    /// then. A caller that waits less than `budget` may be in a hurry; but nothing answered for a whole budget is proof.
    pub(super) fn unanswered(&self, now: Instant, waited: Duration, budget: Duration) -> bool {
        let mut silence = self.silence.lock();
        let sent = now.checked_sub(waited).unwrap_or(now);
        let Silence { since, proofs } = silence.get_or_insert(Silence { since: sent, proofs: 0 });
        *since = sent.min(*since);
        let proves = waited >= PROOF.min(budget) || now.saturating_duration_since(*since) >= budget;
        *proofs += u32::from(proves);
        let opens = *proofs >= UNANSWERED_MAX;
        if opens {
            *silence = None;
        }
        self.doubted.store(!opens, Relaxed);
        opens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    const BUDGET: Duration = Duration::from_millis(100);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn five_in_a_row_open_it_and_an_answer_in_between_does_not() {
        let (breaker, now) = (Breaker::default(), monotonic());
        let unanswered = || breaker.unanswered(now, BUDGET, BUDGET);
        assert_eq!([(); 4].map(|()| unanswered()), [false; 4]);
        breaker.answered();
        assert_eq!([(); 5].map(|()| unanswered()), [false, false, false, false, true]);
        assert!(!unanswered(), "it begins anew");
    }

    #[test]
    fn callers_in_a_hurry_prove_nothing_until_a_whole_budget_was_silent() {
        let (breaker, began) = (Breaker::default(), monotonic());
        let hurried = |at: u64| breaker.unanswered(began + millis(at), millis(5), BUDGET);
        assert!((5..100).all(|at| !hurried(at)), "each waited for less than the server may take");
        assert_eq!([100, 100, 101, 102, 103].map(hurried), [false, false, false, false, true]);
        for at in 1_000..2_000 {
            assert!(!hurried(at));
            if at % 90 == 0 {
                breaker.answered();
            }
        }
    }

    #[test]
    fn a_budget_that_is_shorter_than_a_hurry_is_proof_enough() {
        let (breaker, now) = (Breaker::default(), monotonic());
        let told = [(); 5].map(|()| breaker.unanswered(now, millis(2), millis(2)));
        assert_eq!(told, [false, false, false, false, true]);
    }
}
