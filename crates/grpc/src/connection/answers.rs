//! Sends answers: as far as the windows allow, and the rest when they open.

use std::time::{Duration, Instant};

use super::streams::{State, Stream, Then};
use super::{Connection, Encoder, ErrorCode, PAYLOAD_MAX, Serve, Status, abuse, flag, frames, kind};
use crate::message::{ONLY_GRPC, ONLY_POST, percent_encoded};

/// How long an answer may wait for a client to open its window.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for the end of a stream of messages. It comes when draining begins, and draining ends after 10 s.
const LAST_TIMEOUT: Duration = Duration::from_secs(5);
/// Unsent bytes of a stream of messages. A client with more than these is not reading.
const UNSENT_BYTES_MAX: usize = 1_024;
/// Characters of an error message: percent-encoded, it fits into one frame.
const TEXT_CHARS_MAX: usize = 1_024;
/// The prefix of a gRPC message: a byte for the compression, and the length.
pub(super) const PREFIX_BYTES: usize = 5;

impl<S: Serve> Connection<S> {
    /// Answers a call whose outcome was `Outcome::Later`. Does nothing if its stream has ended meanwhile.
    pub fn complete(&mut self, id: u32, answer: Result<&[u8], Status>, now: Instant, out: &mut Vec<u8>) {
        if !self.streams.get(id).is_some_and(|stream| matches!(stream.state, State::Waiting(_))) {
            return;
        }
        let Some(mut stream) = self.remove(id) else { return };
        stream.due = Some(now + SEND_TIMEOUT);
        match answer {
            Ok(message) => self.succeed(stream, message, out),
            Err(status) => self.fail(&stream, &status, out),
        }
        self.note_spare_memory(now);
    }

    /// Sends the next message of a stream of messages. `waiting` is kept for the one after it; without it the stream
    /// ends. Does nothing if the stream has ended meanwhile.
    pub fn push(
        &mut self,
        id: u32,
        message: Option<&[u8]>,
        waiting: Option<S::Waiting>,
        now: Instant,
        out: &mut Vec<u8>,
    ) {
        if !self.streams.get(id).is_some_and(|stream| matches!(stream.state, State::Sending(Then::More(_)))) {
            return;
        }
        let Some(mut stream) = self.remove(id) else { return };
        if let Some(message) = message {
            frame_message(&mut stream.body, message);
        }
        if stream.body.len() - stream.sent > UNSENT_BYTES_MAX {
            return self.reset(id, ErrorCode::EnhanceYourCalm, out);
        }
        stream.due = waiting.is_none().then_some(now + LAST_TIMEOUT);
        self.send(stream, waiting.map_or(Then::Trailers, Then::More), out);
    }

    /// Sends a complete answer, if the client knows the headers and the windows allow it: then its stream has ended.
    #[inline]
    pub(super) fn succeed_at_once(&mut self, stream: &Stream<S>, message: &[u8], out: &mut Vec<u8>) -> bool {
        let length = PREFIX_BYTES + message.len();
        let Some((head, trailers)) = self.encoder.indexed() else { return false };
        if self.windows.allowed(stream.send_window, length) < length {
            return false;
        }
        self.abuse.answered();
        self.windows.send -= length as i64;
        write_answer(out, stream.id, head, message, trailers);
        true
    }

    pub(super) fn succeed(&mut self, mut stream: Stream<S>, message: &[u8], out: &mut Vec<u8>) {
        if self.succeed_at_once(&stream, message, out) {
            return;
        }
        self.abuse.answered();
        frames::headers(out, stream.id, 0, |out| self.encoder.grpc(out));
        frame_message(&mut stream.body, message);
        self.send(stream, Then::Trailers, out);
    }

    /// Sends the first of a stream of messages, which has no timeout.
    pub(super) fn begin_stream(
        &mut self,
        mut stream: Stream<S>,
        message: &[u8],
        waiting: S::Waiting,
        out: &mut Vec<u8>,
    ) {
        self.abuse.answered();
        frames::headers(out, stream.id, 0, |out| self.encoder.grpc(out));
        frame_message(&mut stream.body, message);
        stream.due = None;
        self.send(stream, Then::More(waiting), out);
    }

    pub(super) fn fail(&mut self, stream: &Stream<S>, status: &Status, out: &mut Vec<u8>) {
        self.abuse.answered();
        frames::headers(out, stream.id, flag::END_STREAM, |out| {
            self.encoder.grpc(out);
            self.encoder.grpc_error(out, status.code, &message_of(status));
        });
    }

    /// Answers an incomplete request, and asks the client to send no more of it.
    pub(super) fn answer_early(&mut self, id: u32, status: &Status, out: &mut Vec<u8>) {
        if let Some(stream) = self.remove(id) {
            self.fail(&stream, status, out);
            self.stop(id, ErrorCode::NoError, out);
        }
    }

