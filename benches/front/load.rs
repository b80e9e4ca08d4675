//! The load generator: one thread, non-blocking sockets, closed or open loop, one server.
//!
//! While it has a core of its own it never sleeps, so the server spends no CPU on waking it. It reports how busy it
//! was; close to 100 % it measures itself and not the server.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use super::client::{Client, Tally};
use super::request::{Descriptors, Keys, Random, RequestMessage};
use super::server::Server;
use super::socket::Socket;

const READ_BYTES: usize = 256 * 1024;
/// How long a connection may take to get ready, and how long the last answers may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// In an open loop, the most due calls that wait for the server to allow more streams. Beyond it the rate is too high.
const BACKLOG_MAX: usize = 1 << 20;

/// When calls are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// Each connection always has this many calls under way. The next call is sent when an answer arrives.
    Closed { streams: usize },
    /// Calls are due at random times, at this mean rate, independent of the answers (a Poisson process).
    Open { per_second: f64 },
}

/// One run.
pub(crate) struct Run {
    pub(crate) connections: usize,
    pub(crate) pace: Pace,
    /// Whether calls carry request ids and trace headers.
    pub(crate) ids: bool,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
    /// Ends the run early, after this many calls.
    pub(crate) calls_max: u64,
    /// Whether to sleep while there is nothing to do, because the servers need this core too.
    pub(crate) sleeps: bool,
}

/// Which requests a run sends. Equal seeds give equal requests.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) keys: Keys,
    pub(crate) descriptors: Descriptors,
    pub(crate) seed: u64,
}

impl Workload {
    /// Requests of one descriptor.
    pub(crate) fn new(keys: Keys, seed: u64) -> Workload {
        Workload { keys, descriptors: Descriptors::Plain, seed }
    }
}

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    pub(crate) elapsed: Duration,
    pub(crate) server_cpu: Duration,
    /// The share of the time in which the generator was busy: 0 to 1.
    pub(crate) busy: f64,
}

/// Does one run. The error says why the run is not valid.
pub(crate) fn drive(server: &Server, run: &Run, workload: Workload) -> Result<Outcome, String> {
    let mut load = Load::connect(server, run, workload).map_err(|error| format!("connecting: {error}"))?;
    load.links.iter_mut().for_each(|link| link.client.expect(server.answers));
    load.wait_until_ready()?;
    load.check_that_streams_fit(run.pace)?;
    load.go(server, run)
}

/// Connects, and returns what `look` returns while all connections are idle, and while all are busy.
pub(crate) fn residence<T>(
    server: &Server,
    run: &Run,
    workload: Workload,
    look: impl Fn() -> T,
) -> Result<(T, T), String> {
    let mut load = Load::connect(server, run, workload).map_err(|error| format!("connecting: {error}"))?;
    load.wait_until_ready()?;
    let idle = look();
    load.started = Instant::now();
    load.work(run, run.measured)?;
    let busy = look();
    load.drain()?;
    load.tally.first_error.take().map_or(Ok((idle, busy)), Err)
}

struct Load {
    poll: Poll,
    events: Events,
    links: Vec<Link>,
    input: Box<[u8]>,
    request: RequestMessage,
    arrivals: Arrivals,
    asked: u64,
    tally: Tally,
    started: Instant,
    sleeps: bool,
}

impl Load {
    fn connect(server: &Server, run: &Run, workload: Workload) -> io::Result<Load> {
        let poll = Poll::new()?;
        let mut links = Vec::new();
        for at in 0..run.connections {
            let mut socket = Socket::connect(server.address, server.subject.is_tls())?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(socket.source(), Token(at), interest)?;
            links.push(Link::new(socket, Client::new(run.ids, workload.seed << 32 | at as u64)));
        }
        Ok(Load {
            poll,
            events: Events::with_capacity(1024),
            links,
            input: vec![0; READ_BYTES].into(),
            request: RequestMessage::new(workload.keys, workload.descriptors),
            arrivals: Arrivals::new(run.pace, workload.seed),
            asked: 0,
            tally: Tally::new(),
            started: Instant::now(),
            sleeps: run.sleeps,
        })
    }

