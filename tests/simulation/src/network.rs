//! The network between nodes and servers: ways that are slow or cut, servers that stand still or are gone.
//!
//! In: commands of a node. Out: replies, later, or never. How long each message takes is drawn from the seed, the way, the
//! connection's place on it and the number of the message: leaving another message out changes nothing for this one.

mod connection;
mod reads;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use redis::{Arg, Cmd, RedisResult, Value};
use smallvec::SmallVec;

use crate::random::Random;
use crate::redis::database::Reply;
use crate::redis::scripts::Scripts;
use crate::redis::server::{EPOCH_MICROS, Map, Server};
use crate::world::{MICRO, MILLI, Span, Time, World, lock};
use connection::Connection;
pub use connection::Wire;
pub use reads::Reads;

/// How long a message takes at least.
const LATENCY_MIN: Time = 30 * MICRO;
/// How long a server is busy with a command.
const WORK: Time = 8 * MICRO;

thread_local! {
    /// Lua is compiled once a thread: all servers of all runs share it.
    static SCRIPTS: std::cell::RefCell<Scripts> =
        std::cell::RefCell::new(Scripts::new().expect("Lua starts"));
}

/// How long messages take.
#[derive(Clone, Debug)]
pub struct Latencies {
    /// Once in so many messages one takes much longer. `None`: never.
    pub slow_one_in: Option<u64>,
    /// How much longer each message of a node takes, to servers and back.
    pub far: Vec<[Time; 2]>,
    /// From then on all are fast.
    pub calm_from: Time,
}

/// All servers, and the ways to them.
pub struct Network {
    seed: u64,
    latencies: Latencies,
    servers: Mutex<Servers>,
    /// Of each node and server: how the way between them is.
    ways: Mutex<Vec<Vec<Way>>>,
    open: Mutex<Vec<Arc<Connection>>>,
    /// Of each server: when messages of nodes to it or from it took much longer.
    pub slow: Mutex<Vec<Vec<Span>>>,
    /// A decision for which a server was asked though it may not have made it.
    pub undue: Mutex<Option<String>>,
    /// Commands that servers have answered.
    pub commands: AtomicU64,
    /// The clocks of all servers are ahead by so many microseconds.
    ahead: AtomicI64,
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
    /// How often all its connections broke: what is under way on older ones never arrives.
    breaks: u64,
}

/// The way between a node and a server.
#[derive(Clone, Copy, Default)]
struct Way {
    /// Messages wait until then.
    cut_until: Time,
    /// Connections that were ever made.
    connections: u64,
    /// What is sent on connections before this one never arrives.
    lost_before: u64,
}

impl Network {
    /// Servers that so many nodes may reach.
    pub fn new(seed: u64, nodes: usize, servers: Vec<Server>, latencies: Latencies) -> Arc<Self> {
        let ways = Mutex::new(vec![vec![Way::default(); servers.len()]; nodes]);
        let slow = Mutex::new(vec![Vec::new(); servers.len()]);
        let link = |server| Link { server, stopped_until: 0, busy_until: 0, is_gone: false, breaks: 0 };
        Arc::new(Self {
            seed,
            latencies,
            servers: Mutex::new(Servers::new(servers.into_iter().map(link).collect())),
            ways,
            open: Mutex::default(),
            slow,
            undue: Mutex::default(),
            commands: AtomicU64::new(0),
            ahead: AtomicI64::new(0),
        })
    }

    /// Changes a server.
    pub fn server<T>(&self, number: usize, change: impl FnOnce(&mut Server) -> T) -> T {
        change(&mut lock(&self.servers).links[number].server)
    }

    /// The clocks of all servers step by so much, ahead or back.
    pub fn step_servers(&self, by: Time, is_ahead: bool) {
        let micros = (by / MICRO).cast_signed();
        self.ahead.fetch_add(if is_ahead { micros } else { -micros }, Relaxed);
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
        let way = &mut lock(&self.ways)[node][server];
        way.lost_before = way.connections + 1;
    }

    /// The oldest connection between a node and a server is open at one end only.
    pub fn lose_one(&self, node: usize, server: usize) {
        let open = lock(&self.open);
        open.iter().filter(|it| it.is_between(node, server)).take(1).for_each(|it| it.lose());
    }

    /// Breaks the connections of a node and a server. What is under way never arrives.
    pub fn break_way(&self, node: usize, server: usize) {
        self.lose(node, server);
        self.close(|it| it.is_between(node, server));
    }

