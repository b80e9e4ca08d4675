//! `cargo bench --bench lane`: the cost of one call on the lane without sockets, from the bytes of a batch of requests
//! to the bytes of their answers. The decision among a million keys is included.
//!
//! The times are medians over batches, so that other work on the machine hardly matters. `-- NAME` runs one load alone.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads real clocks")]
#![allow(dead_code, reason = "the other benchmark uses all of what they share")]

use std::time::{Duration, Instant};

use mimalloc::MiMalloc;
use tidegate::{lane, proto};

#[path = "front/answer_head.rs"]
mod answer_head;
#[path = "front/client.rs"]
mod client;
#[path = "front/frame.rs"]
mod frame;
#[path = "front/hpack.rs"]
mod hpack;
#[path = "front/huffman.rs"]
mod huffman;
#[path = "front/request.rs"]
mod request;
#[path = "front/request_head.rs"]
mod request_head;

use client::{Client, Tally};
use request::{DOMAIN, Descriptors, KEY, Keys, RequestMessage};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const KEYS: u64 = 1_000_000;
const CONNECTIONS: usize = 8;
const BATCHES: usize = 20_000;

/// Name, calls of a batch, keys, whether calls carry request ids and trace headers.
const LOADS: [(&str, usize, u64, bool); 5] = [
    ("64", 64, KEYS, false),
    ("64-few-keys", 64, 100, false),
    ("64-ids", 64, KEYS, true),
    ("8", 8, KEYS, false),
    ("1", 1, KEYS, false),
];

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let limit = "rate_limit: {unit: hour, requests_per_unit: 1000000}";
    let connect = lane(&format!("domain: {DOMAIN}\ndescriptors:\n  - {{key: {KEY}, {limit}}}\n"));
    println!("{:<12} {:>14} {:>14}", "calls", "ns a call", "the fastest");
    measure(&connect, 64, Keys::InTurn(0), false, KEYS as usize / 64);
    for (name, calls, keys, ids) in LOADS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            let mut times = measure(&connect, calls, Keys::Random(keys), ids, BATCHES);
            times.sort_unstable();
            let a_call = |time: Duration| time.as_nanos() as f64 / calls as f64;
            println!(
                "{name:<12} {:>14.0} {:>14.0}",
                a_call(times[times.len() / 2]),
                a_call(times[times.len() / 100])
            );
        }
    }
}

/// The time of each batch.
fn measure<C>(connect: &impl Fn() -> C, calls: usize, keys: Keys, ids: bool, batches: usize) -> Vec<Duration>
where
    C: FnMut(&[u8], &mut Vec<u8>) -> usize,
{
    let mut request = RequestMessage::new(keys, Descriptors::Plain);
    let mut links: Vec<_> = (0..CONNECTIONS as u64).map(|seed| (Client::new(ids, seed), connect())).collect();
    let (mut tally, mut out, mut times) = (Tally::new(), Vec::new(), Vec::with_capacity(batches));
    for (client, serve) in &mut links {
        exchange(client, serve, &mut out, &mut tally);
    }
    for batch in 0..batches {
        let (client, serve) = &mut links[batch % CONNECTIONS];
        (0..calls).for_each(|_| assert!(client.ask(&mut request, 0), "there is room"));
        times.push(exchange(client, serve, &mut out, &mut tally));
    }
    assert_eq!((tally.answers, tally.errors), ((batches * calls) as u64, 0), "{:?}", tally.first_error);
    times
}

/// Hands the client's bytes to the server and the server's answer to the client. Returns the time of the server.
fn exchange(
    client: &mut Client,
    serve: &mut impl FnMut(&[u8], &mut Vec<u8>) -> usize,
    out: &mut Vec<u8>,
    tally: &mut Tally,
) -> Duration {
    out.clear();
    let began = Instant::now();
    let used = serve(&client.out, out);
    let took = began.elapsed();
    assert_eq!(used, client.out.len(), "whole frames");
    client.out.clear();
    client.receive(&mut &out[..], 0, tally).expect("a healthy server");
    took
}
