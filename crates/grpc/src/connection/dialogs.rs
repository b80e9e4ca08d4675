//! Dialogs: calls whose client sends messages one after the other, and waits for the answer to each before it ends the
//! call. Server reflection is such a call.
//!
//! In: the DATA frames of a dialog. Out: an answer for each message, at once, and the trailers when the client has ended.
//! Bounds: dialogs of a connection, bytes of a message, unsent answers, and the time without a message.

use std::time::{Duration, Instant};

use super::answers::{PREFIX_BYTES, frame_message, message_of, trailers};
use super::ready::Reading;
use super::streams::{Request, State, Stream, Then};
use super::{Connection, ErrorCode, Serve, Status, flag, frames};
use crate::status::code::{INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNIMPLEMENTED};

/// Open dialogs of a connection. People and their tools ask in dialogs; no proxy does.
const DIALOGS_MAX: usize = 8;
/// Bytes of one message of a client.
pub const DIALOG_MESSAGE_BYTES_MAX: usize = 4 * 1_024;
/// With so many unsent bytes of answers a further message resets the dialog: its client does not read.
const UNSENT_BYTES_MAX: usize = 64 * 1_024;
/// How long a client may send nothing.
const SILENCE_MAX: Duration = Duration::from_secs(60);

impl<S: Serve> Connection<S> {
    /// Begins a dialog. Its headers are sent at once.
    pub(super) fn begin_dialog(
        &mut self,
        mut stream: Stream<S>,
        is_end: bool,
        reading: &mut Reading<'_, '_, S>,
    ) {
        self.answer_ready(reading);
        let id = stream.id;
        if self.streams.iter_mut().filter(|stream| stream.is_dialog()).count() >= DIALOGS_MAX {
            return self.reset(id, ErrorCode::RefusedStream, reading.out);
        }
        frames::headers(reading.out, id, 0, |out| self.encoder.grpc(out));
        stream.state = State::Sending(Then::Dialog(Box::default()));
        stream.due = Some(due(stream.deadline, reading.now));
        self.streams.insert(stream);
        if is_end {
            self.dialog_data(id, &[], true, reading);
        }
    }

    /// Takes the next bytes of a dialog, and answers the messages that are complete.
    pub(super) fn dialog_data(
        &mut self,
        id: u32,
        data: &[u8],
        is_end: bool,
        reading: &mut Reading<'_, '_, S>,
    ) {
        let Some(stream) = self.streams.get(id) else { return };
        stream.due = Some(due(stream.deadline, reading.now));
        stream.replenish(reading.out);
        let answered = stream.hear(data, is_end, reading.serve);
        for _ in 0..answered.count {
            self.abuse.answered();
        }
        self.pump(id, reading.out);
        match answered.end {
            Ok(()) => {}
            Err(DialogError::Unread) => self.reset(id, ErrorCode::EnhanceYourCalm, reading.out),
            Err(DialogError::Status(status)) => self.fail_dialog(id, is_end, &status, reading.out),
        }
    }

    /// Ends a dialog with an error.
    fn fail_dialog(&mut self, id: u32, is_end: bool, status: &Status, out: &mut Vec<u8>) {
        if self.remove(id).is_none() {
            return;
        }
        frames::headers(out, id, flag::END_STREAM, |out| {
            self.encoder.begin(out);
            self.encoder.grpc_error(out, status.code, &message_of(status));
        });
        if !is_end {
            self.stop(id, ErrorCode::NoError, out);
        }
    }

    /// Ends each dialog whose answers are sent, so that it does not hold a connection that drains.
    pub(super) fn end_idle_dialogs(&mut self, out: &mut Vec<u8>) {
        let is_idle = |stream: &&mut Stream<S>| stream.is_dialog() && stream.body.is_empty();
        let idle: Vec<u32> = self.streams.iter_mut().filter(is_idle).map(|stream| stream.id).collect();
        for id in idle {
            trailers(&mut self.encoder, id, out);
            self.stop(id, ErrorCode::NoError, out);
        }
    }
}

/// The result of the bytes of a dialog.
struct Answered {
    /// Messages that were answered.
    count: u32,
    end: Result<(), DialogError>,
}

/// Why a dialog ends early.
enum DialogError {
    Status(Status),
    /// The client sends messages and does not read the answers.
    Unread,
}

impl<S: Serve> Stream<S> {
    /// Takes bytes of a dialog and appends the answers to the messages that are complete.
    fn hear(&mut self, data: &[u8], is_end: bool, serve: &mut S) -> Answered {
        let mut answered = Answered { count: 0, end: Ok(()) };
        let (Request::Call(route), State::Sending(Then::Dialog(dialog))) = (self.request, &mut self.state)
        else {
            return answered;
        };
        dialog.input.extend_from_slice(data);
        let mut used = 0;
        answered.end = loop {
            let message = match next_message(&dialog.input[used..]) {
                Ok(Some(message)) => message,
                Ok(None) if is_end && used < dialog.input.len() => break Err(incomplete().into()),
                Ok(None) => break Ok(()),
                Err(status) => break Err(status.into()),
            };
            if self.body.len() - self.sent > UNSENT_BYTES_MAX {
                break Err(DialogError::Unread);
            }
            match serve.converse(route, message) {
                Ok(answer) => frame_message(&mut self.body, &answer),
                Err(status) => break Err(status.into()),
            }
            used += PREFIX_BYTES + message.len();
            answered.count += 1;
        };
        dialog.input.drain(..used);
        dialog.is_ended = is_end && answered.end.is_ok();
        answered
    }
}

impl From<Status> for DialogError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// The timeout of a dialog whose client has just sent something.
fn due(deadline: Option<Instant>, now: Instant) -> Instant {
    let silent = now + SILENCE_MAX;
    deadline.map_or(silent, |deadline| deadline.min(silent))
}

/// The first message of this input, if it is complete.
fn next_message(input: &[u8]) -> Result<Option<&[u8]>, Status> {
    let length = match *input {
        [0, a, b, c, d, ..] => u32::from_be_bytes([a, b, c, d]) as usize,
        [] | [0, ..] => return Ok(None),
        _ => {
            let message = "compressed messages are not supported".into();
            return Err(Status { code: UNIMPLEMENTED, message });
        }
    };
    if length > DIALOG_MESSAGE_BYTES_MAX {
        let message =
            format!("a message of {length} bytes is too large (at most {DIALOG_MESSAGE_BYTES_MAX})");
        return Err(Status { code: RESOURCE_EXHAUSTED, message: message.into() });
    }
    Ok(input[PREFIX_BYTES..].get(..length))
}

fn incomplete() -> Status {
    Status { code: INVALID_ARGUMENT, message: "the last message is not complete".into() }
}
