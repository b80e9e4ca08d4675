//! Replays access logs under rules: what would the rules have done?
//!
//! In: rules, and logs as a proxy wrote them. Out: a [`Report`]. Lines become requests, and requests are decided by the
//! engine, at the times of the log. No clock is read, and nothing is sent. What a client would have done after a denial
//! (a retry, going away) is not modelled, and the report says so.
//!
//! Memory is bounded, whatever the log holds: see `lines`, `order`, `keys` and `timeline`.

mod client;
mod condition;
mod format;
mod heavy;
mod input;
mod keys;
mod lines;
mod map;
mod order;
mod report;
mod side;
mod stamp;
mod timeline;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};

use tidegate_engine::Timestamp;
use tidegate_engine::decision::Code;
use tidegate_engine::plan::Modes;
use tidegate_engine::request::RequestBuf;
use tidegate_engine::rules::RuleSet;
use tidegate_engine::text::{cut, one_line};
use tidegate_engine::time::SECOND_NANOS;

use self::client::{Client, Described};
pub use self::condition::Condition;
use self::format::{Fields, Format, FormatError, Record, UnknownVariable, Unreadable, Variable};
use self::input::Input;
use self::lines::{LINE_BYTES_MAX, Line, Lines};
use self::map::{Map, MapError};
use self::order::{Order, Turn};
pub use self::report::Report;
use self::side::{Asked, Side};
use self::timeline::Timeline;

/// The progress is reported after so many lines.
const PROGRESS_LINES: u64 = 1 << 14;

/// Unreadable lines that are shown.
const SHOWN_MAX: usize = 5;

/// How many characters of an unreadable line are shown.
const SHOWN_CHARS_MAX: usize = 100;

/// The most text of a request's descriptors, in bytes: all of a line several times.
const REQUEST_BYTES_MAX: usize = 4 * LINE_BYTES_MAX;

/// How logs are read and decided.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The format of the log: `combined`, `envoy`, `json`, or a format of NGINX or Envoy.
    pub format: String,
    /// The key of the time, in JSON.
    pub time: Option<String>,
    /// Which descriptors a line gets. `None`: the domain's own `rate_limits` say it.
    pub map: Option<String>,
    /// The domain that requests ask about. `None`: the only one that the rules have.
    pub domain: Option<String>,
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
    /// Nothing says which domain is meant.
    #[error("the rules have {0} domains (expected one, or --domain NAME)")]
    Domains(usize),
    /// No descriptors can be made.
    #[error("domain {0} has no `rate_limits` (expected them in its rules, or --map)")]
    NoActions(String),
    /// The domain is not in the rules.
    #[error("the rules have no domain {0}")]
    NoDomain(String),
    /// A log cannot be read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The log.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Not one line could be read.
    #[error("no line has the format of --format; the first: {0}")]
    NoLine(String),
}

/// How far a replay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of logs that were read.
    pub bytes: u64,
    /// Lines of logs that were read.
    pub lines: u64,
}

/// What lines became, in counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Lines of the logs, blank ones left out.
    pub lines: u64,
    /// Lines that are no request in the format.
    pub unreadable: u64,
    /// Left out because of their status.
    pub left_out: u64,
    /// Requests that got no descriptor: a proxy would not have asked about them.
    pub not_asked: u64,
    /// Requests that were asked about.
    pub requests: u64,
    /// Of these, those that met no limit.
    pub unlimited: u64,
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
///
/// # Errors
/// When the options do not fit the rules or the format, when a log cannot be read, or when none of its lines can.
pub fn replay(
    rules: &RuleSet,
    against: Option<&RuleSet>,
    options: &Options,
    logs: &[PathBuf],
    mut progress: impl FnMut(Progress),
) -> Result<Report, ReplayError> {
    let mut replay = Replay::new(rules, against, options)?;
    let mut bytes_before = 0;
    for path in logs {
        bytes_before +=
            replay.read(path, |bytes, lines| progress(Progress { bytes: bytes_before + bytes, lines }))?;
    }
    replay.finish()
}

