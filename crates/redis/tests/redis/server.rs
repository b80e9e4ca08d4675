//! Redis and Valkey servers for tests: on free ports of loopback, each in its own folder, ended with the test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::Connection;
use tempfile::TempDir;

/// A server that ends with the test.
pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
    _folder: TempDir,
}

impl Server {
    /// Starts a Redis with these additional arguments.
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::of("redis-server", more)
    }

    /// Starts a Valkey.
    pub(crate) fn valkey() -> Self {
        Self::of("valkey-server", &[])
    }

    fn of(program: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let child = Command::new(program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(folder.path())
            .args(more)
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program} is not installed: {error}"));
        let server = Self { port, child, _folder: folder };
        server.connect();
        server
    }

    /// A connection, once the server answers.
    #[allow(clippy::disallowed_methods, reason = "a real server takes real time to start")]
    pub(crate) fn connect(&self) -> Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("a good URL");
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match client.get_connection() {
                Ok(connection) => return connection,
                _ if Instant::now() > deadline => panic!("no Redis on port {}", self.port),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three masters of this program that share the slots.
pub(crate) fn cluster(program: &str) -> Vec<Server> {
    let settings = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
    let servers: Vec<Server> = (0..3).map(|_| Server::of(program, &settings)).collect();
    let share = 16_384 / servers.len() as u64;
    for (server, first) in servers.iter().zip((0..).step_by(share as usize + 1)) {
        let mut add = redis::cmd("CLUSTER");
        add.arg("ADDSLOTSRANGE").arg(first).arg((first + share).min(16_383));
        add.exec(&mut server.connect()).expect("slots can be taken");
    }
    for server in &servers[1..] {
        let mut meet = redis::cmd("CLUSTER");
        meet.arg("MEET").arg("127.0.0.1").arg(servers[0].port);
        meet.exec(&mut server.connect()).expect("servers can meet");
    }
    servers.iter().for_each(wait_for_cluster);
    servers
}

#[allow(clippy::disallowed_methods, reason = "real servers take real time to meet")]
fn wait_for_cluster(server: &Server) {
    let mut connection = server.connect();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection).expect("it answers");
        let all = ["cluster_state:ok", "cluster_known_nodes:3", "cluster_slots_assigned:16384"];
        if all.iter().all(|fact| info.contains(fact)) {
            return;
        }
        assert!(Instant::now() < deadline, "the cluster is not up: {info}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A port that was free a moment ago, like the port of its Cluster bus.
fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
        if port < 50_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}
