//! Cases: requests with the answers that are expected of rules, as files that a CI runs.
//!
//! In: a file of cases, and the rules that it names. Out: the outcome of each case. Requests are decided by the
//! engine, at the times of the case; a day takes microseconds. Each case starts with unused counters.
//!
//! ```yaml
//! rules: ../config
//! cases:
//!   - name: a user has 100 requests a minute
//!     steps:
//!       - {every: 100ms x 100, request: {user: alice}, expect: OK}
//!       - {after: 1s, request: {user: alice}, expect: {code: OVER_LIMIT, remaining: 0}}
//! ```

mod http;
mod output;
mod parse;
mod run;

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};

use tidegate_engine::decision::Code;
use tidegate_engine::plan::Modes;
use tidegate_engine::rules::RuleSet;
use tidegate_yaml::Place;

use self::http::HttpRequest;
pub use self::output::{github, json, junit, text};

/// Why cases prove nothing.
const NOTHING_MET: &str = "not one request of its cases met a rule, so they say nothing about the rules (expected the domain \
                           and the entries of a rule; --allow-unmatched to pass)";

/// The JSON Schema (draft 7) of files of cases, for editors.
pub const SCHEMA: &str = include_str!("cases/schema.json");

/// The contents of a file.
#[derive(Debug)]
struct CaseFile {
    /// Where its rules are, relative to the working directory.
    rules: PathBuf,
    cases: Vec<Case>,
}

/// Steps, one after the other, with counters of their own.
#[derive(Debug)]
struct Case {
    name: String,
    at: Place,
    steps: Vec<Step>,
}

/// One request, or a repeated one; and the expected answer of each.
#[derive(Debug)]
struct Step {
    at: Place,
    /// When the first request comes.
    when: When,
    /// How often the request is repeated, and the time from one to the next.
    times: u32,
    every_nanos: u64,
    /// `None`: the only domain that the rules have.
    domain: Option<String>,
    asked: CaseRequest,
    hits: u32,
    expected: Expected,
}

/// When a step begins, in nanoseconds.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Since the start of the case.
    At(u64),
    /// Since the request before it.
    After(u64),
}

/// The contents of a request.
#[derive(Debug)]
enum CaseRequest {
    Descriptors(Vec<Vec<(String, String)>>),
    /// The domain's own `rate_limits` make the descriptors.
    Http(HttpRequest),
}

/// The expected answer; fields that are `None` may be anything.
#[derive(Debug, Default)]
struct Expected {
    code: Option<Code>,
    /// The name of the rule that decided, or its path.
    rule: Option<String>,
    remaining: Option<u64>,
    /// In whole seconds.
    wait_secs: Option<u64>,
}

/// The outcome of a file.
#[derive(Debug)]
pub struct FileResult {
    /// The file, as it was named.
    pub file: String,
    /// What is wrong with the file itself, or with its rules: then no case was run. Or why its cases prove nothing.
    pub problems: Vec<Problem>,
    /// The outcomes of its cases.
    pub cases: Vec<CaseResult>,
}

/// What is wrong with a file of cases, or with the rules that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, the line and the column, from 1, if there is such a place. Otherwise `what` names the file.
    pub at: Option<(String, u32, u32)>,
    /// What is wrong, and what was expected.
    pub what: String,
}

/// The outcome of a case.
#[derive(Debug)]
pub struct CaseResult {
    /// Its name.
    pub name: String,
    /// The line where it begins, from 1.
    pub line: u32,
    /// Requests that were decided.
    pub requests: u64,
    /// One of them met a rule.
    pub met_a_rule: bool,
    /// The first unexpected answer. The steps after it are not run.
    pub failure: Option<Failure>,
}

/// An unexpected answer.
#[derive(Debug)]
pub struct Failure {
    /// The line of the step, from 1.
    pub line: u32,
    /// Its column, from 1.
    pub column: u32,
    /// Which request of the step it was, from 1, and of how many.
    pub number: (u32, u32),
    /// When it came, in nanoseconds since the start of the case.
    pub at_nanos: u64,
    /// What was expected.
    pub expected: String,
    /// The answer.
    pub got: String,
    /// Why: the explanation of the engine, before the request was counted.
    pub explanation: String,
}

/// Runs the cases of a file. `load` loads the rules at a path; its errors are problems of these. Cases of which no
/// request meets a rule prove nothing: that is a problem of the file, unless `allow_unmatched`.
pub fn run(
    path: &Path,
    modes: Modes,
    allow_unmatched: bool,
    load: impl FnOnce(&Path) -> Result<RuleSet, Vec<Problem>>,
) -> FileResult {
    let file = path.display().to_string();
    let refused = |problems| FileResult { file: file.clone(), problems, cases: Vec::new() };
    let parsed = match parse::read(path) {
        Ok(parsed) => parsed,
        Err(problems) => return refused(problems),
    };
    let rules = match load(&parsed.rules) {
        Ok(rules) => rules,
        Err(problems) => {
            return refused(among_rules(path, &parsed.rules).into_iter().chain(problems).collect());
        }
    };
    let cases: Vec<_> = parsed.cases.iter().map(|case| run::run(case, &rules, modes)).collect();
    let proves = allow_unmatched || cases.iter().any(|case| case.met_a_rule);
    let unmatched = (!proves).then(|| Problem { at: None, what: format!("{file}: {NOTHING_MET}") });
    FileResult { file, problems: unmatched.into_iter().collect(), cases }
}

/// The problem of a file that is in the folder of its rules, where it would be loaded as rules.
fn among_rules(path: &Path, rules: &Path) -> Option<Problem> {
    let folder = path.canonicalize().ok()?.parent()?.to_owned();
    let what =
        "the file lies among its rules, and is loaded as one of them (expected it outside of their folder)";
    let is_among = rules.canonicalize().is_ok_and(|rules| rules == folder);
    is_among.then(|| Problem { at: None, what: format!("{}: {what}", path.display()) })
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((file, line, column)) = &self.at {
            write!(out, "{file}:{line}:{column}: ")?;
        }
        out.write_str(&self.what)
    }
}

impl FileResult {
    /// Whether every case was as expected, and there was one.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty() && self.cases.iter().all(|case| case.failure.is_none())
    }
}
