//! Suggests limits from logs: for each rule, the smallest limit that denies no more than is wanted.
//!
//! In: logs; a map or a rule file with the descriptors to limit; and a promise, such as `0.1 % of keys`. Out: a rule
//! file with the limits, and with comments that say where each comes from. A limit is fitted on the first half of the
//! time and tested on the second, so that its user sees how well the past predicts the future.
//!
//! The logs are read several times: for the time that they span, for the peaks of each key, for the search of limits
//! (only for a promise about requests), and for what the found limits deny. So nothing of them has to be kept.

mod edit;
mod fit;
mod measure;
mod output;
mod promise;
mod skeleton;
mod statistics;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::PathBuf;

use tidegate_engine::Timestamp;
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::rules::{Diagnostic, LoadOptions, Rule, RuleSet, SourceFile, load};
use tidegate_engine::stamp;

pub use self::edit::EditError;
use self::measure::{Measured, Measuring, Span};
pub use self::promise::Promise;
use self::skeleton::Skeleton;
use super::format::Format;
use super::map::Map;
use super::read::Counts;
use super::{Options, Progress, ReplayError, reader};

/// A limit that nothing reaches, to measure requests without a limit.
const UNREACHED: u32 = u32::MAX;

/// The most requests that every algorithm may have in a rule file.
const REQUESTS_MAX: u32 = 100_000;

/// The domain of a rule file that is made from a map, unless another is named.
const DOMAIN: &str = "suggested";

/// The descriptors to limit.
#[derive(Clone, Debug)]
pub enum Limited {
    /// Each descriptor of the map, with this window, as rule files write it: `1m`.
    Map {
        /// The window.
        window: String,
    },
    /// Each rule of this file, with its own window.
    Rules(PathBuf),
}

/// Why no limits can be suggested.
#[derive(Debug, thiserror::Error)]
pub enum SuggestError {
    /// The logs.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// A log that cannot be read twice.
    #[error("{}: the logs are read several times (expected a file)", .0.display())]
    NoFile(PathBuf),
    /// Neither a map nor a rule file was given.
    #[error("nothing says what to limit (expected --map, or a rule file)")]
    NoMap,
    /// The rule file.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        error: io::Error,
    },
    /// The rule file, or the one that is made from the map.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\ntidegate: "))]
    Rules(Vec<Diagnostic>),
    /// Its numbers.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// No rule has a limit for which peaks mean anything.
    #[error(
        "no rule has a limit that can be suggested: a bucket that drains has no peaks, because its level depends on its limit (expected a window)"
    )]
    NoPeaks,
    /// No request met a rule.
    #[error(
        "no request of the first half, until {0}, met a limit that can be suggested (expected requests with the descriptors of the rules)"
    )]
    NoRequests(String),
}

impl SuggestError {
    /// Whether the arguments are wrong, whatever the rules and the logs contain.
    pub fn is_of_arguments(&self) -> bool {
        match self {
            Self::Replay(error) => error.is_of_arguments(),
            Self::NoMap => true,
            _ => false,
        }
    }
}

/// A rule file with suggested limits.
#[derive(Debug)]
pub struct Suggestion {
    /// The file.
    pub text: String,
    /// What a reader has to know before using it.
    pub warnings: Vec<String>,
}

/// The measurements of one rule.
struct Finding<'r> {
    rule: &'r Rule,
    /// `None`: there is none.
    limit: Option<u32>,
    /// In each half, without a limit.
    without: [Measured; 2],
    /// In each half, with the limit.
    with: [Measured; 2],
}

/// The time that the logs span.
struct Halves {
    first: Timestamp,
    middle: Timestamp,
    last: Timestamp,
    requests: u64,
    /// Requests that were out of order by more than the bound.
    late: u64,
    counts: Counts,
    /// Requests that were not counted, because there was no memory for more counters.
    uncounted: u64,
}