    /// Answers with an HTTP error status.
    pub(super) fn reject(&mut self, mut stream: Stream<S>, status: u16, with_text: bool, out: &mut Vec<u8>) {
        let text = match status {
            405 => ONLY_POST,
            415 => ONLY_GRPC,
            _ => "too many bytes of headers\n",
        };
        let length = text.len().to_string();
        let mut fields = vec![("content-type", "text/plain; charset=utf-8"), ("content-length", &length)];
        if status == 405 {
            fields.push(("allow", "POST"));
        }
        let flags = if with_text { 0 } else { flag::END_STREAM };
        frames::headers(out, stream.id, flags, |out| self.encoder.http_error(out, status, &fields));
        if with_text {
            stream.body.extend_from_slice(text.as_bytes());
            self.send(stream, Then::Nothing, out);
        }
    }

    /// Resets a stream, which raises the abuse score.
    pub(super) fn reset(&mut self, id: u32, code: ErrorCode, out: &mut Vec<u8>) {
        self.abuse.add(abuse::RESET);
        self.stop(id, code, out);
    }

    /// Closes a stream with a RST_STREAM. Frames in flight for it are ignored.
    pub(super) fn stop(&mut self, id: u32, code: ErrorCode, out: &mut Vec<u8>) {
        self.counts.reset_by_server += 1;
        self.remove(id);
        self.streams.ignore(id);
        frames::reset(out, id, code);
    }

    fn send(&mut self, mut stream: Stream<S>, then: Then<S::Waiting>, out: &mut Vec<u8>) {
        let id = stream.id;
        stream.state = State::Sending(then);
        self.streams.insert(stream);
        self.pump(id, out);
    }

    /// Sends as much of a stream's answer as the windows allow, and what follows it once all of it is sent.
    pub(super) fn pump(&mut self, id: u32, out: &mut Vec<u8>) {
        let Self { streams, windows, encoder, .. } = self;
        let Some(stream) = streams.get(id) else { return };
        let State::Sending(then) = &stream.state else { return };
        while stream.sent < stream.body.len() {
            let unsent = &stream.body[stream.sent..];
            let length = windows.allowed(stream.send_window, unsent.len());
            if length == 0 {
                if windows.send <= 0 && !stream.queued {
                    stream.queued = true;
                    self.wait_for_window(id);
                }
                return;
            }
            let is_last = length == unsent.len() && matches!(then, Then::Nothing);
            let flags = if is_last { flag::END_STREAM } else { 0 };
            frames::data(out, id, flags, &unsent[..length]);
            stream.sent += length;
            stream.send_window -= length as i64;
            windows.send -= length as i64;
        }
        match then {
            Then::Nothing => {}
            Then::Trailers => trailers(encoder, id, out),
            Then::Dialog(dialog) if dialog.is_ended => trailers(encoder, id, out),
            Then::More(_) | Then::Dialog(_) => {
                stream.body.clear();
                stream.sent = 0;
                return;
            }
        }
        self.remove(id);
    }
}

/// The message of a status as a header's value, cut to its bound.
pub(super) fn message_of(status: &Status) -> String {
    let text = &status.message;
    let end = text.char_indices().nth(TEXT_CHARS_MAX).map_or(text.len(), |(end, _)| end);
    percent_encoded(&text[..end])
}

/// Sends the trailers of a successful call.
pub(super) fn trailers(encoder: &mut Encoder, id: u32, out: &mut Vec<u8>) {
    frames::headers(out, id, flag::END_STREAM, |out| {
        encoder.begin(out);
        encoder.grpc_ok(out);
    });
}

/// Appends a message with its prefix to a body.
pub(super) fn frame_message(body: &mut Vec<u8>, message: &[u8]) {
    let length = u32::try_from(message.len()).expect("an answer has a few bytes a descriptor");
    body.reserve(PREFIX_BYTES + message.len());
    body.push(0);
    body.extend_from_slice(&length.to_be_bytes());
    body.extend_from_slice(message);
}

/// Appends a complete answer at once. Most of the bytes that this server sends are written here.
#[inline]
fn write_answer(out: &mut Vec<u8>, stream: u32, head: [u8; 2], message: &[u8], trailers: u8) {
    const HEADERS_END: u8 = flag::END_HEADERS | flag::END_STREAM;
    let [a, b, c, d] = stream.to_be_bytes();
    let data = PREFIX_BYTES + message.len();
    debug_assert!(data <= PAYLOAD_MAX, "it is within what one frame may carry");
    let [_, e, f, g] = (data as u32).to_be_bytes();
    let [h, i, j, k] = (message.len() as u32).to_be_bytes();
    let [status, content_type] = head;
    out.reserve(34 + 10 + message.len());
    out.extend_from_slice(&[
        0,
        0,
        2,
        kind::HEADERS,
        flag::END_HEADERS,
        a,
        b,
        c,
        d,
        status,
        content_type, //
        e,
        f,
        g,
        kind::DATA,
        0,
        a,
        b,
        c,
        d,
        0,
        h,
        i,
        j,
        k,
    ]);
    out.extend_from_slice(message);
    out.extend_from_slice(&[0, 0, 1, kind::HEADERS, HEADERS_END, a, b, c, d, trailers]);
}
