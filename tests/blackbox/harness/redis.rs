//! A server from Debian, Redis or Valkey, on a port and in a folder of its own; and a Cluster of three.

use std::process::Command;
use std::time::Duration;

use redis::Connection;
use rustix::process::Signal;
use tempfile::TempDir;

use super::memory_folder::memory_folder;
use super::process::Process;
use super::{eventually, eventually_true, eventually_within, free_port};

/// A running server.
pub struct Redis {
    program: &'static str,
    process: Process,
    folder: TempDir,
    pub port: u16,
    more: Vec<String>,
}

impl Redis {
    /// Starts one and waits until it answers.
    pub fn start(more: &[&str]) -> Self {
        Self::start_on(free_port(), more)
    }

    /// The same, on this port.
    pub fn start_on(port: u16, more: &[&str]) -> Self {
        Self::start_program("redis-server", port, more)
    }

    /// One of each kind.
    pub fn and_valkey() -> [Self; 2] {
        ["redis-server", "valkey-server"].map(|program| Self::start_program(program, free_port(), &[]))
    }

    /// A Valkey with these arguments more.
    pub fn valkey(more: &[&str]) -> Self {
        Self::start_program("valkey-server", free_port(), more)
    }

    fn start_program(program: &'static str, port: u16, more: &[&str]) -> Self {
        let folder = memory_folder();
        let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
        let process = spawn(program, port, &folder, &more);
        let redis = Self { program, process, folder, port, more };
        drop(redis.connect());
        redis
    }

    /// A connection of the test's own.
    pub fn connect(&self) -> Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("a good URL");
        eventually("Redis to answer", || client.get_connection().ok())
    }

    /// The answer to a command.
    pub fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connect()).expect("Redis answers")
    }

    /// `host:port`.
    pub fn url(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// It does not answer any more, but its sockets stay.
    pub fn stop(&self) {
        self.process.signal(Signal::STOP);
    }

    /// It goes on.
    pub fn wake(&self) {
        self.process.signal(Signal::CONT);
    }

    /// It ends as by a crash.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// It starts again, empty.
    pub fn restart(&mut self) {
        self.process = spawn(self.program, self.port, &self.folder, &self.more);
        drop(self.connect());
    }
}

fn spawn(program: &str, port: u16, folder: &TempDir, more: &[String]) -> Process {
    let mut command = Command::new(program);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder.path()).args(more);
    Process::spawn(&mut command)
}

/// How long servers may take to elect another master. A sentinel that was kept from running for two seconds does nothing for
/// half a minute, and an election that fails is held again after some seconds: on a busy machine both happen, and neither is
/// the limiter's.
const TAKEOVER_MAX: Duration = Duration::from_secs(180);

/// Servers one of which takes over when a master dies.
pub struct Failover {
    masters: Vec<Redis>,
    replicas: Vec<Redis>,
    sentinel: Option<Sentinel>,
    url: String,
}

/// A sentinel that watches one master, which it calls `one`.
struct Sentinel {
    _process: Process,
    _folder: TempDir,
    client: redis::Client,
}

impl Sentinel {
    fn start(port: u16, master: u16) -> Self {
        let folder = memory_folder();
        let settings = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor one 127.0.0.1 {master} 1\n\
             sentinel down-after-milliseconds one 1000\nsentinel failover-timeout one 3000\n"
        );
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, settings).expect("the folder is ours");
        let process = Process::spawn(Command::new("redis-sentinel").arg(&file));
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).expect("a good URL");
        Self { _process: process, _folder: folder, client }
    }

    /// What it says of its master, once it listens.
    fn ask<T: redis::FromRedisValue>(&self, what: &str) -> Option<T> {
        let mut connection = self.client.get_connection().ok()?;
        redis::cmd("SENTINEL").arg(what).arg("one").query(&mut connection).ok()
    }
}

impl Failover {
    /// A master, its replica, and a sentinel that is enough by itself.
    pub fn of_sentinel() -> Self {
        let master = Redis::start(&[]);
        let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
        let port = free_port();
        let sentinel = Sentinel::start(port, master.port);
        eventually_true("the sentinel to know the replica", || {
            sentinel.ask::<Vec<redis::Value>>("REPLICAS").is_some_and(|known| !known.is_empty())
        });
        let url = format!("one,127.0.0.1:{port}");
        Self { masters: vec![master], replicas: vec![replica], sentinel: Some(sentinel), url }
    }

