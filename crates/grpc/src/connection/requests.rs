//! Receives requests: new streams, their header blocks and their bodies, until a request is complete.

use std::borrow::Cow;
use std::time::Instant;

use super::ready::Reading;
use super::streams::{Request, State, Stream, Then};
use super::windows::STREAM_WINDOW;
use super::{
    Connection, ErrorCode, Fatal, Head, STREAMS_MAX, Serve, Status, TOO_MUCH_UNFINISHED, TimedOut, Turn,
    U31_MAX, UNFINISHED_BYTES_MAX, abuse, fatal, flag, frames,
};
use crate::hpack::{DecodeError, LIST_BYTES_MAX, Method, RequestHead, Route};
use crate::status::code::RESOURCE_EXHAUSTED;

/// Encoded bytes of one header block.
const BLOCK_BYTES_MAX: usize = 16 * 1_024;
/// CONTINUATION frames of one header block.
const CONTINUATIONS_MAX: u32 = 16;
/// A smaller part of a body counts as a useless frame, unless it is the last: it makes more work than it brings.
const PART_BYTES_MIN: usize = 64;

/// An incomplete header block.
#[derive(Debug)]
pub struct Block {
    opening: Opening,
    pub(super) began: Instant,
    continuations: u32,
    bytes: Vec<u8>,
}

/// The contents of the HEADERS frame of a header block.
#[derive(Clone, Copy, Debug)]
struct Opening {
    stream: u32,
    /// END_STREAM: nothing follows the block.
    is_end: bool,
    /// Its priority is invalid: the stream depends on itself.
    depends_on_itself: bool,
}

