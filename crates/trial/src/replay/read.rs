//! Reads logs: lines become requests, and a [`Decider`] decides them in the order of time.
//!
//! In: logs, and the options that say how to read them. Out: the requests, one after the other, and counts of what
//! was read. A line is planned when it is read, because its text is gone afterwards, and decided when no earlier line
//! can follow any more.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use arrayvec::ArrayVec;
use tidegate_engine::Timestamp;
use tidegate_engine::request::{Request, RequestBuf};
use tidegate_engine::rules::Actions;
use tidegate_engine::text::{cut, one_line};
use tidegate_engine::time::SECOND_NANOS;

use super::client::{Client, Described};
use super::format::{Fields, Format, LogLine, Unreadable, Variable};
use super::input::Input;
use super::lines::{LINE_BYTES_MAX, Line, Lines};
use super::map::Map;
use super::order::{Order, Turn};
use super::{Options, Progress, ReplayError};

/// The progress is reported after so many lines.
const PROGRESS_LINES: u64 = 1 << 14;

/// Unreadable lines that are shown.
pub(super) const SHOWN_MAX: usize = 5;

/// How many characters of an unreadable line are shown.
const SHOWN_CHARS_MAX: usize = 100;

/// The most text of a request's descriptors, in bytes: all of a line several times.
const REQUEST_BYTES_MAX: usize = 4 * LINE_BYTES_MAX;

/// Requests that are decided together.
const DUE_MAX: usize = 8;

/// Timestamps whose parsed times are remembered: lines that are written when requests end have those of the last few
/// seconds in turn.
const STAMPS_KNOWN: usize = 4;

/// What happens to the requests of a log.
pub(super) trait Decider {
    /// The state of a request after its line is gone.
    type Asked;

    /// Takes a request, when its line is read.
    fn ask(&mut self, request: &Request<'_>) -> Self::Asked;

    /// Prefetches what the decision about these reads, if that helps.
    fn fetch(&self, turns: &[Turn<Self::Asked>]) {
        _ = turns;
    }

    /// Decides it, when its turn has come. `Break`: no further requests are needed.
    fn decide(&mut self, turn: Turn<Self::Asked>) -> ControlFlow<()>;
}

/// Reads logs for a decider.
pub(super) struct Reader<'r, A> {
    format: Format,
    fields: Fields,
    descriptors: Descriptors<'r>,
    domain: String,
    without: Option<(Variable, Vec<String>)>,
    buf: RequestBuf,
    stamps: Stamps,
    pub(super) order: Order<A>,
    /// Requests whose turn has come. They are decided together, because waiting for the memory of one after the other
    /// takes longer.
    due: ArrayVec<Turn<A>, DUE_MAX>,
    counts: Counts,
}

/// Makes the descriptors of a line.
enum Descriptors<'r> {
    Map(Map),
    Actions(&'r Actions, Client),
}

/// Counts of lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Lines of the logs, blank ones left out.
    pub(super) lines: u64,
    /// Lines that the format does not match.
    pub(super) unreadable: u64,
    /// The first of them, each with its place.
    pub(super) shown: Vec<String>,
    /// Left out because of their status.
    pub(super) left_out: u64,
    /// Requests that got no descriptor.
    pub(super) not_asked: u64,
    /// The coarsest of these units that all timestamps are multiples of: 1 s, 1 ms, 1 µs, 1 ns.
    pub(super) resolution_nanos: u64,
    /// The latest timestamp, except those that are far ahead of all others.
    pub(super) latest: Timestamp,
}

/// The times of lines. Many lines have the same timestamp as one shortly before.
struct Stamps {
    /// The timestamps that were read last.
    known: [(Vec<u8>, Timestamp); STAMPS_KNOWN],
    /// The one that is replaced next.
    oldest: usize,
    resolution_nanos: u64,
}

impl<'r, A> Reader<'r, A> {
    /// The domain of the requests.
    pub(super) fn domain(&self) -> &str {
        &self.domain
    }

    /// A reader of requests in this domain. `actions` make the descriptors if the options have no map.
    pub(super) fn new(
        domain: String,
        actions: Option<&'r Actions>,
        options: &Options,
    ) -> Result<Self, ReplayError> {
        let mut format = Format::parse(&options.format, options.time.as_deref())?;
        let descriptors = match &options.map {
            Some(map) => Descriptors::Map(Map::parse(map, &mut format)?),
            None => {
                let actions = actions.filter(|actions| !actions.is_empty());
                let actions = actions.ok_or_else(|| ReplayError::NoActions(domain.clone()))?;
                Descriptors::Actions(actions, Client::new(actions, &mut format)?)
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
            stamps: Stamps { known: Default::default(), oldest: 0, resolution_nanos: SECOND_NANOS },
            order: Order::new(options.out_of_order_nanos),
            due: ArrayVec::new(),
            counts: Counts::default(),
        })
    }

