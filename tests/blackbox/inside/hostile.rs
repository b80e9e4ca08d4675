//! Keys of an attacker, each another one: memory is bounded, and a new user is answered as before.

use std::io::{BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::soak;
use crate::harness::envoy::Envoy;
use crate::harness::http::{self, Client, read_answer};
use crate::harness::inside::{Inside, rules};
use crate::harness::lateness::Lateness;
use crate::harness::redis::Redis;
use crate::harness::whole_machine;

/// Keys before memory is looked at, and in all.
const FIRST: u32 = 5_000;
const CONNECTIONS: u32 = 4;
/// Requests that are sent before their answers are read.
const PIPELINED: u32 = 50;
const COUNTER_BYTES: u64 = 4 << 20;
/// What Envoy itself and the allocator may take meanwhile.
const SLACK_BYTES: u64 = 24 << 20;

fn keys() -> u32 {
    if soak() { 1_000_000 } else { 25_000 }
}

/// Asks once with each of these keys.
fn flood(envoy: &Envoy, first: u32, last: u32) {
    let connection = |at: u32| {
        let mut socket = http::connect(envoy.port).expect("Envoy listens");
        let mut answers = BufReader::new(socket.try_clone().expect("a socket can be shared"));
        let keys: Vec<u32> = (first + at..last).step_by(CONNECTIONS as usize).collect();
        for keys in keys.chunks(PIPELINED as usize) {
            ask(&mut socket, keys);
            for _ in keys {
                let answer = read_answer(&mut answers, false).expect("Envoy answers");
                assert!([200, 429].contains(&answer.status), "{answer:?}");
            }
        }
    };
    std::thread::scope(|scope| {
        for at in 0..CONNECTIONS {
            scope.spawn(move || connection(at));
        }
    });
}

fn ask(socket: &mut TcpStream, keys: &[u32]) {
    let request = |key: &u32| format!("GET / HTTP/1.1\r\nhost: a\r\nx-user: {key:0100}\r\n\r\n");
    let requests: String = keys.iter().map(request).collect();
    socket.write_all(requests.as_bytes()).expect("Envoy reads");
}

fn memory_stays_bounded(inside: &Inside) {
    let envoy = inside.start();
    flood(&envoy, 0, FIRST);
    let before = envoy.memory_peak_bytes();
    flood(&envoy, FIRST, keys());
    let grown = envoy.memory_peak_bytes() - before;
    println!("{} keys, {} KiB more than after {FIRST}", keys(), grown / 1024);
    assert!(grown < COUNTER_BYTES + SLACK_BYTES, "{grown} bytes");

    let (lateness, began) = (Lateness::watch(), Instant::now());
    let answer = Client::new(envoy.port).send("GET", "/", &[("x-user", "ann")], "").expect("Envoy answers");
    let took = began.elapsed();
    println!("a new user waited {took:?}");
    assert_eq!(answer.status, 200, "{answer:?}");
    let bound = Duration::from_millis(if soak() { 50 } else { 1_000 });
    assert!(took < bound + lateness.allowance(), "{took:?}");
}

#[test]
fn one_time_keys_take_bounded_memory() {
    let _machine = whole_machine();
    let limit = rules("{unit: second, requests_per_unit: 5}");
    memory_stays_bounded(&Inside::new(&limit).setting("MAX_COUNTER_BYTES", &COUNTER_BYTES.to_string()));
}

#[test]
fn one_time_keys_in_redis_take_bounded_memory() {
    let _machine = whole_machine();
    let redis = Redis::start(&[]);
    let limit = rules("{unit: second, requests_per_unit: 5}");
    memory_stays_bounded(
        &Inside::new(&limit).setting("REDIS_URL", &redis.url()).setting("REDIS_TIMEOUT", "10s"),
    );
}
