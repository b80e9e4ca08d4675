//! Replays access logs under rules: what would the rules have done?
//!
//! In: rules, and logs as a proxy wrote them. Out: a [`Report`]. Lines become requests, and requests are decided by the
//! engine, at the times of the log. No clock is read, and nothing is sent. What a client would have done after a denial
//! (a retry, going away) is not modelled, and the report says so.
//!
//! Memory is bounded, whatever the log holds: see `lines`, `order`, `keys` and `timeline`.

mod client;
mod condition;
mod counters;
mod format;
mod input;
mod keys;
mod lines;
mod map;
mod order;
mod read;
mod report;
mod sample;
mod side;
mod suggest;
mod timeline;
mod trials;

#[cfg(test)]
mod tests;

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

use tidegate_engine::Timestamp;
use tidegate_engine::decision::Code;
use tidegate_engine::plan::Modes;
use tidegate_engine::request::Request;
use tidegate_engine::rules::RuleSet;
use tidegate_engine::text::{cut, one_line};

pub use self::condition::Condition;
use self::format::{FormatError, UnknownVariable};
use self::map::MapError;
use self::order::Turn;
use self::read::{Counts, Decider, Reader};
pub use self::report::{About, Report};
use self::side::{Side, SideRequest};
pub use self::suggest::{Limited, Promise, suggest};
use self::timeline::Timeline;

/// How many characters of a list of domains are shown.
const DOMAINS_CHARS_MAX: usize = 200;

/// How logs are read and decided.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format of the log: `combined`, `envoy`, `json`, or a format of NGINX or Envoy.
    pub format: String,
    /// The key of the time, in JSON.
    pub time: Option<String>,
    /// The descriptors of a line. `None`: the domain's own `rate_limits` make them.
    pub map: Option<String>,
    /// The domain of the requests. `None`: the only one that the rules have.
    pub domain: Option<String>,
    /// Rules to compare with need not have the domain: then all denials are new ones.
    pub allow_unmatched: bool,
    /// Lines with one of these statuses are left out.
    pub without_status: Vec<String>,
    /// By how much lines may be out of order, in nanoseconds.
    pub out_of_order_nanos: u64,
    /// How the process would treat requests.
    pub modes: Modes,
}

/// Why logs cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The format.
    #[error("--format: {0}")]
    Format(#[from] FormatError),
    /// The map.
    #[error("--map: {0}")]
    Map(#[from] MapError),
    /// A variable.
    #[error("{0}")]
    Unknown(#[from] UnknownVariable),
    /// No option names the domain, and there are several.
    #[error("the rules have {0} domains (expected one, or --domain NAME)")]
    Domains(usize),
    /// No descriptors can be made.
    #[error("domain {0} has no `rate_limits` (expected them in its rules, or --map)")]
    NoActions(String),
    /// The domain is not in the rules.
    #[error("the rules have no domain {0}")]
    NoDomain(String),
    /// The rules to compare with do not have the domain, so the comparison proves nothing.
    #[error(
        "the rules of --against have no domain {domain}, only {others} (expected rules of the same domain; \
         --allow-unmatched takes every denial as a new one)"
    )]
    NotCompared {
        /// The domain of the requests.
        domain: String,
        /// The domains that they have.
        others: String,
    },
    /// A log cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The log.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// No line could be read.
    #[error("no line has the format of --format; the first: {0}")]
    NoLine(String),
}

impl ReplayError {
    /// Whether the arguments are wrong, whatever the rules and the logs contain.
    pub fn is_of_arguments(&self) -> bool {
        matches!(self, Self::Format(_) | Self::Map(MapError::Syntax { .. }))
    }
}

/// The progress of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of logs that were read.
    pub bytes: u64,
    /// Lines of logs that were read.
    pub lines: u64,
}

/// Counts of lines, by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Lines of the logs, blank ones left out.
    pub lines: u64,
    /// Lines that the format does not match.
    pub unreadable: u64,
    /// Left out because of their status.
    pub left_out: u64,
    /// Requests without a descriptor: a proxy would not have sent a call for them.
    pub not_asked: u64,
    /// Requests that were decided.
    pub requests: u64,
    /// Of these, those that met no limit.
    pub unlimited: u64,
    /// Of these, those that met no rule at all.
    pub unmatched: u64,
    /// Of these, the denied ones.
    pub denied: u64,
    /// Lines that were out of order by more than the bound.
    pub late: u64,
    /// Denied, and admitted by the rules that are compared with.
    pub newly_denied: u64,
    /// Admitted, and denied by the rules that are compared with.
    pub newly_admitted: u64,
}

/// The bytes of all logs, if all sizes are known.
pub fn bytes_of(logs: &[PathBuf]) -> Option<u64> {
    logs.iter().map(|log| input::size(log)).sum()
}