    /// Reads logs, one after the other, to their end or until the decider stops.
    pub(super) fn read(
        mut self,
        logs: &[PathBuf],
        decider: &mut impl Decider<Asked = A>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Counts, ReplayError> {
        let mut before = 0;
        for path in logs {
            let show = |bytes, lines| progress(Progress { bytes: before + bytes, lines });
            match self.read_log(path, decider, show)? {
                ControlFlow::Continue(bytes) => before += bytes,
                ControlFlow::Break(()) => return Ok(self.counts),
            }
        }
        self.finish(decider)
    }

    /// Reads one log. Returns how many bytes it had.
    fn read_log(
        &mut self,
        path: &Path,
        decider: &mut impl Decider<Asked = A>,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<ControlFlow<(), u64>, ReplayError> {
        let failed = |error| ReplayError::Io { path: path.to_owned(), error };
        let input = Input::open(path).map_err(failed)?;
        let mut lines = Lines::new(input.text);
        let mut number = 0;
        while let Some(line) = lines.next().map_err(failed)? {
            number += 1;
            self.line(&line, path, number, decider);
            while let Some(turn) = self.order.pop() {
                self.due.push(turn);
                if self.due.is_full() && self.decide_due(decider).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            if self.counts.lines.is_multiple_of(PROGRESS_LINES) {
                progress(input.read.get(), self.counts.lines);
            }
        }
        Ok(ControlFlow::Continue(input.read.get()))
    }

    /// Decides the requests whose turn has come.
    #[inline]
    fn decide_due(&mut self, decider: &mut impl Decider<Asked = A>) -> ControlFlow<()> {
        decider.fetch(&self.due);
        self.due.drain(..).try_for_each(|turn| decider.decide(turn))
    }

    #[inline]
    fn line(&mut self, line: &Line<'_>, path: &Path, number: u64, decider: &mut impl Decider<Asked = A>) {
        let read = match line {
            Line::Text(b"") => return,
            Line::Text(text) => self.request(text, decider),
            Line::TooLong => {
                Err(Unreadable { column: 1, expected: format!("at most {LINE_BYTES_MAX} bytes") })
            }
        };
        self.counts.lines += 1;
        if let Err(unreadable) = read {
            self.counts.unreadable += 1;
            self.show(&unreadable, line, path, number);
        }
    }

    /// Plans the request of a line, which then waits for its turn.
    #[inline]
    pub(super) fn request(
        &mut self,
        text: &[u8],
        decider: &mut impl Decider<Asked = A>,
    ) -> Result<(), Unreadable> {
        let line = self.format.read(text, &mut self.fields)?;
        let at = self.stamps.time(&self.format, &line)?;
        if let Some((status, without)) = &self.without {
            let status = status.value(&line).unwrap_or_default();
            if without.iter().any(|without| *without == status) {
                self.counts.left_out += 1;
                return Ok(());
            }
        }
        self.buf.begin(&self.domain);
        match &self.descriptors {
            Descriptors::Map(map) => map.describe(&line, &mut self.buf),
            Descriptors::Actions(actions, client) => {
                let described = Described { client, line };
                actions
                    .describe(&described, &mut self.buf, REQUEST_BYTES_MAX)
                    .map_err(|unclear| Unreadable { column: 1, expected: unclear.0.to_owned() })?;
            }
        }
        let request = self.buf.as_request();
        if request.descriptors().len() == 0 {
            self.counts.not_asked += 1;
            return Ok(());
        }
        self.order.push(at, decider.ask(&request));
        Ok(())
    }

    /// Remembers an unreadable line, if it is one of the first.
    fn show(&mut self, unreadable: &Unreadable, line: &Line<'_>, path: &Path, number: u64) {
        if self.counts.shown.len() >= SHOWN_MAX {
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
        self.counts.shown.push(format!("{place}: expected {expected}: {shown}"));
    }

    /// Has the decider decide the requests that still wait. Returns the counts of lines.
    pub(super) fn finish(mut self, decider: &mut impl Decider<Asked = A>) -> Result<Counts, ReplayError> {
        let mut goes_on = self.decide_due(decider).is_continue();
        while goes_on && let Some(turn) = self.order.take() {
            goes_on = decider.decide(turn).is_continue();
        }
        if let Some(unknown) = self.format.never_seen() {
            return Err(unknown.into());
        }
        let mut counts = self.counts;
        (counts.resolution_nanos, counts.latest) = (self.stamps.resolution_nanos, self.order.latest());
        if counts.lines > 0 && counts.lines == counts.unreadable {
            return Err(ReplayError::NoLine(counts.shown.swap_remove(0)));
        }
        Ok(counts)
    }
}

impl Stamps {
    #[inline]
    fn time(&mut self, format: &Format, line: &LogLine<'_>) -> Result<Timestamp, Unreadable> {
        let known = self.known.iter().find(|(text, _)| *text == line.stamp && !text.is_empty());
        if let Some((_, at)) = known {
            return Ok(*at);
        }
        let at = format.time(line)?;
        let (text, known_at) = &mut self.known[self.oldest];
        self.oldest = (self.oldest + 1) % STAMPS_KNOWN;
        text.clear();
        text.extend_from_slice(line.stamp);
        *known_at = at;
        while !at.as_nanos().is_multiple_of(self.resolution_nanos) {
            self.resolution_nanos /= 1_000;
        }
        Ok(at)
    }
}
