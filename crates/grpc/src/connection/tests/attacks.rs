//! Peers that break the protocol, stop in the middle, or only make work.

use super::*;

#[test]
fn floods_end_the_connection() {
    let calm = Some(ErrorCode::EnhanceYourCalm as u8);
    // Streams that are begun and reset.
    let mut peer = Peer::new(5);
    let gone = (0..20_000).find(|number| {
        let stream = 2 * number + 1;
        let begun = frame(kind::HEADERS, WHOLE, stream, &call_block(&[]));
        goaway(&peer.send(&[begun, frame(kind::RST_STREAM, 0, stream, &[0; 4])].concat())) == calm
    });
    assert!(gone.is_some_and(|number| number < 10_001), "{gone:?}");
    assert_eq!(peer.connection.ended().map(|ended| ended.code), Some(ErrorCode::EnhanceYourCalm));
    // A header block without an end.
    let mut peer = Peer::new(5);
    peer.send(&frame(kind::HEADERS, 0, 1, &[]));
    assert!((0..17).any(|_| goaway(&peer.send(&frame(kind::CONTINUATION, 0, 1, &[]))) == calm));
    let mut peer = Peer::new(5);
    peer.send(&frame(kind::HEADERS, 0, 1, &[0; 16_384]));
    assert_eq!(goaway(&peer.send(&frame(kind::CONTINUATION, 0, 1, &[0]))), calm);
    for (kind, stream, count, payload) in [
        (kind::PING, 0, 10_001, &[0; 8][..]),
        (kind::SETTINGS, 0, 700, &[]),
        (kind::DATA, 1, 10_001, &[]),
        (kind::PRIORITY, 1, 10_001, &[0; 5]),
        (kind::WINDOW_UPDATE, 0, 10_001, &[0, 0, 0, 1]),
        (kind::WINDOW_UPDATE, 1, 10_001, &[0, 0, 0, 1]),
        (99, 0, 10_001, &[]),
    ] {
        let mut peer = Peer::new(5);
        peer.send(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[])));
        let received = peer.send(&frame(kind, 0, stream, payload).repeat(count));
        assert_eq!(goaway(&received), calm, "{kind}");
    }
}

/// Sends the same bytes again and again until the connection ends with `code`; returns how many were sent.
fn bytes_until(peer: &mut Peer, sent: &[u8], bytes_max: usize, code: ErrorCode) -> usize {
    let taken = (1..).map(|times| times * sent.len()).find(|&bytes| {
        assert!(bytes <= bytes_max, "{bytes} bytes");
        peer.out.clear();
        peer.read = 0;
        goaway(&peer.send(sent)) == Some(code as u8)
    });
    taken.expect("it ends or the test does")
}

#[test]
fn floods_of_useless_frames_on_a_stream_end_the_connection() {
    let opening = |fields: &[(&str, &str)], text: &[u8]| {
        let mut peer = Peer::new(5);
        peer.send(&frame(kind::HEADERS, WHOLE, 1, &block(fields)));
        peer.send(text);
        peer
    };
    let call_fields =
        [(":method", "POST"), (":scheme", "http"), (":path", CALL), ("content-type", "application/grpc")];
    let no_call = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    let update = frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]);
    let byte = frame(kind::DATA, 0, 1, b"x");
    let padded = frame(kind::DATA, flag::PADDED, 1, &[&[255][..], &[0; 255]].concat());
    let large = frame(kind::DATA, 0, 1, &[0; 16_384]);
    let watch = || opening(&call_fields, &frame(kind::DATA, END, 1, &message(b"stream")));
    let calm = ErrorCode::EnhanceYourCalm;
    bytes_until(&mut watch(), &update, 14 * 10_001, calm);
    bytes_until(&mut opening(&call_fields, &[]), &byte, 11 * 10_001, calm);
    bytes_until(&mut opening(&no_call, &[]), &byte, 11 * 10_001, calm);
    bytes_until(&mut opening(&no_call, &[]), &padded, 300 * 10_001, calm);
    bytes_until(&mut opening(&no_call, &[]), &large, 40 << 20, calm);
    // Answered before it is complete.
    let compressed = frame(kind::DATA, 0, 1, b"\x01\0\0");
    bytes_until(&mut opening(&call_fields, &compressed), &byte, 11 * 10_003, calm);
    bytes_until(&mut opening(&call_fields, &compressed), &large, 40 << 20, calm);
    // A window that opens by a byte lets a byte go out, again and again.
    let mut peer = Peer::silent(60_000);
    peer.send(&[&PREFACE[..], &frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat());
    peer.send(&call(1, b"x"));
    bytes_until(&mut peer, &update, 14 * 10_003, calm);
    bytes_until(&mut Peer::new(5), &frame(99, 0, 0, &[0; 16_384]), 40 << 20, calm);
    bytes_until(&mut Peer::new(5), &frame(kind::GOAWAY, 0, 0, &[0; 16_384]), 40 << 20, calm);
}

