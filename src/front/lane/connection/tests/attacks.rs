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
        goaway(&peer.say(&[begun, frame(kind::RST_STREAM, 0, stream, &[0; 4])].concat())) == calm
    });
    assert!(gone.is_some_and(|number| number < 10_001), "{gone:?}");
    assert_eq!(peer.connection.ended().map(|ended| ended.code), Some(ErrorCode::EnhanceYourCalm));
    // A header block without an end.
    let mut peer = Peer::new(5);
    peer.say(&frame(kind::HEADERS, 0, 1, &[]));
    assert!((0..17).any(|_| goaway(&peer.say(&frame(kind::CONTINUATION, 0, 1, &[]))) == calm));
    let mut peer = Peer::new(5);
    peer.say(&frame(kind::HEADERS, 0, 1, &[0; 16_384]));
    assert_eq!(goaway(&peer.say(&frame(kind::CONTINUATION, 0, 1, &[0]))), calm);
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
        peer.say(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[])));
        let heard = peer.say(&frame(kind, 0, stream, payload).repeat(count));
        assert_eq!(goaway(&heard), calm, "{kind}");
    }
}

#[test]
fn a_client_that_also_asks_may_cancel_and_ping_as_it_likes() {
    let mut peer = Peer::new(5);
    for number in 0..50_000 {
        let stream = 4 * number + 1;
        let cancelled = [
            frame(kind::HEADERS, WHOLE, stream, &call_block(&[])),
            frame(kind::RST_STREAM, 0, stream, &[0; 4]),
        ];
        let all = [cancelled.concat(), frame(kind::PING, 0, 0, &[0; 8]), call(stream + 2, b"x")].concat();
        assert_eq!(goaway(&peer.say(&all)), None, "{number}");
        if number % 1_000 == 0 {
            peer.say(&frame(kind::WINDOW_UPDATE, 0, 0, &10_000_u32.to_be_bytes()));
        }
        peer.out.clear();
        peer.read = 0;
    }
}

#[test]
fn whoever_breaks_the_protocol_is_told_how_and_left() {
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
        peer.say(&opened);
        assert_eq!(goaway(&peer.say(&bytes)), error(code), "{bytes:?}");
        assert!(peer.connection.is_over());
        assert!(peer.connection.ended().is_some_and(|ended| ended.why.is_some()));
        assert_eq!(peer.say(&call(5, b"x")), [], "it is left");
    }
}

#[test]
fn what_concerns_one_stream_ends_one_stream() {
    for (bytes, code) in [
        (frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4]), ErrorCode::ProtocolError),
        (frame(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]), ErrorCode::FlowControlError),
        (frame(kind::HEADERS, WHOLE, 1, &block(&[])), ErrorCode::ProtocolError),
        (frame(kind::HEADERS, WHOLE | END, 1, &block(&[(":path", "/")])), ErrorCode::ProtocolError),
    ] {
        let mut peer = Peer::new(5);
        peer.say(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[])));
        assert_eq!(resets(&peer.say(&bytes)), [(1, code as u8)], "{bytes:?}");
        assert_eq!(ended(&peer.say(&call(3, b"x"))), [3]);
    }
    let mut peer = Peer::new(5);
    peer.say(&call(1, b"x"));
    assert_eq!(resets(&peer.say(&frame(kind::DATA, 0, 1, &[]))), [(1, ErrorCode::StreamClosed as u8)]);
    let heard = peer.say(&frame(
        kind::HEADERS,
        WHOLE | flag::PRIORITY,
        3,
        &[&[0, 0, 0, 3, 0][..], &call_block(&[])].concat(),
    ));
    assert_eq!(resets(&heard), [(3, ErrorCode::ProtocolError as u8)]);
    let mut peer = Peer::new(5);
    peer.say(&call(1, b"later"));
    assert_eq!(resets(&peer.say(&frame(kind::DATA, 0, 1, &[]))), [(1, ErrorCode::StreamClosed as u8)]);
    assert!(peer.server.awaited().is_empty());
}