/// Replays logs, one after the other, under `rules`, and under `against` to compare with.
/// Fails when the options do not fit the rules or the format, when the two sets of rules have nothing in common, when
/// a log cannot be read, or when none of its lines can.
pub fn replay(
    rules: &RuleSet,
    against: Option<&RuleSet>,
    options: &Options,
    logs: &[PathBuf],
    progress: impl FnMut(Progress),
) -> Result<Report, ReplayError> {
    let reader = reader(rules, options)?;
    if let Some(against) = against.filter(|_| !options.allow_unmatched) {
        is_comparable(reader.domain(), against)?;
    }
    let mut replay = Replay::new(rules, against, options.modes);
    let counts = reader.read(logs, &mut replay, progress)?;
    Ok(replay.finish(counts))
}

/// A reader of the requests that these rules decide.
fn reader<'r, A>(rules: &'r RuleSet, options: &Options) -> Result<Reader<'r, A>, ReplayError> {
    let domain = domain_of(rules, options.domain.as_deref())?;
    let actions = rules.actions(&domain);
    Reader::new(domain, actions, options)
}

/// A replay that is running.
struct Replay<'r> {
    side: Side<'r>,
    against: Option<Side<'r>>,
    totals: Totals,
    timeline: Timeline,
    /// The times of the first and the last request.
    first: Option<Timestamp>,
    last: Timestamp,
}

/// A request that waits for its turn.
struct Waiting<'r> {
    asked: SideRequest<'r>,
    /// Its state in the rules that are compared with.
    against: Option<Box<SideRequest<'r>>>,
}

impl<'r> Replay<'r> {
    fn new(rules: &'r RuleSet, against: Option<&'r RuleSet>, modes: Modes) -> Self {
        Self {
            side: Side::new(rules, modes),
            against: against.map(|rules| Side::new(rules, modes)),
            totals: Totals::default(),
            timeline: Timeline::new(),
            first: None,
            last: Timestamp::default(),
        }
    }

    /// Reports.
    fn finish(mut self, counts: Counts) -> Report {
        let Counts { lines, unreadable, left_out, not_asked, .. } = counts;
        self.totals = Totals { lines, unreadable, left_out, not_asked, ..self.totals };
        self.side.keys.end();
        self.against.iter_mut().for_each(|side| side.keys.end());
        Report::new(self, counts)
    }
}

impl<'r> Decider for Replay<'r> {
    type Asked = Waiting<'r>;

    #[inline]
    fn ask(&mut self, request: &Request<'_>) -> Waiting<'r> {
        let asked = self.side.ask(request);
        let against = self.against.as_mut().map(|side| Box::new(side.ask(request)));
        Waiting { asked, against }
    }

    #[inline]
    fn fetch(&self, turns: &[Turn<Waiting<'r>>]) {
        self.side.fetch(turns.iter().map(|turn| &turn.line.asked));
    }

    #[inline]
    fn decide(&mut self, turn: Turn<Waiting<'r>>) -> ControlFlow<()> {
        let Turn { at, line: Waiting { asked, against }, is_late } = turn;
        let code = self.side.decide(&asked, at);
        let other = self.against.as_mut().zip(against).map(|(side, asked)| {
            let other = side.decide(&asked, at);
            side.count(&asked, at, other != code);
            other
        });
        self.side.count(&asked, at, other.is_some_and(|other| other != code));
        let is_denied = code == Code::OverLimit;
        self.timeline.count(at, is_denied);
        self.first.get_or_insert(at);
        self.last = at;
        let totals = &mut self.totals;
        totals.requests += 1;
        totals.denied += u64::from(is_denied);
        totals.late += u64::from(is_late);
        totals.unlimited += u64::from(!asked.met_a_limit());
        totals.unmatched += u64::from(!asked.met_a_rule());
        totals.newly_denied += u64::from(is_denied && other == Some(Code::Ok));
        totals.newly_admitted += u64::from(!is_denied && other == Some(Code::OverLimit));
        ControlFlow::Continue(())
    }
}

/// Refuses rules to compare with that lack the domain.
fn is_comparable(domain: &str, against: &RuleSet) -> Result<(), ReplayError> {
    let others: Vec<_> = against.domains().collect();
    if others.contains(&domain) {
        return Ok(());
    }
    let others = cut(&one_line(&others.join(", ")), DOMAINS_CHARS_MAX).into_owned();
    Err(ReplayError::NotCompared { domain: domain.to_owned(), others })
}

/// The domain of the requests.
fn domain_of(rules: &RuleSet, named: Option<&str>) -> Result<String, ReplayError> {
    let domains: Vec<_> = rules.domains().collect();
    match (named, &domains[..]) {
        (Some(named), _) if domains.contains(&named) => Ok(named.to_owned()),
        (Some(named), _) => Err(ReplayError::NoDomain(named.to_owned())),
        (None, [only]) => Ok((*only).to_owned()),
        (None, domains) => Err(ReplayError::Domains(domains.len())),
    }
}
