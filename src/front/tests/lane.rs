//! The lane against hyper: both get the same bytes, whole and in pieces, good and damaged. Both have to answer calls
//! the same way. Where the RFC leaves a choice, [`ALLOWED`] lists what they choose differently.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::{RULES, metrics, service};
use crate::front::connections::GrpcServer;
use crate::front::grpc::SHOULD_RATE_LIMIT;
use crate::front::proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::front::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use crate::front::proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use crate::front::{DrainSwitch, Handler, Life};
use tidegate_grpc::frames::{HEAD_BYTES, Head, PREFACE, flag, kind};
use tidegate_grpc::hpack::text::TextDecoder;
use tidegate_serve::health::Health;
use tidegate_serve::refusal::Bounds;

const END: u8 = flag::END_STREAM;
const WHOLE: u8 = flag::END_HEADERS;

/// What one stream received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Answer {
    /// `:status`, `grpc-status` and `grpc-message`, from headers or trailers.
    statuses: BTreeMap<String, String>,
    data: Vec<u8>,
    is_whole: bool,
    reset: Option<u8>,
}

/// What a connection received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Received {
    streams: BTreeMap<u32, Answer>,
    goaway: Option<u8>,
    is_closed: bool,
    pings: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Lane,
    Hyper,
}

/// How a client sends its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// One right behind the other.
    Pipelined,
    /// It waits for the answers to each part.
    InStep,
}

/// What a fresh server answers to these parts.
async fn ask(server: Server, parts: &[&[u8]], pace: Pace) -> Received {
    let metrics = metrics();
    let handler = Arc::new(Handler::new(service(Some(RULES), &metrics).into(), metrics, Bounds::default()));
    let health = Arc::new(Health::starting());
    health.serve();
    let switch = DrainSwitch::new();
    let life = Life::until(switch.drain());
    let (mut client, stream) = tokio::io::duplex(1 << 20);
    // As the program does.
    let serving = match server {
        Server::Lane => GrpcServer::lane(handler, health),
        Server::Hyper => GrpcServer::tonic(handler, health),
    }
    .serve(stream, life);
    let asking = async {
        let (mut out, mut is_closed) = (Vec::new(), false);
        for part in parts {
            if client.write_all(part).await.is_err() {
                break;
            }
            match pace {
                Pace::Pipelined => tokio::task::yield_now().await,
                Pace::InStep => is_closed = receive(&mut client, &mut out).await,
            }
        }
        is_closed |= receive(&mut client, &mut out).await;
        Received { is_closed, ..received(&out) }
    };
    tokio::select! {
        received = asking => received,
        never = async { serving.await; std::future::pending().await } => never,
    }
}

/// Reads until the server sends nothing more. Returns whether it has closed the connection.
async fn receive(client: &mut DuplexStream, out: &mut Vec<u8>) -> bool {
    // The paused clock advances only when no task has work.
    let quiet = Duration::from_millis(100);
    loop {
        match tokio::time::timeout(quiet, client.read_buf(out)).await {
            Err(_) => return false,
            Ok(read) if !matches!(read, Ok(1..)) => return true,
            Ok(_) => {}
        }
    }
}

fn received(mut bytes: &[u8]) -> Received {
    let mut received = Received::default();
    let mut decoder = TextDecoder::default();
    while let Some(head) = Head::read(bytes) {
        let Some(payload) = bytes[HEAD_BYTES..].get(..head.length) else { break };
        bytes = &bytes[HEAD_BYTES + head.length..];
        match head.kind {
            kind::GOAWAY => received.goaway = Some(payload[7]),
            kind::PING if head.has(flag::ACK) => received.pings += 1,
            kind::HEADERS | kind::DATA | kind::RST_STREAM => {
                let answer = received.streams.entry(head.stream).or_default();
                assert!(!answer.is_whole || head.kind == kind::RST_STREAM, "something after the end");
                answer.take(head, payload, &mut decoder);
            }
            _ => {}
        }
    }
    received
}

impl Received {
    /// How the connection ended.
    fn end(&self) -> String {
        match self.goaway {
            Some(code) => format!("GOAWAY {code}"),
            None if self.is_closed => "closed".to_owned(),
            None => "goes on".to_owned(),
        }
    }
}