    fn now_nanos(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn wait_until_ready(&mut self) -> Result<(), String> {
        let start = Instant::now();
        for at in 0..self.links.len() {
            self.links[at].send()?;
        }
        while !self.links.iter().all(|link| link.client.is_ready()) {
            self.turn()?;
            if start.elapsed() > TIMEOUT {
                return Err("the server does not send its SETTINGS".into());
            }
        }
        Ok(())
    }

    /// Fails when the server allows fewer calls at once than the table says.
    fn check_that_streams_fit(&self, pace: Pace) -> Result<(), String> {
        let Pace::Closed { streams } = pace else { return Ok(()) };
        match self.links.iter().map(|link| link.client.calls_max()).min() {
            Some(max) if max < streams => Err(format!("it allows {max} streams a connection")),
            _ => Ok(()),
        }
    }

    fn go(&mut self, server: &Server, run: &Run) -> Result<Outcome, String> {
        self.started = Instant::now();
        self.work(run, run.warm_up)?;
        self.tally.forget_answers();
        let (cpu, from) = (server.cpu(), Instant::now());
        let idle = self.work(run, run.warm_up + run.measured)?;
        let (server_cpu, elapsed) = (server.cpu().saturating_sub(cpu), from.elapsed());
        let answered = self.tally.answers;
        self.drain()?;
        // answers after the end are checked, but are not part of the rate
        let tally = Tally { answers: answered, ..std::mem::replace(&mut self.tally, Tally::new()) };
        Ok(Outcome { tally, elapsed, server_cpu, busy: 1.0 - idle.as_secs_f64() / elapsed.as_secs_f64() })
    }

    /// Sends and receives until `end` after the start. Returns how long there was nothing to do.
    fn work(&mut self, run: &Run, end: Duration) -> Result<Duration, String> {
        let mut idle = Duration::ZERO;
        let mut turn_start = self.started.elapsed();
        while turn_start < end && self.asked < run.calls_max {
            let asked = self.ask(run.pace)?;
            let (heard, asleep) = self.turn()?;
            let turn_end = self.started.elapsed();
            idle += if asked || heard { asleep } else { turn_end - turn_start };
            turn_start = turn_end;
        }
        Ok(idle)
    }

    fn ask(&mut self, pace: Pace) -> Result<bool, String> {
        match pace {
            Pace::Closed { streams } => self.fill_up(streams),
            Pace::Open { .. } => {
                self.arrivals.advance(self.now_nanos() as f64);
                self.send_due_calls()
            }
        }
    }

    fn fill_up(&mut self, streams: usize) -> Result<bool, String> {
        let before = self.asked;
        for at in 0..self.links.len() {
            let now = self.now_nanos();
            let link = &mut self.links[at];
            while link.client.under_way() < streams && link.client.ask(&mut self.request, now) {
                self.asked += 1;
            }
            link.send()?;
        }
        Ok(self.asked > before)
    }

    /// Sends the calls that are due. Connections take turns.
    fn send_due_calls(&mut self) -> Result<bool, String> {
        let before = self.asked;
        while let Some(&due) = self.arrivals.waiting.front() {
            let at = self.asked as usize % self.links.len();
            if !self.links[at].client.ask(&mut self.request, due) {
                break;
            }
            self.arrivals.waiting.pop_front();
            self.asked += 1;
        }
        let asked = (self.asked - before) as usize;
        for at in 0..asked.min(self.links.len()) {
            let link = (before as usize + at) % self.links.len();
            self.links[link].send()?;
        }
        if self.arrivals.waiting.len() > BACKLOG_MAX {
            return Err("the server cannot keep up with the rate".into());
        }
        Ok(asked > 0)
    }

    /// Receives what has arrived. Returns whether there was anything, and how long it slept.
    fn turn(&mut self) -> Result<(bool, Duration), String> {
        let before = Instant::now();
        let timeout = if self.sleeps { Duration::from_millis(10) } else { Duration::ZERO };
        self.poll.poll(&mut self.events, Some(timeout)).map_err(|error| format!("epoll: {error}"))?;
        let asleep = if self.sleeps { before.elapsed() } else { Duration::ZERO };
        for event in &self.events {
            let link = &mut self.links[event.token().0];
            link.hear(&mut self.input, self.started, &mut self.tally)?;
            link.send()?;
        }
        Ok((!self.events.is_empty(), asleep))
    }

    /// Waits for the answers that are missing; one that does not come is an error. Calls that are due are still sent:
    /// without the latest ones, a server that is behind would look better than it is.
    fn drain(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while !self.arrivals.waiting.is_empty() || self.links.iter().any(|link| link.client.under_way() > 0) {
            self.send_due_calls()?;
            self.turn()?;
            if start.elapsed() > TIMEOUT {
                self.tally.error(|| "calls that were never answered".into());
                break;
            }
        }
        Ok(())
    }
}

/// The times at which calls are due in an open loop.
struct Arrivals {
    mean_nanos: f64,
    next_nanos: f64,
    random: Random,
    waiting: VecDeque<u64>,
}

impl Arrivals {
    fn new(pace: Pace, seed: u64) -> Arrivals {
        let mean_nanos = match pace {
            Pace::Closed { .. } => f64::INFINITY,
            Pace::Open { per_second } => 1e9 / per_second,
        };
        Arrivals { mean_nanos, next_nanos: 0.0, random: Random(seed), waiting: VecDeque::new() }
    }

    fn advance(&mut self, now_nanos: f64) {
        while self.next_nanos <= now_nanos {
            self.waiting.push_back(self.next_nanos as u64);
            // uniform in (0, 1], so that its logarithm is finite
            let uniform = ((self.random.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
            self.next_nanos -= uniform.ln() * self.mean_nanos;
        }
    }
}

/// A connection with its socket.
struct Link {
    socket: Socket,
    client: Client,
    /// The start of a frame whose end has not arrived.
    unread: Vec<u8>,
    /// The bytes of the client's `out` that the socket has taken.
    sent: usize,
}

impl Link {
    fn new(socket: Socket, client: Client) -> Link {
        Link { socket, client, unread: Vec::new(), sent: 0 }
    }

    /// Reads until the socket is empty. `input` is scratch space for the start of a frame and one read after it.
    fn hear(&mut self, input: &mut [u8], started: Instant, tally: &mut Tally) -> Result<(), String> {
        loop {
            let unread = self.unread.len();
            input[..unread].copy_from_slice(&self.unread);
            let read = match self.socket.read(&mut input[unread..]) {
                Ok(0) => return Err("the server closed a connection".into()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(format!("reading: {error}")),
            };
            let now_nanos = started.elapsed().as_nanos() as u64;
            let mut rest = &input[..unread + read];
            self.client.receive(&mut rest, now_nanos, tally)?;
            self.unread.clear();
            self.unread.extend_from_slice(rest);
            if self.socket.short_read_means_empty() && read < input.len() - unread {
                // a short read: the socket is empty, and epoll reports new bytes
                return Ok(());
            }
        }
    }

    /// Writes what the socket takes. The rest is written when the socket is writable again.
    fn send(&mut self) -> Result<(), String> {
        while self.sent < self.client.out.len() {
            match self.socket.write(&self.client.out[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(format!("writing: {error}")),
            }
        }
        self.client.out.clear();
        self.sent = 0;
        Ok(())
    }
}
