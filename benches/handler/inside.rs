//! The way of a request inside Envoy, without Envoy: from its headers to the answer, in memory and from a lease.

use std::collections::BTreeMap;
use std::convert::identity;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tidegate::inside::{Inside, Options, Refusal, Reply};
use tidegate_engine::rules::{ClientRequest, Field};

use super::counted;

const RULES: &str = "domain: bench
rate_limits:
  - actions: [{remote_address: {}}]
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}]
descriptors:
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
";
/// Leases are renewed while allocations are counted: the least of so many counts is that of a request alone.
const COUNTS: usize = 50;
/// Until there is a lease that lasts.
const ROUNDS_MAX: usize = 10_000;

/// Prints a row for each store.
pub fn rows() {
    println!("\nallocations of a request inside Envoy, with two descriptors");
    row("memory", &[]);
    let (redis, port) = redis();
    row("leased", &[("REDIS_URL", format!("127.0.0.1:{port}")), ("REDIS_LEASE_TIME", "10s".to_owned())]);
    drop(redis);
}

fn row(store: &str, settings: &[(&str, String)]) {
    let settings: BTreeMap<_, _> =
        settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let inside = Inside::with(&Options { settings, rules: Some(RULES.to_owned()) }).expect("good settings");
    let lasts = (0..ROUNDS_MAX).any(|_| (0..2_000).all(|_| is_answered_at_once(&inside)));
    assert!(lasts, "{store}: no lease");
    let count = || counted(|| _ = black_box(is_answered_at_once(&inside)));
    let (allocations, bytes) = (0..COUNTS).map(|_| count()).min().unwrap_or_default();
    println!("{store:>8} {allocations:>12} {bytes:>6} bytes");
}

/// Asks. An answer that comes later is waited for.
fn is_answered_at_once(inside: &Inside) -> bool {
    match inside.check("bench", &Client) {
        Reply::Now(answer) => answer.is_ok_and(|answer| answer.client.numbers.passes()),
        Reply::Later(answer) => {
            let (sender, answered) = std::sync::mpsc::channel();
            inside.spawn(async move { _ = sender.send(answer.await.is_ok()) });
            !answered.recv().is_ok_and(identity)
        }
    }
}

/// A request of a client.
struct Client;

impl ClientRequest for Client {
    type Error = Refusal;

    fn first(&self, _: &Field) -> Result<Option<&str>, Refusal> {
        Ok(Some("alice"))
    }

    fn any(&self, _: &Field, test: impl Fn(&str) -> bool) -> Result<Option<bool>, Refusal> {
        Ok(Some(test("alice")))
    }

    fn query_parameter(&self, _: &str, _: &mut String) -> Result<bool, Refusal> {
        Ok(false)
    }

    fn address(&self) -> Result<IpAddr, Refusal> {
        Ok(Ipv4Addr::LOCALHOST.into())
    }
}

/// A Redis of our own, which ends when it is dropped.
struct Redis(Child);

impl Drop for Redis {
    fn drop(&mut self) {
        // Neither can fail for a child that was not waited for yet.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn redis() -> (Redis, u16) {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
    let port = free.expect("a port is free").port();
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]).stdout(Stdio::null());
    let redis = Redis(command.spawn().expect("redis-server (apt-get install redis-server)"));
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    (redis, port)
}
