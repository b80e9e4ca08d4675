//! The abuse score of a connection that another server serves: it reads the headers of the frames that pass.
//!
//! In: the bytes that a client sends, in pieces of any size, and how many bytes it was sent. Out: whether it may go
//! on. It keeps one frame header and changes nothing. The score is that of the [lane](super::abuse), with one
//! difference: answers cannot be recognised here, so a request and the sent bytes lower the score instead.

use std::time::Instant;

use super::abuse::{self, AbuseScore};
use super::{HEAD_BYTES, Head, PREFACE, flag, kind};

/// A shorter DATA frame that does not end its request counts as useless: a client that has more to send fills a
/// frame.
const DATA_BYTES_MIN: usize = 64;
/// So many sent bytes lower the score as an answer does. A client reads at least that much for each window update.
const BYTES_OF_ANSWER: usize = 2 * 1_024;

/// The state of what a client has sent.
#[derive(Debug)]
pub struct PassingFrames {
    score: AbuseScore,
    /// Bytes to skip: the rest of the preface, or of a payload.
    skipped: usize,
    /// The beginning of the next frame header.
    head: [u8; HEAD_BYTES],
    head_len: usize,
    /// The highest stream that the client opened.
    newest: u32,
    /// Bytes that were sent and have not lowered the score yet.
    sent: usize,
}

impl PassingFrames {
    /// A connection of which nothing has been read.
    pub fn new(now: Instant) -> Self {
        let (head, score) = ([0; HEAD_BYTES], AbuseScore::new(now));
        Self { score, skipped: PREFACE.len(), head, head_len: 0, newest: 0, sent: 0 }
    }

    /// Counts what the client sent. Returns whether it may go on.
    #[must_use]
    pub fn receive(&mut self, mut bytes: &[u8], now: Instant) -> bool {
        self.score.decay(now);
        while !bytes.is_empty() {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEAD_BYTES - self.head_len).min(bytes.len());
            self.head[self.head_len..][..taken].copy_from_slice(&bytes[..taken]);
            self.head_len += taken;
            bytes = &bytes[taken..];
            if self.head_len == HEAD_BYTES {
                let head = Head::read(&self.head).expect("it is complete");
                self.count(head);
                (self.head_len, self.skipped) = (0, head.length);
            }
        }
        self.score.check().is_ok()
    }

    /// Counts what the client was sent.
    pub fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        while self.sent >= BYTES_OF_ANSWER {
            self.sent -= BYTES_OF_ANSWER;
            self.score.answered();
        }
    }

    fn count(&mut self, head: Head) {
        match head.kind {
            kind::HEADERS if head.stream > self.newest => {
                self.newest = head.stream;
                self.score.answered();
            }
            kind::DATA if head.length >= DATA_BYTES_MIN || head.has(flag::END_STREAM) => {}
            kind::SETTINGS => self.score.add(abuse::SETTINGS),
            kind::DATA | kind::HEADERS..=kind::RST_STREAM => self.score.add(abuse::FRAME),
            _ => self.score.add_unread(head.length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames;
    use tidegate_engine::clock;

    const FRAMES: usize = 20_000;

    fn repeated(frame: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = PREFACE.to_vec();
        (0..FRAMES).for_each(|_| frame(&mut bytes));
        bytes
    }

    /// Whether a client that sends this in pieces of this size may go on.
    fn may_send(bytes: &[u8], piece: usize) -> bool {
        let now = clock::monotonic();
        let mut passing = PassingFrames::new(now);
        bytes.chunks(piece).all(|piece| passing.receive(piece, now))
    }

    #[test]
    fn useless_frames_end_a_connection_however_they_are_cut() {
        let other = |kind| {
            move |out: &mut Vec<u8>| {
                Head { length: 5, kind, flags: 0, stream: 1 }.write(out);
                out.extend_from_slice(&[0; 5]);
            }
        };
        for bytes in [
            repeated(|out| frames::ping(out, 0, b"12345678")),
            repeated(|out| frames::settings(out, &[])),
            repeated(|out| frames::window_update(out, 0, 1)),
            repeated(|out| frames::data(out, 1, 0, b"x")),
            repeated(other(kind::PRIORITY)),
            repeated(other(99)),
        ] {
            for piece in [1, 7, 9, 1_000, usize::MAX] {
                assert!(!may_send(&bytes, piece), "{:?} in pieces of {piece}", &bytes[24..33]);
            }
            assert!(may_send(&bytes[..bytes.len() / 40], 100));
        }
    }

    #[test]
    fn requests_and_bodies_are_free() {
        let mut stream = 1;
        let mut calls = PREFACE.to_vec();
        for _ in 0..FRAMES {
            frames::headers(&mut calls, stream, 0, |block| block.push(0x83));
            frames::data(&mut calls, stream, 0, b"a small message");
            frames::data(&mut calls, stream, flag::END_STREAM, b"");
            frames::window_update(&mut calls, 0, 100);
            stream += 2;
        }
        assert!(may_send(&calls, 1_000));
        assert!(may_send(&repeated(|out| frames::data(out, 1, 0, &[0; 64])), 1_000));
    }

    #[test]
    fn a_client_that_reads_a_lot_may_open_its_windows_often() {
        let now = clock::monotonic();
        let mut passing = PassingFrames::new(now);
        let mut updates = Vec::new();
        (0..2).for_each(|stream| frames::window_update(&mut updates, stream, 4_096));
        assert!(passing.receive(PREFACE, now));
        for _ in 0..FRAMES {
            passing.sent(4_096);
            assert!(passing.receive(&updates, now));
        }
    }
}
