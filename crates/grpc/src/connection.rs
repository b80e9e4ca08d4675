//! One connection of HTTP/2 (RFC 9113, server side) for small unary calls, without I/O: bytes and times in, bytes out.
//!
//! Whoever drives it reads into [`Connection::receive`], writes what that appends, and calls [`Connection::tick`] at
//! [`Connection::deadline`]. What is asked goes to a [`Serve`], which answers now or later ([`Connection::complete`]).
//!
//! - `requests`: streams that begin, their headers and bodies; `ready`: those that are whole, until they are answered;
//!   `answers`: what goes back
//! - `streams`: what a stream is, and which there are; `windows`: flow control, both ways
//! - `control`: settings, pings and resets; `abuse`: peers that only make work; `ending`: how it ends
//!
//! Bounds: streams, their bodies, header blocks, unsent answers, time for each of these, and useless frames. It pushes
//! nothing, honours no priorities, and sends no trailers but those of gRPC.

mod abuse;
mod answers;
mod control;
mod ending;
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
use self::ready::Reading;
use self::requests::Block;
use self::streams::Streams;
use self::windows::Windows;
use crate::frames::{self, ErrorCode, HEAD_BYTES, Head, PAYLOAD_MAX, PREFACE, U31_MAX, flag, kind};
use crate::hpack::{Decoder, Encoder, LIST_BYTES_MAX, Route};
use crate::status::Status;

/// Streams at a time. Envoy opens another connection when it needs more.
pub const STREAMS_MAX: usize = 1_024;
/// How long a client may take for its preface and settings, for the rest of a frame, a header block, or a request.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Once this much is to be sent, it is sent before anything else is read: a peer that reads nothing is heard no more.
pub const OUTPUT_BYTES_MAX: usize = 16 * 1_024;
/// What the requests of one connection may hold that have come in part. A question of a proxy is a few hundred bytes and
/// comes whole.
pub const UNFINISHED_BYTES_MAX: usize = 1_024 * 1_024;
/// What a request is told that would hold more.
pub const TOO_MUCH_UNFINISHED: &str = "this connection has begun too many requests that it does not end";
/// So many requests that came in together are handed out together, at most.
pub const BATCH_MAX: usize = 8;
/// How long memory is kept that a burst took and nothing needs now.
const SPARE_MEMORY_KEPT: Duration = Duration::from_secs(10);
/// A peer that was not heard for so long is asked whether it is still there, and given up after the second.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// What a PING of ours carries that asks for a sign of life.
const KEEP_ALIVE_PING: [u8; 8] = *b"tidegate";

const SETTINGS_MAX_CONCURRENT_STREAMS: u16 = 3;
const SETTINGS_MAX_HEADER_LIST_SIZE: u16 = 6;

/// A whole request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The stream that it came on, for an answer that comes later.
    pub stream: u32,
    /// What is called.
    pub route: Route,
    /// How long its caller still waits; `None`: without an end.
    pub timeout: Option<Duration>,
    /// The body, framed as gRPC frames messages.
    pub body: &'a [u8],
}

/// What becomes of a whole request.
#[derive(Debug)]
pub enum Outcome<'a, W> {
    /// Its answer.
    Now(Result<&'a [u8], Status>),
    /// The answer comes by [`Connection::complete`]. What is held here is dropped once nobody waits any more.
    Later(W),
    /// A first message; more come by [`Connection::push`].
    Stream(Bytes, W),
    /// It was not looked at, and may be sent again.
    Refused,
}

/// What answers requests.
pub trait Serve {
    /// What is kept for an answer that comes later.
    type Waiting;

    /// So much of a body is there and more is to come. An error is the answer.
    fn check_partial(&mut self, route: Route, body: &[u8]) -> Result<(), Status>;
    /// Answers requests that came in together, in any order: `answer` gets what becomes of each, with its place.
    fn answer_batch(&mut self, calls: &[Call<'_>], answer: impl FnMut(usize, Outcome<'_, Self::Waiting>));
    /// A request did not arrive in time, or was not answered in time. Returns the answer.
    fn timed_out(&mut self, route: Route, arrived: bool) -> Status;
}

/// The state of a connection. `W` is what is kept for an answer that comes later.
#[derive(Debug)]
pub struct Connection<W> {
    stage: Stage,
    decoder: Decoder,
    encoder: Encoder,
    streams: Streams<W>,
    windows: Windows,
    /// A header block of which more is to come.
    block: Option<Block>,
    abuse: AbuseScore,
    ending: Ending,
    ended: Option<Ended>,
    /// The client has acknowledged our SETTINGS, of which it gets one frame.
    settings_acked: bool,
    /// When something began that has to be complete within [`READ_TIMEOUT`]: the preface, a frame, a header block.
    incomplete_since: Option<Instant>,
    /// Since when it has more memory than it needs.
    spare_since: Option<Instant>,
    /// When the peer was heard last.
    last_received: Instant,
    /// It was asked since whether it is still there.
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

/// What happened since these were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Streams that began.
    pub streams: u32,
    /// Streams that the client reset.
    pub reset_by_client: u32,
    /// Streams that we reset.
    pub reset_by_server: u32,
}

