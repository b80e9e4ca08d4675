//! The last changes of the rules, with the problems that were found and the lines that they are about.
//!
//! In: what became of each set of rules. Out: the last few, the newest first. Bounded: [`RELOADS_MAX`] sets with
//! [`PROBLEMS_MAX`] problems each, of [`TEXT_CHARS_MAX`] characters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use tidegate_engine::text::{cut, one_line};

const RELOADS_MAX: usize = 8;
const PROBLEMS_MAX: usize = 10;
const TEXT_CHARS_MAX: usize = 500;

/// A problem of a set of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// One line: the place, and what is wrong.
    pub text: String,
    /// The line that it is about, and a mark beneath it.
    pub excerpt: Option<String>,
}

/// What became of a set of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reload {
    /// When, as Unix time.
    pub unix_secs: u64,
    /// Whether the set is in force since then. If not, the rules before it stayed.
    pub in_force: bool,
    /// What happened, in one line.
    pub what: String,
    /// Errors of a set that was refused, warnings of one that was taken.
    pub problems: Vec<Problem>,
    /// Problems that are not kept.
    pub more: usize,
}

/// The last changes of the rules.
#[derive(Debug, Default)]
pub struct ReloadLog {
    reloads: Mutex<VecDeque<Reload>>,
    count: AtomicU64,
}

impl ReloadLog {
    /// Adds a change. Texts are cut, and problems beyond the bound are only counted.
    pub fn add(&self, mut reload: Reload) {
        reload.more += reload.problems.len().saturating_sub(PROBLEMS_MAX);
        reload.problems.truncate(PROBLEMS_MAX);
        let kept = |text: &str| one_line(&cut(text, TEXT_CHARS_MAX)).into_owned();
        reload.what = kept(&reload.what);
        for problem in &mut reload.problems {
            problem.text = kept(&problem.text);
        }
        let mut reloads = self.reloads.lock();
        reloads.push_front(reload);
        reloads.truncate(RELOADS_MAX);
        self.count.fetch_add(1, Relaxed);
    }

    /// How many there ever were.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Those that are kept, the newest first.
    pub(super) fn all(&self) -> Vec<Reload> {
        self.reloads.lock().iter().cloned().collect()
    }

    /// The last set, if it was refused.
    pub(super) fn refused(&self) -> Option<Reload> {
        self.reloads.lock().front().filter(|last| !last.in_force).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reload(unix_secs: u64, in_force: bool, problems: usize) -> Reload {
        let problem = |number| Problem { text: format!("{number}\n{}", "x".repeat(1_000)), excerpt: None };
        Reload {
            unix_secs,
            in_force,
            what: "it".to_owned(),
            problems: (0..problems).map(problem).collect(),
            more: 0,
        }
    }

    #[test]
    fn the_newest_come_first_and_all_is_bounded() {
        let log = ReloadLog::default();
        (0..100).for_each(|second| log.add(reload(second, second % 2 == 1, 50)));
        let all = log.all();
        assert_eq!((all.len(), all[0].unix_secs, log.count()), (RELOADS_MAX, 99, 100));
        assert_eq!((all[0].problems.len(), all[0].more), (PROBLEMS_MAX, 40));
        assert!(all[0].problems[3].text.starts_with("3\\n") && all[0].problems[3].text.chars().count() < 510);
    }

    #[test]
    fn a_set_that_was_refused_is_news_until_another_one_is_taken() {
        let log = ReloadLog::default();
        log.add(reload(1, true, 0));
        assert_eq!(log.refused(), None);
        log.add(reload(2, false, 1));
        assert_eq!(log.refused().map(|reload| reload.unix_secs), Some(2));
        log.add(reload(3, true, 0));
        assert_eq!(log.refused(), None);
    }
}
