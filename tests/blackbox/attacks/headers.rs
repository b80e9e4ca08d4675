//! Header blocks that are small on the wire and large when they are decoded, or large both ways.

use crate::harness::h2::{
    Attacker, END_HEADERS, END_STREAM, HEADER_TABLE_SIZE, PREFACE, call_body, call_head, field, frame, kind,
    settings, streams,
};
use crate::harness::siege::{MIB, Siege, attack, question};

const FRAME_BYTES_MAX: usize = 16 * 1024;

/// A call whose head goes on with these fields, in as many frames as it needs.
fn head(stream: u32, flags: u8, more: &[u8]) -> Vec<u8> {
    let block = [&call_head(), more].concat();
    let pieces: Vec<_> = block.chunks(FRAME_BYTES_MAX).collect();
    let last = pieces.len() - 1;
    let piece = |(at, piece): (usize, &&[u8])| {
        let kind = if at == 0 { kind::HEADERS } else { kind::CONTINUATION };
        let first = if at == 0 { flags } else { 0 };
        frame(kind, first | if at == last { END_HEADERS } else { 0 }, stream, piece)
    };
    pieces.iter().enumerate().flat_map(piece).collect()
}

/// 300 such calls on one connection. The server may refuse each of them, or the connection.
fn are_refused(siege: &Siege, more: &[u8]) {
    let mut attacker = Attacker::greeted(siege.grpc_port());
    let calls = 300;
    for stream in streams().take(calls) {
        if !attacker.send(&head(stream, END_STREAM, more)) {
            break;
        }
    }
    let over = |refused: u64, closed: bool| closed || refused == calls as u64;
    attacker
        .hears("the refusals", |heard| over(heard.ended + heard.resets.iter().sum::<u64>(), heard.closed));
}

/// One field of 4,000 bytes enters the dynamic table; each byte that follows stands for all of it. Decoded, that is
/// 64 MB a call.
#[test]
fn a_table_that_is_asked_for_again_and_again() {
    attack(8 * MIB, |siege| {
        let more = [field(0x40, "x-bomb", &"x".repeat(4_000)), vec![0xbe; 16_000]].concat();
        are_refused(siege, &more);
    });
}

#[test]
fn fields_by_the_thousand() {
    attack(8 * MIB, |siege| {
        // `accept-encoding: gzip, deflate`, of the static table: a byte each.
        are_refused(siege, &[0x90; 60_000]);
        let tiny: Vec<u8> = (0..5_000).flat_map(|at| field(0, &format!("x{at}"), "")).collect();
        are_refused(siege, &tiny);
    });
}

#[test]
fn a_list_over_its_bound() {
    attack(8 * MIB, |siege| {
        are_refused(siege, &field(0, "x-large", &"x".repeat(17_000)));
        are_refused(siege, &field(0, "x-large", &"x".repeat(70_000)));
    });
}

/// As much as may be, in as many calls as may be, of which none comes to its end.
#[test]
fn lists_within_their_bound_that_are_left() {
    attack(24 * MIB, |siege| {
        let mut attacker = Attacker::greeted(siege.grpc_port());
        let more = field(0, "x-large", &"x".repeat(15_000));
        let calls = siege.front.calls_at_a_time();
        for stream in streams().take(calls) {
            assert!(attacker.send(&head(stream, 0, &more)));
        }
        siege.client_is_served();
        for stream in streams().take(calls) {
            assert!(attacker.send(&frame(kind::DATA, END_STREAM, stream, &call_body(&question()))));
        }
        let heard = attacker.hears("all answers", |heard| heard.ended == calls as u64);
        assert_eq!(heard.frames(kind::DATA), calls as u64, "{heard:?}");
    });
}

#[test]
fn a_table_beyond_what_was_agreed() {
    attack(4 * MIB, |siege| {
        // An update of the table's size to 2^28, before the first field.
        let update = [0x3f, 0xe1, 0xff, 0xff, 0x7f];
        let mut attacker = Attacker::greeted(siege.grpc_port());
        let block = [&update[..], &call_head()].concat();
        attacker.send(&frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &block));
        attacker.is_closed();
    });
}

/// A client may offer a table of 4 GiB for what the server says; the server need not fill it.
#[test]
fn a_table_that_the_server_is_offered() {
    attack(16 * MIB, |siege| {
        let mut attacker = Attacker::connect(siege.grpc_port());
        attacker.send(&[PREFACE, &settings(&[(HEADER_TABLE_SIZE, u32::MAX)])].concat());
        for (stream, at) in streams().zip(1..=10_000) {
            let path = field(0, ":path", &format!("/unknown/{at}"));
            let block = [&[0x83, 0x86][..], &path, &field(0, "content-type", "application/grpc")].concat();
            assert!(attacker.send(&frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &block)));
            if at % 250 == 0 {
                attacker.hears("their answers", |heard| heard.ended == at);
            }
        }
    });
}
