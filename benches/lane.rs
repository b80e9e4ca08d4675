//! `cargo bench --bench lane`: the cost of one call on the lane without sockets, from the bytes of a batch of requests
//! to the bytes of their answers. The decision among a million keys is included.
//!
//! The times are medians over batches, so that other work on the machine hardly matters. `-- NAME` runs one load alone.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads real clocks")]
#![allow(dead_code, reason = "the other benchmark uses all of what they share")]

use std::time::{Duration, Instant};

use mimalloc::MiMalloc;
use tidegate::{BareConnection, lane, proto};
use tidegate_records::{Record, RecordKey};
use tidegate_serve::service::fixture;

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
use request::{DOMAIN, Descriptors, KEY, Keys, RequestMessage, rules_text, value_of};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const LIMIT: &str = "{unit: hour, requests_per_unit: 1000000}";
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
    /// What is known of the keys.
    records: Records,
}

/// What is known of the keys.
#[derive(Clone, Copy, PartialEq)]
enum Records {
    /// Their rule has no records.
    NotAsked,
    /// Each has one.
    Each,
    /// None has one, and that is known.
    None,
}

const LOADS: [Load; 12] = [
    Load::plain("64", 64, KEYS),
    Load::plain("64-few-keys", 64, 100),
    Load { ids: true, ..Load::plain("64-ids", 64, KEYS) },
    Load::plain("8", 8, KEYS),
    Load::plain("1", 1, KEYS),
    Load::gateway("64-gateway1", 1),
    Load::gateway("64-gateway4", 4),
    Load::gateway("64-gateway8", 8),
    Load { records: Records::Each, ..Load::plain("64-records", 64, KEYS) },
    Load { records: Records::None, ..Load::plain("64-norecords", 64, KEYS) },
    Load { records: Records::Each, ..Load::plain("64-few-records", 64, 100) },
    Load { records: Records::None, ..Load::plain("64-few-norecords", 64, 100) },
];

impl Load {
    const fn plain(name: &'static str, calls: usize, keys: u64) -> Load {
        Load { name, calls, keys, descriptors: Descriptors::Plain, ids: false, records: Records::NotAsked }
    }

    /// Calls with so many descriptors, and as many counters in all.
    const fn gateway(name: &'static str, rules: usize) -> Load {
        let descriptors = Descriptors::Gateway(rules);
        Load {
            name,
            calls: 64,
            keys: KEYS / rules as u64,
            descriptors,
            ids: false,
            records: Records::NotAsked,
        }
    }
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    println!("{:<16} {:>14} {:>14}", "calls", "ns a call", "the fastest");
    let metrics = fixture::metrics();
    let of_rules = lane(fixture::service(Some(&rules_text(LIMIT)), &metrics), metrics);
    for load in LOADS {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == load.name) {
            continue;
        }
        match load.records {
            Records::NotAsked => show(&of_rules, &load),
            Records::Each | Records::None => show(&of_records(load.records), &load),
        }
    }
}

fn show<C: FnMut(&[u8], &mut Vec<u8>) -> usize>(connect: &impl Fn() -> C, load: &Load) {
    let &Load { name, calls, keys, .. } = load;
    measure(connect, load, Keys::InTurn(0), keys as usize / calls);
    let mut times = measure(connect, load, Keys::Random(keys), BATCHES);
    times.sort_unstable();
    let a_call = |time: Duration| time.as_nanos() as f64 / calls as f64;
    println!(
        "{name:<16} {:>14.0} {:>14.0}",
        a_call(times[times.len() / 2]),
        a_call(times[times.len() / 100])
    );
}

/// The same rules, whose keys may have records, of which all is known.
fn of_records(records: Records) -> impl Fn() -> BareConnection {
    let record = (records == Records::Each).then(|| Record::of(1_000_000));
    let key = |key: u64| RecordKey::of(DOMAIN, [(KEY, value_of(key).as_str())]).expect("a key");
    let known = (0..KEYS as u32).map(|number| (key(number.into()), record));
    let (rules, metrics) = (rules_text(&format!("{LIMIT}, limits_from: store")), fixture::metrics());
    lane(fixture::recorded(fixture::service(Some(&rules), &metrics), known), metrics)
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