    /// Breaks all connections of a server. What is under way never arrives.
    pub fn break_all(&self, server: usize) {
        lock(&self.servers).links[server].breaks += 1;
        self.close(|it| it.server == server);
    }

    /// The node is there no more: its system closes its connections. What it sent may arrive all the same.
    pub fn close_all(&self, node: usize) {
        self.close(|it| it.node == node);
    }

    fn close(&self, is_meant: impl Fn(&Connection) -> bool) {
        let meant: Vec<_> = lock(&self.open).iter().filter(|it| is_meant(it)).cloned().collect();
        meant.iter().for_each(|connection| connection.close());
    }

    /// Breaks all connections: they and the network hold each other.
    pub fn end(&self) {
        self.close(|_| true);
    }

    /// Whether what is sent on this connection cannot arrive any more.
    fn is_lost(&self, connection: &Connection) -> bool {
        let way = lock(&self.ways)[connection.node][connection.server];
        connection.is_lost()
            || connection.place < way.lost_before
            || connection.breaks < lock(&self.servers).links[connection.server].breaks
    }

    fn cut_until(&self, node: usize, server: usize) -> Time {
        lock(&self.ways)[node][server].cut_until
    }

    /// A generator for one message of a connection.
    fn drawn(&self, (node, server): (usize, usize), place: u64, message: u64) -> Random {
        let way = (node as u64) << 8 | server as u64;
        Random::new(self.seed ^ (way << 32 | place).wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ message << 1)
    }

    /// How long a message takes that is sent now: 0 is to the server, 1 back.
    fn latency(
        &self,
        now: Time,
        direction: usize,
        (node, server): (usize, usize),
        mut random: Random,
    ) -> Time {
        let Latencies { slow_one_in, calm_from, far } = &self.latencies;
        let usual = LATENCY_MIN + random.below(200 * MICRO);
        if now >= *calm_from {
            return usual;
        }
        let is_slow = slow_one_in.is_some_and(|times| random.one_in(times));
        let slow = if is_slow { random.below(150 * MILLI) } else { 0 };
        if slow > 0 {
            lock(&self.slow)[server].push(Span { node, from: now, until: now + slow });
        }
        usual + far[node][direction] + slow
    }

    /// When a server can run a command that arrives now.
    fn begins(&self, now: Time, server: usize) -> Time {
        let link = &mut lock(&self.servers).links[server];
        let begins = link.stopped_until.max(link.busy_until).max(now);
        if begins == now {
            link.busy_until = begins + WORK;
        }
        begins
    }

    /// The server runs a command now.
    fn run(&self, now: Time, server: usize, command: &Cmd, asks: bool) -> Value {
        self.commands.fetch_add(1, Relaxed);
        // As many as most scripts take.
        let arguments: SmallVec<[&[u8]; 64]> = command
            .args_iter()
            .map(|argument| match argument {
                Arg::Simple(argument) => argument,
                _ => panic!("nobody asks for a cursor"),
            })
            .collect();
        let mut servers = lock(&self.servers);
        let Servers { links, map } = &mut *servers;
        let server = &mut links[server].server;
        let micros = EPOCH_MICROS + now / MICRO + server.ahead / MICRO;
        let micros = micros.saturating_add_signed(self.ahead.load(Relaxed));
        SCRIPTS.with_borrow_mut(|scripts| to_value(server.run(scripts, map, micros, &arguments, asks)))
    }

    /// Connects a node to a server of this name. `reads`: its process follows resets.
    pub async fn connect(
        self: &Arc<Self>,
        world: &Arc<World>,
        (node, reads): (usize, Option<Arc<Reads>>),
        host: &str,
    ) -> RedisResult<Wire> {
        let server =
            lock(&self.servers).links.iter().position(|link| link.server.name == host && !link.is_gone);
        let refused = || Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        let Some(server) = server else {
            world.until(world.now() + LATENCY_MIN).await;
            return refused();
        };
        let place = {
            let way = &mut lock(&self.ways)[node][server];
            way.connections += 1;
            way.connections
        };
        let there = self.latency(world.now(), 0, (node, server), self.drawn((node, server), place, 0));
        world.until((world.now() + there).max(self.cut_until(node, server))).await;
        let (is_gone, breaks) = {
            let link = &lock(&self.servers).links[server];
            (link.is_gone, link.breaks)
        };
        if is_gone {
            return refused();
        }
        let connection = Arc::new(Connection::new(world, self, (node, server), (place, breaks), reads));
        lock(&self.open).push(Arc::clone(&connection));
        Ok(Wire::of(connection))
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
