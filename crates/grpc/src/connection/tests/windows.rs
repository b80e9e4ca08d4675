//! Flow control: no bytes beyond a window, no answer left unsent, no memory without a bound.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

#[test]
fn an_answer_waits_for_its_window_but_not_for_ever() {
    let mut peer = Peer::silent(10);
    let small = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 4]);
    let received = peer.send(&[&PREFACE[..], &small, &call(1, b"x")].concat());
    assert_eq!(received.last().map(|frame| frame.payload.len()), Some(4));
    let received = peer.send(&frame(kind::WINDOW_UPDATE, 0, 1, &[0, 0, 0, 5]));
    assert_eq!(received.iter().map(|frame| frame.payload.len()).collect::<Vec<_>>(), [5]);
    let larger = frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 10]);
    assert_eq!(ended(&peer.send(&larger)), [1]);
    // The next window is large enough for all but the last byte.
    assert!(ended(&peer.send(&call(3, b"x"))).is_empty());
    // The timeout of the request is over; now that of the answer counts.
    assert_eq!(peer.wait(Duration::from_secs(29)), []);
    assert_eq!(resets(&peer.wait(Duration::from_secs(1))), [(3, ErrorCode::Cancel as u8)]);
}

#[test]
fn windows_are_replenished_so_that_a_client_may_send_for_ever() {
    let mut peer = Peer::new(5);
    let (mut connection, mut stream) = (1_048_576_i64, 65_535_i64);
    // The body of a request that is rejected is not kept.
    let no_call = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    peer.send(&frame(kind::HEADERS, WHOLE, 1, &block(&no_call)));
    for _ in 0..300 {
        let data = frame(kind::DATA, flag::PADDED, 1, &[[200; 1].as_slice(), &[0; 10_199]].concat());
        (connection, stream) = (connection - 10_200, stream - 10_200);
        assert!(connection >= 0 && stream >= 0, "the client must wait");
        for update in peer.send(&data) {
            assert_eq!(update.kind, kind::WINDOW_UPDATE);
            let window = if update.stream == 0 { &mut connection } else { &mut stream };
            *window += i64::from(frames::first_u32(&update.payload));
        }
    }
    assert!(connection <= 1_048_576 && stream <= 65_535);
}

#[test]
fn data_beyond_the_window_resets_the_stream() {
    let flow = ErrorCode::FlowControlError as u8;
    let mut peer = Peer::new(5);
    peer.send(&[call(1, b"later"), frame(kind::HEADERS, WHOLE, 3, &call_block(&[]))].concat());
    let stream = peer.connection.streams.get(3).expect("it has begun");
    stream.receive_window = 100;
    assert_eq!(resets(&peer.send(&frame(kind::DATA, 0, 3, &[0; 101]))), [(3, flow)]);
}

#[test]
fn incomplete_bodies_are_bounded_in_sum() {
    let mut peer = Peer::new(5);
    let data = [&[0, 0, 1, 0, 0][..], &[7; 16_000]].concat();
    let mut refused = 0;
    for number in 0..1_000 {
        let stream = 2 * number + 1;
        peer.send(&frame(kind::HEADERS, WHOLE, stream, &call_block(&[])));
        let received = peer.send(&frame(kind::DATA, 0, stream, &data));
        assert_eq!(goaway(&received), None);
        refused += resets(&received).len();
        assert!(peer.connection.windows.unfinished <= 1_024 * 1_024);
    }
    assert!(refused > 700, "{refused}");
    // Streams that are reset or answered make room.
    for number in 0..1_000 {
        peer.send(&frame(kind::RST_STREAM, 0, 2 * number + 1, &[0; 4]));
    }
    assert_eq!(peer.connection.windows.unfinished, 0);
}

const TEXTS: &[&[u8]] = &[b"now", b"later"];