impl Answer {
    fn take(&mut self, head: Head, payload: &[u8], decoder: &mut TextDecoder) {
        match head.kind {
            kind::RST_STREAM => return self.reset = Some(payload[3]),
            kind::DATA => self.data.extend_from_slice(payload),
            _ => {
                let fields = decoder.decode(payload).expect("a server speaks HPACK");
                let is_status = |name: &str| matches!(name, ":status" | "grpc-status" | "grpc-message");
                self.statuses.extend(fields.into_iter().filter(|(name, _)| is_status(name)));
            }
        }
        self.is_whole |= head.has(END);
    }

    fn status(&self) -> &str {
        self.statuses.get("grpc-status").or(self.statuses.get(":status")).map_or("", String::as_str)
    }
}

/// A difference of one stream or of the connection: what the lane did, and what hyper did.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Difference {
    lane: String,
    hyper: String,
}

fn differences(lane: &Received, hyper: &Received) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut differ = |lane: String, hyper: String| {
        if lane != hyper {
            found.push(Difference { lane, hyper });
        }
    };
    differ(lane.end(), hyper.end());
    let are_open = [lane, hyper].iter().all(|received| received.goaway.is_none() && !received.is_closed);
    let streams = lane.streams.keys().chain(hyper.streams.keys());
    for stream in streams.collect::<BTreeSet<_>>() {
        match (lane.streams.get(stream), hyper.streams.get(stream)) {
            (Some(lane), Some(hyper)) if lane.is_whole && hyper.is_whole => {
                differ(whole(lane), whole(hyper));
            }
            // A connection that ends discards unsent answers. How many those are depends on timing.
            (lane, hyper) if are_open => differ(brief(lane), brief(hyper)),
            _ => {}
        }
    }
    if are_open {
        differ(format!("{} pings", lane.pings), format!("{} pings", hyper.pings));
    }
    found
}

/// What a stream was answered. Texts of HTTP errors are left out: the lane sends them, hyper does not.
fn whole(answer: &Answer) -> String {
    let summary = brief(Some(answer));
    if !answer.statuses.contains_key("grpc-status") {
        return summary;
    }
    let message = answer.statuses.get("grpc-message").map_or("", String::as_str);
    // When a window ends depends on timing.
    let mut decided = answer.data.get(5..).map(|data| RateLimitResponse::decode(data).unwrap_or_default());
    for status in decided.iter_mut().flat_map(|decided| &mut decided.statuses) {
        status.duration_until_reset = None;
    }
    format!("{summary} {message:?} {decided:?}")
}

