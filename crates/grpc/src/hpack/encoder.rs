//! Header blocks of answers. They hold few different fields, and only two of them enter the client's table.

use super::{ENTRY_OVERHEAD, STATIC_ENTRIES, TABLE_BYTES};

const CONTENT_TYPE: (&str, &str) = ("content-type", "application/grpc");
const GRPC_STATUS: (&str, &str) = ("grpc-status", "0");
/// The index of the name `content-type` in the static table.
const CONTENT_TYPE_NAME: u8 = 31;
/// The indices of `:status: 200` and of the name `:status` in the static table.
const STATUS_200: u8 = 8;
const STATUS_NAME: u8 = 8;
/// The size of both fields in a table.
const BOTH_BYTES: usize = CONTENT_TYPE.0.len()
    + CONTENT_TYPE.1.len()
    + GRPC_STATUS.0.len()
    + GRPC_STATUS.1.len()
    + 2 * ENTRY_OVERHEAD;
/// The index of the newest entry of the dynamic table.
const NEWEST: u8 = STATIC_ENTRIES as u8 + 1;

/// The `content-type` of every answer and the `grpc-status` of every successful one enter the client's table once. They
/// stay there, because nothing else is added. A table without room for both stays unused.
#[derive(Debug)]
pub struct Encoder {
    capacity: usize,
    /// The capacity has changed, and the next block has to announce it.
    resized: bool,
    inserted: u8,
    /// The number of its insertion, from 1; 0: not inserted.
    content_type: u8,
    status_ok: u8,
}

impl Encoder {
    pub fn new() -> Self {
        Self { capacity: TABLE_BYTES, resized: false, inserted: 0, content_type: 0, status_ok: 0 }
    }

    /// Applies the client's SETTINGS_HEADER_TABLE_SIZE. The capacity is only ever lowered.
    pub fn set_table_max(&mut self, capacity: u32) {
        let mut capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        if capacity < BOTH_BYTES {
            capacity = 0;
            (self.inserted, self.content_type, self.status_ok) = (0, 0, 0);
        }
        if capacity < self.capacity {
            self.capacity = capacity;
            self.resized = true;
        }
    }

    /// The header block and the trailer block of a successful answer, one byte a field. `None` until the client's table
    /// holds both fields, and while a changed capacity is not announced yet.
    #[inline]
    pub fn indexed(&self) -> Option<([u8; 2], u8)> {
        let indexed = self.content_type != 0 && self.status_ok != 0 && !self.resized;
        indexed.then(|| ([0x80 | STATUS_200, self.index(self.content_type)], self.index(self.status_ok)))
    }

    /// Begins a block, and announces a changed capacity.
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if self.resized {
            integer(out, 5, 0x20, self.capacity);
            self.resized = false;
        }
    }

    /// Appends the headers of a gRPC answer.
    pub fn grpc(&mut self, out: &mut Vec<u8>) {
        self.begin(out);
        out.push(0x80 | STATUS_200);
        if self.content_type != 0 {
            return out.push(self.index(self.content_type));
        }
        if self.capacity >= BOTH_BYTES {
            self.inserted += 1;
            self.content_type = self.inserted;
            integer(out, 6, 0x40, CONTENT_TYPE_NAME.into());
        } else {
            integer(out, 4, 0, CONTENT_TYPE_NAME.into());
        }
        string(out, CONTENT_TYPE.1);
    }

    /// Appends the trailers of a successful call.
    pub fn grpc_ok(&mut self, out: &mut Vec<u8>) {
        if self.status_ok != 0 {
            return out.push(self.index(self.status_ok));
        }
        if self.capacity >= BOTH_BYTES {
            self.inserted += 1;
            self.status_ok = self.inserted;
            out.push(0x40);
        } else {
            out.push(0);
        }
        string(out, GRPC_STATUS.0);
        string(out, GRPC_STATUS.1);
    }

    /// Appends the trailers of a failed call. `message` is already percent-encoded.
    pub fn grpc_error(&mut self, out: &mut Vec<u8>, status: u8, message: &str) {
        plain(out, GRPC_STATUS.0, &status.to_string());
        if !message.is_empty() {
            plain(out, "grpc-message", message);
        }
    }

    /// Appends the headers of an answer with an HTTP error status.
    pub fn http_error(&mut self, out: &mut Vec<u8>, status: u16, fields: &[(&str, &str)]) {
        self.begin(out);
        integer(out, 4, 0, STATUS_NAME.into());
        string(out, &status.to_string());
        fields.iter().for_each(|(name, value)| plain(out, name, value));
    }

    #[inline]
    fn index(&self, insertion: u8) -> u8 {
        0x80 | (NEWEST + self.inserted - insertion)
    }
}

