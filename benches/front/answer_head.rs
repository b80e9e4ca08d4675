//! Reads a server's header blocks for what a caller needs: the HTTP status and the gRPC status.
//!
//! A field is parsed once, when it enters the dynamic table; an indexed field is only looked up.

use std::collections::VecDeque;

use super::hpack::{ENTRY_OVERHEAD, STATIC, TABLE_BYTES, take_integer, take_string};

/// The statuses in one header block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: Option<u16>,
    pub(crate) grpc_status: Option<u16>,
}

#[derive(Clone, Copy)]
enum Meaning {
    Status(u16),
    GrpcStatus(u16),
    Nothing,
}

struct Entry {
    name: Vec<u8>,
    value_bytes: usize,
    meaning: Meaning,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.name.len() + self.value_bytes + ENTRY_OVERHEAD
    }
}

/// Reads all header blocks of one connection's answers, in their order.
pub(crate) struct AnswerHead {
    /// The newest entry comes first.
    table: VecDeque<Entry>,
    table_bytes: usize,
    table_bytes_max: usize,
}

impl AnswerHead {
    pub(crate) fn new() -> AnswerHead {
        AnswerHead { table: VecDeque::new(), table_bytes: 0, table_bytes_max: TABLE_BYTES }
    }

    /// The statuses in `block`; `None` if it is not valid.
    pub(crate) fn read(&mut self, block: &[u8]) -> Option<Head> {
        let mut rest = block;
        let mut head = Head::default();
        while let Some(&first) = rest.first() {
            match self.field(first, &mut rest)? {
                Meaning::Status(status) => head.status = Some(status),
                Meaning::GrpcStatus(status) => head.grpc_status = Some(status),
                Meaning::Nothing => {}
            }
        }
        Some(head)
    }

    fn field(&mut self, first: u8, rest: &mut &[u8]) -> Option<Meaning> {
        if first & 0x80 != 0 {
            let index = take_integer(rest, 7)?;
            return self.indexed(index);
        }
        if first & 0xe0 == 0x20 {
            self.table_bytes_max = take_integer(rest, 5).filter(|&bytes| bytes <= TABLE_BYTES)?;
            self.evict();
            return Some(Meaning::Nothing);
        }
        let enters = first & 0x40 != 0;
        let name = match take_integer(rest, if enters { 6 } else { 4 })? {
            0 => take_string(rest)?,
            index => self.name(index)?.to_vec(),
        };
        let value = take_string(rest)?;
        let meaning = meaning(&name, &value);
        if enters {
            self.enter(Entry { name, value_bytes: value.len(), meaning });
        }
        Some(meaning)
    }

    fn indexed(&self, index: usize) -> Option<Meaning> {
        match index.checked_sub(STATIC.len() + 1) {
            Some(place) => self.table.get(place).map(|entry| entry.meaning),
            None => {
                let (name, value) = STATIC.get(index.checked_sub(1)?)?;
                Some(meaning(name.as_bytes(), value.as_bytes()))
            }
        }
    }

    fn name(&self, index: usize) -> Option<&[u8]> {
        match index.checked_sub(STATIC.len() + 1) {
            Some(place) => self.table.get(place).map(|entry| &*entry.name),
            None => STATIC.get(index - 1).map(|(name, _)| name.as_bytes()),
        }
    }

    fn enter(&mut self, entry: Entry) {
        self.table_bytes += entry.bytes();
        self.table.push_front(entry);
        self.evict();
    }

    fn evict(&mut self) {
        while self.table_bytes > self.table_bytes_max {
            let oldest = self.table.pop_back().expect("the table holds the bytes that it counts");
            self.table_bytes -= oldest.bytes();
        }
    }
}

/// A status that is no number counts as 0xffff, which no caller expects.
fn meaning(name: &[u8], value: &[u8]) -> Meaning {
    let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(u16::MAX);
    match name {
        b":status" => Meaning::Status(number()),
        b"grpc-status" => Meaning::GrpcStatus(number()),
        _ => Meaning::Nothing,
    }
}
