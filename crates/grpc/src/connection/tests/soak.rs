//! Endless frames: TIDEGATE_SOAK_FRAMES of them (`tests/soak/run`), or a few. Most clients are good, and all of their
//! streams end; some clients break off in the middle of a frame.

use super::*;

/// xorshift: the same frames every time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// One connection, and its pending calls.
struct Client {
    peer: Peer,
    next: u32,
    waiting: Vec<u32>,
    frames: u64,
}

impl Client {
    fn new() -> Self {
        Self { peer: Peer::new(30), next: 1, waiting: Vec::new(), frames: 1 }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.frames += parse(bytes).len() as u64;
        let received = self.peer.send(bytes);
        assert_eq!(goaway(&received), None);
        self.check_bounds();
    }

    /// Discards the output, and checks what the connection holds.
    fn check_bounds(&mut self) {
        let Peer { connection, server, .. } = &mut self.peer;
        assert!(connection.streams.len() <= STREAMS_MAX);
        assert!(connection.windows.blocked.len() <= 2 * STREAMS_MAX + 1);
        server.calls.clear();
        server.waiting.retain(|_, waiting| waiting.strong_count() > 0);
        (self.peer.read, self.peer.now) = (0, self.peer.now + Duration::from_millis(1));
        self.peer.out.clear();
    }

    fn begin(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    fn act(&mut self, draw: &mut Draw) {
        match draw.below(16) {
            0..8 => {
                let stream = self.begin();
                self.send(&call(stream, b"now"));
            }
            8 | 9 => {
                let stream = self.begin();
                self.waiting.push(stream);
                self.send(&call(stream, b"later"));
            }
            10 | 11 if !self.waiting.is_empty() => {
                let stream = self.waiting.swap_remove(draw.below(self.waiting.len() as u64) as usize);
                self.peer.complete(stream, Ok(b"late"));
                self.check_bounds();
            }
            12 if !self.waiting.is_empty() => {
                let stream = self.waiting.swap_remove(draw.below(self.waiting.len() as u64) as usize);
                self.send(&frame(kind::RST_STREAM, 0, stream, &[0; 4]));
            }
            13 => self.send(&frame(kind::PING, 0, 0, &[9; 8])),
            14 => {
                let (stream, block) = (self.begin(), call_block(&[]));
                let cut = draw.below(block.len() as u64) as usize;
                let head = frame(kind::HEADERS, 0, stream, &block[..cut]);
                let rest = frame(kind::CONTINUATION, WHOLE, stream, &block[cut..]);
                self.send(&[head, rest, frame(kind::DATA, END, stream, &message(b"cut"))].concat());
            }
            _ => self.open(draw.below(60_000) as u32),
        }
    }

    /// Opens the connection's window far enough, and sets that of the streams, which may be too small.
    fn open(&mut self, window: u32) {
        let connection = frame(kind::WINDOW_UPDATE, 0, 0, &2_000_u32.to_be_bytes());
        let [_, _, a, b] = window.to_be_bytes();
        self.send(&[connection, frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, a, b])].concat());
    }

    /// Completes all pending calls: nothing is left.
    fn finish(mut self) -> u64 {
        for stream in std::mem::take(&mut self.waiting) {
            self.peer.complete(stream, Ok(b"late"));
            self.check_bounds();
        }
        self.send(&frame(kind::WINDOW_UPDATE, 0, 0, &10_000_000_u32.to_be_bytes()));
        self.open(65_535);
        assert!(self.peer.connection.streams.is_empty(), "a stream is stuck");
        assert_eq!(self.peer.connection.windows.unfinished, 0);
        self.frames
    }

    /// Sends the start of a damaged call, and nothing after it.
    fn break_off(mut self, draw: &mut Draw) -> u64 {
        let mut bytes = call(self.begin(), b"broken");
        let place = draw.below(bytes.len() as u64) as usize;
        bytes[place] ^= 1 << draw.below(8);
        self.peer.send(&bytes[..1 + draw.below(bytes.len() as u64) as usize]);
        self.frames + 1
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "whoever starts it sets how long it runs")]
fn frames_without_an_end() {
    let wanted =
        std::env::var("TIDEGATE_SOAK_FRAMES").map_or(100_000, |text| text.parse().expect("a number"));
    let mut draw = Draw(0x7469_6465_6761_7465);
    let (mut frames, mut connections) = (0, 0);
    while frames < wanted {
        let mut client = Client::new();
        for _ in 0..2_000 {
            client.act(&mut draw);
        }
        connections += 1;
        frames += if connections % 4 == 0 { client.break_off(&mut draw) } else { client.finish() };
    }
    println!("{frames} frames on {connections} connections");
}