    /// Three masters with a replica each.
    pub fn of_cluster() -> Self {
        let masters = cluster();
        let bus: Vec<String> = masters[0].ask(&["CONFIG", "GET", "cluster-port"]);
        let replicas = masters.iter().map(|master| {
            let replica = cluster_node();
            let port = masters[0].port.to_string();
            replica.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus[1]]);
            let id: String = master.ask(&["CLUSTER", "MYID"]);
            eventually_true("the replica to know its master", || {
                replica.ask::<String>(&["CLUSTER", "NODES"]).contains(&id)
            });
            replica.ask::<()>(&["CLUSTER", "REPLICATE", &id]);
            replica
        });
        let replicas = replicas.collect();
        let url = masters.iter().map(Redis::url).collect::<Vec<_>>().join(",");
        let failover = Self { masters, replicas, sentinel: None, url };
        eventually_true("every master to know its replica", || {
            failover.masters.iter().all(|master| {
                let nodes: String = master.ask(&["CLUSTER", "NODES"]);
                nodes.lines().filter(|line| line.contains("slave")).count() == 3
            })
        });
        failover
    }

    /// As REDIS_URL has it.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Until replicas have what their masters have.
    pub fn wait_for_replicas(&self) {
        eventually_true("replication", || {
            self.replicas.iter().all(|replica| {
                replica.ask::<String>(&["INFO", "replication"]).contains("master_link_status:up")
            })
        });
    }

    /// From now on the replica of the first master hears nothing of it. A replica that may not continue asks for all of
    /// the data, by another command.
    pub fn stop_replication(&self) {
        self.masters[0].ask::<()>(&["ACL", "SETUSER", "default", "-psync", "-sync"]);
        self.masters[0].ask::<()>(&["CLIENT", "KILL", "TYPE", "replica"]);
        eventually_true("the replica to miss its master", || {
            self.replicas[0].ask::<String>(&["INFO", "replication"]).contains("master_link_status:down")
        });
    }

    /// The first master ends as by a crash.
    pub fn kill_a_master(&mut self) {
        self.masters[0].kill();
    }

    /// The key of a counter of this value, if the first master has it.
    pub fn log_key(&self, value: &str) -> Option<String> {
        self.masters[0].ask::<Vec<String>>(&["KEYS", &format!("*|{value}")]).pop()
    }

    /// How many hits of a log of this value the replica of the first master has.
    pub fn replicated(&self, value: &str) -> usize {
        let mut connection = self.replicas[0].connect();
        // In a Cluster a replica answers only clients that have sent this; elsewhere it is an error.
        let _ = redis::cmd("READONLY").exec(&mut connection);
        let keys: Vec<String> =
            redis::cmd("KEYS").arg(format!("*|{value}")).query(&mut connection).expect("it answers");
        let key = keys.first().expect("it has the counter");
        // Its latest time, the sum before the oldest entry, and of each entry its time and sum.
        let log: Vec<f64> =
            redis::cmd("LRANGE").arg(key).arg(0).arg(-1).query(&mut connection).expect("a list");
        (log[log.len() - 1] - log[1]) as usize
    }

    /// Waits until the replica of the first master is a master, and those say so whom clients ask.
    pub fn wait_for_takeover(&self) {
        let happened = || (self.is_promoted() && self.is_known()).then_some(());
        eventually_within(TAKEOVER_MAX, "a replica to take over", happened);
    }

    /// A sentinel closes all connections of the one that it promotes, this one too.
    fn is_promoted(&self) -> bool {
        let info = redis::cmd("INFO").arg("replication").query::<String>(&mut self.replicas[0].connect());
        info.is_ok_and(|info| info.contains("role:master"))
    }

    /// The sentinel names it, or every other master of the Cluster has it for one.
    fn is_known(&self) -> bool {
        let port = self.replicas[0].port.to_string();
        if let Some(sentinel) = &self.sentinel {
            let named = sentinel.ask::<(String, String)>("GET-MASTER-ADDR-BY-NAME");
            return named.is_some_and(|(_, named)| named == port);
        }
        let place = format!("127.0.0.1:{port}@");
        self.masters[1..].iter().all(|master| {
            let nodes: String = master.ask(&["CLUSTER", "NODES"]);
            nodes.lines().any(|line| line.contains(&place) && line.contains("master"))
        })
    }
}

fn cluster_node() -> Redis {
    let port = free_port();
    cluster_node_on(port, port)
}

/// A node that clients reach on another port.
fn cluster_node_on(port: u16, announced: u16) -> Redis {
    // The bus has a port of its own, at any distance that is free.
    let (bus, announced) = (free_port().to_string(), announced.to_string());
    let words = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--cluster-node-timeout", "1500"];
    Redis::start_on(port, &[&words[..], &["--cluster-announce-port", &announced]].concat())
}

/// Three masters that share the slots.
pub fn cluster() -> Vec<Redis> {
    joined((0..3).map(|_| cluster_node()).collect())
}

/// The same, each reached through a wire that `wire` lays to its port.
pub fn cluster_behind(wire: impl Fn(u16) -> u16) -> Vec<Redis> {
    let node = |port| cluster_node_on(port, wire(port));
    joined((0..3).map(|_| node(free_port())).collect())
}

fn joined(servers: Vec<Redis>) -> Vec<Redis> {
    for (server, slots) in servers.iter().zip([(0, 5_460), (5_461, 10_922), (10_923, 16_383)]) {
        let (first, last) = (slots.0.to_string(), slots.1.to_string());
        server.ask::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
    }
    let bus: Vec<String> = servers[0].ask(&["CONFIG", "GET", "cluster-port"]);
    for server in &servers[1..] {
        let port = servers[0].port.to_string();
        server.ask::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus[1]]);
    }
    for server in &servers {
        eventually_true("the cluster to be up", || {
            let info: String = server.ask(&["CLUSTER", "INFO"]);
            ["cluster_state:ok", "cluster_known_nodes:3", "cluster_slots_assigned:16384"]
                .iter()
                .all(|fact| info.contains(fact))
        });
    }
    servers
}
