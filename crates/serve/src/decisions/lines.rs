//! Which denials are logged: one per second for each rule, ten per second in all.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Lines per second.
const LINES_MAX: u64 = 10;

/// The second of the last line, for each rule of a set and for all limits that requests bring; seconds start at 1, and
/// 0 means none. Nearly all accesses are reads, so the cores can share its cache lines.
#[derive(Debug)]
pub struct Denials(Box<[AtomicU32]>);

/// The lines of this second, and the denials that no line was written for.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The second, and how many lines were written in it.
    written: AtomicU64,
    left_out_logged: AtomicU64,
}

impl Denials {
    /// For this many rules, with no line written yet.
    pub fn of(rules: usize) -> Self {
        Self((0..=rules).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Lines {
    /// Whether a denial by this rule may be logged in this second. `None` stands for all limits that requests bring.
    pub(super) fn admit(&self, Denials(last): &Denials, rule: Option<usize>, second: u32) -> bool {
        let Some(last) = last.get(rule.unwrap_or(last.len().saturating_sub(1))) else { return false };
        let before = last.load(Relaxed);
        // The second can lie in the past: the decision may have waited for its store.
        if second <= before {
            return false;
        }
        // The bound on all rules is checked first: a rule that is stopped by it does not use up its own line of this
        // second.
        self.take(second) && last.compare_exchange(before, second, Relaxed, Relaxed).is_ok()
    }

    /// Takes one of this second's lines. (If the caller then loses a race with another thread, that line is not
    /// used.)
    fn take(&self, second: u32) -> bool {
        let taken = |written: u64| match (written >> 32, written & u64::from(u32::MAX)) {
            (of, lines) if of == u64::from(second) => (lines < LINES_MAX).then_some(written + 1),
            (of, _) => (of < u64::from(second)).then_some(u64::from(second) << 32 | 1),
        };
        self.written.fetch_update(Relaxed, Relaxed, taken).is_ok()
    }

    /// The denials that had no line, and that no line has reported yet.
    pub(super) fn left_out(&self, until_now: u64) -> u64 {
        until_now.saturating_sub(self.left_out_logged.fetch_max(until_now, Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_for_each_rule_and_ten_in_all() {
        let (lines, denials) = (Lines::default(), Denials::of(20));
        let admitted = |rule, second| lines.admit(&denials, rule, second);
        assert!(admitted(Some(3), 1) && !admitted(Some(3), 1), "a rule has one line");
        assert!(admitted(None, 1) && !admitted(None, 1), "and so have all limits of requests");
        assert_eq!((4..20).filter(|&rule| admitted(Some(rule), 1)).count(), 8);
        assert!(admitted(Some(15), 2), "what had to wait for others has its line in the next second");
        assert!(!admitted(Some(16), 1), "a second that is over");
        assert_eq!((0..20).filter(|&rule| admitted(Some(rule), 2)).count(), 9);
        assert!(!admitted(Some(21), 3), "no such rule");
    }

    #[test]
    fn what_was_left_out_is_logged_once() {
        let lines = Lines::default();
        assert_eq!(
            [lines.left_out(5), lines.left_out(5), lines.left_out(7), lines.left_out(6)],
            [5, 0, 2, 0]
        );
    }

    #[test]
    fn threads_write_no_more_lines_together() {
        let (lines, denials) = (Lines::default(), Denials::of(100));
        let written: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..100).filter(|&rule| lines.admit(&denials, Some(rule), 1)).count())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
        });
        assert!((1..=LINES_MAX as usize).contains(&written), "{written}");
    }
}
