//! One HTTP/2 connection (RFC 9113, server side) for small unary calls, without I/O: bytes and times in, bytes out.
//!
//! The driver passes what it reads to [`Connection::receive`], writes what that appends, and calls [`Connection::tick`]
//! at [`Connection::deadline`]. Requests go to a [`Serve`], which answers now or later ([`Connection::complete`]).
//!
//! - `requests`: new streams, their headers and bodies; `ready`: complete requests, until they are answered; `answers`:
//!   what is sent back
//! - `streams`: the state of a stream, and the table of streams; `windows`: flow control, in both directions
//! - `dialogs`: calls of several messages, each of which is answered
//! - `control`: SETTINGS, PING, RST_STREAM and the like; `abuse`: the abuse score of a peer; `ending`: how it ends
//! - `passing`: the same score for a connection that another server serves
//!
//! Bounds: streams, their bodies, header blocks, unsent answers, the time for each of these, and useless frames. It has
//! no server push, ignores priorities, and sends no trailers but those of gRPC.

mod abuse;
mod answers;
mod control;
mod dialogs;
mod ending;
mod passing;
mod ready;
mod requests;
mod streams;
mod windows;

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use bytes::Bytes;

use self::abuse::AbuseScore;
pub use self::ending::Ended;
use self::ending::Ending;
pub use self::passing::PassingFrames;
use self::ready::Reading;
use self::requests::Block;
use self::streams::Streams;
use self::windows::Windows;
use crate::frames::{self, ErrorCode, HEAD_BYTES, Head, PAYLOAD_MAX, PREFACE, U31_MAX, flag, kind};
use crate::hpack::{Decoder, Encoder, KeptHeaders, LIST_BYTES_MAX, Route, Served};
use crate::status::Status;

/// Concurrent streams. Envoy opens another connection when it needs more.
pub const STREAMS_MAX: usize = 1_024;
/// How long a client may take for its preface and SETTINGS, for the rest of a frame, a header block, or a request.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// While this much output waits, no more input is processed. So a peer that reads nothing is not served.
pub const OUTPUT_BYTES_MAX: usize = 16 * 1_024;
/// Bytes of incomplete request bodies that one connection may hold. A proxy's request has a few hundred bytes and
/// arrives complete.
pub const UNFINISHED_BYTES_MAX: usize = 1_024 * 1_024;
/// The error message for a request that would exceed [`UNFINISHED_BYTES_MAX`].
pub const TOO_MUCH_UNFINISHED: &str = "too many requests of this connection are incomplete";
/// The most requests that are passed to [`Serve`] together.
pub const BATCH_MAX: usize = 8;
/// How long memory from a burst is kept.
const SPARE_MEMORY_KEPT: Duration = Duration::from_secs(10);
/// A peer that sends nothing for the interval gets a keep-alive PING. The connection ends if it sends nothing for the
/// timeout after that.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// The payload of a keep-alive PING.
const KEEP_ALIVE_PING: [u8; 8] = *b"tidegate";

const SETTINGS_MAX_CONCURRENT_STREAMS: u16 = 3;
const SETTINGS_MAX_HEADER_LIST_SIZE: u16 = 6;

/// A complete request. `N` is [`Serve::Note`].
#[derive(Debug)]
pub struct Call<'a, N> {
    /// Its stream, which an answer that comes later has to name.
    pub stream: u32,
    /// The method that is called.
    pub route: Route,
    /// Until when its caller waits; `None`: no timeout.
    pub deadline: Option<Instant>,
    /// The body: a message with the framing of gRPC.
    pub body: &'a [u8],
    /// What was noted when its headers arrived.
    pub note: Option<N>,
}

/// The outcome of a complete request.
#[derive(Debug)]
pub enum Outcome<'a, W> {
    /// The answer.
    Now(Result<&'a [u8], Status>),
    /// [`Connection::complete`] brings the answer. The value is dropped when the answer is no longer needed.
    Later(W),
    /// The first message of a stream; [`Connection::push`] brings more.
    Stream(Bytes, W),
    /// The request was not processed, and the client may send it again (RFC 9113, 8.7).
    Refused,
}

/// Answers requests.
pub trait Serve {
    /// Kept while an answer is pending; dropping it cancels the answer.
    type Waiting;
    /// What is noted of a call when its headers arrive. It is dropped with a call that is cancelled.
    type Note;