impl<S: Serve> Connection<S> {
    #[inline]
    pub(super) fn on_headers<'i>(
        &mut self,
        head: Head,
        payload: &'i [u8],
        reading: &mut Reading<'_, 'i, S>,
    ) -> Result<(), Fatal> {
        let stream = head.stream;
        if stream & 1 == 0 {
            return fatal(ErrorCode::ProtocolError, "a client's streams have odd numbers");
        }
        let mut opening = Opening { stream, is_end: head.has(flag::END_STREAM), depends_on_itself: false };
        let mut block = without_padding(head, payload)?;
        if head.has(flag::PRIORITY) {
            let Some((priority, rest)) = block.split_at_checked(5) else {
                return fatal(ErrorCode::FrameSizeError, "HEADERS are too short for their priority");
            };
            opening.depends_on_itself = frames::first_u32(priority) & U31_MAX == stream;
            block = rest;
        }
        if head.has(flag::END_HEADERS) {
            return self.on_block(opening, block, reading);
        }
        let bytes = block.to_vec();
        self.block = Some(Block { opening, began: reading.now, continuations: 0, bytes });
        Ok(())
    }

    pub(super) fn on_continuation<'i>(
        &mut self,
        head: Head,
        payload: &'i [u8],
        reading: &mut Reading<'_, 'i, S>,
    ) -> Result<(), Fatal> {
        let Some(mut block) = self.block.take().filter(|block| block.opening.stream == head.stream) else {
            return fatal(ErrorCode::ProtocolError, "a CONTINUATION continues nothing");
        };
        block.continuations += 1;
        if block.bytes.len() + payload.len() > BLOCK_BYTES_MAX || block.continuations > CONTINUATIONS_MAX {
            return fatal(ErrorCode::EnhanceYourCalm, "a header block has no end");
        }
        block.bytes.extend_from_slice(payload);
        if head.has(flag::END_HEADERS) {
            return self.on_block(block.opening, &block.bytes, reading);
        }
        self.block = Some(block);
        Ok(())
    }

    #[inline]
    fn on_block(
        &mut self,
        opening: Opening,
        block: &[u8],
        reading: &mut Reading<'_, '_, S>,
    ) -> Result<(), Fatal> {
        let head = match self.decoder.decode(block) {
            Ok(head) => head,
            Err(DecodeError::Malformed) => {
                return fatal(ErrorCode::CompressionError, "a header block is not valid HPACK");
            }
            Err(DecodeError::TooLarge) => {
                return fatal(ErrorCode::EnhanceYourCalm, "headers are far too large");
            }
        };
        if opening.stream > self.streams.last() {
            self.begin(opening, &head, reading);
            return Ok(());
        }
        self.on_trailers(opening, &head, reading)
    }

    #[inline]
    fn begin(&mut self, opening: Opening, head: &RequestHead, reading: &mut Reading<'_, '_, S>) {
        let id = opening.stream;
        self.streams.begin(id);
        self.counts.streams += 1;
        if self.refuses_new_streams() || self.streams.len() + reading.ready() >= STREAMS_MAX {
            return self.refuse(id, ErrorCode::RefusedStream, reading);
        }
        let content_length = head.content_length();
        if !head.is_request()
            || opening.depends_on_itself
            || opening.is_end && content_length.is_some_and(|length| length > 0)
        {
            return self.refuse(id, ErrorCode::ProtocolError, reading);
        }
        let request = request_of(head);
        let note = match request {
            Request::Call(route) if self.takes_notes => reading.serve.note(route, self.decoder.kept()),
            _ => None,
        };
        let deadline = head.timeout.and_then(|timeout| reading.now.checked_add(timeout));
        let stream = Stream {
            id,
            request,
            state: State::Receiving,
            note,
            deadline,
            due: Some(deadline.map_or(reading.read_due, |deadline| deadline.min(reading.read_due))),
            receive_window: STREAM_WINDOW,
            send_window: self.windows.initial_send,
            body_left: content_length,
            body: Vec::new(),
            sent: 0,
            queued: false,
        };
        if let Request::Call(Route::Dialog(_)) = request {
            return self.begin_dialog(stream, opening.is_end, reading);
        }
        if opening.is_end {
            return self.request_complete(stream, Cow::Borrowed(&[]), reading);
        }
        self.streams.insert_newest(stream);
        if request == Request::Call(Route::Unknown) {
            self.answer_unknown_route(id, reading);
        }
    }

    /// Answers a call of an unknown method before its body arrives, because the body may be an endless stream of
    /// messages.
    fn answer_unknown_route(&mut self, id: u32, reading: &mut Reading<'_, '_, S>) {
        self.answer_ready(reading);
        if let Err(status) = reading.serve.check_partial(Route::Unknown, &[], &mut None) {
            self.answer_early(id, &status, reading.out);
        }
    }

    /// Resets a new stream without serving it.
    fn refuse(&mut self, id: u32, code: ErrorCode, reading: &mut Reading<'_, '_, S>) {
        self.answer_ready(reading);
        self.reset(id, code, reading.out);
    }

    /// A header block on a stream that has begun: trailers, or frames that were in flight when we closed it.
    fn on_trailers(
        &mut self,
        opening: Opening,
        head: &RequestHead,
        reading: &mut Reading<'_, '_, S>,
    ) -> Result<(), Fatal> {
        let id = opening.stream;
        let Some(stream) = self.streams.get(id) else {
            self.abuse.add_unread(head.size);
            return match self.streams.is_ignored(id) {
                true => Ok(()),
                false => fatal(ErrorCode::StreamClosed, "HEADERS are for a stream that has ended"),
            };
        };
        if !stream.is_receiving() {
            self.reset(id, ErrorCode::StreamClosed, reading.out);
        } else if !opening.is_end || !head.is_trailers() || !stream.is_whole() {
            self.reset(id, ErrorCode::ProtocolError, reading.out);
        } else if stream.is_dialog() {
            self.dialog_data(id, &[], true, reading);
        } else if let Some(mut stream) = self.remove(id) {
            let body = std::mem::take(&mut stream.body);
            self.request_complete(stream, Cow::Owned(body), reading);
        }
        Ok(())
    }

    #[inline]
    pub(super) fn on_data<'i>(
        &mut self,
        head: Head,
        payload: &'i [u8],
        reading: &mut Reading<'_, 'i, S>,
    ) -> Result<(), Fatal> {
        let id = head.stream;
        if self.streams.is_idle(id) {
            return fatal(ErrorCode::ProtocolError, "DATA are for a stream that has not begun");
        }
        self.windows.count_received(payload.len(), reading.out)?;
        let data = without_padding(head, payload)?;
        let is_end = head.has(flag::END_STREAM);
        match self.count_data(id, payload.len(), data.len(), is_end) {
            Err(code) => self.reset(id, code, reading.out),
            Ok(Body::OfDialog) => self.dialog_data(id, data, is_end, reading),
            Ok(Body::OfRequest) if is_end => self.end_body(id, data, reading),
            Ok(Body::OfRequest) => self.partial_body(id, data, reading),
        }
        Ok(())
    }

    /// Counts the bytes of a DATA frame. The error is a stream error. A frame that is ignored has no stream, and no
    /// error.
    #[inline]
    fn count_data(&mut self, id: u32, payload: usize, data: usize, is_end: bool) -> Result<Body, ErrorCode> {
        let Some(stream) = self.streams.get(id) else {
            self.abuse.add_unread(payload);
            return if self.streams.is_ignored(id) {
                Ok(Body::OfRequest)
            } else {
                Err(ErrorCode::StreamClosed)
            };
        };
        match stream.request {
            Request::Call(_) if is_end || data >= PART_BYTES_MIN => {}
            Request::Call(_) => self.abuse.add(abuse::FRAME),
            Request::Rejected { .. } => self.abuse.add_unread(payload),
        }
        if !stream.is_receiving() {
            return Err(ErrorCode::StreamClosed);
        }
        if stream.count_received(payload).is_none() {
            return Err(ErrorCode::FlowControlError);
        }
        if stream.count_body(data).is_none() || is_end && !stream.is_whole() {
            return Err(ErrorCode::ProtocolError);
        }
        Ok(if stream.is_dialog() { Body::OfDialog } else { Body::OfRequest })
    }

    /// The last part of a body. Usually it is all of it, and is not copied.
    #[inline]
    fn end_body<'i>(&mut self, id: u32, data: &'i [u8], reading: &mut Reading<'_, 'i, S>) {
        let Some(mut stream) = self.remove(id) else { return };
        if stream.body.is_empty() {
            return self.request_complete(stream, Cow::Borrowed(data), reading);
        }
        let mut body = std::mem::take(&mut stream.body);
        body.extend_from_slice(data);
        self.request_complete(stream, Cow::Owned(body), reading);
    }

    /// A part of a body that is not the last.
    fn partial_body(&mut self, id: u32, data: &[u8], reading: &mut Reading<'_, '_, S>) {
        let Some(stream) = self.streams.get(id) else { return };
        stream.replenish(reading.out);
        let Request::Call(route) = stream.request else { return };
        let refusal = if self.windows.unfinished + data.len() > UNFINISHED_BYTES_MAX {
            Err(Status { code: RESOURCE_EXHAUSTED, message: TOO_MUCH_UNFINISHED.into() })
        } else {
            stream.body.extend_from_slice(data);
            self.windows.unfinished += data.len();
            reading.serve.check_partial(route, &stream.body, &mut stream.note)
        };
        if let Err(status) = refusal {
            self.answer_early(id, &status, reading.out);
        }
    }

    /// Answers or resets each stream that is due.
    pub(super) fn expire(&mut self, turn: &mut Turn<'_, S>) {
        for id in self.streams.overdue(turn.now) {
            let Some(stream) = self.streams.get(id) else { continue };
            match (&stream.state, stream.request) {
                (State::Receiving, Request::Call(route)) => {
                    let note = stream.note.take();
                    let status = turn.serve.timed_out(route, TimedOut::Incomplete, note);
                    self.answer_early(id, &status, turn.out);
                }
                (State::Waiting(_), Request::Call(route)) => {
                    let status = turn.serve.timed_out(route, TimedOut::Unanswered, None);
                    self.complete(id, Err(status), turn.now, turn.out);
                }
                _ => self.reset(id, ErrorCode::Cancel, turn.out),
            }
        }
    }

    /// Removes a stream, and no longer counts its incomplete body.
    #[inline]
    pub(super) fn remove(&mut self, id: u32) -> Option<Stream<S>> {
        let stream = self.streams.remove(id)?;
        if matches!(stream.state, State::Receiving) {
            self.windows.unfinished -= stream.body.len();
        }
        Some(stream)
    }
}