#[test]
fn settings_are_acknowledged_once() {
    let ack = frame(kind::SETTINGS, flag::ACK, 0, &[]);
    let mut peer = Peer::new(5);
    assert_eq!(peer.send(&ack), []);
    assert_eq!(ended(&peer.send(&call(1, b"x"))), [1]);
    assert_eq!(goaway(&peer.send(&ack)), Some(ErrorCode::ProtocolError as u8));
}

#[test]
fn a_header_block_times_out_however_many_frames_it_has() {
    let mut peer = Peer::new(5);
    peer.send(&frame(kind::HEADERS, 0, 1, &[]));
    for _ in 0..2 {
        assert_eq!(peer.wait(Duration::from_secs(4)), []);
        assert_eq!(peer.send(&frame(kind::CONTINUATION, 0, 1, &[])), []);
    }
    // Half of the next frame.
    assert_eq!(peer.wait(Duration::from_millis(1_900)), []);
    assert_eq!(peer.send(&frame(kind::CONTINUATION, 0, 1, &[0; 9])[..12]), []);
    assert_eq!(goaway(&peer.wait(Duration::from_millis(200))), Some(ErrorCode::ProtocolError as u8));
    // The next block has its own time.
    let mut peer = Peer::new(5);
    for number in 0..5 {
        let (stream, block) = (2 * number + 1, call_block(&[]));
        peer.send(&frame(kind::HEADERS, 0, stream, &block[..7]));
        assert_eq!(peer.wait(Duration::from_secs(9)), []);
        peer.send(&frame(kind::CONTINUATION, WHOLE, stream, &block[7..]));
        assert_eq!(ended(&peer.send(&frame(kind::DATA, END, stream, &message(b"x")))), [stream]);
    }
}

#[test]
fn a_value_begins_and_ends_with_no_space() {
    for (value, good) in
        [(" a", false), ("a ", false), ("\ta", false), ("a\t", false), (" ", false), ("a b", true)]
    {
        let mut peer = Peer::new(5);
        let call = [
            frame(kind::HEADERS, WHOLE, 1, &call_block(&[("x-id", value)])),
            frame(kind::DATA, END, 1, &message(b"x")),
        ];
        let received = peer.send(&call.concat());
        let reset = (1, ErrorCode::ProtocolError as u8);
        assert_eq!(
            (ended(&received).len(), resets(&received).contains(&reset)),
            (usize::from(good), !good),
            "{value:?}"
        );
        assert_eq!(ended(&peer.send(&super::call(3, b"x"))), [3]);
    }
}

#[test]
fn calls_of_unknown_methods_are_no_flood() {
    let mut peer = Peer::new(5);
    let unknown = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/no.Such/Method"),
        ("content-type", "application/grpc"),
    ];
    for number in 0..30_000 {
        let stream = 2 * number + 1;
        let call = [
            frame(kind::HEADERS, WHOLE, stream, &block(&unknown)),
            frame(kind::DATA, END, stream, &message(b"x")),
        ];
        let received = peer.send(&call.concat());
        assert_eq!((goaway(&received), ended(&received)), (None, vec![stream]));
        peer.out.clear();
        peer.read = 0;
    }
}

