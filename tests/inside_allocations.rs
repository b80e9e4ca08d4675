//! A request inside Envoy that leases answer allocates nothing, from its headers to the decision, with up to four
//! counters; nor does one that memory answers, nor one that is denied at once.
//!
//! Not counted are the module's object for each stream, which Envoy wants by its address, and the headers of a response.
//!
//! A binary of its own, because the allocator counts for the whole process. Needs `redis-server`.

use std::alloc::System;
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tidegate::inside::{Inside, Options, Refusal, Reply};
use tidegate_engine::rules::{ClientRequest, Field};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const RULES: &str = "domain: bench
rate_limits:
  - actions: [{masked_remote_address: {v4_prefix_mask_len: 16}}]
  - actions: [{request_headers: {header_name: x-user, descriptor_key: user}}, {generic_key: {descriptor_value: paid}}]
  - actions: [{header_value_match: {descriptor_value: named, headers: [{name: x-user, string_match: {prefix: al}}]}}]
  - actions: [{query_parameters: {query_parameter_name: q, descriptor_key: query}}]
descriptors:
  - {key: masked_remote_address, rate_limit: {unit: hour, requests_per_unit: LIMIT}}
  - {key: user, descriptors: [{key: generic_key, rate_limit: {unit: hour, requests_per_unit: 1000000000}}]}
  - {key: header_match, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
  - {key: query, rate_limit: {unit: hour, requests_per_unit: 1000000000}}
";
/// How many requests are counted at once.
const CALLS: usize = 500;
/// Leases are renewed meanwhile, and the test harness's own thread allocates now and then: one of so many counts is that
/// of the requests alone.
const COUNTS: usize = 50;
/// Until there are leases that last.
const ROUNDS_MAX: usize = 10_000;

#[test]
fn a_request_that_is_answered_at_once_allocates_nothing() {
    let (_redis, port) = redis();
    let leased = [("REDIS_URL", format!("127.0.0.1:{port}")), ("REDIS_LEASE_TIME", "10s".to_owned())];
    for (store, settings) in [("memory", &[][..]), ("leased", &leased)] {
        for (limit, passes) in [(1_000_000_000, true), (10, false)] {
            let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            let rules = Some(RULES.replace("LIMIT", &limit.to_string()));
            let inside =
                Inside::with(&Options { settings: settings.collect(), rules }).expect("good settings");
            let is_at_once = || answered_at_once(&inside) == Some(passes);
            assert!((0..ROUNDS_MAX).any(|_| (0..2_000).all(|_| is_at_once())), "{store}: no lease");
            // A lease may end in between. Such a count says nothing.
            let all_at_once = Cell::new(true);
            let ask = || all_at_once.set(answered_at_once(&inside).is_some() && all_at_once.get());
            let is_free = || {
                all_at_once.set(true);
                allocations(ask) == 0 && all_at_once.get()
            };
            assert!((0..COUNTS).any(|_| is_free()), "{store}, passes: {passes}");
        }
    }
}

/// Allocations and reallocations of some requests.
fn allocations(call: impl Fn()) -> usize {
    let region = Region::new(ALLOCATOR);
    (0..CALLS).for_each(|_| call());
    let change = region.change();
    change.allocations + change.reallocations
}

/// Asks. Whether the request passes, if this was known at once. An answer that comes later is waited for.
fn answered_at_once(inside: &Arc<Inside>) -> Option<bool> {
    let costs = inside.costs("bench", None, &Client).expect("its costs can be known");
    assert!(costs.is_none(), "nothing is charged at its end");
    let passes = |decided| inside.hold(decided).client.numbers.passes();
    match inside.check("bench", None, &Client) {
        Reply::Now(answer) => Some(passes(answer.expect("a decision"))),
        Reply::Later(answer) => {
            let (sender, answered) = mpsc::channel();
            inside.spawn(async move { _ = sender.send(answer.await.is_ok()) });
            assert!(answered.recv().expect("it comes"), "a decision");
            None
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

    fn query_parameter(&self, _: &str, text: &mut String) -> Result<bool, Refusal> {
        text.push_str("tides");
        Ok(true)
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
