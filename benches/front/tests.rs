//! Tests of the load generator's pure parts: it sends and reads HTTP/2 as in the examples of the RFCs, and it counts
//! only good answers as good. A benchmark cannot have tests of its own, so these have their own target.

#![allow(dead_code, reason = "the benchmark uses what these tests do not")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "answer_head.rs"]
mod answer_head;
#[path = "client.rs"]
mod client;
#[path = "frame.rs"]
mod frame;
#[path = "hpack.rs"]
mod hpack;
#[path = "huffman.rs"]
mod huffman;
#[path = "request.rs"]
mod request;
#[path = "request_head.rs"]
mod request_head;

use std::collections::VecDeque;

use answer_head::{AnswerHead, Head};
use client::{Client, Tally};
use frame::{Frame, flag, kind};
use prost::Message;
use request::{Descriptors, Keys, Random, RequestMessage, framed};
use request_head::RequestHead;
use tidegate::proto;
use tidegate::proto::envoy::service::ratelimit::v3;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn huffman_is_that_of_rfc_7541_c_4_and_c_6() {
    let examples = [
        ("www.example.com", "f1e3 c2e5 f23a 6ba0 ab90 f4ff"),
        ("no-cache", "a8eb 1064 9cbf"),
        ("custom-value", "25a8 49e9 5bb8 e8b4 bf"),
        ("Mon, 21 Oct 2013 20:13:21 GMT", "d07a be94 1054 d444 a820 0595 040b 8166 e082 a62d 1bff"),
        (
            "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            "94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 \
             b106 3d50 07",
        ),
    ];
    for (text, coded) in examples {
        let mut out = Vec::new();
        huffman::encode(text.as_bytes(), &mut out);
        assert_eq!(out, bytes(coded), "{text}");
        assert_eq!(huffman::decode(&out).as_deref(), Some(text.as_bytes()));
    }
}

#[test]
fn huffman_brings_every_byte_back() {
    let text: Vec<u8> = (0..=255).collect();
    let mut coded = Vec::new();
    huffman::encode(&text, &mut coded);
    assert_eq!(huffman::decode(&coded), Some(text));
    assert_eq!(huffman::decode(&[0xff; 5]), None, "EOS");
}

#[test]
fn integers_are_those_of_rfc_7541_c_1() {
    for (value, bits, coded) in [(10, 5, "0a"), (1337, 5, "1f 9a 0a"), (42, 8, "2a"), (31, 5, "1f 00")] {
        let mut out = Vec::new();
        hpack::put_integer(&mut out, 0, bits, value);
        assert_eq!(out, bytes(coded));
        assert_eq!(hpack::take_integer(&mut &*out, bits), Some(value));
    }
    assert_eq!(hpack::take_integer(&mut &[0xff_u8, 0x80, 0x80, 0x80, 0x80, 0x80][..], 7), None);
}

/// The three answers of C.6, with evictions in between: their table has 256 bytes.
#[test]
fn answer_heads_are_those_of_rfc_7541_c_6() {
    let mut head = AnswerHead::new();
    let status = |status| Some(Head { status: Some(status), grpc_status: None });
    let small_table = "3f e1 01";
    let first = "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d \
                 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3";
    let third = "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d \
                 d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 \
                 3d50 07";
    assert_eq!(head.read(&[bytes(small_table), bytes(first)].concat()), status(302));
    assert_eq!(head.read(&bytes("4883 640e ffc1 c0bf")), status(307));
    assert_eq!(head.read(&bytes(third)), status(200));
}

#[test]
fn a_grpc_status_is_read_spelt_out_and_as_an_index() {
    let mut spelt_out = vec![0x40];
    hpack::put_string(&mut spelt_out, b"grpc-status");
    hpack::put_string(&mut spelt_out, b"14");
    let mut head = AnswerHead::new();
    let expected = Some(Head { status: None, grpc_status: Some(14) });
    assert_eq!(head.read(&spelt_out), expected);
    assert_eq!(head.read(&[0xbe]), expected);
    assert_eq!(head.read(&[0xbf]), None, "an index of nothing");
    assert_eq!(head.read(&spelt_out[..4]), None, "a string that does not end");
}

