//! The connection as a peer sees it: frames in, frames out, on a virtual clock.

mod attacks;
mod dialogs;
mod ending;
mod late;
mod notes;
mod random;
mod soak;
mod windows;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::*;
use crate::fixture::{CALL, SERVED};
use tidegate_engine::clock;

/// A frame as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// A call that the server got: its stream, its message, and how long its caller waits.
type Seen = (u32, Vec<u8>, Option<Instant>);

/// Answers `answer_bytes` bytes to each call, or what its message asks for.
#[derive(Debug, Default)]
struct Server {
    answer_bytes: usize,
    calls: Vec<Seen>,
    /// Pending answers, by stream; each is dropped when it is no longer needed.
    waiting: BTreeMap<u32, std::rc::Weak<()>>,
    timed_out: Vec<TimedOut>,
    /// The notes of calls that were answered, and of those that were refused before.
    notes: Vec<Option<String>>,
}

impl Serve for Server {
    type Waiting = std::rc::Rc<()>;
    type Note = String;

    fn note(&mut self, route: Route, headers: &KeptHeaders) -> Option<String> {
        assert_ne!(route, Route::Dialog(1), "there is one");
        headers.get("x-kept").map(|text| String::from_utf8_lossy(text).into_owned())
    }

    fn check_partial(&mut self, route: Route, body: &[u8], note: &mut Option<String>) -> Result<(), Status> {
        if route == Route::Unknown {
            return Err(Status { code: 12, message: "unknown".into() });
        }
        if body.first() != Some(&1) {
            return Ok(());
        }
        self.notes.push(note.take());
        Err(Status { code: 12, message: "compressed".into() })
    }

    /// Answers with the message twice, and `fail` with an error.
    fn converse(&mut self, route: Route, message: &[u8]) -> Result<Vec<u8>, Status> {
        assert_eq!(route, Route::Dialog(0));
        match message {
            b"fail" => Err(Status { code: 3, message: "50%".into() }),
            b"long" => Ok(vec![b'l'; 50_000]),
            _ => Ok(message.repeat(2)),
        }
    }