#[test]
fn pending_output_is_sent_before_more_is_read() {
    let mut peer = Peer::new(1_000);
    peer.send(&frame(kind::WINDOW_UPDATE, 0, 0, &1_000_000_u32.to_be_bytes()));
    let calls: Vec<u8> = (0..300).flat_map(|number| call(2 * number + 1, b"x")).collect();
    peer.rest.extend_from_slice(&calls);
    let before = peer.out.len();
    peer.receive();
    let sent = peer.out.len() - before;
    let together = 8 * 1_100;
    assert!((OUTPUT_BYTES_MAX..OUTPUT_BYTES_MAX + together).contains(&sent), "{sent}");
    // Once that is sent, the others are answered.
    assert_eq!(ended(&peer.send(&[])), (0..300).map(|number| 2 * number + 1).collect::<Vec<_>>());
}

#[test]
fn memory_is_freed_after_a_burst() {
    let mut peer = Peer::new(5);
    let streams = || (0..1_000).map(|number| 2 * number + 1);
    peer.send(&streams().flat_map(|stream| call(stream, b"later")).collect::<Vec<_>>());
    // A long name, which is decoded to be classified.
    let long = [&[0, 0x7f, 0xc1, 0x3d][..], &[b'x'; 8_000], &[1, b'y']].concat();
    let begins = frame(kind::HEADERS, WHOLE | END, 2_001, &[call_block(&[]), long].concat());
    assert_eq!(ended(&peer.send(&begins)), [2_001]);
    streams().for_each(|stream| drop(peer.complete(stream, Ok(b"x"))));
    let has_spare = |peer: &Peer| (peer.connection.streams.has_spare(), peer.connection.decoder.has_spare());
    assert_eq!(has_spare(&peer), (true, true));
    assert_eq!(peer.wait(SPARE_MEMORY_KEPT + Duration::from_secs(1)), []);
    assert_eq!(has_spare(&peer), (false, false));
    assert_eq!(ended(&peer.send(&call(2_003, b"x"))), [2_003]);
}

#[test]
fn a_client_that_takes_answers_may_cancel_and_ping_freely() {
    let mut peer = Peer::new(5);
    for number in 0..50_000 {
        let stream = 4 * number + 1;
        let cancelled = [
            frame(kind::HEADERS, WHOLE, stream, &call_block(&[])),
            frame(kind::RST_STREAM, 0, stream, &[0; 4]),
        ];
        let all = [cancelled.concat(), frame(kind::PING, 0, 0, &[0; 8]), call(stream + 2, b"x")].concat();
        assert_eq!(goaway(&peer.send(&all)), None, "{number}");
        if number % 1_000 == 0 {
            peer.send(&frame(kind::WINDOW_UPDATE, 0, 0, &10_000_u32.to_be_bytes()));
        }
        peer.out.clear();
        peer.read = 0;
    }
}

