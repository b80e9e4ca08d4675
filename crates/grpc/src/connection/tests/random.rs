//! Traces of frames, good and damaged, cut anywhere.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

const TEXTS: &[&[u8]] = &[b"now", b"later", b"fail", b"refuse", b"stream"];

/// Frames of a client, valid if the streams that they are for are open.
fn client_frames() -> impl Strategy<Value = Vec<u8>> {
    let stream = (0..20_u32).prop_map(|number| 2 * number + 1);
    let text = select(TEXTS);
    let cut = any::<Index>();
    prop_oneof![
        4 => (stream.clone(), text).prop_map(|(stream, text)| call(stream, text)),
        2 => (stream.clone(), cut, any::<Index>()).prop_map(|(stream, head, body)| in_pieces(stream, head, body)),
        1 => Just(frame(kind::PING, 0, 0, &[1; 8])),
        1 => (0..400_u16).prop_map(|window| {
            let [a, b] = window.to_be_bytes();
            frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, a, b])
        }),
        1 => Just(frame(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0])),
        1 => (stream.clone(), 1..99_u32).prop_map(|(stream, bytes)| {
            frame(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
        }),
        1 => stream.prop_map(|stream| frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])),
    ]
}

/// A call whose header block and message come in two frames each.
fn in_pieces(stream: u32, head: Index, body: Index) -> Vec<u8> {
    let (block, message) = (call_block(&[]), message(&[9; 40]));
    let (head, body) = (head.index(block.len()), body.index(message.len()));
    [
        frame(kind::HEADERS, 0, stream, &block[..head]),
        frame(kind::CONTINUATION, WHOLE, stream, &block[head..]),
        frame(kind::DATA, 0, stream, &message[..body]),
        frame(kind::DATA, END, stream, &message[body..]),
    ]
    .concat()
}

fn trace() -> impl Strategy<Value = Vec<u8>> {
    vec(client_frames(), 1..40).prop_map(|sent| [start(), sent.concat()].concat())
}

/// All output and all calls of this trace, which arrives in pieces of these sizes, over and over.
fn answers(trace: &[u8], pieces: &[usize]) -> (Vec<u8>, Vec<Seen>) {
    let mut peer = Peer::silent(50);
    let mut rest = trace;
    for piece in pieces.iter().cycle() {
        let (sent, more) = rest.split_at((*piece).min(rest.len()));
        peer.send(sent);
        rest = more;
        if rest.is_empty() {
            break;
        }
    }
    (peer.out, peer.server.calls)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn pieces_are_answered_as_the_whole_is(trace in trace(), pieces in vec(1..60_usize, 1..9)) {
        let whole = answers(&trace, &[trace.len()]);
        prop_assert_eq!(&answers(&trace, &pieces), &whole);
        prop_assert_eq!(&answers(&trace, &[1]), &whole);
    }

    #[test]
    fn damage_is_survived_and_answered_with_little(
        trace in trace(),
        damage in vec((any::<Index>(), any::<u8>()), 1..5),
        pieces in vec(1..60_usize, 1..9),
    ) {
        let mut damaged = trace;
        for (place, byte) in damage {
            let place = place.index(damaged.len());
            damaged[place] = byte;
        }
        let (out, _) = answers(&damaged, &pieces);
        prop_assert!(out.len() < 8 * damaged.len() + 100, "{} for {}", out.len(), damaged.len());
        parse(&out);
    }

    #[test]
    fn noise_is_survived(noise in vec(any::<u8>(), 0..400)) {
        answers(&[start(), noise].concat(), &[7]);
    }
}