    fn answer_batch(
        &mut self,
        calls: &mut [Call<'_, String>],
        mut answer: impl FnMut(usize, Outcome<'_, Self::Waiting>),
    ) {
        for (place, call) in calls.iter_mut().enumerate() {
            self.notes.push(call.note.take());
            let message = call.body.get(5..).unwrap_or_default();
            self.calls.push((call.stream, message.to_vec(), call.deadline));
            let reply = vec![b'r'; self.answer_bytes];
            let outcome = match message {
                b"later" => Outcome::Later(self.wait(call.stream)),
                b"stream" => Outcome::Stream(Bytes::from_static(b"first"), self.wait(call.stream)),
                b"refuse" => Outcome::Refused,
                b"fail" => Outcome::Now(Err(Status { code: 3, message: "50% \u{e9}".into() })),
                _ => Outcome::Now(Ok(&reply)),
            };
            answer(place, outcome);
        }
    }

    fn timed_out(&mut self, _: Route, when: TimedOut, note: Option<String>) -> Status {
        self.timed_out.push(when);
        self.notes.push(note);
        Status { code: 4, message: "late".into() }
    }
}

impl Server {
    fn wait(&mut self, stream: u32) -> std::rc::Rc<()> {
        let waiting = std::rc::Rc::new(());
        self.waiting.insert(stream, std::rc::Rc::downgrade(&waiting));
        waiting
    }

    /// Streams whose answer is pending.
    fn awaited(&self) -> Vec<u32> {
        self.waiting.iter().filter(|(_, waiting)| waiting.strong_count() > 0).map(|(id, _)| *id).collect()
    }
}

/// A connection and its peer.
struct Peer {
    connection: Connection<Server>,
    server: Server,
    now: Instant,
    rest: Vec<u8>,
    /// Everything that the server has sent.
    out: Vec<u8>,
    read: usize,
}

impl Peer {
    /// A peer that has sent nothing yet.
    fn silent(answer_bytes: usize) -> Self {
        let now = clock::monotonic();
        let mut out = Vec::new();
        let connection = Connection::new(now, &SERVED, &mut out);
        let server = Server { answer_bytes, ..Server::default() };
        Self { connection, server, now, rest: Vec::new(), read: out.len(), out }
    }

    /// A peer that has sent the preface and its SETTINGS.
    fn new(answer_bytes: usize) -> Self {
        let mut peer = Self::silent(answer_bytes);
        assert_eq!(peer.send(&start()), [Frame { kind: 4, flags: 1, stream: 0, payload: vec![] }]);
        peer
    }

    /// Sends these bytes; returns the server's frames.
    fn send(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.rest.extend_from_slice(bytes);
        self.receive();
        while Head::begins_whole_frame(&self.rest) && !self.connection.is_over() {
            self.receive();
        }
        self.received()
    }

    /// Passes the unprocessed bytes to the connection, once.
    fn receive(&mut self) {
        let mut turn = Turn { now: self.now, serve: &mut self.server, out: &mut self.out };
        let used = self.connection.receive(&self.rest, &mut turn);
        self.rest.drain(..used);
    }

    /// Lets time pass, with a tick at each deadline; returns the server's frames.
    fn wait(&mut self, time: Duration) -> Vec<Frame> {
        let end = self.now + time;
        let mut turns = 0;
        while self.connection.deadline() <= end && !self.connection.is_over() {
            self.now = self.now.max(self.connection.deadline());
            self.tick();
            turns += 1;
            assert!(turns < 100, "a deadline comes again and again");
        }
        self.now = end;
        self.received()
    }

    fn tick(&mut self) {
        self.connection.tick(&mut Turn { now: self.now, serve: &mut self.server, out: &mut self.out });
    }

    fn complete(&mut self, stream: u32, answer: Result<&'static [u8], Status>) -> Vec<Frame> {
        self.connection.complete(stream, answer, self.now, &mut self.out);
        self.received()
    }

    /// The frames that the server has sent since the last call.
    fn received(&mut self) -> Vec<Frame> {
        let received = parse(&self.out[self.read..]);
        self.read = self.out.len();
        received
    }
}

/// Complete frames.
fn parse(mut bytes: &[u8]) -> Vec<Frame> {
    let mut found = Vec::new();
    while let Some(head) = Head::read(bytes) {
        let (payload, rest) = bytes[HEAD_BYTES..].split_at(head.length);
        let Head { kind, flags, stream, .. } = head;
        found.push(Frame { kind, flags, stream, payload: payload.to_vec() });
        bytes = rest;
    }
    assert!(bytes.is_empty(), "half a frame");
    found
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Head { length: payload.len(), kind, flags, stream }.write(&mut out);
    out.extend_from_slice(payload);
    out
}

fn start() -> Vec<u8> {
    [&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[])].concat()
}

/// A header block without any index of a dynamic table.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127);
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

fn call_block(more: &[(&str, &str)]) -> Vec<u8> {
    let call =
        [(":method", "POST"), (":scheme", "http"), (":path", CALL), ("content-type", "application/grpc")];
    block(&[&call[..], more].concat())
}

fn message(text: &[u8]) -> Vec<u8> {
    [&[0], &(text.len() as u32).to_be_bytes()[..], text].concat()
}

const END: u8 = flag::END_STREAM;
const WHOLE: u8 = flag::END_HEADERS;

fn call(stream: u32, text: &[u8]) -> Vec<u8> {
    [frame(kind::HEADERS, WHOLE, stream, &call_block(&[])), frame(kind::DATA, END, stream, &message(text))]
        .concat()
}

/// The code of the GOAWAY among these frames.
fn goaway(frames: &[Frame]) -> Option<u8> {
    frames.iter().find(|frame| frame.kind == kind::GOAWAY).map(|frame| frame.payload[7])
}

/// Each stream that was reset, and the code.
fn resets(frames: &[Frame]) -> Vec<(u32, u8)> {
    let reset = |frame: &&Frame| frame.kind == kind::RST_STREAM;
    frames.iter().filter(reset).map(|frame| (frame.stream, frame.payload[3])).collect()
}

/// Streams that were answered to their end, in that order.
fn ended(frames: &[Frame]) -> Vec<u32> {
    let ends = |frame: &&Frame| frame.kind <= kind::HEADERS && frame.flags & END != 0;
    frames.iter().filter(ends).map(|frame| frame.stream).collect()
}

fn has(frame: &Frame, text: &str) -> bool {
    frame.payload.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn the_first_answer_and_the_second() {
    let mut peer = Peer::new(3);
    let [head, data, trailers] = &peer.send(&call(1, b"hello"))[..] else { panic!("three frames") };
    assert_eq!((head.kind, head.flags, has(head, "application/grpc")), (kind::HEADERS, WHOLE, true));
    assert_eq!((data.kind, data.flags, &data.payload[..]), (kind::DATA, 0, &b"\0\0\0\0\x03rrr"[..]));
    assert_eq!((trailers.flags, &trailers.payload[..]), (WHOLE | END, &b"\x40\x0bgrpc-status\x010"[..]));
    let [head, data, trailers] = &peer.send(&call(3, b"hello"))[..] else { panic!("three frames") };
    assert_eq!((&head.payload[..], &trailers.payload[..]), (&[0x88, 0xbf][..], &[0xbe][..]));
    assert_eq!((head.stream, data.stream, trailers.stream), (3, 3, 3));
    assert_eq!(data.payload, b"\0\0\0\0\x03rrr");
    assert_eq!(peer.server.calls[1], (3, b"hello".to_vec(), None));
    assert_eq!(peer.connection.take_counts(), Counts { streams: 2, reset_by_client: 0, reset_by_server: 0 });
}

#[test]
fn a_call_that_fails_says_why_percent_encoded() {
    let mut peer = Peer::new(3);
    let [answer] = &peer.send(&call(1, b"fail"))[..] else { panic!("one frame") };
    assert_eq!(answer.flags, WHOLE | END);
    assert!(has(answer, "\x0bgrpc-status\x013") && has(answer, "50%25 %C3%A9"), "{answer:?}");
}

#[test]
fn a_request_that_is_no_grpc_call_gets_an_http_error() {
    let request = |fields: &[(&str, &str)]| {
        let mut peer = Peer::new(3);
        peer.send(&frame(kind::HEADERS, WHOLE | END, 1, &block(fields)))
    };
    let fields = |method, content_type| {
        [(":method", method), (":scheme", "http"), (":path", CALL), ("content-type", content_type)]
    };
    let [head, text] = &request(&fields("GET", "application/grpc"))[..] else { panic!("two frames") };
    assert!(has(head, "405") && has(head, "allow") && text.flags == END);
    assert!(has(&request(&fields("POST", "application/json"))[0], "415"));
    let [head] = &request(&fields("HEAD", ""))[..] else { panic!("one frame") };
    assert_eq!(head.flags, WHOLE | END);
    let long = "x".repeat(120);
    let mut many = fields("POST", "application/grpc").to_vec();
    many.extend(std::iter::repeat_n(("x", &long[..]), 110));
    assert!(has(&request(&many)[0], "431"));
}

#[test]
fn a_caller_s_timeout_shrinks_while_its_message_is_on_its_way() {
    let mut peer = Peer::new(3);
    peer.send(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[("grpc-timeout", "500m")])));
    peer.wait(Duration::from_millis(200));
    peer.send(&frame(kind::DATA, END, 1, &message(b"x")));
    assert_eq!(peer.server.calls, [(1, b"x".to_vec(), Some(peer.now + Duration::from_millis(300)))]);
}

