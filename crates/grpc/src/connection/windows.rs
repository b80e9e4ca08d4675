//! Flow control (RFC 9113, 5.2), in both directions.
//!
//! Receiving: a window is replenished when its bytes are processed, discarded, or stored in an incomplete body; all
//! incomplete bodies together are bounded. Sending: nothing is sent beyond a window, and a blocked stream goes on when
//! its window opens.

use std::collections::VecDeque;

use super::streams::{State, Stream, has_spare};
use super::{Connection, ErrorCode, Fatal, Head, STREAMS_MAX, Serve, U31_MAX, abuse, fatal, frames};

/// Unprocessed bytes that a client may send on a connection, and on each of its streams.
const CONNECTION_WINDOW: u32 = 1_024 * 1_024;
pub const STREAM_WINDOW: u32 = 65_535;
/// The connection's window at the start, in both directions (RFC 9113, 6.9.2).
const INITIAL_WINDOW: u32 = 65_535;

/// The windows of a connection.
#[derive(Debug)]
pub struct Windows {
    /// Bytes that the client may still send.
    receive: u32,
    /// Bytes that we may still send.
    pub send: i64,
    /// The send window of a new stream: the client's SETTINGS_INITIAL_WINDOW_SIZE.
    pub initial_send: i64,
    /// Streams that wait for `send`, in the order in which they were blocked.
    pub blocked: VecDeque<u32>,
    /// Bytes of incomplete bodies.
    pub unfinished: usize,
}

impl Windows {
    /// Opens the connection's window to its full size.
    pub fn new(out: &mut Vec<u8>) -> Self {
        frames::window_update(out, 0, CONNECTION_WINDOW - INITIAL_WINDOW);
        let send = i64::from(INITIAL_WINDOW);
        Self { receive: CONNECTION_WINDOW, send, initial_send: send, blocked: VecDeque::new(), unfinished: 0 }
    }

    /// Counts received bytes, padding included, and replenishes the window.
    #[inline]
    pub fn count_received(&mut self, bytes: usize, out: &mut Vec<u8>) -> Result<(), Fatal> {
        match take(self.receive, bytes) {
            Some(left) => self.receive = left,
            None => return fatal(ErrorCode::FlowControlError, "it sent more than its window"),
        }
        replenish(&mut self.receive, CONNECTION_WINDOW, 0, out);
        Ok(())
    }

    /// Whether there is room for many more streams than are blocked.
    pub fn has_spare(&self) -> bool {
        has_spare(self.blocked.capacity(), self.blocked.len())
    }

    pub fn shrink(&mut self) {
        self.blocked.shrink_to_fit();
    }

    /// How many of `length` bytes one frame may send on a stream with this window.
    pub fn allowed(&self, stream_window: i64, length: usize) -> usize {
        let window = usize::try_from(self.send.min(stream_window)).unwrap_or(0);
        window.min(length).min(frames::PAYLOAD_MAX)
    }
}

impl<S: Serve> Stream<S> {
    /// Counts received bytes, padding included; `None` if they exceed the window.
    #[inline]
    pub(super) fn count_received(&mut self, bytes: usize) -> Option<()> {
        self.receive_window = take(self.receive_window, bytes)?;
        Some(())
    }

    /// Replenishes the stream's window if it is less than half open.
    pub(super) fn replenish(&mut self, out: &mut Vec<u8>) {
        replenish(&mut self.receive_window, STREAM_WINDOW, self.id, out);
    }
}

fn take(window: u32, bytes: usize) -> Option<u32> {
    window.checked_sub(u32::try_from(bytes).ok()?)
}

/// Replenishes a window if it is less than half open.
#[inline]
fn replenish(window: &mut u32, full: u32, stream: u32, out: &mut Vec<u8>) {
    if *window < full / 2 {
        frames::window_update(out, stream, full - *window);
        *window = full;
    }
}

impl<S: Serve> Connection<S> {
    pub(super) fn on_window_update(
        &mut self,
        head: Head,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Fatal> {
        if payload.len() != 4 {
            return fatal(ErrorCode::FrameSizeError, "a WINDOW_UPDATE is not 4 bytes long");
        }
        let increment = frames::first_u32(payload) & U31_MAX;
        // Also if it unblocks an answer: it may do so one byte at a time.
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
            return fatal(ErrorCode::FlowControlError, "the window grows beyond 2^31-1");
        }
        // Each round sends something or takes a stream off the queue.
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

    /// Applies the client's SETTINGS_INITIAL_WINDOW_SIZE, which changes the window of each stream (RFC 9113, 6.9.2).
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
                return fatal(ErrorCode::FlowControlError, "the window grows beyond 2^31-1");
            }
            if stream.send_window > 0 && matches!(stream.state, State::Sending(_)) {
                unblocked.push(stream.id);
            }
        }
        // In the order of their ids: where a stream is kept depends on which ended before it, and so on how frames arrived.
        unblocked.sort_unstable();
        unblocked.into_iter().for_each(|id| self.pump(id, out));
        Ok(())
    }

    /// Queues a stream for the connection's window. Closed streams are taken out before the queue gets long.
    pub(super) fn wait_for_window(&mut self, id: u32) {
        self.windows.blocked.push_back(id);
        if self.windows.blocked.len() > 2 * STREAMS_MAX {
            let Self { windows, streams, .. } = self;
            windows.blocked.retain(|&id| streams.get(id).is_some());
        }
    }
}
