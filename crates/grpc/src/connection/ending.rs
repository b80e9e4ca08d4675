//! How a connection ends: at once, for an error of the peer; or in order, in two phases (RFC 9113, 6.8).
//!
//! In order: a GOAWAY that names no stream tells the client to begin no more here, and a PING behind it comes back when
//! the client has read it. Whatever it had begun until then is served; the second GOAWAY names the last of it. Once
//! that is answered, the connection is over.

use std::time::{Duration, Instant};

use super::{Connection, ErrorCode, Fatal, Stage, U31_MAX, flag, frames};

/// What the PING behind the first GOAWAY carries.
pub const DRAIN_PING: [u8; 8] = *b"go away!";
/// How long it may take to come back.
const DRAIN_PING_TIMEOUT: Duration = Duration::from_secs(5);

/// How far a graceful end has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    #[default]
    NotBegun,
    /// The client was told at this time to begin nothing more.
    Announced(Instant),
    /// What it begins now is refused: this was the last stream, and no later GOAWAY may name another.
    Last(u32),
}

/// How a connection ended of which we sent a GOAWAY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The code of the GOAWAY.
    pub code: ErrorCode,
    /// What the peer did wrong, if anything.
    pub why: Option<&'static str>,
}

impl Ending {
    /// When the client has had enough time to read the announcement.
    pub fn due(self) -> Option<Instant> {
        match self {
            Self::Announced(since) => Some(since + DRAIN_PING_TIMEOUT),
            Self::NotBegun | Self::Last(_) => None,
        }
    }
}

impl<W> Connection<W> {
    /// Asks the client to begin nothing new; what it has begun is answered.
    pub fn drain(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.stage == Stage::Closed || self.ending != Ending::NotBegun {
            return;
        }
        self.ending = Ending::Announced(now);
        frames::goaway(out, U31_MAX, ErrorCode::NoError);
        frames::ping(out, 0, &DRAIN_PING);
    }

    /// The second phase, if the client has had its time for the first.
    pub(super) fn end_phase(&mut self, now: Instant, out: &mut Vec<u8>) {
        if self.ending.due().is_some_and(|due| now >= due) {
            self.refuse_new_streams(out);
        }
    }

    /// The client has read the announcement: whatever it begins now, it does in spite of it.
    pub(super) fn refuse_new_streams(&mut self, out: &mut Vec<u8>) {
        if matches!(self.ending, Ending::Announced(_)) && self.stage != Stage::Closed {
            let last = self.streams.last();
            self.ending = Ending::Last(last);
            frames::goaway(out, last, ErrorCode::NoError);
        }
    }

    /// Whether streams that begin are refused.
    pub(super) fn refuses_new_streams(&self) -> bool {
        matches!(self.ending, Ending::Last(_))
    }

    /// Ends the connection at once: for an error of the peer, or because its time is over.
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

    /// Ends the connection at once, whatever it has begun.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        self.end(None, out);
    }

    /// Whether everything is said: once it is sent, the transport may be closed.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Closed || self.refuses_new_streams() && self.streams.is_empty()
    }

    /// How it ended, if we ended it.
    pub fn ended(&self) -> Option<Ended> {
        let drained = || Ended { code: ErrorCode::NoError, why: None };
        self.ended.or_else(|| self.refuses_new_streams().then(drained))
    }
}

/// A PING that comes back.
pub fn is_drain_ack(flags: u8, payload: &[u8]) -> bool {
    flags & flag::ACK != 0 && payload == DRAIN_PING
}
