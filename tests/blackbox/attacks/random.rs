//! Random and mutated streams of bytes on both ports: whatever arrives, the process lives, nothing panics, and another
//! client is served.
//!
//! Each stream follows from its seed alone. A run takes the first so many seeds; `tests/soak/run` goes on from there for
//! as long as it is set to.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::harness::h2::{
    END_HEADERS, END_STREAM, PREFACE, call, call_body, call_head, frame, kind, number, settings, streams,
};
use crate::harness::http;
use crate::harness::siege::{MIB, Siege, attack, question};

/// Streams of a run.
const SEEDS: u64 = 5_000;
/// Says how many seconds to go on instead.
const SOAK: &str = "TIDEGATE_SOAK_SECONDS";
const THREADS: usize = 4;
/// The server ends a stream when its sender has, or finds fault with it before.
const END_MAX: Duration = Duration::from_secs(20);

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    fn bytes(&mut self, length_max: usize) -> Vec<u8> {
        (0..self.below(length_max + 1)).map(|_| self.next() as u8).collect()
    }
}

/// What a client says that is in order.
fn conversation(random: &mut Random) -> Vec<u8> {
    let mut said = [PREFACE, &settings(&[(4, random.one_of(&[0, 1, 65_535]))])].concat();
    for stream in streams().take(1 + random.below(8)) {
        said.extend(match random.below(5) {
            0 => frame(kind::PING, 0, 0, b"12345678"),
            1 => number(kind::RST_STREAM, stream, 8),
            2 => number(kind::WINDOW_UPDATE, random.one_of(&[0, stream]), 1_000),
            _ => call(stream, &question()),
        });
    }
    said
}

/// The same with bytes changed, left out, put in and said twice.
fn mutated(mut said: Vec<u8>, random: &mut Random) -> Vec<u8> {
    for _ in 0..1 + random.below(6) {
        let at = random.below(said.len());
        let end = (at + 1 + random.below(20)).min(said.len());
        match random.below(5) {
            0 => said[at] ^= 1 << random.below(8),
            1 => said[at] = random.one_of(&[0, 1, 0x7f, 0x80, 0xff]),
            2 => drop(said.drain(at..end)),
            3 => drop(said.splice(at..at, random.bytes(20))),
            _ => drop(said.splice(at..at, said[at..end].to_vec())),
        }
        if said.is_empty() {
            break;
        }
    }
    said
}

/// Frames of every type, with payloads that are what they should be or anything else.
fn frames(random: &mut Random) -> Vec<u8> {
    let mut said = [PREFACE, &settings(&[])].concat();
    for _ in 0..random.below(40) {
        let payload = match random.below(5) {
            0 => call_head(),
            1 => call_body(&question()),
            2 => random.one_of(&[0_u32, 1, 0x7fff_ffff, 0xffff_ffff]).to_be_bytes().to_vec(),
            3 => mutated(call_head(), random),
            _ => random.bytes(100),
        };
        let flags = random.one_of(&[0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM, 0x08, 0x20, 0xff]);
        let stream = random.one_of(&[0, 1, 1, 1, 2, 3, 5, 0x7fff_ffff, 0xffff_ffff]);
        let kind = random.one_of(&[0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10, 255]);
        said.extend(frame(kind, flags, stream, &payload));
    }
    said
}

fn http1(random: &mut Random) -> Vec<u8> {
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;
    let head = "POST /json HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n";
    let said = match random.below(2) {
        0 => format!("{head}content-length: {}\r\n\r\n{body}", body.len()),
        _ => format!("{head}transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
    };
    mutated(said.repeat(1 + random.below(3)).into_bytes(), random)
}

fn said(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0..=2 => {
            let said = conversation(random);
            mutated(said, random)
        }
        3..=5 => frames(random),
        6 => http1(random),
        _ => random.bytes(2_000),
    }
}

/// Says the stream of this seed in a few pieces, ends it, and waits for the server's end.
fn play(siege: &Siege, seed: u64) {
    let mut random = Random(seed);
    let ports = siege.limiter.ports();
    let mut stream = http::connect(random.one_of(&[ports.grpc, ports.grpc, ports.http])).expect("it listens");
    stream.set_read_timeout(Some(END_MAX)).expect("a valid timeout");
    let said = said(&mut random);
    let cut = random.below(said.len() + 1);
    // Each fails when the server has found fault with what came before.
    let _ = stream.write_all(&said[..cut]);
    let _ = stream.write_all(&said[cut..]);
    let _ = stream.shutdown(Shutdown::Write);
    match stream.read_to_end(&mut Vec::new()) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("seed {seed}: it is still open")
        }
        _ => {}
    }
}

/// Whether to go on with this seed.
fn wanted(seed: u64, began: Instant) -> bool {
    match std::env::var(SOAK) {
        Ok(seconds) => began.elapsed() < Duration::from_secs(seconds.parse().expect("a number of seconds")),
        Err(_) => seed < SEEDS,
    }
}

#[test]
fn random_streams() {
    attack(48 * MIB, |siege| {
        let (next, began) = (AtomicU64::new(0), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut seed = next.fetch_add(1, Ordering::Relaxed);
                    while wanted(seed, began) {
                        play(siege, seed);
                        seed = next.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let asked = |code| siege.limiter.scrape().sum("tidegate_requests_total", &[("code", code)]);
        assert!(asked("INVALID_ARGUMENT") > 0.0, "some of them are calls");
        println!("{} streams in {:?}", next.into_inner(), began.elapsed());
    });
}
