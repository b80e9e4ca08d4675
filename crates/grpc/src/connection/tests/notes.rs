//! What is noted of a call when its headers arrive.

use super::*;

fn noted(stream: u32, text: &str, body: &[u8]) -> Vec<u8> {
    let head = frame(kind::HEADERS, WHOLE, stream, &call_block(&[("x-kept", text)]));
    [head, frame(kind::DATA, END, stream, body)].concat()
}

#[test]
fn each_call_of_a_batch_has_the_note_of_its_own_headers() {
    let mut peer = Peer::new(3);
    let calls = [noted(1, "one", &message(b"x")), call(3, b"x"), noted(5, "five", &message(b"later"))];
    assert_eq!(ended(&peer.send(&calls.concat())), [1, 3]);
    assert_eq!(peer.server.notes, [Some("one".to_owned()), None, Some("five".to_owned())]);
}

#[test]
fn a_call_that_is_refused_or_times_out_before_it_is_complete_gives_its_note_away() {
    let mut peer = Peer::new(3);
    let begin = |stream, text| frame(kind::HEADERS, WHOLE, stream, &call_block(&[("x-kept", text)]));
    peer.send(&[begin(1, "bad"), frame(kind::DATA, 0, 1, &[1])].concat());
    assert_eq!(peer.server.notes, [Some("bad".to_owned())]);
    peer.send(&begin(3, "slow"));
    peer.wait(READ_TIMEOUT);
    assert_eq!(peer.server.notes[1..], [Some("slow".to_owned())]);
    // One that its client resets is dropped with its note.
    peer.send(&[begin(5, "reset"), frame(kind::RST_STREAM, 0, 5, &[0, 0, 0, 8])].concat());
    assert_eq!(peer.server.notes.len(), 2);
}

/// The server of these tests has longer notes than others, which note a pointer.
#[test]
fn a_stream_is_moved_without_a_call() {
    let longer = size_of::<Option<String>>() - size_of::<Option<Box<()>>>();
    assert!(size_of::<streams::Stream<Server>>() - longer <= 128);
}