#[test]
fn a_connection_error_gets_its_goaway_code() {
    let error = |code: ErrorCode| Some(code as u8);
    let opened = frame(kind::HEADERS, WHOLE, 1, &call_block(&[]));
    for (bytes, code) in [
        (frame(kind::DATA, 0, 0, &[]), ErrorCode::ProtocolError),
        (frame(kind::DATA, 0, 3, &[]), ErrorCode::ProtocolError),
        (frame(kind::DATA, flag::PADDED, 1, &[]), ErrorCode::FrameSizeError),
        (frame(kind::DATA, flag::PADDED, 1, &[2, 0]), ErrorCode::ProtocolError),
        (frame(kind::HEADERS, WHOLE, 2, &[]), ErrorCode::ProtocolError),
        (frame(kind::HEADERS, WHOLE, 3, &[0x80]), ErrorCode::CompressionError),
        (frame(kind::HEADERS, WHOLE | flag::PRIORITY, 3, &[0; 4]), ErrorCode::FrameSizeError),
        (frame(kind::CONTINUATION, WHOLE, 1, &[]), ErrorCode::ProtocolError),
        (
            [frame(kind::HEADERS, 0, 3, &[]), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            ErrorCode::ProtocolError,
        ),
        (
            [frame(kind::HEADERS, 0, 3, &[]), frame(kind::CONTINUATION, 0, 5, &[])].concat(),
            ErrorCode::ProtocolError,
        ),
        (frame(kind::SETTINGS, 0, 1, &[]), ErrorCode::ProtocolError),
        (frame(kind::SETTINGS, 0, 0, &[0; 5]), ErrorCode::FrameSizeError),
        (frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]), ErrorCode::FrameSizeError),
        (frame(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 2]), ErrorCode::ProtocolError),
        (frame(kind::SETTINGS, 0, 0, &[0, 4, 0x80, 0, 0, 0]), ErrorCode::FlowControlError),
        (frame(kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0x3f, 0xff]), ErrorCode::ProtocolError),
        (frame(kind::PING, 0, 1, &[0; 8]), ErrorCode::ProtocolError),
        (frame(kind::PING, 0, 0, &[0; 7]), ErrorCode::FrameSizeError),
        (frame(kind::PUSH_PROMISE, WHOLE, 1, &[0; 4]), ErrorCode::ProtocolError),
        (frame(kind::RST_STREAM, 0, 3, &[0; 4]), ErrorCode::ProtocolError),
        (frame(kind::RST_STREAM, 0, 1, &[0; 3]), ErrorCode::FrameSizeError),
        (frame(kind::PRIORITY, 0, 0, &[0; 5]), ErrorCode::ProtocolError),
        (frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 3, 0]), ErrorCode::ProtocolError),
        (frame(kind::GOAWAY, 0, 1, &[0; 8]), ErrorCode::ProtocolError),
        (frame(kind::GOAWAY, 0, 0, &[0; 7]), ErrorCode::FrameSizeError),
        (frame(kind::WINDOW_UPDATE, 0, 0, &[0; 4]), ErrorCode::ProtocolError),
        (frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3]), ErrorCode::FrameSizeError),
        (frame(kind::WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1]), ErrorCode::ProtocolError),
        (frame(kind::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]), ErrorCode::FlowControlError),
        (frame(kind::PING, 0, 0, &[0; 16_385]), ErrorCode::FrameSizeError),
    ] {
        let mut peer = Peer::new(5);
        peer.send(&opened);
        assert_eq!(goaway(&peer.send(&bytes)), error(code), "{bytes:?}");
        assert!(peer.connection.is_over());
        assert!(peer.connection.ended().is_some_and(|ended| ended.why.is_some()));
        assert_eq!(peer.send(&call(5, b"x")), [], "it is left");
    }
}

#[test]
fn a_stream_error_ends_only_its_stream() {
    for (bytes, code) in [
        (frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4]), ErrorCode::ProtocolError),
        (frame(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]), ErrorCode::FlowControlError),
        (frame(kind::HEADERS, WHOLE, 1, &block(&[])), ErrorCode::ProtocolError),
        (frame(kind::HEADERS, WHOLE | END, 1, &block(&[(":path", "/")])), ErrorCode::ProtocolError),
    ] {
        let mut peer = Peer::new(5);
        peer.send(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[])));
        assert_eq!(resets(&peer.send(&bytes)), [(1, code as u8)], "{bytes:?}");
        assert_eq!(ended(&peer.send(&call(3, b"x"))), [3]);
    }
    let mut peer = Peer::new(5);
    peer.send(&call(1, b"x"));
    assert_eq!(resets(&peer.send(&frame(kind::DATA, 0, 1, &[]))), [(1, ErrorCode::StreamClosed as u8)]);
    let received = peer.send(&frame(
        kind::HEADERS,
        WHOLE | flag::PRIORITY,
        3,
        &[&[0, 0, 0, 3, 0][..], &call_block(&[])].concat(),
    ));
    assert_eq!(resets(&received), [(3, ErrorCode::ProtocolError as u8)]);
    let mut peer = Peer::new(5);
    peer.send(&call(1, b"later"));
    assert_eq!(resets(&peer.send(&frame(kind::DATA, 0, 1, &[]))), [(1, ErrorCode::StreamClosed as u8)]);
    assert!(peer.server.awaited().is_empty());
}