/// Suggests limits that keep the promise.
/// Fails when the options do not fit each other or the format, when a log or the rules cannot be read, or when no
/// request met a rule.
pub fn suggest(
    limited: &Limited,
    promise: &Promise,
    options: &Options,
    load_options: &LoadOptions,
    logs: &[PathBuf],
    progress: impl FnMut(Progress),
) -> Result<Suggestion, SuggestError> {
    if let Some(log) = logs.iter().find(|log| log.exists() && !log.is_file() || log.as_os_str() == "-") {
        return Err(SuggestError::NoFile(log.clone()));
    }
    let (name, text) = rule_file(limited, options, load_options.default_algorithm)?;
    let rules = loaded(&name, &text, load_options)?;
    let is_domain_named = options.domain.is_some();
    let options = match limited {
        Limited::Rules(_) => options.clone(),
        Limited::Map { .. } => Options { domain: Some(domain(options).to_owned()), ..options.clone() },
    };
    let is_bucket = |rule: &Rule| rule.limit.is_some_and(|limit| !has_peaks(&limit));
    if !rules.rules().is_empty() && rules.limits().all(is_bucket) {
        return Err(SuggestError::NoPeaks);
    }
    let mut search = Searching { rules: &rules, promise, options: &options, logs, progress, uncounted: 0 };
    let mut halves = search.halves()?;
    let findings = search.findings(halves.middle)?;
    halves.uncounted = search.uncounted;
    if findings.iter().all(|finding| finding.limit.is_none()) {
        return Err(SuggestError::NoRequests(stamp::show(halves.middle)));
    }
    let mut suggestion = output::suggestion(&text, promise, &halves, &findings)?;
    if matches!(limited, Limited::Map { .. }) && !is_domain_named {
        suggestion.warnings.push(format!(
            "the rules are of the domain `{DOMAIN}`, which no proxy asks about (expected --domain NAME)"
        ));
    }
    loaded("the suggestion", &suggestion.text, load_options).map(|_| suggestion)
}

fn loaded(name: &str, text: &str, options: &LoadOptions) -> Result<RuleSet, SuggestError> {
    let file = SourceFile { name: name.to_owned(), bytes: text.into(), presumed: false };
    load(&[file], options).map(|loaded| loaded.rules).map_err(SuggestError::Rules)
}

/// The rule file whose limits are to be found: its name and text.
fn rule_file(
    limited: &Limited,
    options: &Options,
    algorithm: Algorithm,
) -> Result<(String, String), SuggestError> {
    match limited {
        Limited::Rules(path) => {
            let text =
                fs::read_to_string(path).map_err(|error| SuggestError::Io { path: path.clone(), error })?;
            Ok((path.display().to_string(), edit::without_comments(&text)))
        }
        Limited::Map { window } => {
            let mut format =
                Format::parse(&options.format, options.time.as_deref()).map_err(ReplayError::from)?;
            let map = options.map.as_deref().ok_or(SuggestError::NoMap)?;
            let map = Map::parse(map, &mut format).map_err(ReplayError::from)?;
            let skeleton = Skeleton {
                domain: domain(options),
                window,
                algorithm: algorithm.name(),
                requests: REQUESTS_MAX,
            };
            Ok(("the map".to_owned(), skeleton.text(&map.levels())))
        }
    }
}

fn domain(options: &Options) -> &str {
    options.domain.as_deref().unwrap_or(DOMAIN)
}

/// Whether peaks determine what a limit denies. For a bucket that drains they do not: its level depends on the limit.
fn has_peaks(limit: &Limit) -> bool {
    !matches!(limit.algorithm(), Algorithm::TokenBucket | Algorithm::LeakyBucket)
}

/// A search that is running.
struct Searching<'s, P> {
    rules: &'s RuleSet,
    promise: &'s Promise,
    options: &'s Options,
    logs: &'s [PathBuf],
    progress: P,
    uncounted: u64,
}

