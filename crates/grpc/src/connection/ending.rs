//! How a connection ends: at once, for a connection error; or gracefully, in two phases (RFC 9113, 6.8).
//!
//! A graceful end: the first GOAWAY names the highest possible stream, and asks the client to begin no more here. A
//! PING behind it comes back when the client has read both. Streams that began until then are served; the second GOAWAY
//! names the last of them. Once they are answered, the connection is over.

use std::time::{Duration, Instant};

use super::{Connection, ErrorCode, Fatal, Serve, Stage, U31_MAX, flag, frames};

/// The payload of the PING behind the first GOAWAY.
pub const DRAIN_PING: [u8; 8] = *b"go away!";
/// How long its acknowledgement may take.
const DRAIN_PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The phase of a graceful end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    #[default]
    NotBegun,
    /// The first GOAWAY was sent at this time.
    Announced(Instant),
    /// The second GOAWAY named this stream. New streams are refused, and a later GOAWAY has to name the same stream.
    Last(u32),
}

/// How we ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The code of the GOAWAY.
    pub code: ErrorCode,
    /// What the peer did wrong, if anything.
    pub why: Option<&'static str>,
}

impl Ending {
    /// When the first phase times out.
    pub fn due(self) -> Option<Instant> {
        match self {
            Self::Announced(since) => Some(since + DRAIN_PING_TIMEOUT),
            Self::NotBegun | Self::Last(_) => None,
        }
    }
}

impl<S: Serve> Connection<S> {
    /// Begins a graceful end: asks the client to begin no new streams. Open ones are served.
    pub fn drain(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.stage == Stage::Closed || self.ending != Ending::NotBegun {
            return;
        }
        self.ending = Ending::Announced(now);
        frames::goaway(out, U31_MAX, ErrorCode::NoError);
        frames::ping(out, 0, &DRAIN_PING);
    }

    /// Begins the second phase if the first has timed out.
    pub(super) fn end_phase(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.ending.due().is_some_and(|due| now >= due) {
            self.refuse_new_streams(out);
        }
    }

    /// Begins the second phase: from now on new streams are refused.
    pub(super) fn refuse_new_streams(&mut self, out: &mut Vec<u8>) {
        if matches!(self.ending, Ending::Announced(_)) && self.stage != Stage::Closed {
            let last = self.streams.last();
            self.ending = Ending::Last(last);
            frames::goaway(out, last, ErrorCode::NoError);
            self.end_idle_dialogs(out);
        }
    }

    /// Whether new streams are refused.
    pub(super) fn refuses_new_streams(&self) -> bool {
        matches!(self.ending, Ending::Last(_))
    }

    /// Ends the connection at once: for a connection error, or because its time is over.
    pub(super) fn end(&mut self, error: Option<Fatal>, out: &mut Vec<u8>) {
        if self.stage == Stage::Closed {
            return;
        }
        let code = error.map_or(ErrorCode::NoError, |error| error.code);
        let last = match self.ending {
            Ending::Last(last) => last,
            Ending::NotBegun | Ending::Announced(_) => self.streams.last(),
        };
        frames::goaway(out, last, code);
        self.stage = Stage::Closed;
        self.streams.clear();
        self.block = None;
        self.ended = Some(Ended { code, why: error.map(|error| error.why) });
    }

    /// Ends the connection at once, even with open streams.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        self.end(None, out);
    }

    /// Whether no more output follows: once it is sent, the transport may be closed.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Closed || self.refuses_new_streams() && self.streams.is_empty()
    }

    /// How it ended, if we ended it.
    pub fn ended(&self) -> Option<Ended> {
        let drained = || Ended { code: ErrorCode::NoError, why: None };
        self.ended.or_else(|| self.refuses_new_streams().then(drained))
    }
}

/// Whether a PING acknowledges the one behind the first GOAWAY.
pub fn is_drain_ack(flags: u8, payload: &[u8]) -> bool {
    flags & flag::ACK != 0 && payload == DRAIN_PING
}
