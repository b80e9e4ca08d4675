//! The network between nodes and servers: connections that are slow, stall, break, or go on without anybody there.
//!
//! In: commands of a node. Out: replies, later, or never. Messages of one connection keep their order, as TCP has it.
//! How long each takes is drawn from the seed, the connection and the number of the message: leaving another message out
//! changes nothing for this one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use redis::{Arg, Cmd, RedisResult, Value};
use tidegate_redis::runtime::Transport;

use crate::random::Random;
use crate::redis::database::Reply;
use crate::redis::lua::Scripts;
use crate::redis::server::{EPOCH_MICROS, Map, Server};
use crate::world::{MICRO, MILLI, Time, World, lock};

/// How long a message takes at least.
const LATENCY_MIN: Time = 30 * MICRO;
/// How long a server is busy with a command.
const WORK: Time = 8 * MICRO;

thread_local! {
    /// Lua is compiled once a thread: all servers of all runs share it.
    static SCRIPTS: std::cell::RefCell<Scripts> =
        std::cell::RefCell::new(Scripts::new().expect("Lua starts"));
}

/// All servers, and the ways to them.
pub struct Network {
    seed: u64,
    /// Once in so many messages one takes much longer.
    slow_one_in: u64,
    /// From then on none does.
    calm_from: Time,
    servers: Mutex<Servers>,
    /// Of each node and server: how the way between them is.
    ways: Mutex<Vec<Vec<Way>>>,
    connections_made: AtomicU64,
    open: Mutex<Vec<Arc<Connection>>>,
    /// Commands that servers have answered.
    pub commands: AtomicU64,
}

/// All servers.
struct Servers {
    links: Vec<Link>,
    /// Of those that are there.
    map: Map,
}

impl Servers {
    fn new(links: Vec<Link>) -> Self {
        let map = Map::of(links.iter().filter(|link| !link.is_gone).map(|link| &link.server));
        Self { links, map }
    }
}

/// A server, as the network has it.
struct Link {
    server: Server,
    /// It answers nothing until then, and then everything.
    stopped_until: Time,
    busy_until: Time,
    /// It is gone: nobody can connect.
    is_gone: bool,
}

/// The way between a node and a server.
#[derive(Clone, Copy, Default)]
struct Way {
    /// Messages wait until then.
    cut_until: Time,
    /// What is sent on connections that are older than this never arrives.
    lost_before: u64,
}

/// A connection of a node to a server.
pub struct Connection {
    world: Arc<World>,
    network: Arc<Network>,
    number: u64,
    node: usize,
    server: usize,
    is_closed: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    messages: u64,
    /// When the last message arrives, there and back.
    arrives: [Time; 2],
    waiting: Vec<Arc<Pending>>,
}

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

impl Network {
    /// Servers that so many nodes may reach.
    pub fn new(
        seed: u64,
        nodes: usize,
        servers: Vec<Server>,
        (slow_one_in, calm_from): (u64, Time),
    ) -> Arc<Self> {
        let ways = Mutex::new(vec![vec![Way::default(); servers.len()]; nodes]);
        let link = |server| Link { server, stopped_until: 0, busy_until: 0, is_gone: false };
        Arc::new(Self {
            seed,
            slow_one_in,
            calm_from,
            servers: Mutex::new(Servers::new(servers.into_iter().map(link).collect())),
            ways,
            connections_made: AtomicU64::new(1),
            open: Mutex::default(),
            commands: AtomicU64::new(0),
        })
    }

    /// Changes a server.
    pub fn server<T>(&self, number: usize, change: impl FnOnce(&mut Server) -> T) -> T {
        change(&mut lock(&self.servers).links[number].server)
    }

    /// A server answers nothing until then.
    pub fn stop(&self, number: usize, until: Time) {
        lock(&self.servers).links[number].stopped_until = until;
    }

    /// A server is gone, or is there again.
    pub fn set_gone(&self, number: usize, is_gone: bool) {
        lock(&self.servers).links[number].is_gone = is_gone;
        self.draw_map();
    }

    /// All servers know what has changed among them.
    pub fn draw_map(&self) {
        let mut servers = lock(&self.servers);
        *servers = Servers::new(std::mem::take(&mut servers.links));
    }

    /// Messages between a node and a server wait until then.
    pub fn cut(&self, node: usize, server: usize, until: Time) {
        lock(&self.ways)[node][server].cut_until = until;
    }

    /// Connections between a node and a server are open at one end only: what is sent never arrives.
    pub fn lose(&self, node: usize, server: usize) {
        lock(&self.ways)[node][server].lost_before = self.connections_made.load(Relaxed);
    }

    /// Breaks the connections of a server, or of a node and a server. Replies that are under way never arrive.
    pub fn break_all(&self, node: Option<usize>, server: usize) {
        let is_meant = |it: &Connection| it.server == server && node.is_none_or(|node| it.node == node);
        let broken: Vec<_> = lock(&self.open).iter().filter(|it| is_meant(it)).cloned().collect();
        broken.iter().for_each(|connection| connection.break_now());
    }

    /// Breaks all connections: they and the network hold each other.
    pub fn end(&self) {
        let open = std::mem::take(&mut *lock(&self.open));
        open.iter().for_each(|connection| connection.break_now());
    }

    fn way(&self, node: usize, server: usize) -> Way {
        lock(&self.ways)[node][server]
    }