impl<'s, P: FnMut(Progress)> Searching<'s, P> {
    /// Finds the middle of the time. Timestamps far ahead are left out, so that one of them does not move it.
    fn halves(&mut self) -> Result<Halves, ReplayError> {
        let mut span = Span::default();
        let counts = reader(self.rules, self.options)?.read(self.logs, &mut span, &mut self.progress)?;
        let first = span.first.unwrap_or_default();
        let last = span.last.min(counts.latest).max(first);
        let middle = Timestamp::from_nanos(first.as_nanos() + last.nanos_since(first) / 2);
        let Span { requests, late, .. } = span;
        Ok(Halves { first, middle, last, requests, late, counts, uncounted: 0 })
    }

    /// Finds a limit for each rule.
    fn findings(&mut self, middle: Timestamp) -> Result<Vec<Finding<'s>>, ReplayError> {
        let rules = self.rules.rules();
        let unlimited = vec![Some(UNREACHED); rules.len()];
        let mut without = self.measured(&unlimited, middle)?;
        let firsts: Vec<_> = without.iter().map(|[first, _]| first).collect();
        let limits = match self.promise.of {
            promise::Of::Keys => firsts.iter().map(|first| fit::by_keys(first, self.promise.part)).collect(),
            promise::Of::Requests => self.searched(&firsts, middle)?,
        };
        let mut with = self.measured(&limits, middle)?;
        let findings = rules.iter().zip(limits).enumerate();
        let findings = findings.map(|(id, (rule, limit))| Finding {
            rule,
            limit,
            without: std::mem::take(&mut without[id]),
            with: std::mem::take(&mut with[id]),
        });
        // A log does not say when calls end, and the N of further limits follows from that of the first.
        let further: HashSet<usize> =
            rules.iter().flat_map(|rule| rule.id + 1..=rule.id + rule.further).collect();
        let has_own = |rule: &Rule| rule.call_id.is_none() && !further.contains(&rule.id);
        Ok(findings.filter(|finding| has_own(finding.rule)).collect())
    }

    /// What these limits would do in each half, by the rules' ids.
    fn measured(
        &mut self,
        limits: &[Option<u32>],
        middle: Timestamp,
    ) -> Result<Vec<[Measured; 2]>, ReplayError> {
        let mut measuring = Measuring::new(self.rules, self.limits(limits), middle);
        reader(self.rules, self.options)?.read(self.logs, &mut measuring, &mut self.progress)?;
        self.uncounted = self.uncounted.max(measuring.uncounted());
        Ok((0..limits.len()).map(|rule| measuring.of_rule(rule)).collect())
    }

    /// The limits that keep a promise about requests: those whose denials are few enough when they are tried.
    fn searched(&mut self, firsts: &[&Measured], middle: Timestamp) -> Result<Vec<Option<u32>>, ReplayError> {
        let mut brackets: Vec<_> = firsts.iter().map(|first| fit::Bracket::new(first)).collect();
        while brackets.iter().any(fit::Bracket::is_open) {
            let candidates = (0..fit::PROBES).map(|at| {
                let limits: Vec<_> = brackets.iter().map(|bracket| bracket.probe(at)).collect();
                Measuring::new(self.rules, self.limits(&limits), middle).only_first()
            });
            let mut candidates = measure::Several(candidates.collect());
            reader(self.rules, self.options)?.read(self.logs, &mut candidates, &mut self.progress)?;
            for (rule, bracket) in brackets.iter_mut().enumerate() {
                let keeps = |at: usize| {
                    let [first, _] = candidates.0[at].of_rule(rule);
                    first.rate.upper() <= self.promise.part
                };
                bracket.narrow(keeps);
            }
        }
        Ok(brackets.iter().map(fit::Bracket::found).collect())
    }

    /// The limits of the rules with these numbers.
    fn limits(&self, numbers: &[Option<u32>]) -> Vec<Option<Limit>> {
        let with = |(rule, number): (&Rule, &Option<u32>)| {
            let limit = rule.limit.filter(has_peaks)?;
            number.map(|number| limit.with_requests(number.into()))
        };
        self.rules.rules().iter().zip(numbers).map(with).collect()
    }
}