#[test]
fn a_greeting_that_is_none_or_never_ends() {
    for said in [&b"GET / HTTP/1.1\r\n"[..], b"PRI * HTTP/2.1"] {
        assert_eq!(goaway(&Peer::silent(5).say(said)), Some(ErrorCode::ProtocolError as u8));
    }
    let settings_ack = frame(kind::SETTINGS, flag::ACK, 0, &[]);
    for said in [settings_ack, frame(kind::PING, 0, 0, &[0; 8])] {
        let heard = Peer::silent(5).say(&[&PREFACE[..], &said].concat());
        assert_eq!(goaway(&heard), Some(ErrorCode::ProtocolError as u8));
    }
    for length in 0..start().len() {
        let mut peer = Peer::silent(5);
        assert_eq!(peer.say(&start()[..length]), []);
        assert_eq!(peer.wait(READ_TIMEOUT - Duration::from_millis(1)), []);
        assert!(goaway(&peer.wait(Duration::from_millis(1))).is_some(), "{length}");
    }
}

#[test]
fn whoever_stops_in_the_middle_is_not_waited_for() {
    let almost = READ_TIMEOUT - Duration::from_millis(1);
    // In a frame; each byte that comes does not make it longer.
    let mut peer = Peer::new(5);
    peer.say(&frame(kind::PING, 0, 0, &[0; 8])[..10]);
    peer.wait(Duration::from_secs(5));
    peer.say(&[0]);
    peer.wait(Duration::from_secs(4));
    assert_eq!(goaway(&peer.wait(Duration::from_secs(1))), Some(ErrorCode::ProtocolError as u8));
    // In a header block.
    let mut peer = Peer::new(5);
    peer.say(&frame(kind::HEADERS, 0, 1, &call_block(&[])));
    assert_eq!(peer.wait(almost), []);
    assert_eq!(goaway(&peer.wait(Duration::from_millis(1))), Some(ErrorCode::ProtocolError as u8));
    // In a request: the connection goes on.
    let mut peer = Peer::new(5);
    peer.say(&frame(kind::HEADERS, WHOLE, 1, &call_block(&[])));
    peer.say(&frame(kind::DATA, 0, 1, &message(b"x")));
    assert_eq!(peer.wait(almost), []);
    let heard = peer.wait(Duration::from_millis(1));
    assert_eq!((ended(&heard), resets(&heard)), (vec![1], vec![(1, 0)]));
    assert_eq!(peer.server.late, [false]);
    assert_eq!(ended(&peer.say(&call(3, b"x"))), [3]);
    // In a request that was wanted sooner.
    peer.say(&frame(kind::HEADERS, WHOLE, 5, &call_block(&[("grpc-timeout", "20m")])));
    assert_eq!(peer.wait(Duration::from_millis(19)), []);
    assert_eq!(ended(&peer.wait(Duration::from_millis(1))), [5]);
}

#[test]
fn a_peer_that_is_silent_is_asked_whether_it_is_there() {
    let mut peer = Peer::new(5);
    assert_eq!(peer.wait(KEEP_ALIVE_INTERVAL - Duration::from_millis(1)), []);
    let [ping] = &peer.wait(Duration::from_millis(1))[..] else { panic!("a ping") };
    assert_eq!((ping.kind, ping.flags), (kind::PING, 0));
    peer.wait(KEEP_ALIVE_TIMEOUT - Duration::from_millis(1));
    peer.say(&frame(kind::PING, flag::ACK, 0, &ping.payload));
    assert!(!peer.connection.is_over());
    assert_eq!(peer.wait(KEEP_ALIVE_INTERVAL).len(), 1);
    assert_eq!(goaway(&peer.wait(KEEP_ALIVE_TIMEOUT)), Some(ErrorCode::NoError as u8));
    assert!(peer.connection.is_over());
    assert_eq!(peer.connection.ended().and_then(|ended| ended.why), None);
}