#[test]
fn trailers_end_a_request_and_content_length_is_checked() {
    let mut peer = Peer::new(3);
    peer.send(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[("content-length", "6")])));
    assert_eq!(peer.send(&frame(kind::DATA, 0, 1, &message(b"x"))), []);
    assert_eq!(ended(&peer.send(&frame(kind::HEADERS, WHOLE | END, 1, &block(&[("x", "y")])))), [1]);
    for (length, end) in [("5", 0), ("7", END)] {
        let mut peer = Peer::new(3);
        peer.send(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[("content-length", length)])));
        assert_eq!(resets(&peer.send(&frame(kind::DATA, end, 1, &message(b"x")))), [(1, 1)], "{length}");
    }
    assert_eq!(peer.server.calls.len(), 1);
}

#[test]
fn a_refused_stream_may_be_sent_again() {
    let mut peer = Peer::new(3);
    assert_eq!(resets(&peer.send(&call(1, b"refuse"))), [(1, ErrorCode::RefusedStream as u8)]);
    // One stream more than is allowed.
    let mut peer = Peer::new(3);
    for number in 0..STREAMS_MAX as u32 {
        assert_eq!(peer.send(&frame(kind::HEADERS, WHOLE, 2 * number + 1, &call_block(&[]))), []);
    }
    let last = 2 * STREAMS_MAX as u32 + 1;
    assert_eq!(resets(&peer.send(&call(last, b"x"))), [(last, ErrorCode::RefusedStream as u8)]);
    assert_eq!(ended(&peer.send(&frame(kind::DATA, END, 77, &message(b"x")))), [77]);
    assert_eq!(ended(&peer.send(&call(last + 2, b"x"))), [last + 2]);
}