    /// Notes what the headers of a call contain. It is called only if [`Served::kept`] names any.
    fn note(&mut self, route: Route, headers: &KeptHeaders) -> Option<Self::Note>;
    /// Checks an incomplete body. An error is the answer to the request; then it takes the note.
    fn check_partial(
        &mut self,
        route: Route,
        body: &[u8],
        note: &mut Option<Self::Note>,
    ) -> Result<(), Status>;
    /// Answers requests that arrived together, and takes their notes. Calls `answer` for each, in any order, with its
    /// index in `calls`.
    fn answer_batch(
        &mut self,
        calls: &mut [Call<'_, Self::Note>],
        answer: impl FnMut(usize, Outcome<'_, Self::Waiting>),
    );
    /// Answers one message of a dialog ([`Served::dialogs`]). An error ends the dialog.
    fn converse(&mut self, route: Route, message: &[u8]) -> Result<Vec<u8>, Status>;
    /// The answer to a request that timed out.
    fn timed_out(&mut self, route: Route, when: TimedOut, note: Option<Self::Note>) -> Status;
}

/// What a request that timed out waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedOut {
    /// The rest of its message.
    Incomplete,
    /// Its answer.
    Unanswered,
}

/// The state of a connection.
pub struct Connection<S: Serve> {
    stage: Stage,
    decoder: Decoder,
    /// Calls are noted.
    takes_notes: bool,
    encoder: Encoder,
    streams: Streams<S>,
    windows: Windows,
    /// An incomplete header block.
    block: Option<Block>,
    abuse: AbuseScore,
    ending: Ending,
    ended: Option<Ended>,
    /// The client has acknowledged our SETTINGS. It gets only one SETTINGS frame.
    settings_acked: bool,
    /// When the incomplete preface, frame or header block began. It has to be complete within [`READ_TIMEOUT`].
    incomplete_since: Option<Instant>,
    /// Since when the connection has had much more memory than it needs.
    spare_since: Option<Instant>,
    /// When the peer last sent bytes.
    last_received: Instant,
    /// A keep-alive PING was sent since then.
    pinged: bool,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Stage {
    Preface,
    FirstSettings,
    Open,
    Closed,
}

/// Counts since the last [`Connection::take_counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Streams that began.
    pub streams: u32,
    /// Streams that the client reset.
    pub reset_by_client: u32,
    /// Streams that we reset.
    pub reset_by_server: u32,
}

/// A connection error of the peer (RFC 9113, 5.4.1). It ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fatal {
    code: ErrorCode,
    why: &'static str,
}

fn fatal<T>(code: ErrorCode, why: &'static str) -> Result<T, Fatal> {
    Err(Fatal { code, why })
}

/// What the driver passes to each step of a connection.
pub struct Turn<'a, S> {
    /// The current time.
    pub now: Instant,
    /// Answers requests.
    pub serve: &'a mut S,
    /// Bytes for the peer are appended here.
    pub out: &'a mut Vec<u8>,
}

impl<S: Serve> Connection<S> {
    /// A new connection to a server of these paths. Appends the server's first frames to `out`.
    pub fn new(now: Instant, served: &'static Served, out: &mut Vec<u8>) -> Self {
        let (streams, fields) = (STREAMS_MAX as u32, LIST_BYTES_MAX as u32);
        frames::settings(
            out,
            &[(SETTINGS_MAX_CONCURRENT_STREAMS, streams), (SETTINGS_MAX_HEADER_LIST_SIZE, fields)],
        );
        Self {
            stage: Stage::Preface,
            decoder: Decoder::new(served),
            takes_notes: !served.kept.is_empty(),
            encoder: Encoder::new(),
            streams: Streams::new(),
            windows: Windows::new(out),
            block: None,
            abuse: AbuseScore::new(now),
            ending: Ending::default(),
            ended: None,
            settings_acked: false,
            incomplete_since: Some(now),
            spare_since: None,
            last_received: now,
            pinged: false,
            counts: Counts::default(),
        }
    }

    /// Processes complete frames from the start of `input`, and returns how many bytes they have. The driver passes the
    /// rest again: an incomplete frame once there are more bytes, and complete frames, which are left when there is
    /// [much output](OUTPUT_BYTES_MAX), once that is sent.
    pub fn receive(&mut self, input: &[u8], turn: &mut Turn<'_, S>) -> usize {
        self.last_received = turn.now;
        self.pinged = false;
        self.abuse.decay(turn.now);
        let mut reading = Reading::new(turn);
        let received = self.receive_frames(input, &mut reading);
        self.answer_ready(&mut reading);
        let used = received.unwrap_or_else(|error| {
            self.end(Some(error), turn.out);
            input.len()
        });
        let is_incomplete = used < input.len() || self.stage < Stage::Open;
        self.incomplete_since = match (&self.block, self.incomplete_since) {
            // Further frames do not extend the time of a header block.
            (Some(block), _) => Some(block.began),
            (None, Some(since)) if is_incomplete && used == 0 => Some(since),
            _ => is_incomplete.then_some(turn.now),
        };
        self.note_spare_memory(turn.now);
        used
    }

