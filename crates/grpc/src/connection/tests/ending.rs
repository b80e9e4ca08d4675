//! Ends in order.

use super::super::ending::HAVE_YOU_READ;
use super::*;

/// The last stream that a GOAWAY names.
fn last(frame: &Frame) -> u32 {
    assert_eq!(frame.kind, kind::GOAWAY);
    frames::number(&frame.payload)
}

fn drain(peer: &mut Peer) -> Vec<Frame> {
    peer.connection.drain(peer.now, &mut peer.out);
    peer.heard()
}

fn read(peer: &mut Peer) -> Vec<Frame> {
    peer.say(&frame(kind::PING, flag::ACK, 0, &HAVE_YOU_READ))
}

#[test]
fn what_was_begun_before_the_client_knew_is_served_and_nothing_after() {
    let mut peer = Peer::new(5);
    peer.say(&call(1, b"later"));
    let [first, ping] = &drain(&mut peer)[..] else { panic!("two frames") };
    assert_eq!((last(first), goaway(std::slice::from_ref(first))), (NUMBER_MAX, Some(0)));
    assert_eq!((ping.kind, &ping.payload[..]), (kind::PING, &HAVE_YOU_READ[..]));
    assert_eq!(drain(&mut peer), [], "once is enough");
    // Under way when the client did not know yet.
    assert_eq!(ended(&peer.say(&call(3, b"x"))), [3]);
    peer.say(&call(5, b"later"));
    let [second] = &read(&mut peer)[..] else { panic!("one frame") };
    assert_eq!(last(second), 5);
    assert_eq!(resets(&peer.say(&call(7, b"x"))), [(7, ErrorCode::RefusedStream as u8)]);
    assert_eq!(ended(&peer.complete(1, Ok(b"one"))), [1]);
    assert!(!peer.connection.is_over());
    assert_eq!(ended(&peer.complete(5, Ok(b"five"))), [5]);
    assert!(peer.connection.is_over());
    let drained = Ended { code: ErrorCode::NoError, why: None };
    assert_eq!(peer.connection.ended(), Some(drained));
}

#[test]
fn an_idle_connection_is_over_once_the_client_has_read_it_or_had_the_time() {
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
fn a_connection_can_be_closed_whatever_it_has_begun() {
    let mut peer = Peer::new(5);
    peer.say(&call(1, b"later"));
    drain(&mut peer);
    peer.connection.close(&mut peer.out);
    assert!(peer.connection.is_over());
    assert_eq!(goaway(&peer.heard()), Some(0));
    assert!(peer.server.awaited().is_empty());
    assert_eq!(peer.complete(1, Ok(b"one")), []);
}
