//! A Redis server from Debian, on a port and in a folder of its own; and a Cluster of three.

use std::process::Command;

use redis::Connection;
use rustix::process::Signal;
use tempfile::TempDir;

use super::process::Process;
use super::{eventually, eventually_true, free_port};

/// A running server.
pub struct Redis {
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
        let folder = tempfile::tempdir().expect("a folder can be made");
        let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
        let redis = Self { process: spawn(port, &folder, &more), folder, port, more };
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
        self.process = spawn(self.port, &self.folder, &self.more);
        drop(self.connect());
    }
}

fn spawn(port: u16, folder: &TempDir, more: &[String]) -> Process {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(folder.path()).args(more);
    Process::spawn(&mut command)
}

/// Three masters that share the slots.
pub fn cluster() -> Vec<Redis> {
    let servers: Vec<Redis> = (0..3)
        .map(|_| {
            // The bus has a port of its own, at any distance that is free.
            let bus = free_port().to_string();
            Redis::start(&["--cluster-enabled", "yes", "--cluster-port", &bus])
        })
        .collect();
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
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        });
    }
    servers
}
