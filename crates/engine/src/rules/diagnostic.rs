//! Problems of rule files, each with its place; and a bounded collection of them.

use std::fmt;

use crate::text::one_line;
use tidegate_yaml::Place;

/// The most problems that are reported. A file that is wrong throughout has hundreds of thousands; nobody reads more.
const REPORTED_MAX: usize = 1_000;

/// Something wrong in a rule file, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Diagnostic {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// What is wrong (what was expected).
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", one_line(&self.file), self.line, self.column, self.message)
    }
}

/// Problems as they are found.
#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    found: Vec<Diagnostic>,
    omitted: usize,
}

impl Diagnostics {
    /// Adds a problem. `message` is only called when the problem is reported.
    pub(super) fn add(&mut self, file: &str, at: Place, message: impl FnOnce() -> String) {
        if self.found.len() >= REPORTED_MAX {
            self.omitted += 1;
            return;
        }
        let Place { line, column } = at;
        self.found.push(Diagnostic {
            file: file.to_owned(),
            line,
            column,
            message: one_line(&message()).into_owned(),
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Takes over what `other` found.
    pub(super) fn extend(&mut self, other: Self) {
        for problem in other.found {
            let at = Place { line: problem.line, column: problem.column };
            self.add(&problem.file, at, || problem.message);
        }
        self.omitted += other.omitted;
    }

    /// All of them by file, line and column; the last one says how many were left out.
    pub(super) fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.found.sort();
        // A problem behind several aliases is found several times.
        self.found.dedup();
        if let Some(last) = self.found.last().filter(|_| self.omitted > 0).cloned() {
            let message = format!("{} more problems (expected none)", self.omitted);
            self.found.push(Diagnostic { message, ..last });
        }
        self.found
    }
}