    /// How long a message of a connection takes.
    fn latency(&self, now: Time, connection: u64, message: u64) -> Time {
        let mixed = self.seed ^ connection.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ message << 1;
        let mut random = Random::new(mixed);
        let usual = LATENCY_MIN + random.below(200 * MICRO);
        if now < self.calm_from && random.one_in(self.slow_one_in) {
            usual + random.below(150 * MILLI)
        } else {
            usual
        }
    }

    /// The server runs a command now.
    fn run(&self, now: Time, server: usize, command: &Cmd, asks: bool) -> Value {
        self.commands.fetch_add(1, Relaxed);
        let arguments: Vec<&[u8]> = command
            .args_iter()
            .map(|argument| match argument {
                Arg::Simple(argument) => argument,
                _ => panic!("nobody asks for a cursor"),
            })
            .collect();
        let mut servers = lock(&self.servers);
        let Servers { links, map } = &mut *servers;
        let micros = EPOCH_MICROS + now / MICRO;
        SCRIPTS.with_borrow_mut(|scripts| {
            to_value(links[server].server.run(scripts, map, micros, &arguments, asks))
        })
    }

    /// Connects a node to a server of this name.
    pub async fn connect(self: &Arc<Self>, world: &Arc<World>, node: usize, host: &str) -> RedisResult<Wire> {
        let number = self.connections_made.fetch_add(1, Relaxed);
        let server =
            lock(&self.servers).links.iter().position(|link| link.server.name == host && !link.is_gone);
        let arrives = world.now() + self.latency(world.now(), number, 0);
        let Some(server) = server else {
            world.until(arrives).await;
            return Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        };
        let arrives = arrives.max(self.way(node, server).cut_until);
        world.until(arrives).await;
        let connection = Arc::new(Connection {
            world: Arc::clone(world),
            network: Arc::clone(self),
            number,
            node,
            server,
            is_closed: AtomicBool::new(false),
            state: Mutex::new(State { messages: 1, ..State::default() }),
        });
        lock(&self.open).push(Arc::clone(&connection));
        Ok(Wire(connection))
    }
}

impl Connection {
    fn break_now(&self) {
        self.is_closed.store(true, Relaxed);
        lock(&self.network.open).retain(|other| other.number != self.number);
        let waiting = std::mem::take(&mut lock(&self.state).waiting);
        waiting.iter().for_each(|pending| pending.answer(Err(broken())));
    }

    /// When the next message arrives in this direction, after all before it.
    fn next_arrival(&self, direction: usize, from: Time) -> Time {
        let mut state = lock(&self.state);
        state.messages += 1;
        let on_time = from + self.network.latency(from, self.number, state.messages);
        let arrives = on_time.max(self.network.way(self.node, self.server).cut_until);
        let arrives = arrives.max(state.arrives[direction] + 1);
        state.arrives[direction] = arrives;
        arrives
    }

    /// Lets the command of a pending reply travel to the server, which runs it, and the reply back.
    fn send(self: &Arc<Self>, command: Cmd, asks: bool, pending: Arc<Pending>) {
        let (there, connection) = (self.next_arrival(0, self.world.now()), Arc::clone(self));
        self.world.at(there, move |world| connection.arrived(world, command, asks, pending));
    }

    fn arrived(self: Arc<Self>, world: &Arc<World>, command: Cmd, asks: bool, pending: Arc<Pending>) {
        let is_lost = self.number < self.network.way(self.node, self.server).lost_before;
        if self.is_closed.load(Relaxed) || is_lost {
            return;
        }
        let (now, begins) = (world.now(), {
            let link = &mut lock(&self.network.servers).links[self.server];
            let begins = link.stopped_until.max(link.busy_until).max(world.now());
            if begins == world.now() {
                link.busy_until = begins + WORK;
            }
            begins
        });
        if begins > now {
            return world.at(begins, move |world| self.arrived(world, command, asks, pending));
        }
        let reply = self.network.run(now, self.server, &command, asks);
        if command.args_iter().next().is_some_and(|name| matches!(name, Arg::Simple(b"EVAL" | b"EVALSHA"))) {
            world.tell(|| format!("server {} runs {} for node {}", self.server, shown(&command), self.node));
        }
        let back = self.next_arrival(1, now + WORK + waits_for_replicas(&command, &reply));
        world.at(back, move |_| {
            let is_lost = self.number < self.network.way(self.node, self.server).lost_before;
            if !self.is_closed.load(Relaxed) && !is_lost {
                lock(&self.state).waiting.retain(|other| !Arc::ptr_eq(other, &pending));
                pending.answer(Ok(reply));
            }
        });
    }
}

/// A connection, as the code under test holds it: it breaks when that drops it.
pub struct Wire(Arc<Connection>);

impl Wire {
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
        self.0.break_now();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.0.break_now();
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

fn to_value(reply: Reply) -> Value {
    match reply {
        Reply::Nil => Value::Nil,
        Reply::Status("OK") => Value::Okay,
        Reply::Status(text) => Value::SimpleString(text.to_owned()),
        Reply::Int(number) => Value::Int(number),
        Reply::Bulk(bytes) => Value::BulkString(bytes),
        Reply::Array(replies) => Value::Array(replies.into_iter().map(to_value).collect()),
        Reply::Error(code, text) => {
            let line = format!("-{code} {}\r\n", text.lines().next().unwrap_or_default());
            redis::parse_redis_value(line.as_bytes()).expect("an error is a line")
        }
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
