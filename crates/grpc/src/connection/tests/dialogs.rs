//! Calls of several messages.

use super::*;
use crate::connection::dialogs::DIALOG_MESSAGE_BYTES_MAX;

fn begin(stream: u32, flags: u8) -> Vec<u8> {
    let fields =
        [(":method", "POST"), (":scheme", "http"), (":path", "/talk"), ("content-type", "application/grpc")];
    frame(kind::HEADERS, WHOLE | flags, stream, &block(&fields))
}

fn say(stream: u32, flags: u8, text: &[u8]) -> Vec<u8> {
    frame(kind::DATA, flags, stream, &message(text))
}

/// The messages in these frames, all of one stream.
fn messages(frames: &[Frame]) -> Vec<Vec<u8>> {
    let data: Vec<u8> = frames
        .iter()
        .filter(|frame| frame.kind == kind::DATA)
        .flat_map(|frame| frame.payload.clone())
        .collect();
    let (mut rest, mut found) = (&data[..], Vec::new());
    while let [_, a, b, c, d, tail @ ..] = rest {
        let (message, tail) = tail.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
        found.push(message.to_vec());
        rest = tail;
    }
    found
}

#[test]
fn each_message_is_answered_before_the_client_ends_the_dialog() {
    let mut peer = Peer::new(3);
    let received = peer.send(&begin(1, 0));
    assert_eq!(received.iter().map(|frame| frame.kind).collect::<Vec<_>>(), [kind::HEADERS]);
    assert_eq!(messages(&peer.send(&say(1, 0, b"ab"))), [b"abab"]);
    // Two at once, the second in two parts; calls go on beside it.
    let two = [message(b"c"), message(b"d")].concat();
    assert_eq!(messages(&peer.send(&frame(kind::DATA, 0, 1, &two[..8]))), [b"cc"]);
    assert_eq!(ended(&peer.send(&call(3, b"x"))), [3]);
    let received = peer.send(&frame(kind::DATA, END, 1, &two[8..]));
    assert_eq!((messages(&received), ended(&received)), (vec![b"dd".to_vec()], vec![1]));
    assert_eq!(resets(&received), []);
    assert!(peer.connection.streams.is_empty());
}

#[test]
fn a_dialog_may_end_without_a_word_or_with_trailers() {
    let mut peer = Peer::new(3);
    assert_eq!(ended(&peer.send(&begin(1, END))), [1]);
    peer.send(&begin(3, 0));
    assert_eq!(ended(&peer.send(&frame(kind::DATA, END, 3, &[]))), [3]);
    peer.send(&begin(5, 0));
    let trailers = frame(kind::HEADERS, WHOLE | END, 5, &block(&[("x-trailer", "y")]));
    assert_eq!(ended(&peer.send(&trailers)), [5]);
    assert_eq!(resets(&peer.send(&say(5, 0, b"more"))), [(5, ErrorCode::StreamClosed as u8)]);
}

#[test]
fn an_error_comes_after_the_answers_before_it_and_ends_the_dialog() {
    for (said, status) in [
        (message(b"fail"), "\x0bgrpc-status\x013"),
        (b"\x01\0\0\0\x01x".to_vec(), "\x0bgrpc-status\x0212"),
        ((DIALOG_MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes().to_vec(), "\x0bgrpc-status\x018"),
    ] {
        // The last is a prefix alone.
        let said = if said.len() == 4 { [&[0], &said[..]].concat() } else { said };
        for flags in [0, END] {
            let mut peer = Peer::new(3);
            peer.send(&begin(1, 0));
            let received = peer.send(&frame(kind::DATA, flags, 1, &[message(b"a"), said.clone()].concat()));
            assert_eq!((messages(&received), ended(&received)), (vec![b"aa".to_vec()], vec![1]));
            assert!(received.iter().any(|frame| has(frame, status)), "{status}: {received:?}");
            let stopped = if flags == 0 { vec![(1, ErrorCode::NoError as u8)] } else { vec![] };
            assert_eq!(resets(&received), stopped);
            assert!(peer.connection.streams.is_empty());
        }
    }
    let mut peer = Peer::new(3);
    peer.send(&begin(1, 0));
    let received = peer.send(&frame(kind::DATA, END, 1, &message(b"half")[..6]));
    assert!(received.iter().any(|frame| has(frame, "\x0bgrpc-status\x013")), "{received:?}");
}

#[test]
fn answers_wait_for_the_window_and_a_client_that_does_not_read_is_reset() {
    let mut peer = Peer::silent(3);
    let small = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 4]);
    peer.send(&[&PREFACE[..], &small, &begin(1, 0)].concat());
    let part = |frames: &[Frame]| -> usize {
        frames.iter().filter(|frame| frame.kind == kind::DATA).map(|frame| frame.payload.len()).sum()
    };
    assert_eq!(part(&peer.send(&say(1, 0, b"ab"))), 4);
    assert_eq!(part(&peer.send(&frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 100]))), 5);
    peer.send(&[say(1, 0, b"long"), say(1, 0, b"long")].concat());
    assert_eq!(resets(&peer.send(&say(1, 0, b"a"))), [(1, ErrorCode::EnhanceYourCalm as u8)]);
}

#[test]
fn open_dialogs_are_few_and_one_that_says_nothing_ends() {
    let mut peer = Peer::new(3);
    for stream in (1..17).step_by(2) {
        assert_eq!(resets(&peer.send(&begin(stream, 0))), []);
    }
    assert_eq!(resets(&peer.send(&begin(17, 0))), [(17, ErrorCode::RefusedStream as u8)]);
    peer.wait(Duration::from_secs(30));
    peer.send(&say(1, 0, b"a"));
    // Seven at once, and the first 30 s later. The PING of keep-alive needs an answer meanwhile.
    assert_eq!(resets(&peer.wait(Duration::from_secs(30))).len(), 7);
    assert_eq!(resets(&peer.wait(Duration::from_secs(30))), [(1, ErrorCode::Cancel as u8)]);
}

#[test]
fn draining_ends_dialogs_in_order() {
    let mut peer = Peer::new(3);
    peer.send(&begin(1, 0));
    peer.send(&say(1, 0, b"a"));
    peer.connection.drain(peer.now, &mut peer.out);
    peer.received();
    let received = peer.send(&frame(kind::PING, flag::ACK, 0, &super::super::ending::DRAIN_PING));
    assert_eq!((ended(&received), resets(&received)), (vec![1], vec![(1, ErrorCode::NoError as u8)]));
    assert!(peer.connection.is_over());
}
