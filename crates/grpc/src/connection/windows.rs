//! Flow control (RFC 9113, 5.2), both ways.
//!
//! Receiving: a byte is given back to the client when it is handed over, thrown away, or laid into a body that is not
//! whole yet; all of those together are bounded. Sending: nothing beyond a window, and whatever waits for one goes on
//! when it opens.

use std::collections::VecDeque;

use super::streams::{State, Stream, has_spare};
use super::{Connection, ErrorCode, Fatal, Head, STREAMS_MAX, U31_MAX, abuse, fatal, frames};

/// Unread bytes of requests that a connection may hold, and each of its streams.
const CONNECTION_WINDOW: u32 = 1_024 * 1_024;
pub const STREAM_WINDOW: u32 = 65_535;
/// What both sides begin with.
const INITIAL_WINDOW: u32 = 65_535;

/// The windows of a connection.
#[derive(Debug)]
pub struct Windows {
    /// Bytes that the client may still send.
    receive: u32,
    /// Bytes that we may still send.
    pub send: i64,
    /// What a new stream of ours may send.
    pub initial_send: i64,
    /// Streams that wait for `send`, in the order in which they began to.
    pub blocked: VecDeque<u32>,
    /// Bytes of bodies that are not whole.
    pub unfinished: usize,
}

impl Windows {
    /// Tells the client how large the connection's window is.
    pub fn new(out: &mut Vec<u8>) -> Self {
        frames::window_update(out, 0, CONNECTION_WINDOW - INITIAL_WINDOW);
        let send = i64::from(INITIAL_WINDOW);
        Self { receive: CONNECTION_WINDOW, send, initial_send: send, blocked: VecDeque::new(), unfinished: 0 }
    }

    /// Bytes came, padding included.
    #[inline]
    pub fn count_received(&mut self, bytes: usize, out: &mut Vec<u8>) -> Result<(), Fatal> {
        match take(self.receive, bytes) {
            Some(left) => self.receive = left,
            None => return fatal(ErrorCode::FlowControlError, "it sent more than its window"),
        }
        replenish(&mut self.receive, CONNECTION_WINDOW, 0, out);
        Ok(())
    }

    /// Whether there is memory for many more streams than wait.
    pub fn has_spare(&self) -> bool {
        has_spare(self.blocked.capacity(), self.blocked.len())
    }

    pub fn shrink(&mut self) {
        self.blocked.shrink_to_fit();
    }

    /// How much of `length` may go out on a stream with this window, in one frame.
    pub fn allowed(&self, stream_window: i64, length: usize) -> usize {
        let window = usize::try_from(self.send.min(stream_window)).unwrap_or(0);
        window.min(length).min(frames::PAYLOAD_MAX)
    }
}

impl<W> Stream<W> {
    /// Bytes came, padding included; `None` where they are beyond the window.
    #[inline]
    pub(super) fn count_received(&mut self, bytes: usize) -> Option<()> {
        self.receive_window = take(self.receive_window, bytes)?;
        Some(())
    }

    /// Gives bytes back that are taken, unless there are enough.
    pub(super) fn replenish(&mut self, out: &mut Vec<u8>) {
        replenish(&mut self.receive_window, STREAM_WINDOW, self.id, out);
    }
}

fn take(window: u32, bytes: usize) -> Option<u32> {
    window.checked_sub(u32::try_from(bytes).ok()?)
}

/// Opens a window again that is less than half open.
#[inline]
fn replenish(window: &mut u32, full: u32, stream: u32, out: &mut Vec<u8>) {
    if *window < full / 2 {
        frames::window_update(out, stream, full - *window);
        *window = full;
    }
}

impl<W> Connection<W> {
    pub(super) fn on_window_update(
        &mut self,
        head: Head,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Fatal> {
        if payload.len() != 4 {
            return fatal(ErrorCode::FrameSizeError, "a WINDOW_UPDATE has not four bytes");
        }
        let increment = frames::first_u32(payload) & U31_MAX;
        // Also one that lets something go out: it may let a byte go out at a time.
        self.abuse.add(abuse::FRAME);
        match head.stream {
            0 => self.open_connection_window(increment, out),
            stream if self.streams.is_idle(stream) => {
                fatal(ErrorCode::ProtocolError, "a WINDOW_UPDATE is for a stream that has not begun")
            }
            stream => {
                self.open_stream_window(stream, increment, out);
                Ok(())
            }
        }
    }

    fn open_connection_window(&mut self, increment: u32, out: &mut Vec<u8>) -> Result<(), Fatal> {
        if increment == 0 {
            return fatal(ErrorCode::ProtocolError, "a WINDOW_UPDATE adds nothing");
        }
        self.windows.send += i64::from(increment);
        if self.windows.send > i64::from(U31_MAX) {
            return fatal(ErrorCode::FlowControlError, "the window is larger than there may be");
        }
        // Each turn sends something or takes a stream off the queue.
        while self.windows.send > 0 {
            let Some(id) = self.windows.blocked.pop_front() else { break };
            if let Some(stream) = self.streams.get(id) {
                stream.queued = false;
                self.pump(id, out);
            }
        }
        Ok(())
    }

    fn open_stream_window(&mut self, id: u32, increment: u32, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get(id) else { return };
        stream.send_window += i64::from(increment);
        if increment == 0 {
            self.reset(id, ErrorCode::ProtocolError, out);
        } else if stream.send_window > i64::from(U31_MAX) {
            self.reset(id, ErrorCode::FlowControlError, out);
        } else if matches!(stream.state, State::Sending(_)) {
            self.pump(id, out);
        }
    }

    /// The client has changed the window that streams begin with, and with it that of each stream.
    pub(super) fn resize_stream_windows(&mut self, window: u32, out: &mut Vec<u8>) -> Result<(), Fatal> {
        let change = i64::from(window) - self.windows.initial_send;
        self.windows.initial_send = i64::from(window);
        if change == 0 {
            return Ok(());
        }
        let mut unblocked = Vec::new();
        for stream in self.streams.iter_mut() {
            stream.send_window += change;
            if stream.send_window > i64::from(U31_MAX) {
                return fatal(ErrorCode::FlowControlError, "the window is larger than there may be");
            }
            if stream.send_window > 0 && matches!(stream.state, State::Sending(_)) {
                unblocked.push(stream.id);
            }
        }
        unblocked.into_iter().for_each(|id| self.pump(id, out));
        Ok(())
    }

    /// Lines a stream up for the connection's window. Streams that are no more are taken out before it gets long.
    pub(super) fn wait_for_window(&mut self, id: u32) {
        self.windows.blocked.push_back(id);
        if self.windows.blocked.len() > 2 * STREAMS_MAX {
            let Self { windows, streams, .. } = self;
            windows.blocked.retain(|&id| streams.get(id).is_some());
        }
    }
}
