//! The client's end of one HTTP/2 connection, as a state machine without I/O. In: calls, and bytes from the server.
//! Out: bytes for the server, and a tally of answers.
//!
//! h2load sends the same message in every call, and so asks for one key; this client has a million.
//!
//! It prepares its bytes in advance, so a call costs it well under a microsecond and the server is what is measured.
//! Anything that a healthy server would not do (a reset, a GOAWAY, an answer in several pieces) is an error.

use hdrhistogram::Histogram;

use super::answer_head::AnswerHead;
use super::frame::{self, Frame, PAYLOAD_BYTES_MAX, WINDOW_DEFAULT, flag, kind, setting};
use super::request::{Examiner, Expected, Random, RequestMessage};
use super::request_head::RequestHead;

/// Calls that may be under way at once: a power of two, far over what servers allow.
const CALLS_MAX: usize = 1024;
/// Our receive window for the connection: the largest possible one. It is refilled when half of it is used.
const RECEIVE_WINDOW: u32 = 0x7fff_ffff;

/// Longer latencies count as this one.
const LATENCY_NANOS_MAX: u64 = 60_000_000_000;

/// What went wrong with a connection as a whole.
pub(crate) type Failure = String;

/// The results of the calls.
pub(crate) struct Tally {
    pub(crate) answers: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// In nanoseconds, from the time when the call was due until its last byte was read.
    pub(crate) latency: Histogram<u64>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        let latency = Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, 3).expect("these bounds are allowed");
        Tally { answers: 0, errors: 0, first_error: None, latency }
    }

    /// Starts over, but keeps errors.
    pub(crate) fn forget_answers(&mut self) {
        self.answers = 0;
        self.latency.reset();
    }

    pub(crate) fn error(&mut self, what: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(what);
    }
}

/// One call that is under way; none while `stream` is 0.
#[derive(Clone, Copy, Default)]
struct Call {
    stream: u32,
    due_nanos: u64,
    status_ok: bool,
    body_ok: bool,
}

/// One connection.
pub(crate) struct Client {
    /// The bytes to send.
    pub(crate) out: Vec<u8>,
    head: RequestHead,
    answer_head: AnswerHead,
    examiner: Examiner,
    random: Random,
    /// By the number of the stream, modulo the length.
    calls: Box<[Call; CALLS_MAX]>,
    under_way: usize,
    next_stream: u32,
    /// The streams that the server allows; 0 until its SETTINGS have arrived.
    calls_max: usize,
    send_window: i64,
    received_bytes: u32,
}

impl Client {
    /// `ids`: whether requests carry request ids and trace headers.
    pub(crate) fn new(ids: bool, seed: u64) -> Client {
        let mut out = frame::PREFACE.to_vec();
        frame::put(&mut out, kind::SETTINGS, 0, 0, &[]);
        let window = RECEIVE_WINDOW - WINDOW_DEFAULT as u32;
        frame::put(&mut out, kind::WINDOW_UPDATE, 0, 0, &window.to_be_bytes());
        Client {
            out,
            head: RequestHead::new(ids),
            answer_head: AnswerHead::new(),
            examiner: Examiner::default(),
            random: Random(seed),
            calls: Box::new([Call::default(); CALLS_MAX]),
            under_way: 0,
            next_stream: 1,
            calls_max: 0,
            send_window: WINDOW_DEFAULT,
            received_bytes: 0,
        }
    }

    /// Calls that wait for their answer.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether the server's SETTINGS have arrived.
    pub(crate) fn is_ready(&self) -> bool {
        self.calls_max > 0
    }

    /// Assumes that the server allows this many calls, before its SETTINGS have arrived.
    pub(crate) fn presume(&mut self, calls_max: usize) {
        self.calls_max = calls_max;
    }

    /// Sets which answers count as good.
    pub(crate) fn expect(&mut self, expected: Expected) {
        self.examiner.expected = expected;
    }

    /// How many calls the server allows at once.
    pub(crate) fn calls_max(&self) -> usize {
        self.calls_max
    }

    /// Sends a request, if the server allows one more. The latency counts from `due_nanos`.
    pub(crate) fn ask(&mut self, request: &mut RequestMessage, due_nanos: u64) -> bool {
        let stream = self.next_stream;
        let call = &mut self.calls[place(stream)];
        let message_bytes = request.bytes();
        if self.under_way >= self.calls_max || call.stream != 0 || self.send_window < message_bytes as i64 {
            return false;
        }
        *call = Call { stream, due_nanos, ..Call::default() };
        self.under_way += 1;
        self.next_stream += 2;
        self.send_window -= message_bytes as i64;
        let (head, random) = (&mut self.head, &mut self.random);
        frame::put_with(&mut self.out, kind::HEADERS, flag::END_HEADERS, stream, |out| {
            head.put(&mut || random.next(), out);
        });
        frame::put(&mut self.out, kind::DATA, flag::END_STREAM, stream, request.next(random));
        true
    }

