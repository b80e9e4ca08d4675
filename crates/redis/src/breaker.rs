//! The circuit breaker of one server: it opens after several calls in a row without an answer, on any connection.
//!
//! In: calls with and without an answer, and when. Out: whether the breaker opens now. It reads no clock. Its
//! caller closes the connections.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The breaker opens after so many calls in a row without an answer.
const UNANSWERED_MAX: u32 = 5;
/// A call that waited for less proves nothing by itself: its caller gave it too little time.
const PROOF: Duration = Duration::from_millis(10);

/// The breaker of one server.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Whether calls have gone without an answer lately. While this is false, an answer takes no lock.
    doubted: AtomicBool,
    silence: Mutex<Option<Silence>>,
}

/// The calls without an answer since the last answer.
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

    /// Notes a call without an answer at `now`, after `waited`. Returns whether the breaker opens; it then counts
    /// from zero again. A call that waited for less than `budget` may prove nothing, but a full budget without any
    /// answer does.
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
    fn five_calls_without_an_answer_in_a_row_open_it() {
        let (breaker, now) = (Breaker::default(), monotonic());
        let unanswered = || breaker.unanswered(now, BUDGET, BUDGET);
        assert_eq!([(); 4].map(|()| unanswered()), [false; 4]);
        breaker.answered();
        assert_eq!([(); 5].map(|()| unanswered()), [false, false, false, false, true]);
        assert!(!unanswered(), "it starts over");
    }

    #[test]
    fn short_waits_prove_nothing_until_a_whole_budget_had_no_answer() {
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
    fn a_wait_in_which_a_server_answers_is_proof_though_it_is_shorter_than_the_budget() {
        let (breaker, now) = (Breaker::default(), monotonic());
        let opened = [(); 5].map(|()| breaker.unanswered(now, PROOF, BUDGET));
        assert_eq!(opened, [false, false, false, false, true]);
    }

    #[test]
    fn a_whole_budget_is_proof_even_if_it_is_short() {
        let (breaker, now) = (Breaker::default(), monotonic());
        let opened = [(); 5].map(|()| breaker.unanswered(now, millis(2), millis(2)));
        assert_eq!(opened, [false, false, false, false, true]);
    }
}
