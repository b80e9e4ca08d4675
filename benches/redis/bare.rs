//! The bare client: calls the same script and does nothing else. It keeps a number of calls under way on one
//! connection. Each is an encoded command in which only the key changes; of a reply only the shape is checked.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tidegate_engine::key::KeySecret;
use tidegate_engine::plan::{Modes, Step};
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::rules::{LoadOptions, SourceFile, load};
use tidegate_redis::key::KeyStyle;
use tidegate_redis::script::{Call, Clock, Lost, Purpose, RequestSummary, source};

use super::database::Database;
use super::request::rules_text;
use super::request::{DOMAIN, KEY, Random};

/// The start of every reply, and the bytes of a reply: nine numbers of eight bytes in one string.
const REPLY: &[u8] = b"$72\r\n";
const REPLY_BYTES: usize = REPLY.len() + 72 + 2;
/// The digits of the key that change.
const DIGITS: &[u8] = b"0000000";
/// Calls before the measurement.
const WARM_UP: u64 = 2_000;

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) calls: u64,
    pub(crate) elapsed: Duration,
    /// In nanoseconds, for runs with one call at a time.
    pub(crate) latency: Histogram<u64>,
}

/// The bare client.
pub(crate) struct Bare {
    socket: TcpStream,
    command: Vec<u8>,
    /// The place of the key's digits in the command.
    digits: std::ops::Range<usize>,
    keys: u64,
    random: Random,
}

impl Bare {
    /// A client that sends the same commands as Tidegate, for random ones of `keys` keys with this limit.
    pub(crate) fn connect(database: &Database, rate_limit: &str, keys: u64) -> Result<Bare, String> {
        let text = source(Purpose::Decide, Clock::Redis, Lost::Allow);
        let loaded = database.connection().and_then(|mut connection| {
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query::<String>(&mut connection)
        });
        let command = command(&loaded.map_err(|error| format!("SCRIPT LOAD: {error}"))?, rate_limit)?;
        let at = command.windows(DIGITS.len()).position(|window| window == DIGITS);
        let at = at.ok_or("the key holds the client's number")?;
        let socket = TcpStream::connect(("127.0.0.1", database.port)).map_err(|error| error.to_string())?;
        socket.set_nodelay(true).map_err(|error| error.to_string())?;
        Ok(Bare { socket, command, digits: at..at + DIGITS.len(), keys, random: Random(7) })
    }

    /// Keeps `depth` calls under way for a time.
    pub(crate) fn drive(&mut self, depth: usize, measured: Duration) -> Result<Outcome, String> {
        let (mut replies, mut input, mut out) = (Replies::default(), vec![0; 256 << 10], Vec::new());
        let mut latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("these bounds are allowed");
        let (mut ask, mut answered, mut start) = (depth, 0, Instant::now());
        loop {
            out.clear();
            (0..ask).for_each(|_| self.put(&mut out));
            let sent = Instant::now();
            self.socket.write_all(&out).map_err(|error| format!("writing: {error}"))?;
            ask = 0;
            while ask == 0 {
                let read = self.socket.read(&mut input).map_err(|error| format!("reading: {error}"))?;
                ask = replies.take(&input[..read])?;
            }
            latency.saturating_record(sent.elapsed().as_nanos() as u64);
            let was_warm = answered >= WARM_UP;
            answered += ask as u64;
            if !was_warm && answered >= WARM_UP {
                (answered, start) = (WARM_UP, Instant::now());
                latency.reset();
            }
            if was_warm && start.elapsed() >= measured {
                return self.finish(
                    depth - ask,
                    replies,
                    Outcome { calls: answered - WARM_UP, elapsed: start.elapsed(), latency },
                );
            }
        }
    }

    /// Reads the replies that are missing.
    fn finish(&mut self, mut left: usize, mut replies: Replies, outcome: Outcome) -> Result<Outcome, String> {
        let mut input = [0; 4096];
        while left > 0 {
            let read = self.socket.read(&mut input).map_err(|error| format!("reading: {error}"))?;
            left -= replies.take(&input[..read])?;
        }
        Ok(outcome)
    }

    fn put(&mut self, out: &mut Vec<u8>) {
        let mut key = ((u128::from(self.random.next()) * u128::from(self.keys)) >> 64) as u64;
        for digit in self.command[self.digits.clone()].iter_mut().rev() {
            *digit = b'0' + (key % 10) as u8;
            key /= 10;
        }
        out.extend_from_slice(&self.command);
    }
}

/// The command that Tidegate sends for the first key.
fn command(script: &str, rate_limit: &str) -> Result<Vec<u8>, String> {
    let file =
        SourceFile { name: "bench.yaml".into(), bytes: rules_text(rate_limit).into_bytes(), presumed: false };
    let options = LoadOptions::new(KeySecret::new([7; 16])).strict(true);
    let rules = load(&[file], &options).map_err(|_| "the rules of the benchmark are bad")?.rules;
    let value = std::str::from_utf8(DIGITS).expect("digits are text");
    let request = Request::new(DOMAIN, 1).descriptor(&[(KEY, value)]);
    let plan = rules.plan(&request, Modes::default());
    let [Step::Check(check)] = &*plan.steps else { return Err("nothing is to be checked".into()) };
    let style = KeyStyle::new("bare");
    let mut call = Call::new(&RequestSummary::default());
    call.push(style.key(DOMAIN, check, &[Entry { key: KEY, value }]), check, false);
    let mut command = redis::cmd("EVALSHA");
    command.arg(script).arg(call.keys.len()).arg(&*call.keys).arg(&call.first_arg(1 << 53)).arg(&*call.args);
    Ok(command.get_packed_command())
}

/// Counts replies.
#[derive(Default)]
struct Replies {
    /// Bytes of the incomplete reply.
    bytes: usize,
}

impl Replies {
    fn take(&mut self, mut input: &[u8]) -> Result<usize, String> {
        if input.is_empty() {
            return Err("Redis closed the connection".into());
        }
        let mut whole = 0;
        while !input.is_empty() {
            if self.bytes < REPLY.len() && input[0] != REPLY[self.bytes] {
                return Err(format!("a reply of another shape: {}", String::from_utf8_lossy(input)));
            }
            let wanted = if self.bytes < REPLY.len() { 1 } else { REPLY_BYTES - self.bytes };
            let taken = wanted.min(input.len());
            self.bytes = (self.bytes + taken) % REPLY_BYTES;
            whole += usize::from(self.bytes == 0);
            input = &input[taken..];
        }
        Ok(whole)
    }
}