/// A replay under way.
struct Replay<'r> {
    format: Format,
    fields: Fields,
    descriptors: Descriptors,
    domain: String,
    without: Option<(Variable, Vec<String>)>,
    buf: RequestBuf,
    stamps: Stamps,
    order: Order<Waiting<'r>>,
    side: Side<'r>,
    against: Option<Side<'r>>,
    totals: Totals,
    timeline: Timeline,
    unreadable: Vec<String>,
    /// The times of the first and the last request.
    first: Option<Timestamp>,
    last: Timestamp,
}

/// What makes descriptors of a line.
enum Descriptors {
    Map(Map),
    Actions(Client),
}

/// A request that waits for its turn.
struct Waiting<'r> {
    asked: Asked<'r>,
    /// In the rules that are compared with.
    against: Option<Box<Asked<'r>>>,
}

/// The times of lines. Many lines have the same stamp as the line before.
#[derive(Default)]
struct Stamps {
    text: Vec<u8>,
    at: Timestamp,
    /// The coarsest of these units that all stamps are multiples of: 1 s, 1 ms, 1 µs, 1 ns.
    resolution_nanos: u64,
}

impl<'r> Replay<'r> {
    fn new(rules: &'r RuleSet, against: Option<&'r RuleSet>, options: &Options) -> Result<Self, ReplayError> {
        let mut format = Format::parse(&options.format, options.time.as_deref())?;
        let domain = domain_of(rules, options.domain.as_deref())?;
        let descriptors = match &options.map {
            Some(map) => Descriptors::Map(Map::parse(map, &mut format)?),
            None => {
                let actions = rules.actions(&domain).filter(|actions| !actions.is_empty());
                let actions = actions.ok_or_else(|| ReplayError::NoActions(domain.clone()))?;
                Descriptors::Actions(Client::new(actions, &mut format)?)
            }
        };
        let without = match options.without_status.is_empty() {
            true => None,
            false => Some((format.variable("status", None)?, options.without_status.clone())),
        };
        Ok(Self {
            format,
            fields: Fields::default(),
            descriptors,
            buf: RequestBuf::new(&domain),
            domain,
            without,
            stamps: Stamps { resolution_nanos: SECOND_NANOS, ..Stamps::default() },
            order: Order::new(options.out_of_order_nanos),
            side: Side::new(rules, options.modes),
            against: against.map(|rules| Side::new(rules, options.modes)),
            totals: Totals::default(),
            timeline: Timeline::new(),
            unreadable: Vec::new(),
            first: None,
            last: Timestamp::default(),
        })
    }

    /// Reads one log. Returns how many bytes it had.
    fn read(&mut self, path: &Path, mut progress: impl FnMut(u64, u64)) -> Result<u64, ReplayError> {
        let failed = |error| ReplayError::Io { path: path.to_owned(), error };
        let input = Input::open(path).map_err(failed)?;
        let mut lines = Lines::new(input.text);
        let mut number = 0;
        while let Some(line) = lines.next().map_err(failed)? {
            number += 1;
            self.line(&line, path, number);
            if self.totals.lines.is_multiple_of(PROGRESS_LINES) {
                progress(input.read.get(), self.totals.lines);
            }
        }
        Ok(input.read.get())
    }

    /// Reads one line, and decides all requests whose turn has come.
    #[inline]
    fn line(&mut self, line: &Line<'_>, path: &Path, number: u64) {
        let read = match line {
            Line::Text(b"") => return,
            Line::Text(text) => self.request(text),
            Line::TooLong => {
                Err(Unreadable { column: 1, expected: format!("at most {LINE_BYTES_MAX} bytes") })
            }
        };
        self.totals.lines += 1;
        if let Err(unreadable) = read {
            self.totals.unreadable += 1;
            self.show(&unreadable, line, path, number);
        }
        while let Some(turn) = self.order.pop() {
            self.decide(turn);
        }
    }