#[test]
fn a_bad_or_incomplete_preface_ends_the_connection() {
    for sent in [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/2.1"] {
        assert_eq!(goaway(&Peer::silent(5).send(sent)), Some(ErrorCode::ProtocolError as u8));
    }
    let settings_ack = frame(kind::SETTINGS, flag::ACK, 0, &[]);
    for sent in [settings_ack, frame(kind::PING, 0, 0, &[0; 8])] {
        let received = Peer::silent(5).send(&[&PREFACE[..], &sent].concat());
        assert_eq!(goaway(&received), Some(ErrorCode::ProtocolError as u8));
    }
    for length in 0..start().len() {
        let mut peer = Peer::silent(5);
        assert_eq!(peer.send(&start()[..length]), []);
        assert_eq!(peer.wait(READ_TIMEOUT - Duration::from_millis(1)), []);
        assert!(goaway(&peer.wait(Duration::from_millis(1))).is_some(), "{length}");
    }
}

#[test]
fn incomplete_frames_blocks_and_requests_time_out() {
    let almost = READ_TIMEOUT - Duration::from_millis(1);
    // In a frame: further bytes do not extend its time.
    let mut peer = Peer::new(5);
    peer.send(&frame(kind::PING, 0, 0, &[0; 8])[..10]);
    peer.wait(Duration::from_secs(5));
    peer.send(&[0]);
    peer.wait(Duration::from_secs(4));
    assert_eq!(goaway(&peer.wait(Duration::from_secs(1))), Some(ErrorCode::ProtocolError as u8));
    // In a header block.
    let mut peer = Peer::new(5);
    peer.send(&frame(kind::HEADERS, 0, 1, &call_block(&[])));
    assert_eq!(peer.wait(almost), []);
    assert_eq!(goaway(&peer.wait(Duration::from_millis(1))), Some(ErrorCode::ProtocolError as u8));
    // In a request: the connection goes on.
    let mut peer = Peer::new(5);
    peer.send(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[])));
    peer.send(&frame(kind::DATA, 0, 1, &message(b"x")));
    assert_eq!(peer.wait(almost), []);
    let received = peer.wait(Duration::from_millis(1));
    assert_eq!((ended(&received), resets(&received)), (vec![1], vec![(1, 0)]));
    assert_eq!(peer.server.timed_out, [TimedOut::Incomplete]);
    assert_eq!(ended(&peer.send(&call(3, b"x"))), [3]);
    // In a request with a shorter `grpc-timeout`.
    peer.send(&frame(kind::HEADERS, WHOLE, 5, &call_block(&[("grpc-timeout", "20m")])));
    assert_eq!(peer.wait(Duration::from_millis(19)), []);
    assert_eq!(ended(&peer.wait(Duration::from_millis(1))), [5]);
}

#[test]
fn a_silent_peer_gets_a_keep_alive_ping() {
    let mut peer = Peer::new(5);
    assert_eq!(peer.wait(KEEP_ALIVE_INTERVAL - Duration::from_millis(1)), []);
    let [ping] = &peer.wait(Duration::from_millis(1))[..] else { panic!("a ping") };
    assert_eq!((ping.kind, ping.flags), (kind::PING, 0));
    peer.wait(KEEP_ALIVE_TIMEOUT - Duration::from_millis(1));
    peer.send(&frame(kind::PING, flag::ACK, 0, &ping.payload));
    assert!(!peer.connection.is_over());
    assert_eq!(peer.wait(KEEP_ALIVE_INTERVAL).len(), 1);
    assert_eq!(goaway(&peer.wait(KEEP_ALIVE_TIMEOUT)), Some(ErrorCode::NoError as u8));
    assert!(peer.connection.is_over());
    assert_eq!(peer.connection.ended().and_then(|ended| ended.why), None);
}