    /// Takes all complete frames from the start of `bytes`.
    pub(crate) fn receive(
        &mut self,
        bytes: &mut &[u8],
        now_nanos: u64,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        while let Some(frame) = frame::take(bytes) {
            self.on_frame(frame, now_nanos, tally)?;
        }
        if bytes.len() > PAYLOAD_BYTES_MAX + frame::HEADER_BYTES {
            return Err("a frame that is too long".into());
        }
        Ok(())
    }

    fn on_frame(&mut self, frame: Frame<'_>, now_nanos: u64, tally: &mut Tally) -> Result<(), Failure> {
        match frame.kind {
            kind::HEADERS => self.on_headers(frame, now_nanos, tally),
            kind::DATA => self.on_data(frame, tally),
            kind::SETTINGS if !frame.has(flag::ACK) => self.on_settings(frame.payload),
            kind::PING if !frame.has(flag::ACK) => {
                frame::put(&mut self.out, kind::PING, flag::ACK, 0, frame.payload);
                Ok(())
            }
            kind::WINDOW_UPDATE if frame.stream == 0 => {
                self.send_window += i64::from(frame::number(frame.payload));
                Ok(())
            }
            kind::RST_STREAM => self.on_reset(frame, tally),
            kind::GOAWAY => {
                let code = frame.payload.get(4..).map_or(0, frame::number);
                Err(format!("GOAWAY, code {code}"))
            }
            // acknowledgements, windows of streams (a request is far smaller), extensions
            _ => Ok(()),
        }
    }

    fn on_headers(&mut self, frame: Frame<'_>, now_nanos: u64, tally: &mut Tally) -> Result<(), Failure> {
        if !frame.has(flag::END_HEADERS) || frame.has(flag::PADDED) || frame.has(flag::PRIORITY) {
            return Err("HEADERS of a shape that no server sends".into());
        }
        let head = self.answer_head.read(frame.payload).ok_or("a broken header block")?;
        let call = self.call(frame.stream)?;
        if let Some(status) = head.status {
            call.status_ok = status == 200;
        }
        if frame.has(flag::END_STREAM) {
            let call = self.finish(frame.stream)?;
            if head.grpc_status == Some(0) && call.status_ok && call.body_ok {
                tally.answers += 1;
                tally.latency.saturating_record(now_nanos.saturating_sub(call.due_nanos));
            } else {
                tally.error(|| format!("an answer that is not OK: {head:?}, message good: {}", call.body_ok));
            }
        }
        Ok(())
    }

    fn on_data(&mut self, frame: Frame<'_>, tally: &mut Tally) -> Result<(), Failure> {
        self.count_received(frame.payload.len() as u32);
        let good = !frame.has(flag::PADDED) && self.examiner.passes(frame.payload);
        let call = self.call(frame.stream)?;
        call.body_ok = good && !call.body_ok;
        if frame.has(flag::END_STREAM) {
            self.finish(frame.stream)?;
            tally.error(|| "an answer without trailers".into());
        }
        Ok(())
    }

    fn on_settings(&mut self, payload: &[u8]) -> Result<(), Failure> {
        let mut calls_max = if self.is_ready() { self.calls_max } else { CALLS_MAX };
        for parameter in payload.chunks_exact(6) {
            let value = frame::number(&parameter[2..]);
            match u16::from_be_bytes([parameter[0], parameter[1]]) {
                setting::MAX_CONCURRENT_STREAMS => calls_max = CALLS_MAX.min(value as usize),
                setting::INITIAL_WINDOW_SIZE if i64::from(value) < WINDOW_DEFAULT => {
                    return Err(format!("streams start with a window of {value} bytes"));
                }
                setting::HEADER_TABLE_SIZE if value < super::hpack::TABLE_BYTES as u32 => {
                    return Err(format!("a header table of {value} bytes"));
                }
                _ => {}
            }
        }
        self.calls_max = calls_max;
        frame::put(&mut self.out, kind::SETTINGS, flag::ACK, 0, &[]);
        Ok(())
    }

    /// A reset after the whole answer (NO_ERROR) is harmless, and the call is no longer under way.
    fn on_reset(&mut self, frame: Frame<'_>, tally: &mut Tally) -> Result<(), Failure> {
        if self.call(frame.stream).is_ok() {
            self.finish(frame.stream)?;
            tally.error(|| format!("a stream reset, code {}", frame::number(frame.payload)));
        }
        Ok(())
    }

    fn call(&mut self, stream: u32) -> Result<&mut Call, Failure> {
        let call = &mut self.calls[place(stream)];
        if call.stream == stream && stream != 0 {
            Ok(call)
        } else {
            Err("an answer that nobody asked for".into())
        }
    }

    fn finish(&mut self, stream: u32) -> Result<Call, Failure> {
        let call = std::mem::take(self.call(stream)?);
        self.under_way -= 1;
        Ok(call)
    }

    fn count_received(&mut self, bytes: u32) {
        self.received_bytes += bytes;
        if self.received_bytes > RECEIVE_WINDOW / 2 {
            frame::put(&mut self.out, kind::WINDOW_UPDATE, 0, 0, &self.received_bytes.to_be_bytes());
            self.received_bytes = 0;
        }
    }
}

fn place(stream: u32) -> usize {
    (stream >> 1) as usize % CALLS_MAX
}