/// What a client does about windows.
#[derive(Clone, Debug)]
enum Act {
    Call { text: &'static [u8] },
    Complete { stream: usize },
    Initial(u16),
    Open { stream: usize, bytes: u16 },
    OpenConnection(u16),
    Reset { stream: usize },
}

fn act() -> impl Strategy<Value = Act> {
    let stream = 0..40_usize;
    prop_oneof![
        3 => select(TEXTS).prop_map(|text| Act::Call { text }),
        3 => stream.clone().prop_map(|stream| Act::Complete { stream }),
        1 => (0..300_u16).prop_map(Act::Initial),
        3 => (stream.clone(), 1..120_u16).prop_map(|(stream, bytes)| Act::Open { stream, bytes }),
        2 => (1..60_u16).prop_map(Act::OpenConnection),
        1 => stream.prop_map(|stream| Act::Reset { stream }),
    ]
}

/// A client that keeps its own count of the windows.
struct Books {
    peer: Peer,
    connection: i64,
    initial: i64,
    /// Each stream's window, and whether it has ended.
    streams: Vec<(i64, bool)>,
}

impl Books {
    fn new() -> Self {
        let mut peer = Peer::new(400);
        // The connection's window is nearly used up, so that it blocks too.
        peer.connection.windows.send = 1_000;
        Self { peer, connection: 1_000, initial: 65_535, streams: Vec::new() }
    }

    fn act(&mut self, act: &Act) {
        let known = |stream: usize| (stream < self.streams.len()).then_some(stream);
        let received = match act {
            Act::Call { text } => {
                self.streams.push((self.initial, false));
                self.peer.send(&call(2 * self.streams.len() as u32 - 1, text))
            }
            Act::Complete { stream } => self.peer.complete(2 * *stream as u32 + 1, Ok(&[b'l'; 500])),
            Act::Initial(window) => {
                let change = i64::from(*window) - self.initial;
                self.initial = i64::from(*window);
                self.streams.iter_mut().for_each(|stream| stream.0 += change);
                let [a, b] = window.to_be_bytes();
                self.peer.send(&frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, a, b]))
            }
            Act::Open { stream, bytes } => {
                let Some(stream) = known(*stream) else { return };
                self.streams[stream].0 += i64::from(*bytes);
                let increment = u32::from(*bytes).to_be_bytes();
                self.peer.send(&frame(kind::WINDOW_UPDATE, 0, 2 * stream as u32 + 1, &increment))
            }
            Act::OpenConnection(bytes) => {
                self.connection += i64::from(*bytes);
                self.peer.send(&frame(kind::WINDOW_UPDATE, 0, 0, &u32::from(*bytes).to_be_bytes()))
            }
            Act::Reset { stream } => {
                let Some(stream) = known(*stream) else { return };
                self.streams[stream].1 = true;
                self.peer.send(&frame(kind::RST_STREAM, 0, 2 * stream as u32 + 1, &[0; 4]))
            }
        };
        self.check(&received);
    }

    /// Counts what the server has sent: nothing is beyond a window, or after the end of its stream.
    fn check(&mut self, received: &[Frame]) {
        for frame in received {
            assert_ne!(frame.kind, kind::GOAWAY);
            assert_ne!(frame.kind, kind::RST_STREAM);
            if frame.stream == 0 {
                continue;
            }
            let (window, ended) = &mut self.streams[frame.stream as usize / 2];
            assert!(!*ended, "{frame:?} after the end");
            *ended = frame.flags & END != 0;
            if frame.kind == kind::DATA {
                *window -= frame.payload.len() as i64;
                self.connection -= frame.payload.len() as i64;
                assert!(*window >= 0 && self.connection >= 0, "{window} {}", self.connection);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_sent_beyond_a_window_and_nothing_is_left_behind(acts in vec(act(), 1..300)) {
        let mut books = Books::new();
        for (number, act) in acts.iter().enumerate() {
            books.act(act);
            if number % 50 == 0 {
                // Time for the abuse score to decay.
                books.peer.now += Duration::from_millis(100);
            }
        }
        for stream in 0..books.streams.len() {
            books.act(&Act::Complete { stream });
            books.act(&Act::Open { stream, bytes: 65_535 });
            books.act(&Act::OpenConnection(1_000));
        }
        prop_assert!(books.streams.iter().all(|stream| stream.1), "an answer was left behind");
        prop_assert!(books.peer.connection.streams.is_empty());
        prop_assert_eq!(books.peer.server.awaited(), Vec::<u32>::new());
    }
}
