//! Load on several nodes at once: connections with several calls under way on each, an answer making room for the next
//! call, and what each call was answered.
//!
//! Written for nodes that die meanwhile: a connection that ends is opened again, and what was under way on it is lost.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::admissions::Admissions;
use super::grpc::{OK, RateLimitRequest};
use super::{DEADLINE, h2, http};

/// Connections in all, and calls under way on each.
const CONNECTIONS: usize = 64;
const STREAMS: usize = 4;
/// A node that has just been killed is tried again after this.
const PAUSE: Duration = Duration::from_millis(5);

/// What came of a load.
#[derive(Default)]
pub struct Answers {
    /// Calls that were answered OK, by the caller's clock.
    pub admitted: Admissions,
    /// Calls that were answered otherwise than OK.
    pub denied: u64,
    /// Calls that were answered with an error, or not at all.
    pub lost: u64,
    /// What the slowest call took.
    pub slowest: Duration,
}

/// Sends so many calls with this question to the nodes on these ports.
pub fn drive(ports: &[u16], question: &RateLimitRequest, calls: u64) -> Answers {
    let (left, began) = (AtomicI64::new(calls as i64), Instant::now());
    let answers = std::thread::scope(|scope| {
        let ask = |at: usize| {
            let asker = Asker { port: ports[at % ports.len()], question, left: &left, began };
            scope.spawn(move || asker.ask())
        };
        let asking: Vec<_> = (0..CONNECTIONS).map(ask).collect();
        asking
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .fold(Answers::default(), Answers::and)
    });
    assert_eq!(answers.admitted.len() as u64 + answers.denied + answers.lost, calls, "a call is a call");
    answers
}

impl Answers {
    fn and(mut self, more: Self) -> Self {
        self.admitted.append(more.admitted);
        self.denied += more.denied;
        self.lost += more.lost;
        self.slowest = self.slowest.max(more.slowest);
        self
    }
}

struct Asker<'a> {
    port: u16,
    question: &'a RateLimitRequest,
    left: &'a AtomicI64,
    began: Instant,
}

/// A call under way: its stream, when it was asked, and what was answered so far.
struct UnderWay {
    stream: u32,
    asked: Instant,
    code: Option<i32>,
}

impl Asker<'_> {
    fn ask(&self) -> Answers {
        let mut answers = Answers::default();
        while self.left.load(Relaxed) > 0 {
            let Ok(stream) = http::connect(self.port) else {
                std::thread::sleep(PAUSE);
                continue;
            };
            let mut calls = Vec::new();
            // An error is the end of the connection.
            let _ = self.converse(stream, &mut calls, &mut answers);
            answers.lost += calls.len() as u64;
        }
        answers
    }

    /// Asks on one connection until nothing is left to be asked, or it ends.
    fn converse(
        &self,
        mut socket: TcpStream,
        calls: &mut Vec<UnderWay>,
        answers: &mut Answers,
    ) -> std::io::Result<()> {
        socket.set_read_timeout(Some(DEADLINE))?;
        let (mut streams, mut unread, mut input) = (h2::streams(), Vec::new(), vec![0; 16_384]);
        let mut output = h2::greeting();
        loop {
            while calls.len() < STREAMS && self.left.fetch_sub(1, Relaxed) > 0 {
                let stream = streams.next().expect("a connection has many");
                output.extend(h2::call(stream, self.question));
                calls.push(UnderWay { stream, asked: Instant::now(), code: None });
            }
            socket.write_all(&output)?;
            output.clear();
            if calls.is_empty() {
                return Ok(());
            }
            let count = socket.read(&mut input)?;
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            unread.extend_from_slice(&input[..count]);
            let mut rest = &unread[..];
            while let Some((head, payload, behind)) = h2::first_frame(rest) {
                output.extend(self.hear(head, payload, calls, answers));
                rest = behind;
            }
            let read = unread.len() - rest.len();
            unread.drain(..read);
        }
    }

    /// Takes one frame; what is to be said to it.
    fn hear(&self, head: &[u8], payload: &[u8], calls: &mut Vec<UnderWay>, answers: &mut Answers) -> Vec<u8> {
        let (kind, flags) = (head[3], head[4]);
        match kind {
            h2::kind::SETTINGS if flags & h2::ACK == 0 => return h2::frame(kind, h2::ACK, 0, &[]),
            h2::kind::PING if flags & h2::ACK == 0 => return h2::frame(kind, h2::ACK, 0, payload),
            _ => {}
        }
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        let Some(at) = calls.iter().position(|call| call.stream == stream) else { return Vec::new() };
        // A message after its five bytes of gRPC; it begins with the code.
        if let (h2::kind::DATA, Some(&[0x08, code])) = (kind, payload.get(5..7)) {
            calls[at].code = Some(i32::from(code));
        }
        let ends = matches!(kind, h2::kind::DATA | h2::kind::HEADERS) && flags & h2::END_STREAM != 0;
        if ends || kind == h2::kind::RST_STREAM {
            let call = calls.swap_remove(at);
            self.finish(&call, answers);
        }
        Vec::new()
    }

    fn finish(&self, call: &UnderWay, answers: &mut Answers) {
        let now = Instant::now();
        answers.slowest = answers.slowest.max(now - call.asked);
        let micros = |moment: Instant| (moment - self.began).as_micros() as u64;
        match call.code {
            Some(OK) => answers.admitted.push(micros(call.asked), micros(now)),
            Some(_) => answers.denied += 1,
            None => answers.lost += 1,
        }
    }
}
