//! One connection of a node to a server. Its messages keep their order, as TCP has it.
//!
//! In: commands. Out: replies. Who closes it hears no more of it, but what was sent before may arrive all the same, and
//! is done.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use redis::{Arg, Cmd, RedisResult, Value};
use tidegate_redis::runtime::Transport;

use super::reads::{Line, Reads};
use super::{Network, SCRIPTS, WORK};
use crate::world::{MILLI, Time, World, lock};

/// A connection.
pub(super) struct Connection {
    world: Arc<World>,
    network: Arc<Network>,
    pub(super) node: usize,
    pub(super) server: usize,
    /// Its number among those between these two.
    pub(super) place: u64,
    /// How often all connections of the server had broken when it was made.
    pub(super) breaks: u64,
    is_closed: AtomicBool,
    /// When it was closed.
    closed: AtomicU64,
    /// It is open at one end only.
    is_lost: AtomicBool,
    /// What its process has read of resets, if it follows them.
    reads: Option<Arc<Reads>>,
    line: Mutex<Line>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    messages: u64,
    /// When the last message arrives, there and back.
    arrives: [Time; 2],
    waiting: Vec<Arc<Pending>>,
}

/// A command on its way.
struct Sent {
    command: Cmd,
    asks: bool,
    pending: Arc<Pending>,
    /// It asks for resets.
    read: Option<Arc<Reading>>,
    /// Why the server may not decide by it.
    forbidden: Option<&'static str>,
}

/// A question for the resets of a server.
struct Reading {
    asked: Time,
    is_answered: AtomicBool,
}

/// A reply that somebody waits for.
#[derive(Default)]
struct Pending {
    reply: Mutex<(Option<RedisResult<Value>>, Option<Waker>)>,
}

