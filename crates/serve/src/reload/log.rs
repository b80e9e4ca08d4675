//! The last changes of what the process reads while it runs: rules with the problems that were found and the lines that
//! these are about, certificates, the mapping of metrics.
//!
//! In: the outcome of each change. Out: the last few, the newest first, and those that are refused now. Bounded:
//! [`RELOADS_MAX`] changes with [`PROBLEMS_MAX`] problems each, of [`TEXT_CHARS_MAX`] characters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use tidegate_engine::text::{cut, one_line};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

const RELOADS_MAX: usize = 8;
const PROBLEMS_MAX: usize = 10;
const TEXT_CHARS_MAX: usize = 500;

/// A problem of a set of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// One line: the place, and what is wrong.
    pub text: String,
    /// The line that it is about, with a caret beneath the place.
    pub excerpt: Option<String>,
}

tidegate_engine::named! {
    /// The subject of a change.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Subject {
        /// The rules.
        Rules = "rules",
        /// Certificates and keys of the gRPC port.
        GrpcTls = "TLS files of the gRPC port",
        /// Those of the HTTP port.
        HttpTls = "TLS files of the HTTP port",
        /// Those of the debug port.
        DebugTls = "TLS files of the debug port",
        /// The file of the admin token.
        AdminToken = "file of the admin token",
        /// The mapping of metrics. It is read at the start only.
        Mapping = "mapping of metrics",
    }
}

/// A change and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reload {
    /// What has changed.
    pub subject: Subject,
    /// When, as Unix time.
    pub unix_secs: u64,
    /// Whether it came into force then. If not, the previous value stayed.
    pub in_force: bool,
    /// What happened, in one line.
    pub what: String,
    /// Errors of rules that were refused, warnings of those that were accepted.
    pub problems: Vec<Problem>,
    /// The number of problems that are not kept.
    pub more: usize,
}

/// The last changes.
#[derive(Debug, Default)]
pub struct ReloadLog {
    kept: Mutex<Kept>,
    count: AtomicU64,
}

#[derive(Debug, Default)]
struct Kept {
    /// The newest first.
    last: VecDeque<Reload>,
    /// The last change of each subject, if it was refused. It stays here after it has left the list above.
    refused: [Option<Reload>; Subject::ALL.len()],
}

impl Reload {
    /// A change at this time, without problems.
    pub fn new(subject: Subject, at: Timestamp, in_force: bool, what: impl Into<String>) -> Self {
        let unix_secs = at.as_nanos() / SECOND_NANOS;
        Self { subject, unix_secs, in_force, what: what.into(), problems: Vec::new(), more: 0 }
    }
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
        let mut kept = self.kept.lock();
        kept.refused[reload.subject as usize] = Some(&reload).filter(|reload| !reload.in_force).cloned();
        kept.last.push_front(reload);
        kept.last.truncate(RELOADS_MAX);
        self.count.fetch_add(1, Relaxed);
    }

    /// How many there ever were.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Those that are kept, the newest first.
    pub fn all(&self) -> Vec<Reload> {
        self.kept.lock().last.iter().cloned().collect()
    }

    /// The last change of each subject, if it was refused.
    pub fn refused(&self) -> Vec<Reload> {
        self.kept.lock().refused.iter().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reload(unix_secs: u64, in_force: bool, problems: usize) -> Reload {
        let problem = |number| Problem { text: format!("{number}\n{}", "x".repeat(1_000)), excerpt: None };
        Reload {
            problems: (0..problems).map(problem).collect(),
            ..Reload::new(Subject::Rules, Timestamp::from_secs(unix_secs), in_force, "it")
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
    fn what_was_refused_is_news_until_another_one_of_its_kind_is_taken() {
        let log = ReloadLog::default();
        let refused = || log.refused().iter().map(|reload| reload.unix_secs).collect::<Vec<_>>();
        log.add(reload(1, true, 0));
        assert_eq!(refused(), [0; 0]);
        log.add(reload(2, false, 1));
        log.add(Reload { subject: Subject::HttpTls, ..reload(3, false, 0) });
        assert_eq!(refused(), [2, 3]);
        (4..20).for_each(|second| log.add(reload(second, true, 0)));
        assert_eq!(refused(), [3], "it is not in force, however long ago that was");
        log.add(Reload { subject: Subject::HttpTls, ..reload(20, true, 0) });
        assert_eq!(refused(), [0; 0]);
    }

    #[test]
    fn subjects_stand_where_their_numbers_say() {
        assert!(Subject::ALL.iter().enumerate().all(|(at, subject)| *subject as usize == at));
    }
}