#[test]
fn a_bad_request_is_answered_before_it_is_complete() {
    let mut peer = Peer::new(3);
    peer.send(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[])));
    let received = peer.send(&frame(kind::DATA, 0, 1, b"\x01\0\0"));
    assert_eq!((ended(&received), resets(&received)), (vec![1], vec![(1, ErrorCode::NoError as u8)]));
    // Frames in flight are ignored.
    assert_eq!(peer.send(&frame(kind::DATA, 0, 1, b"\0\0\0")), []);
    assert_eq!(peer.send(&frame(kind::HEADERS, WHOLE | END, 1, &block(&[]))), []);
    assert_eq!(ended(&peer.send(&call(3, b"x"))), [3]);
}

#[test]
fn a_call_of_an_unknown_method_is_answered_before_it_is_complete() {
    let mut peer = Peer::new(3);
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
        ("content-type", "application/grpc"),
    ];
    let before = call(1, b"x");
    let received = peer.send(&[before, frame(kind::HEADERS, WHOLE, 3, &block(&fields))].concat());
    assert_eq!((ended(&received), resets(&received)), (vec![1, 3], vec![(3, ErrorCode::NoError as u8)]));
    assert!(
        received.iter().any(|frame| frame.stream == 3 && has(frame, "\x0bgrpc-status\x0212")),
        "{received:?}"
    );
    // Frames in flight are ignored.
    assert_eq!(peer.send(&frame(kind::DATA, 0, 3, &message(b"x"))), []);
    assert_eq!(peer.send(&frame(kind::DATA, END, 3, &[])), []);
    assert_eq!(ended(&peer.send(&call(5, b"x"))), [5]);
}

#[test]
fn pings_come_back_and_extensions_are_ignored() {
    let mut peer = Peer::new(3);
    let pong = Frame { kind: kind::PING, flags: flag::ACK, stream: 0, payload: vec![7; 8] };
    assert_eq!(peer.send(&frame(kind::PING, 0, 0, &[7; 8])), [pong]);
    assert_eq!(peer.send(&frame(kind::PING, flag::ACK, 0, &[7; 8])), []);
    assert_eq!(peer.send(&frame(99, 0xff, 5, b"whatever")), []);
    assert_eq!(peer.send(&frame(kind::GOAWAY, 0, 0, &[0; 8])), []);
    assert_eq!(ended(&peer.send(&call(1, b"x"))), [1]);
}
