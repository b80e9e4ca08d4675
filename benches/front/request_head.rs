//! The header blocks of one connection's requests, compressed as Envoy compresses them: `:path` is spelt out each
//! time, every other field enters the dynamic table once and is an index after that.
//!
//! Request ids and trace headers are new in each request. So they enter the table each time and evict everything else
//! after about twenty calls, which costs a server as much as in production.

use std::collections::VecDeque;

use super::hpack::{ENTRY_OVERHEAD, STATIC, TABLE_BYTES, put_integer, put_string};

/// One field of each request.
#[derive(Clone, Copy)]
enum Field {
    /// The static table has name and value under this number.
    Static(usize),
    /// Spelt out each time; the static table has its name under this number.
    SpeltOut(usize, &'static str),
    /// (name, value): an index from the second time on.
    Kept(&'static str, &'static str),
    /// (name, shape of the value): a new value each time, a random hexadecimal digit for each `?`.
    Fresh(&'static str, &'static str),
}

/// What Envoy sends with each request to its rate limit service; the timeout is longer, for busy machines.
const FIELDS: [Field; 9] = [
    Field::Static(3), // :method: POST
    Field::SpeltOut(4, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
    Field::Kept(":authority", "ratelimit"),
    Field::Static(6), // :scheme: http
    Field::Kept("te", "trailers"),
    Field::Kept("grpc-timeout", "5000m"),
    Field::Kept("content-type", "application/grpc"),
    Field::Kept("x-envoy-internal", "true"),
    Field::Kept("x-forwarded-for", "10.12.0.7"),
];

const ID_FIELDS: [Field; 2] = [
    Field::Fresh("x-request-id", "????????-????-4???-8???-????????????"),
    Field::Fresh("traceparent", "00-????????????????????????????????-????????????????-01"),
];

/// A field, and the number of its latest entry in the dynamic table, counted from 1; 0: it has none.
struct Slot {
    field: Field,
    entered: usize,
}

/// Writes the header blocks of one connection's requests.
pub(crate) struct RequestHead {
    slots: Vec<Slot>,
    table: Table,
    fresh: Vec<u8>,
}

impl RequestHead {
    /// `ids`: whether each request carries a request id and a trace header.
    pub(crate) fn new(ids: bool) -> RequestHead {
        let fields = FIELDS.into_iter().chain(ID_FIELDS.into_iter().filter(|_| ids));
        let slots = fields.map(|field| Slot { field, entered: 0 }).collect();
        RequestHead { slots, table: Table::default(), fresh: Vec::new() }
    }

    /// Appends the block of the next request. `random` gives the digits of ids.
    pub(crate) fn put(&mut self, random: &mut impl FnMut() -> u64, out: &mut Vec<u8>) {
        for slot in &mut self.slots {
            let index = self.table.index(slot.entered);
            match (slot.field, index) {
                (Field::Static(index), _) | (Field::Kept(..), Some(index)) => {
                    put_integer(out, 0x80, 7, index)
                }
                (Field::SpeltOut(name, value), _) => {
                    put_integer(out, 0x00, 4, name);
                    put_string(out, value.as_bytes());
                }
                (Field::Kept(name, value), None) => {
                    put_name(name, None, out);
                    put_string(out, value.as_bytes());
                    slot.entered = self.table.enter(name.len() + value.len());
                }
                (Field::Fresh(name, shape), index) => {
                    put_name(name, index, out);
                    fill(shape, random, &mut self.fresh);
                    put_string(out, &self.fresh);
                    slot.entered = self.table.enter(name.len() + shape.len());
                }
            }
        }
    }
}

/// Starts a field that enters the table. `index` is an entry of the table with the same name, if there is one.
fn put_name(name: &str, index: Option<usize>, out: &mut Vec<u8>) {
    let fixed = || STATIC.iter().position(|(fixed, _)| *fixed == name).map(|at| at + 1);
    match index.or_else(fixed) {
        Some(index) => put_integer(out, 0x40, 6, index),
        None => {
            out.push(0x40);
            put_string(out, name.as_bytes());
        }
    }
}

fn fill(shape: &str, random: &mut impl FnMut() -> u64, out: &mut Vec<u8>) {
    let mut digits = 0;
    out.clear();
    for (at, byte) in shape.bytes().enumerate() {
        if at % 16 == 0 {
            digits = random();
        }
        out.push(if byte == b'?' { b"0123456789abcdef"[digits as usize & 15] } else { byte });
        digits >>= 4;
    }
}

/// The dynamic table; only the sizes of its entries are needed.
#[derive(Default)]
struct Table {
    /// The newest entry comes first.
    sizes: VecDeque<usize>,
    bytes: usize,
    entered: usize,
}

impl Table {
    /// The index of the entry with this number, if it is still in the table.
    fn index(&self, entered: usize) -> Option<usize> {
        let newer = self.entered - entered;
        (newer < self.sizes.len()).then_some(STATIC.len() + 1 + newer)
    }

    /// Adds an entry and returns its number.
    fn enter(&mut self, text_bytes: usize) -> usize {
        let size = text_bytes + ENTRY_OVERHEAD;
        self.bytes += size;
        self.sizes.push_front(size);
        while self.bytes > TABLE_BYTES {
            self.bytes -= self.sizes.pop_back().expect("the table holds the bytes that it counts");
        }
        self.entered += 1;
        self.entered
    }
}