/// Appends a literal field without indexing.
fn plain(out: &mut Vec<u8>, name: &str, value: &str) {
    out.push(0);
    string(out, name);
    string(out, value);
}

fn string(out: &mut Vec<u8>, text: &str) {
    integer(out, 7, 0, text.len());
    out.extend_from_slice(text.as_bytes());
}

/// Appends an integer with a prefix of this many bits, in addition to the bits of `first` (RFC 7541, 5.1).
fn integer(out: &mut Vec<u8>, bits: u32, first: u8, value: usize) {
    let max = (1_usize << bits) - 1;
    if value < max {
        return out.push(first | value as u8);
    }
    out.push(first | max as u8);
    let mut rest = value - max;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    #[test]
    fn integers_of_the_rfc() {
        assert_eq!(block(|out| integer(out, 5, 0xe0, 10)), [0xea]);
        assert_eq!(block(|out| integer(out, 5, 0xe0, 1337)), [0xff, 0x9a, 0x0a]);
        assert_eq!(block(|out| integer(out, 7, 0, 127)), [0x7f, 0]);
    }

    #[test]
    fn the_second_answer_has_three_bytes_of_fields() {
        let mut encoder = Encoder::new();
        assert_eq!(encoder.indexed(), None);
        assert_eq!(block(|out| encoder.grpc(out)), b"\x88\x5f\x10application/grpc");
        assert_eq!(block(|out| encoder.grpc_ok(out)), b"\x40\x0bgrpc-status\x010");
        assert_eq!(block(|out| encoder.grpc(out)), [0x88, 0x80 | 63]);
        assert_eq!(block(|out| encoder.grpc_ok(out)), [0x80 | 62]);
        assert_eq!(encoder.indexed(), Some(([0x88, 0x80 | 63], 0x80 | 62)));
    }

    #[test]
    fn a_refusal_does_not_disturb_the_table() {
        let mut encoder = Encoder::new();
        block(|out| encoder.grpc(out));
        assert_eq!(block(|out| encoder.grpc(out)), [0x88, 0x80 | 62]);
        assert_eq!(
            block(|out| encoder.grpc_error(out, 3, "no")),
            b"\0\x0bgrpc-status\x013\0\x0cgrpc-message\x02no"
        );
        block(|out| encoder.grpc_ok(out));
        assert_eq!(encoder.indexed(), Some(([0x88, 0x80 | 63], 0x80 | 62)));
    }

    #[test]
    fn a_client_without_a_table_gets_a_size_update_and_literals() {
        let mut encoder = Encoder::new();
        block(|out| encoder.grpc(out));
        encoder.set_table_max(103);
        assert_eq!(block(|out| encoder.grpc(out)), b"\x20\x88\x0f\x10\x10application/grpc");
        assert_eq!(block(|out| encoder.grpc_ok(out)), b"\0\x0bgrpc-status\x010");
        encoder.set_table_max(4_096);
        assert_eq!(block(|out| encoder.grpc(out)), b"\x88\x0f\x10\x10application/grpc");
        assert_eq!(encoder.indexed(), None);
    }

    #[test]
    fn a_smaller_table_is_announced_once_and_used() {
        let mut encoder = Encoder::new();
        encoder.set_table_max(104);
        assert_eq!(block(|out| encoder.grpc(out)), b"\x3f\x49\x88\x5f\x10application/grpc");
        assert_eq!(block(|out| encoder.grpc(out)), [0x88, 0x80 | 62]);
    }

    #[test]
    fn an_http_error_has_its_status_and_fields() {
        let mut encoder = Encoder::new();
        assert_eq!(
            block(|out| encoder.http_error(out, 405, &[("allow", "POST")])),
            b"\x08\x03405\0\x05allow\x04POST"
        );
    }
}