/// What ends a connection: an error of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fatal {
    code: ErrorCode,
    why: &'static str,
}

fn fatal<T>(code: ErrorCode, why: &'static str) -> Result<T, Fatal> {
    Err(Fatal { code, why })
}

/// One turn of a connection: when it is, who answers, and where what is to be sent goes.
pub struct Turn<'a, S> {
    /// Now.
    pub now: Instant,
    /// What answers requests.
    pub serve: &'a mut S,
    /// Bytes for the peer are appended here.
    pub out: &'a mut Vec<u8>,
}

impl<W> Connection<W> {
    /// A connection that begins now, to a server of these paths: the [`Route`] of a call is the place of its path. What the
    /// server says first is appended to `out`.
    pub fn new(now: Instant, routes: &'static [&'static str], out: &mut Vec<u8>) -> Self {
        let (streams, fields) = (STREAMS_MAX as u32, LIST_BYTES_MAX as u32);
        frames::settings(
            out,
            &[(SETTINGS_MAX_CONCURRENT_STREAMS, streams), (SETTINGS_MAX_HEADER_LIST_SIZE, fields)],
        );
        Self {
            stage: Stage::Preface,
            decoder: Decoder::new(routes),
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

    /// Takes whole frames off the start of `input`; returns how many bytes they have. What is left is to be given again:
    /// less than a frame with more behind it, and whole frames, of which there are some once there is
    /// [much to send](OUTPUT_BYTES_MAX), when that is sent.
    pub fn receive<S: Serve<Waiting = W>>(&mut self, input: &[u8], turn: &mut Turn<'_, S>) -> usize {
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
            // However many frames it comes in.
            (Some(block), _) => Some(block.began),
            (None, Some(since)) if is_incomplete && used == 0 => Some(since),
            _ => is_incomplete.then_some(turn.now),
        };
        self.note_spare_memory(turn.now);
        used
    }

    fn receive_frames<'i, S: Serve<Waiting = W>>(
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

    /// Takes the preface, once all of it is there.
    fn preface(&mut self, input: &[u8]) -> Result<usize, Fatal> {
        if self.stage != Stage::Preface {
            return Ok(0);
        }
        let length = input.len().min(PREFACE.len());
        if input[..length] != PREFACE[..length] {
            return fatal(ErrorCode::ProtocolError, "it does not begin as HTTP/2 does");
        }
        if length < PREFACE.len() {
            return Ok(0);
        }
        self.stage = Stage::FirstSettings;
        Ok(length)
    }

    #[inline]
    fn frame<'i, S: Serve<Waiting = W>>(
        &mut self,
        head: Head,
        payload: &'i [u8],
        reading: &mut Reading<'_, 'i, S>,
    ) -> Result<(), Fatal> {
        if self.stage == Stage::FirstSettings {
            if head.kind != kind::SETTINGS || head.has(flag::ACK) {
                return fatal(ErrorCode::ProtocolError, "its first frame is no SETTINGS");
            }
            self.stage = Stage::Open;
        }
        if self.block.is_some() && head.kind != kind::CONTINUATION {
            return fatal(ErrorCode::ProtocolError, "another frame is within a header block");
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

    /// When [`Connection::tick`] is to be called, at the latest.
    pub fn deadline(&self) -> Instant {
        let timeout =
            if self.pinged { KEEP_ALIVE_INTERVAL + KEEP_ALIVE_TIMEOUT } else { KEEP_ALIVE_INTERVAL };
        let incomplete = self.incomplete_since.map(|since| since + READ_TIMEOUT);
        let spare = self.spare_since.map(|since| since + SPARE_MEMORY_KEPT);
        let all = [incomplete, self.streams.due(), self.ending.due(), spare];
        all.into_iter().flatten().fold(self.last_received + timeout, Instant::min)
    }

    /// Does what is due.
    pub fn tick<S: Serve<Waiting = W>>(&mut self, turn: &mut Turn<'_, S>) {
        if self.stage == Stage::Closed {
            return;
        }
        if self.incomplete_since.is_some_and(|since| turn.now >= since + READ_TIMEOUT) {
            let why = "it stopped in the middle of what it said";
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

    /// Sees whether it has much more memory than it needs.
    fn note_spare_memory(&mut self, now: Instant) {
        let has_spare = self.streams.has_spare() || self.windows.has_spare() || self.decoder.has_spare();
        if has_spare && self.spare_since.is_none() {
            self.spare_since = Some(now);
        }
    }

    /// Frees what a burst took, a while after it.
    fn free_spare_memory(&mut self, now: Instant) {
        if self.spare_since.is_some_and(|since| now >= since + SPARE_MEMORY_KEPT) {
            self.spare_since = None;
            self.streams.shrink();
            self.windows.shrink();
            self.decoder.shrink();
        }
    }

    /// What happened since this was last called.
    pub fn take_counts(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }
}