/// A simple decoder of what requests use, independent of the encoder: a plain list of (name, value).
#[derive(Default)]
struct NaiveDecoder {
    table: VecDeque<(String, String)>,
}

impl NaiveDecoder {
    fn field(&self, index: usize) -> (String, String) {
        match hpack::STATIC.get(index - 1) {
            Some((name, value)) => (name.to_string(), value.to_string()),
            None => self.table[index - 62].clone(),
        }
    }

    fn decode(&mut self, mut block: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let text = |block: &mut &[u8]| String::from_utf8(hpack::take_string(block).unwrap()).unwrap();
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                fields.push(self.field(hpack::take_integer(&mut block, 7).unwrap()));
                continue;
            }
            let enters = first & 0x40 != 0;
            let index = hpack::take_integer(&mut block, if enters { 6 } else { 4 }).unwrap();
            let name = if index == 0 { text(&mut block) } else { self.field(index).0 };
            let field = (name, text(&mut block));
            if enters {
                self.table.push_front(field.clone());
                let bytes = |table: &VecDeque<(String, String)>| -> usize {
                    table.iter().map(|(name, value)| name.len() + value.len() + 32).sum()
                };
                while bytes(&self.table) > 4096 {
                    self.table.pop_back();
                }
            }
            fields.push(field);
        }
        fields
    }
}