    /// Plans the request of a line, which then waits for its turn.
    #[inline]
    fn request(&mut self, text: &[u8]) -> Result<(), Unreadable> {
        let record = self.format.read(text, &mut self.fields)?;
        let at = self.stamps.time(&self.format, &record)?;
        if let Some((status, without)) = &self.without {
            let status = status.value(&record).unwrap_or_default();
            if without.iter().any(|without| *without == status) {
                self.totals.left_out += 1;
                return Ok(());
            }
        }
        self.buf.begin(&self.domain);
        match &self.descriptors {
            Descriptors::Map(map) => map.describe(&record, &mut self.buf),
            Descriptors::Actions(client) => {
                let actions = self.side.rules.actions(&self.domain);
                let described = Described { client, record };
                let described = actions.map(|it| it.describe(&described, &mut self.buf, REQUEST_BYTES_MAX));
                described
                    .transpose()
                    .map_err(|unclear| Unreadable { column: 1, expected: unclear.0.to_owned() })?;
            }
        }
        let request = self.buf.as_request();
        if request.descriptors().len() == 0 {
            self.totals.not_asked += 1;
            return Ok(());
        }
        let asked = self.side.ask(&request);
        let against = self.against.as_mut().map(|side| Box::new(side.ask(&request)));
        self.order.push(at, Waiting { asked, against });
        Ok(())
    }

    /// Decides a request whose turn has come.
    #[inline]
    fn decide(&mut self, turn: Turn<Waiting<'r>>) {
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
        totals.unlimited += u64::from(!Side::met_a_limit(&asked));
        totals.newly_denied += u64::from(is_denied && other == Some(Code::Ok));
        totals.newly_admitted += u64::from(!is_denied && other == Some(Code::OverLimit));
    }

    /// Remembers an unreadable line, if it is one of the first.
    fn show(&mut self, unreadable: &Unreadable, line: &Line<'_>, path: &Path, number: u64) {
        if self.unreadable.len() >= SHOWN_MAX {
            return;
        }
        let text = match line {
            Line::Text(text) => String::from_utf8_lossy(&text[..text.len().min(4 * SHOWN_CHARS_MAX)]),
            Line::TooLong => "".into(),
        };
        let text = one_line(&text).into_owned();
        let shown = cut(&text, SHOWN_CHARS_MAX);
        let Unreadable { column, expected } = unreadable;
        let place = format!("{}:{number}:{column}", path.display());
        self.unreadable.push(format!("{place}: expected {expected}: {shown}"));
    }

    /// Decides what still waits, and reports.
    fn finish(mut self) -> Result<Report, ReplayError> {
        while let Some(turn) = self.order.take() {
            self.decide(turn);
        }
        if let Some(unknown) = self.format.never_seen() {
            return Err(unknown.into());
        }
        if self.totals.lines > 0 && self.totals.lines == self.totals.unreadable {
            return Err(ReplayError::NoLine(self.unreadable.swap_remove(0)));
        }
        self.side.keys.end();
        self.against.iter_mut().for_each(|side| side.keys.end());
        Ok(Report::new(self))
    }
}

impl Stamps {
    #[inline]
    fn time(&mut self, format: &Format, record: &Record<'_>) -> Result<Timestamp, Unreadable> {
        if self.text != record.stamp || self.text.is_empty() {
            self.at = format.time(record)?;
            self.text.clear();
            self.text.extend_from_slice(record.stamp);
            while !self.at.as_nanos().is_multiple_of(self.resolution_nanos) {
                self.resolution_nanos /= 1_000;
            }
        }
        Ok(self.at)
    }
}

/// The domain that requests ask about.
fn domain_of(rules: &RuleSet, named: Option<&str>) -> Result<String, ReplayError> {
    let domains: Vec<_> = rules.domains().collect();
    match (named, &domains[..]) {
        (Some(named), _) if domains.contains(&named) => Ok(named.to_owned()),
        (Some(named), _) => Err(ReplayError::NoDomain(named.to_owned())),
        (None, [only]) => Ok((*only).to_owned()),
        (None, domains) => Err(ReplayError::Domains(domains.len())),
    }
}