impl Pending {
    fn answer(&self, reply: RedisResult<Value>) {
        let mut state = lock(&self.reply);
        if state.0.is_none() {
            state.0 = Some(reply);
        }
        let waker = state.1.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

fn broken() -> redis::RedisError {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
}

impl Connection {
    pub(super) fn new(
        world: &Arc<World>,
        network: &Arc<Network>,
        (node, server): (usize, usize),
        (place, breaks): (u64, u64),
        reads: Option<Arc<Reads>>,
    ) -> Self {
        Self {
            world: Arc::clone(world),
            network: Arc::clone(network),
            node,
            server,
            place,
            breaks,
            is_closed: AtomicBool::new(false),
            closed: AtomicU64::new(0),
            is_lost: AtomicBool::new(false),
            reads,
            line: Mutex::new(Line { opened: world.now(), ..Line::default() }),
            state: Mutex::new(State { messages: 1, ..State::default() }),
        }
    }

    pub(super) fn is_between(&self, node: usize, server: usize) -> bool {
        (self.node, self.server) == (node, server)
    }

    /// What is sent on it never arrives from now on.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Relaxed);
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    /// Nobody waits for replies any more.
    pub(super) fn close(&self) {
        if !self.is_closed.swap(true, Relaxed) {
            self.closed.store(self.world.now(), Relaxed);
        }
        lock(&self.network.open).retain(|other| !std::ptr::eq(&**other, self));
        let waiting = std::mem::take(&mut lock(&self.state).waiting);
        waiting.iter().for_each(|pending| pending.answer(Err(broken())));
    }

    /// When the next message arrives in this direction, after all before it.
    fn next_arrival(&self, direction: usize, from: Time) -> Time {
        let mut state = lock(&self.state);
        state.messages += 1;
        let way = (self.node, self.server);
        let random = self.network.drawn(way, self.place, state.messages);
        let on_time = from + self.network.latency(from, direction, way, random);
        let arrives = on_time.max(self.network.cut_until(self.node, self.server));
        let arrives = arrives.max(state.arrives[direction] + 1);
        state.arrives[direction] = arrives;
        arrives
    }

    /// Whether the server reads what was sent on it. A system that closes a connection with replies that nobody has read
    /// resets it, and the server reads no more of it.
    fn is_read(&self) -> bool {
        let is_kept = || self.network.drawn((self.node, self.server), self.place, 0).bits() & 1 > 0;
        !self.network.is_lost(self) && (!self.is_closed.load(Relaxed) || is_kept())
    }

    /// Lets the command of a pending reply travel to the server, which runs it, and the reply back.
    fn send(self: &Arc<Self>, command: Cmd, asks: bool, pending: Arc<Pending>) {
        let (now, connection) = (self.world.now(), Arc::clone(self));
        let (read, forbidden) = (self.reading(&command, now), self.forbids(now));
        let sent = Sent { command, asks, pending, read, forbidden };
        self.world.at(self.next_arrival(0, now), move |world| connection.arrived(world, sent));
    }

    /// Why its server may not decide now.
    fn forbids(&self, now: Time) -> Option<&'static str> {
        self.reads.as_ref()?.forbids(self.server, *lock(&self.line), now)
    }

    /// A question for resets, if this command is one.
    fn reading(self: &Arc<Self>, command: &Cmd, now: Time) -> Option<Arc<Reading>> {
        let reads = Arc::clone(self.reads.as_ref()?);
        let mut arguments = command.args_iter();
        let Some(Arg::Simple(b"HGET")) = arguments.next() else { return None };
        let (connection, reading) =
            (Arc::clone(self), Arc::new(Reading { asked: now, is_answered: AtomicBool::default() }));
        // Who resets asks what has become of it. No server decides by that.
        let is_of_reset = lock(&self.line).wrote == Some(now);
        let (own, ends) = (Arc::clone(&reading), now + reads.answer_max());
        self.world.at(ends + MILLI, move |world| {
            // It waited until it gave the connection up, unless all of it stood still.
            let waited =
                !connection.is_closed.load(Relaxed) || connection.closed.load(Relaxed) + MILLI >= ends;
            if waited && !is_of_reset && !own.is_answered.load(Relaxed) && !world.is_frozen(connection.node) {
                reads.late(connection.server, now);
            }
        });
        Some(reading)
    }

    /// A question for resets is answered.
    fn read(&self, reading: &Reading, reply: &Value) {
        reading.is_answered.store(true, Relaxed);
        if let (Some(reads), Value::BulkString(_) | Value::Nil) = (&self.reads, reply) {
            lock(&self.line).read = Some(self.world.now());
            reads.answered(self.server, reading.asked);
        }
    }

    fn arrived(self: Arc<Self>, world: &Arc<World>, sent: Sent) {
        if !self.is_read() {
            return;
        }
        let (now, begins) = (world.now(), self.network.begins(world.now(), self.server));
        if begins > now {
            return world.at(begins, move |world| self.arrived(world, sent));
        }
        let Sent { command, asks, pending, read, forbidden } = sent;
        let reply = self.network.run(now, self.server, &command, asks);
        if let Some(why) = forbidden.filter(|_| SCRIPTS.with_borrow(|scripts| scripts.decides(&command))) {
            let (node, server) = (self.node, self.server);
            lock(&self.network.undue)
                .get_or_insert_with(|| format!("node {node} lets server {server} decide, though {why}"));
        }
        if command.args_iter().next().is_some_and(|name| matches!(name, Arg::Simple(b"EVAL" | b"EVALSHA"))) {
            world.note(|| format!("server {} runs {} for node {}", self.server, shown(&command), self.node));
        }
        let back = self.next_arrival(1, now + WORK + waits_for_replicas(&command, &reply));
        let writes = matches!(command.args_iter().next(), Some(Arg::Simple(b"EVAL" | b"WAIT")));
        world.at(back, move |_| {
            if !self.is_closed.load(Relaxed) && !self.network.is_lost(&self) {
                lock(&self.line).wrote = writes.then_some(back);
                lock(&self.state).waiting.retain(|other| !Arc::ptr_eq(other, &pending));
                read.iter().for_each(|reading| self.read(reading, &reply));
                pending.answer(Ok(reply));
            }
        });
    }
}

/// A connection, as the code under test holds it: it is closed when that drops it.
pub struct Wire(Arc<Connection>);

impl Wire {
    pub(super) fn of(connection: Arc<Connection>) -> Self {
        Self(connection)
    }

    async fn ask(&self, command: &Cmd, asks: bool) -> RedisResult<Value> {
        if self.0.is_closed.load(Relaxed) {
            return Err(broken());
        }
        let pending = Arc::<Pending>::default();
        lock(&self.0.state).waiting.push(Arc::clone(&pending));
        self.0.send(command.clone(), asks, Arc::clone(&pending));
        std::future::poll_fn(|context| {
            let mut state = lock(&pending.reply);
            match state.0.take() {
                Some(reply) => Poll::Ready(reply),
                None => {
                    state.1 = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Transport for Wire {
    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        self.ask(command, false).await
    }

    async fn send_asking(&self, command: &Cmd) -> RedisResult<Value> {
        self.ask(command, true).await
    }

    fn close(&self) {
        self.0.close();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// How long WAIT waits for replicas that do not come, and holds up what follows.
fn waits_for_replicas(command: &Cmd, reply: &Value) -> Time {
    let mut arguments = command.args_iter();
    match (arguments.next(), arguments.nth(1), reply) {
        (Some(Arg::Simple(b"WAIT")), Some(Arg::Simple(millis)), Value::Int(0)) => {
            std::str::from_utf8(millis).ok().and_then(|millis| millis.parse().ok()).unwrap_or(0) * MILLI
        }
        _ => 0,
    }
}

/// A command in a story: what it does and to which keys.
fn shown(command: &Cmd) -> String {
    let texts = command.args_iter().filter_map(|argument| match argument {
        Arg::Simple(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    });
    let texts = texts.filter(|text| text.len() < 60 && !text.contains(char::is_control));
    texts.skip(1).take(6).collect::<Vec<_>>().join(" ")
}