    fn receive_frames<'i>(
        &mut self,
        input: &'i [u8],
        reading: &mut Reading<'_, 'i, S>,
    ) -> Result<usize, Fatal> {
        if self.stage == Stage::Closed {
            return Ok(input.len());
        }
        let mut used = self.preface(input)?;
        if self.stage == Stage::Preface {
            return Ok(0);
        }
        let enough = reading.out.len() + OUTPUT_BYTES_MAX;
        while reading.out.len() < enough
            && let Some(head) = Head::read(&input[used..])
        {
            if head.length > PAYLOAD_MAX {
                return fatal(ErrorCode::FrameSizeError, "a frame is too large");
            }
            let start = used + HEAD_BYTES;
            let Some(payload) = input.get(start..start + head.length) else { break };
            used = start + head.length;
            self.frame(head, payload, reading)?;
            self.abuse.check()?;
        }
        Ok(used)
    }

    /// Processes the preface, once it is complete.
    fn preface(&mut self, input: &[u8]) -> Result<usize, Fatal> {
        if self.stage != Stage::Preface {
            return Ok(0);
        }
        let length = input.len().min(PREFACE.len());
        if input[..length] != PREFACE[..length] {
            return fatal(ErrorCode::ProtocolError, "it does not begin with the preface of HTTP/2");
        }
        if length < PREFACE.len() {
            return Ok(0);
        }
        self.stage = Stage::FirstSettings;
        Ok(length)
    }

    #[inline]
    fn frame<'i>(
        &mut self,
        head: Head,
        payload: &'i [u8],
        reading: &mut Reading<'_, 'i, S>,
    ) -> Result<(), Fatal> {
        if self.stage == Stage::FirstSettings {
            if head.kind != kind::SETTINGS || head.has(flag::ACK) {
                return fatal(ErrorCode::ProtocolError, "its first frame is not SETTINGS");
            }
            self.stage = Stage::Open;
        }
        if self.block.is_some() && head.kind != kind::CONTINUATION {
            return fatal(ErrorCode::ProtocolError, "another frame interrupts a header block");
        }
        if !self.may_extend_batch(head) {
            self.answer_ready(reading);
        }
        match head.kind {
            kind::DATA => self.on_data(head, payload, reading),
            kind::HEADERS => self.on_headers(head, payload, reading),
            kind::CONTINUATION => self.on_continuation(head, payload, reading),
            kind::WINDOW_UPDATE => self.on_window_update(head, payload, reading.out),
            kind::SETTINGS => self.on_settings(head, payload, reading.out),
            kind::PING => self.on_ping(head, payload, reading.out),
            kind::RST_STREAM => self.on_reset(head, payload),
            kind::PRIORITY => self.on_priority(head, payload),
            kind::GOAWAY => self.on_goaway(head, payload),
            kind::PUSH_PROMISE => fatal(ErrorCode::ProtocolError, "a client cannot push"),
            _ => {
                self.abuse.add_unread(payload.len());
                Ok(())
            }
        }
    }

    /// When [`Connection::tick`] has to be called, at the latest.
    pub fn deadline(&self) -> Instant {
        let timeout =
            if self.pinged { KEEP_ALIVE_INTERVAL + KEEP_ALIVE_TIMEOUT } else { KEEP_ALIVE_INTERVAL };
        let incomplete = self.incomplete_since.map(|since| since + READ_TIMEOUT);
        let spare = self.spare_since.map(|since| since + SPARE_MEMORY_KEPT);
        let all = [incomplete, self.streams.due(), self.ending.due(), spare];
        all.into_iter().flatten().fold(self.last_received + timeout, Instant::min)
    }

    /// Handles every timeout that is due.
    pub fn tick(&mut self, turn: &mut Turn<'_, S>) {
        if self.stage == Stage::Closed {
            return;
        }
        if self.incomplete_since.is_some_and(|since| turn.now >= since + READ_TIMEOUT) {
            let why = "it sent a part of a frame or of a request, and then nothing";
            return self.end(Some(Fatal { code: ErrorCode::ProtocolError, why }), turn.out);
        }
        self.free_spare_memory(turn.now);
        self.keep_alive(turn.now, turn.out);
        self.end_phase(turn.now, turn.out);
        self.expire(turn);
    }

    fn keep_alive(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.pinged && now >= self.last_received + KEEP_ALIVE_INTERVAL + KEEP_ALIVE_TIMEOUT {
            self.end(None, out);
        } else if !self.pinged && now >= self.last_received + KEEP_ALIVE_INTERVAL {
            self.pinged = true;
            frames::ping(out, 0, &KEEP_ALIVE_PING);
        }
    }

    /// Notes when the connection first has much more memory than it needs.
    fn note_spare_memory(&mut self, now: Instant) {
        let has_spare = self.streams.has_spare() || self.windows.has_spare() || self.decoder.has_spare();
        if has_spare && self.spare_since.is_none() {
            self.spare_since = Some(now);
        }
    }

    /// Frees spare memory that was kept for long enough.
    fn free_spare_memory(&mut self, now: Instant) {
        if self.spare_since.is_some_and(|since| now >= since + SPARE_MEMORY_KEPT) {
            self.spare_since = None;
            self.streams.shrink();
            self.windows.shrink();
            self.decoder.shrink();
        }
    }

    /// The counts since the last call.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }
}
