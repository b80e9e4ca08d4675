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
use request::{Descriptors, Keys, RequestMessage, rules_text};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const KEYS: u64 = 1_000_000;
const CONNECTIONS: usize = 8;
const BATCHES: usize = 20_000;

/// What is measured.
struct Load {
    name: &'static str,
    /// Of a batch.
    calls: usize,
    keys: u64,
    descriptors: Descriptors,
    /// Whether calls carry request ids and trace headers.
    ids: bool,
}

const LOADS: [Load; 8] = [
    Load::plain("64", 64, KEYS),
    Load::plain("64-few-keys", 64, 100),
    Load { ids: true, ..Load::plain("64-ids", 64, KEYS) },
    Load::plain("8", 8, KEYS),
    Load::plain("1", 1, KEYS),
    Load::gateway("64-gateway1", 1),
    Load::gateway("64-gateway4", 4),
    Load::gateway("64-gateway8", 8),
];

impl Load {
    const fn plain(name: &'static str, calls: usize, keys: u64) -> Load {
        Load { name, calls, keys, descriptors: Descriptors::Plain, ids: false }
    }

    /// Calls with so many descriptors, and as many counters in all.
    const fn gateway(name: &'static str, rules: usize) -> Load {
        let descriptors = Descriptors::Gateway(rules);
        Load { name, calls: 64, keys: KEYS / rules as u64, descriptors, ids: false }
    }
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let connect = lane(&rules_text("{unit: hour, requests_per_unit: 1000000}"));
    println!("{:<12} {:>14} {:>14}", "calls", "ns a call", "the fastest");
    for load in LOADS {
        let Load { name, calls, keys, .. } = load;
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            measure(&connect, &load, Keys::InTurn(0), keys as usize / calls);
            let mut times = measure(&connect, &load, Keys::Random(keys), BATCHES);
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
fn measure<C>(connect: &impl Fn() -> C, load: &Load, keys: Keys, batches: usize) -> Vec<Duration>
where
    C: FnMut(&[u8], &mut Vec<u8>) -> usize,
{
    let &Load { calls, ids, descriptors, .. } = load;
    let mut request = RequestMessage::new(keys, descriptors);
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