/// What a stream received, in short.
fn brief(answer: Option<&Answer>) -> String {
    match answer {
        None => "nothing".to_owned(),
        Some(Answer { reset: Some(code), is_whole: false, .. }) => format!("RST_STREAM {code}"),
        Some(answer) if answer.is_whole => format!("answer {}", answer.status()),
        Some(_) => "a part".to_owned(),
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Head { length: payload.len(), kind, flags, stream }.write(&mut out);
    out.extend_from_slice(payload);
    out
}

/// A header block without an index, or (`indexed`) with each field entering the table.
fn block(fields: &[(&str, &str)], indexed: bool) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(if indexed { 0x40 } else { 0 });
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("a short text"));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// The body of a request. Each asks about another user, so that no call changes the answer to another.
fn body(user: u32) -> Vec<u8> {
    let entry = Entry { key: "user".to_owned(), value: format!("u{user}") };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request =
        RateLimitRequest { domain: "shop".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
    let message = request.encode_to_vec();
    [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat()
}

/// How a call is made.
#[derive(Clone, Copy, Debug)]
enum Style {
    Usual,
    Indexed,
    Padded,
    Trailers,
    Empty,
    Compressed,
    TwoMessages,
    Announced,
    Short,
    HealthCheck,
    NotGrpc,
    Priority,
    Watch,
    Unknown,
    Broken,
}

const STYLES: &[Style] = &[
    Style::Usual,
    Style::Usual,
    Style::Usual,
    Style::Indexed,
    Style::Padded,
    Style::Trailers,
    Style::Empty,
    Style::Compressed,
    Style::TwoMessages,
    Style::Announced,
    Style::Short,
    Style::HealthCheck,
    Style::NotGrpc,
    Style::Priority,
];

/// Calls that come with one read: some are decided, the others are answered at the same time.
const TOGETHER: &[Style] = &[
    Style::Usual,
    Style::Usual,
    Style::Usual,
    Style::HealthCheck,
    Style::Watch,
    Style::Unknown,
    Style::Compressed,
    Style::Broken,
    Style::Empty,
    Style::NotGrpc,
];

fn call(stream: u32, style: Style, cut: Index) -> Vec<u8> {
    let path = match style {
        Style::HealthCheck => "/grpc.health.v1.Health/Check",
        Style::Watch => "/grpc.health.v1.Health/Watch",
        Style::Unknown => "/no.Such/Method",
        _ => SHOULD_RATE_LIMIT,
    };
    let mut fields = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "limiter"),
        ("te", "trailers"),
        ("content-type", if matches!(style, Style::NotGrpc) { "text/plain" } else { "application/grpc" }),
    ];
    let body = match style {
        Style::Empty => Vec::new(),
        Style::HealthCheck | Style::Watch | Style::Unknown => vec![0; 5],
        Style::Broken => b"\0\0\0\0\x02\xff\xff".to_vec(),
        Style::Compressed => [&[1], &body(stream)[1..]].concat(),
        Style::TwoMessages => body(stream).repeat(2),
        Style::Short => body(stream)[..9].to_vec(),
        _ => body(stream),
    };
    let length = body.len().to_string();
    if matches!(style, Style::Announced) {
        fields.push(("content-length", &length));
    }
    let block = block(&fields, matches!(style, Style::Indexed));
    let (cut_block, cut_body) = (cut.index(block.len()), cut.index(body.len() + 1));
    let data = |flags, part: &[u8]| frame(kind::DATA, flags, stream, part);
    let whole_head = frame(kind::HEADERS, WHOLE, stream, &block);
    match style {
        Style::Padded => {
            let padded = |bytes: &[u8]| [&[3], bytes, &[0; 3]].concat();
            [
                frame(kind::HEADERS, WHOLE | flag::PADDED, stream, &padded(&block)),
                data(END | flag::PADDED, &padded(&body)),
            ]
            .concat()
        }
        Style::Priority => {
            let block = [&[0, 0, 0, 0, 9], &block[..]].concat();
            [frame(kind::HEADERS, WHOLE | flag::PRIORITY, stream, &block), data(END, &body)].concat()
        }
        Style::Trailers => {
            let trailers = super::lane::block(&[("x-trailer", "y")], false);
            [whole_head, data(0, &body), frame(kind::HEADERS, WHOLE | END, stream, &trailers)].concat()
        }
        Style::Indexed => [
            frame(kind::HEADERS, 0, stream, &block[..cut_block]),
            frame(kind::CONTINUATION, WHOLE, stream, &block[cut_block..]),
            data(0, &body[..cut_body]),
            data(END, &body[cut_body..]),
        ]
        .concat(),
        _ => [whole_head, data(END, &body)].concat(),
    }
}

/// A frame that a client sends between its calls.
fn extra() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(frame(kind::PING, 0, 0, b"are you?")),
        (1..70_000_u32).prop_map(|bytes| frame(kind::WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes())),
        Just(frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
        Just(frame(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0])),
        Just(frame(kind::PRIORITY, 0, 101, &[0, 0, 0, 1, 5])),
        Just(frame(0x42, 7, 0, b"an extension")),
    ]
}

/// What a client sends, in separate parts.
#[derive(Clone)]
struct Sent(Vec<Vec<u8>>);

impl std::fmt::Debug for Sent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|part| part.escape_ascii().to_string())).finish()
    }
}

/// A good client: its calls, in the order of their streams.
fn client() -> impl Strategy<Value = Sent> {
    vec((select(STYLES), any::<Index>(), proptest::option::weighted(0.5, extra())), 1..12).prop_map(|sent| {
        let mut frames = vec![PREFACE.to_vec(), frame(kind::SETTINGS, 0, 0, &[])];
        for (number, (style, cut, extra)) in sent.into_iter().enumerate() {
            frames.push(call(2 * number as u32 + 1, style, cut));
            frames.extend(extra);
        }
        Sent(frames)
    })
}

