//! Answers that come later.

use super::*;

fn too_late() -> Status {
    Status { code: 4, message: "too late".into() }
}

#[test]
fn late_answers_come_in_any_order_and_a_reset_cancels_them() {
    let mut peer = Peer::new(5);
    for stream in [1, 3, 5] {
        assert_eq!(peer.send(&call(stream, b"later")), []);
    }
    assert_eq!(ended(&peer.send(&call(7, b"now"))), [7]);
    assert_eq!(peer.server.awaited(), [1, 3, 5]);
    assert_eq!(peer.send(&frame(kind::RST_STREAM, 0, 3, &[0; 4])), []);
    assert_eq!(peer.server.awaited(), [1, 5]);
    assert_eq!(ended(&peer.complete(5, Ok(b"five"))), [5]);
    assert_eq!(peer.complete(3, Ok(b"three")), []);
    assert_eq!(peer.complete(5, Ok(b"again")), []);
    let [refusal] = &peer.complete(1, Err(too_late()))[..] else { panic!("one frame") };
    assert!(has(refusal, "too late") && refusal.flags & END != 0);
    assert!(peer.server.awaited().is_empty());
    let counts = Counts { streams: 4, reset_by_client: 1, reset_by_server: 0 };
    assert_eq!(peer.connection.take_counts(), counts);
}

#[test]
fn an_answer_times_out_when_its_caller_does() {
    let mut peer = Peer::new(5);
    let soon = frame(kind::HEADERS, WHOLE, 1, &call_block(&[("grpc-timeout", "20m")]));
    peer.send(&[soon, frame(kind::DATA, END, 1, &message(b"later")), call(3, b"later")].concat());
    assert_eq!(peer.wait(Duration::from_millis(19)), []);
    assert_eq!(ended(&peer.wait(Duration::from_millis(1))), [1]);
    assert_eq!((&peer.server.timed_out[..], peer.server.awaited()), (&[TimedOut::Unanswered][..], vec![3]));
    // Without a `grpc-timeout`, it times out too.
    assert_eq!(ended(&peer.wait(Duration::from_secs(60))), [3]);
}

#[test]
fn a_stream_of_messages_goes_on_until_the_last() {
    let mut peer = Peer::new(5);
    let [_, first] = &peer.send(&call(1, b"stream"))[..] else { panic!("two frames") };
    assert_eq!(first.payload, message(b"first"));
    peer.wait(Duration::from_secs(50));
    let next = peer.server.wait(1);
    peer.connection.push(1, Some(b"second"), Some(next), peer.now, &mut peer.out);
    let [second] = &peer.received()[..] else { panic!("one frame") };
    assert_eq!((second.flags, &second.payload[..]), (0, &message(b"second")[..]));
    assert_eq!(peer.server.awaited(), [1]);
    peer.connection.push(1, Some(b"last"), None, peer.now, &mut peer.out);
    assert_eq!(ended(&peer.received()), [1]);
    assert!(peer.server.awaited().is_empty());
    peer.connection.push(1, Some(b"more"), None, peer.now, &mut peer.out);
    assert_eq!(peer.received(), []);
}

#[test]
fn unread_messages_of_a_stream_are_bounded() {
    let mut peer = Peer::silent(5);
    let no_window = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    peer.send(&[&PREFACE[..], &no_window, &call(1, b"stream")].concat());
    let gone = (0..1_000).find(|_| {
        let next = peer.server.wait(1);
        peer.connection.push(1, Some(b"again and again"), Some(next), peer.now, &mut peer.out);
        !resets(&peer.received()).is_empty()
    });
    assert!(gone.is_some_and(|count| count < 100), "{gone:?}");
    assert!(peer.server.awaited().is_empty());
}

#[test]
fn the_end_of_a_stream_of_messages_waits_5_s_for_its_window() {
    let no_window = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let watched = || {
        let mut peer = Peer::silent(5);
        peer.send(&[&PREFACE[..], &no_window, &call(1, b"stream")].concat());
        peer.wait(Duration::from_secs(50));
        peer.connection.push(1, None, None, peer.now, &mut peer.out);
        peer.connection.drain(peer.now, &mut peer.out);
        peer.send(&frame(kind::PING, flag::ACK, 0, b"go away!"));
        assert!(peer.server.awaited().is_empty() && !peer.connection.is_over());
        peer
    };
    let mut peer = watched();
    assert_eq!(peer.wait(Duration::from_millis(4_999)), []);
    assert_eq!(resets(&peer.wait(Duration::from_millis(1))), [(1, ErrorCode::Cancel as u8)]);
    assert!(peer.connection.is_over());
    let mut peer = watched();
    peer.wait(Duration::from_millis(4_999));
    assert_eq!(ended(&peer.send(&frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 100]))), [1]);
    assert!(peer.connection.is_over());
}