#[test]
fn every_request_head_says_the_same_whatever_the_table_holds() {
    for ids in [false, true] {
        let (mut head, mut decoder, mut random) = (RequestHead::new(ids), NaiveDecoder::default(), Random(7));
        let mut blocks = Vec::new();
        let mut seen_ids = std::collections::HashSet::new();
        for _ in 0..500 {
            let mut block = Vec::new();
            head.put(&mut || random.next(), &mut block);
            let fields = decoder.decode(&block);
            assert_eq!(fields.len(), if ids { 11 } else { 9 });
            assert_eq!(fields[0], (":method".into(), "POST".into()));
            assert_eq!(fields[1].1, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
            assert_eq!(fields[4], ("te".into(), "trailers".into()));
            assert_eq!(fields[6], ("content-type".into(), "application/grpc".into()));
            for (name, value) in &fields[9..] {
                let shape: String =
                    value.chars().map(|c| if c.is_ascii_hexdigit() { '?' } else { c }).collect();
                let expected = if name == "x-request-id" { vec![8, 4, 4, 4, 12] } else { vec![2, 32, 16, 2] };
                assert_eq!(shape.split('-').map(str::len).collect::<Vec<_>>(), expected);
                assert!(seen_ids.insert(value.clone()), "an id came twice");
            }
            blocks.push(block);
        }
        assert_eq!(blocks[1] == blocks[2], !ids, "without ids all but the path are indexes");
    }
}

#[test]
fn requests_differ_in_their_key_only_and_keys_stay_in_range() {
    let mut random = Random(3);
    let mut request = RequestMessage::new(Keys::Random(1000), Descriptors::Plain);
    let mut keys = std::collections::HashSet::new();
    for _ in 0..20_000 {
        let message = v3::RateLimitRequest::decode(&request.next(&mut random)[5..]).unwrap();
        assert_eq!((&*message.domain, message.descriptors.len()), (request::DOMAIN, 1));
        keys.insert(message.descriptors[0].entries[0].value.parse::<u64>().unwrap());
    }
    assert_eq!((keys.len(), keys.iter().max()), (1000, Some(&999)));
    let mut in_turn = RequestMessage::new(Keys::InTurn(41), Descriptors::Plain);
    assert!(in_turn.next(&mut random).ends_with(b"0000041"));
    assert!(in_turn.next(&mut random).ends_with(b"0000042"));
}

#[test]
fn a_request_of_a_gateway_has_one_client_in_all_its_descriptors() {
    let mut random = Random(3);
    let mut request = RequestMessage::new(Keys::Random(1000), Descriptors::Gateway(4));
    for _ in 0..100 {
        let message = v3::RateLimitRequest::decode(&request.next(&mut random)[5..]).unwrap();
        let clients = message.descriptors.iter().map(|descriptor| match &*descriptor.entries {
            [route, client] if route.value == request::ROUTE => (&*client.key, &*client.value),
            other => panic!("{other:?}"),
        });
        let (keys, values): (Vec<_>, std::collections::HashSet<_>) = clients.unzip();
        assert_eq!(keys, ["rule-0-match-0", "rule-1-match-0", "rule-2-match-0", "rule-3-match-0"]);
        assert_eq!(values.len(), 1);
    }
}

#[test]
fn frames_come_back_as_they_were_written() {
    let mut out = Vec::new();
    frame::put(&mut out, kind::DATA, flag::END_STREAM, 5, b"hello");
    frame::put_with(&mut out, kind::HEADERS, flag::END_HEADERS, 0x7fff_ffff, |out| {
        out.extend_from_slice(&[7; 300])
    });
    let mut rest = &*out;
    let data = Frame { kind: kind::DATA, flags: flag::END_STREAM, stream: 5, payload: b"hello" };
    assert_eq!(frame::take(&mut rest), Some(data));
    for cut in 0..rest.len() {
        assert_eq!(frame::take(&mut &rest[..cut]), None);
    }
    assert_eq!(
        frame::take(&mut rest).map(|frame| (frame.stream, frame.payload.len())),
        Some((0x7fff_ffff, 300))
    );
    assert!(rest.is_empty());
}

const HEAD_200: &[u8] = &[0x88];

fn trailers(grpc_status: &[u8]) -> Vec<u8> {
    let mut block = vec![0];
    hpack::put_string(&mut block, b"grpc-status");
    hpack::put_string(&mut block, grpc_status);
    block
}

fn answer(code: i32) -> Vec<u8> {
    let current_limit =
        Some(v3::rate_limit_response::RateLimit { requests_per_unit: 10, ..Default::default() });
    let status = v3::rate_limit_response::DescriptorStatus {
        code,
        current_limit,
        limit_remaining: 9,
        ..Default::default()
    };
    framed(&v3::RateLimitResponse { overall_code: code, statuses: vec![status], ..Default::default() })
}

/// A connection that has sent one request, at 1,000 ns.
struct Asked {
    client: Client,
    tally: Tally,
}

impl Asked {
    fn new() -> Asked {
        let mut asked = Asked { client: Client::new(true, 1), tally: Tally::new() };
        assert!(!asked.ask(), "no request before the server's SETTINGS");
        asked.hears(kind::SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]).unwrap();
        assert!(asked.ask());
        assert!(!asked.ask(), "the server allows one stream");
        asked
    }

    fn ask(&mut self) -> bool {
        self.client.ask(&mut RequestMessage::new(Keys::Random(1), Descriptors::Plain), 1000)
    }

    fn hears(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<(), String> {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, kind, flags, stream, payload);
        self.client.receive(&mut &*bytes, 2500, &mut self.tally)
    }

    fn hears_answer(&mut self, head: &[u8], message: &[u8], trailers: &[u8]) -> (u64, u64) {
        self.hears(kind::HEADERS, flag::END_HEADERS, 1, head).unwrap();
        self.hears(kind::DATA, 0, 1, message).unwrap();
        self.hears(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, trailers).unwrap();
        assert_eq!(self.client.under_way(), 0);
        (self.tally.answers, self.tally.errors)
    }
}

#[test]
fn a_good_answer_counts_with_its_latency_and_makes_room() {
    let mut asked = Asked::new();
    assert_eq!(asked.hears_answer(HEAD_200, &answer(1), &trailers(b"0")), (1, 0));
    assert_eq!((asked.tally.latency.len(), asked.tally.latency.max()), (1, 1500));
    assert!(asked.ask());
}

