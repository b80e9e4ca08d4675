//! HTTP/2 as an attacker writes it: frames byte by byte onto a socket, whatever the protocol says, and a look at what
//! comes back. Nothing here comes from an HTTP/2 library, so nothing here keeps a rule that a test wants to break.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prost::Message;

use super::{DEADLINE, grpc, http};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of frames.
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// Settings that a client may say.
pub const HEADER_TABLE_SIZE: u16 = 1;
pub const INITIAL_WINDOW_SIZE: u16 = 4;

/// What a connection may carry before the server has said anything.
const WINDOW_DEFAULT: u64 = 65_535;
/// A write that the peer does not take for so long is given up: it has stopped reading.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A SETTINGS frame.
pub fn settings(parameters: &[(u16, u32)]) -> Vec<u8> {
    let parameter = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat();
    frame(kind::SETTINGS, 0, 0, &parameters.iter().flat_map(parameter).collect::<Vec<u8>>())
}

/// How a connection begins whose client hears all that the server may want to say.
pub fn greeting() -> Vec<u8> {
    [PREFACE, &settings(&[]), &number(kind::WINDOW_UPDATE, 0, 0x7fff_0000)].concat()
}

/// A frame whose payload is one number.
pub fn number(kind: u8, stream: u32, value: u32) -> Vec<u8> {
    frame(kind, 0, stream, &value.to_be_bytes())
}

/// A field of a header block, spelt out: `first` says whether it enters the dynamic table (0x40) or not (0).
pub fn field(first: u8, name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![first];
    for text in [name, value] {
        put_length(text.len(), &mut out);
        out.extend_from_slice(text.as_bytes());
    }
    out
}

/// An integer of 7 bits and as many bytes more as it needs.
fn put_length(length: usize, out: &mut Vec<u8>) {
    if length < 127 {
        out.push(length as u8);
        return;
    }
    out.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        out.push(rest as u8 | 128);
        rest /= 128;
    }
    out.push(rest as u8);
}

/// The header block of a call.
pub fn call_head() -> Vec<u8> {
    let post_and_http = vec![0x83, 0x86];
    let fields = [
        (":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
        (":authority", "tests"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    fields.iter().fold(post_and_http, |block, (name, value)| [block, field(0, name, value)].concat())
}

/// The message of a call, framed as gRPC does.
pub fn call_body(request: &grpc::RateLimitRequest) -> Vec<u8> {
    let message = request.encode_to_vec();
    [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat()
}

/// A whole call: HEADERS and DATA.
pub fn call(stream: u32, request: &grpc::RateLimitRequest) -> Vec<u8> {
    let head = frame(kind::HEADERS, END_HEADERS, stream, &call_head());
    [head, frame(kind::DATA, END_STREAM, stream, &call_body(request))].concat()
}

/// The ids of a client's streams, in order.
pub fn streams() -> impl Iterator<Item = u32> {
    (1..=0x7fff_ffff).step_by(2)
}

/// What a server has said on a connection.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Frames by their type.
    pub frames: [u64; 16],
    /// Answers that came to their end.
    pub ended: u64,
    /// Bytes of bodies that the connection may carry, ever.
    pub granted: u64,
    /// Resets by their code.
    pub resets: [u64; 16],
    /// The code of a GOAWAY.
    pub goaway: Option<u32>,
    /// The connection is over.
    pub closed: bool,
}

impl Heard {
    pub fn frames(&self, kind: u8) -> u64 {
        self.frames[usize::from(kind)]
    }

    fn nothing() -> Self {
        Self {
            frames: [0; 16],
            ended: 0,
            granted: WINDOW_DEFAULT,
            resets: [0; 16],
            goaway: None,
            closed: false,
        }
    }

    fn take(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let number =
            |bytes: Option<&[u8]>| bytes.and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        if let Some(count) = self.frames.get_mut(usize::from(kind)) {
            *count += 1;
        }
        match kind {
            kind::RST_STREAM => {
                let code = number(Some(payload)).expect("a reset has a code");
                self.resets[code.min(15) as usize] += 1;
            }
            kind::WINDOW_UPDATE if stream == 0 => {
                self.granted += u64::from(number(Some(payload)).expect("an update has a size"));
            }
            kind::GOAWAY => self.goaway = number(payload.get(4..8)),
            _ => {}
        }
        if matches!(kind, kind::DATA | kind::HEADERS) && flags & END_STREAM != 0 {
            self.ended += 1;
        }
    }
}

/// One connection of an attacker.
pub struct Attacker {
    stream: TcpStream,
    heard: Arc<Mutex<Heard>>,
}

impl Attacker {
    /// A connection that reads all that it is sent.
    pub fn connect(port: u16) -> Self {
        let attacker = Self::deaf(port);
        let (mut stream, heard) =
            (attacker.stream.try_clone().expect("it is open"), Arc::clone(&attacker.heard));
        std::thread::spawn(move || hear(&mut stream, &heard));
        attacker
    }

    /// A connection that never reads.
    pub fn deaf(port: u16) -> Self {
        let stream = http::connect(port).expect("it listens");
        stream.set_write_timeout(Some(WRITE_PATIENCE)).expect("a valid timeout");
        stream.set_read_timeout(None).expect("a valid timeout");
        Self { stream, heard: Arc::new(Mutex::new(Heard::nothing())) }
    }

    /// A connection that has begun as it should.
    pub fn greeted(port: u16) -> Self {
        let mut attacker = Self::connect(port);
        attacker.send(&greeting());
        attacker
    }

    /// Whether the server has taken these bytes: it has not closed the connection, and it still reads.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Says the same again and again, for so long or until the server takes no more. How many bytes it has taken, or the
    /// system for it.
    pub fn flood(&mut self, bytes: &[u8], duration: Duration) -> usize {
        let chunk = bytes.repeat((16 * 1024 / bytes.len()).max(1));
        let (began, mut sent) = (Instant::now(), 0);
        while began.elapsed() < duration && self.send(&chunk) {
            sent += chunk.len();
        }
        sent
    }

    /// Ends the writing half; answers are still read.
    pub fn finish(&self) {
        // Fails when the server was faster.
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    pub fn heard(&self) -> Heard {
        locked(&self.heard).clone()
    }

    /// Waits until what was read is as wanted, and returns it.
    pub fn hears(&self, what: &str, wanted: impl Fn(&Heard) -> bool) -> Heard {
        let began = Instant::now();
        loop {
            let heard = self.heard();
            if wanted(&heard) {
                return heard;
            }
            assert!(began.elapsed() < DEADLINE, "waited for {what}: {heard:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the server has closed the connection.
    pub fn is_closed(&self) -> Heard {
        self.hears("the connection to be closed", |heard| heard.closed)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // Ends the thread that reads; fails when the server has closed it.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn locked(heard: &Mutex<Heard>) -> MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads frames until the connection is over.
fn hear(stream: &mut TcpStream, heard: &Mutex<Heard>) {
    let mut unread = Vec::new();
    let mut input = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = stream.read(&mut input) {
        unread.extend_from_slice(&input[..length]);
        let mut rest = &unread[..];
        while let Some((head, payload, behind)) = first_frame(rest) {
            let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
            locked(heard).take(head[3], head[4], stream, payload);
            rest = behind;
        }
        let taken = unread.len() - rest.len();
        unread.drain(..taken);
    }
    locked(heard).closed = true;
}

/// Head and payload of the frame that these bytes begin with, and what is behind it.
pub fn first_frame(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (head, rest) = bytes.split_at_checked(9)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let (payload, behind) = rest.split_at_checked(length)?;
    Some((head, payload, behind))
}