impl<S: Serve> Stream<S> {
    /// Counts bytes of the body. `None`: they are more than was announced.
    #[inline]
    fn count_body(&mut self, bytes: usize) -> Option<()> {
        if let Some(left) = &mut self.body_left {
            *left = left.checked_sub(bytes as u64)?;
        }
        Some(())
    }

    /// Whether the body has all bytes that were announced.
    #[inline]
    fn is_whole(&self) -> bool {
        self.body_left.is_none_or(|left| left == 0)
    }

    /// Whether the client may still send something.
    #[inline]
    fn is_receiving(&self) -> bool {
        match &self.state {
            State::Receiving => true,
            State::Sending(Then::Dialog(dialog)) => !dialog.is_ended,
            State::Waiting(_) | State::Sending(_) => false,
        }
    }

    /// Whether it is a dialog.
    #[inline]
    pub(super) fn is_dialog(&self) -> bool {
        matches!(self.state, State::Sending(Then::Dialog(_)))
    }
}

/// The state of the stream of a DATA frame.
#[derive(Clone, Copy, Debug)]
enum Body {
    OfRequest,
    OfDialog,
}

/// What a well-formed request asks for.
fn request_of(head: &RequestHead) -> Request {
    let page = |status| Request::Rejected { status, with_text: head.method != Method::Head };
    match head.method {
        _ if head.size > LIST_BYTES_MAX => page(431),
        Method::Post if head.is_grpc => Request::Call(head.route),
        Method::Post => page(415),
        Method::Head | Method::Other => page(405),
    }
}

/// The payload of a frame without its padding.
#[inline]
fn without_padding(head: Head, payload: &[u8]) -> Result<&[u8], Fatal> {
    if !head.has(flag::PADDED) {
        return Ok(payload);
    }
    let Some((&padding, rest)) = payload.split_first() else {
        return fatal(ErrorCode::FrameSizeError, "a frame is too short for its padding");
    };
    match rest.len().checked_sub(padding.into()) {
        Some(length) => Ok(&rest[..length]),
        None => fatal(ErrorCode::ProtocolError, "a frame has more padding than it is long"),
    }
}