#[test]
fn nothing_else_counts() {
    let bad_messages: [&[u8]; 4] =
        [&answer(2), &answer(1)[..6], b"", &framed(&v3::RateLimitResponse::default())];
    for message in bad_messages {
        assert_eq!(Asked::new().hears_answer(HEAD_200, message, &trailers(b"0")), (0, 1));
    }
    assert_eq!(Asked::new().hears_answer(HEAD_200, &answer(1), &trailers(b"4")), (0, 1), "grpc-status");
    assert_eq!(Asked::new().hears_answer(&[0x8d], &answer(1), &trailers(b"0")), (0, 1), "HTTP 404");
    assert_eq!(Asked::new().hears_answer(HEAD_200, &answer(1), &[]), (0, 1), "no grpc-status");
    let unmatched = v3::rate_limit_response::DescriptorStatus { code: 1, ..Default::default() };
    let undecided =
        v3::RateLimitResponse { overall_code: 1, statuses: vec![unmatched], ..Default::default() };
    assert_eq!(Asked::new().hears_answer(HEAD_200, &framed(&undecided), &trailers(b"0")), (0, 1), "no limit");
    let half_ok = v3::RateLimitResponse { overall_code: 1, ..Default::default() };
    assert_eq!(Asked::new().hears_answer(HEAD_200, &framed(&half_ok), &trailers(b"0")), (0, 1), "no status");
}

#[test]
fn resets_and_refusals_are_errors() {
    let mut reset = Asked::new();
    reset.hears(kind::RST_STREAM, 0, 1, &7_u32.to_be_bytes()).unwrap();
    assert_eq!((reset.tally.errors, reset.client.under_way()), (1, 0));
    let mut refused = Asked::new();
    let ends = flag::END_HEADERS | flag::END_STREAM;
    refused.hears(kind::HEADERS, ends, 1, &[HEAD_200, &trailers(b"14")].concat()).unwrap();
    assert_eq!((refused.tally.answers, refused.tally.errors), (0, 1));
    assert!(Asked::new().hears(kind::GOAWAY, 0, 0, &[0; 8]).is_err());
    assert!(Asked::new().hears(kind::DATA, 0, 3, &answer(1)).is_err(), "an answer that nobody asked for");
}

#[test]
fn settings_and_pings_are_acknowledged_and_windows_heeded() {
    let mut client = Client::new(false, 1);
    let mut tally = Tally::new();
    let mut bytes = Vec::new();
    frame::put(&mut bytes, kind::SETTINGS, 0, 0, &[]);
    frame::put(&mut bytes, kind::PING, 0, 0, b"12345678");
    client.out.clear();
    client.receive(&mut &*bytes, 0, &mut tally).unwrap();
    let mut out = &*client.out;
    assert_eq!(
        frame::take(&mut out).map(|frame| (frame.kind, frame.flags)),
        Some((kind::SETTINGS, flag::ACK))
    );
    assert_eq!(frame::take(&mut out).map(|frame| (frame.kind, frame.flags)), Some((kind::PING, flag::ACK)));

    let mut request = RequestMessage::new(Keys::Random(1), Descriptors::Plain);
    // 1,024 calls under way at most; each is answered at once, so that only the window stops us
    let mut asked = 0;
    while client.ask(&mut request, 0) {
        asked += 1;
        let mut reset = Vec::new();
        frame::put(&mut reset, kind::RST_STREAM, 0, 2 * asked - 1, &[0; 4]);
        client.receive(&mut &*reset, 0, &mut tally).unwrap();
    }
    assert_eq!(asked as usize, 65_535 / request.bytes());
    let mut update = Vec::new();
    frame::put(&mut update, kind::WINDOW_UPDATE, 0, 0, &(request.bytes() as u32).to_be_bytes());
    client.receive(&mut &*update, 0, &mut tally).unwrap();
    assert!(client.ask(&mut request, 0));
    let mut reset = Vec::new();
    frame::put(&mut reset, kind::RST_STREAM, 0, 2 * asked + 1, &[0; 4]);
    client.receive(&mut &*reset, 0, &mut tally).unwrap();
}
