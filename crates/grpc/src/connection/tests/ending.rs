//! Graceful ends.

use super::super::ending::DRAIN_PING;
use super::*;

/// The last stream that a GOAWAY names.
fn last(frame: &Frame) -> u32 {
    assert_eq!(frame.kind, kind::GOAWAY);
    frames::first_u32(&frame.payload)
}

fn drain(peer: &mut Peer) -> Vec<Frame> {
    peer.connection.drain(peer.now, &mut peer.out);
    peer.received()
}

fn read(peer: &mut Peer) -> Vec<Frame> {
    peer.send(&frame(kind::PING, flag::ACK, 0, &DRAIN_PING))
}

#[test]
fn streams_begun_before_the_goaway_is_read_are_served_later_ones_refused() {
    let mut peer = Peer::new(5);
    peer.send(&call(1, b"later"));
    let [first, ping] = &drain(&mut peer)[..] else { panic!("two frames") };
    assert_eq!((last(first), goaway(std::slice::from_ref(first))), (U31_MAX, Some(0)));
    assert_eq!((ping.kind, &ping.payload[..]), (kind::PING, &DRAIN_PING[..]));
    assert_eq!(drain(&mut peer), [], "once is enough");
    // In flight before the client has read the GOAWAY.
    assert_eq!(ended(&peer.send(&call(3, b"x"))), [3]);
    peer.send(&call(5, b"later"));
    let [second] = &read(&mut peer)[..] else { panic!("one frame") };
    assert_eq!(last(second), 5);
    assert_eq!(resets(&peer.send(&call(7, b"x"))), [(7, ErrorCode::RefusedStream as u8)]);
    assert_eq!(ended(&peer.complete(1, Ok(b"one"))), [1]);
    assert!(!peer.connection.is_over());
    assert_eq!(ended(&peer.complete(5, Ok(b"five"))), [5]);
    assert!(peer.connection.is_over());
    let drained = Ended { code: ErrorCode::NoError, why: None };
    assert_eq!(peer.connection.ended(), Some(drained));
}

#[test]
fn an_idle_connection_is_over_when_the_ping_comes_back_or_times_out() {
    let mut peer = Peer::new(5);
    drain(&mut peer);
    assert!(!peer.connection.is_over());
    read(&mut peer);
    assert!(peer.connection.is_over());
    let mut peer = Peer::new(5);
    drain(&mut peer);
    assert_eq!(peer.wait(Duration::from_millis(4_999)), []);
    assert_eq!(goaway(&peer.wait(Duration::from_millis(1))), Some(0));
    assert!(peer.connection.is_over());
}

#[test]
fn close_ends_a_connection_with_open_streams() {
    let mut peer = Peer::new(5);
    peer.send(&call(1, b"later"));
    drain(&mut peer);
    peer.connection.close(&mut peer.out);
    assert!(peer.connection.is_over());
    assert_eq!(goaway(&peer.received()), Some(0));
    assert!(peer.server.awaited().is_empty());
    assert_eq!(peer.complete(1, Ok(b"one")), []);
}