/// The differences for these bytes, which arrive in pieces of at most `piece` bytes.
fn compare(bytes: &[u8], piece: usize) -> Vec<Difference> {
    let [lane, hyper] = both(&bytes.chunks(piece).collect::<Vec<_>>(), Pace::Pipelined);
    differences(&lane, &hyper)
}

/// What the lane and hyper answer to the same parts, on a paused clock.
fn both(parts: &[&[u8]], pace: Pace) -> [Received; 2] {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    [Server::Lane, Server::Hyper].map(|server| runtime.block_on(ask(server, parts, pace)))
}

/// Uses the same seed every time, so that the list below stays true.
fn runner(cases: u32) -> TestRunner {
    use proptest::test_runner::{RngAlgorithm, TestRng};
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn good_clients_are_answered_alike_however_their_bytes_are_cut() {
    let pieces = prop_oneof![Just(1_usize), 2..40_usize, Just(1 << 20)];
    let outcome = runner(150).run(&(client(), pieces), |(sent, piece)| {
        prop_assert_eq!(compare(&sent.0.concat(), piece), []);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_read_with_calls_of_every_kind_is_answered() {
    let reads = vec(vec((select(TOGETHER), any::<Index>()), 1..5), 1..8);
    let outcome = runner(150).run(&reads, |reads| {
        let mut streams = (1..).step_by(2);
        let greeting = [PREFACE.to_vec(), frame(kind::SETTINGS, 0, 0, &[])].concat();
        let mut parts = vec![greeting];
        parts.extend(reads.iter().map(|calls| {
            let calls = calls.iter().zip(&mut streams);
            calls.flat_map(|((style, cut), stream)| call(stream, *style, *cut)).collect()
        }));
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let [lane, hyper] = both(&parts, Pace::InStep);
        let mut differences = differences(&lane, &hyper);
        differences.retain(|difference| !difference.lane.contains("there is no such method"));
        prop_assert_eq!(differences, []);
        prop_assert_eq!(lane.streams.len(), reads.iter().map(Vec::len).sum::<usize>());
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// What the two do differently with a client that breaks the protocol: what the lane does, what hyper does, and why the
/// lane is right too.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("GOAWAY 5", "GOAWAY 1", "HEADERS for a stream that has ended: the code is that of RFC 9113, 5.1"),
    ("GOAWAY 6", "GOAWAY 1", "a frame of a wrong size: the code is that of 4.2"),
    ("GOAWAY 9", "GOAWAY 1", "a header block that is no HPACK: the code is that of 4.3"),
    ("goes on", "GOAWAY 1", "a field that is malformed is a matter of its stream: 8.1.1"),
    (
        "answer ",
        "RST_STREAM 1",
        "a scheme or an authority that is no part of a URI: neither is asked for here",
    ),
    ("nothing", "answer 415", "what is no call is answered when all of it is there"),
    ("answer 415", "answer ", "a call of health or of nothing that says it is no gRPC"),
    ("answer 12 \"there is no such method\"", "answer 12 \"\"", "a text"),
    ("answer 8 \"request is larger", "answer 11 ", "a question about health that is too long"),
];

#[test]
fn damaged_bytes_are_treated_alike_but_for_the_list() {
    let damage = vec((any::<Index>(), any::<u8>()), 1..4);
    let pieces = prop_oneof![2..40_usize, Just(1 << 20)];
    let seen = RefCell::new(BTreeMap::new());
    let outcome = runner(1_000).run(&(client(), damage, pieces), |(sent, damage, piece)| {
        let mut bytes = sent.0.concat();
        for (place, byte) in damage {
            let place = PREFACE.len() + place.index(bytes.len() - PREFACE.len());
            bytes[place] = byte;
        }
        for difference in compare(&bytes, piece) {
            seen.borrow_mut().entry(difference).or_insert_with(|| bytes.escape_ascii().to_string());
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.into_inner();
    let allows = |difference: &Difference, (lane, hyper, _): &(&str, &str, &str)| {
        difference.lane.starts_with(lane) && difference.hyper.starts_with(hyper)
    };
    for (difference, bytes) in &seen {
        assert!(ALLOWED.iter().any(|allowed| allows(difference, allowed)), "{difference:?}: {bytes}");
    }
    for allowed in ALLOWED {
        assert!(
            seen.keys().any(|difference| allows(difference, allowed)),
            "{allowed:?} is no difference any more"
        );
    }
}
