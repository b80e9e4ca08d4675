//! Decodes header blocks to a [`RequestHead`].

use super::field::{Meaning, Name, is_value};
use super::head::RequestHead;
use super::kept::KeptHeaders;
use super::table::{Entry, Table};
use super::{STATIC_ENTRIES, Served};
use crate::huffman;

/// Decoded bytes of one block beyond which the connection ends. A small block may refer to long entries many times.
const LIST_BYTES_HARD_MAX: usize = 64 * 1_024;
/// Bytes of the longest block that is remembered. A proxy's blocks have a few dozen once its table is filled.
const MEMO_BYTES_MAX: usize = 256;
/// Capacity that the buffer for the text of a field keeps.
const SCRATCH_BYTES_KEPT: usize = 256;

/// Why a block cannot be decoded. The content of the table is unknown after that, so the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// It is not valid HPACK.
    Malformed,
    /// Its decoded fields exceed the bound.
    TooLarge,
}

/// The decoder of one connection.
#[derive(Debug)]
pub struct Decoder {
    served: &'static Served,
    table: Table,
    /// The kept headers of the last block.
    kept: KeptHeaders,
    memo: Memo,
    last_literal: LastLiteral,
    /// The text of the field that is being read.
    scratch: Vec<u8>,
}

/// The last block that did not change the table, and its meaning, which stays the same until the table changes. Without
/// it a call takes 9 % longer (`cargo bench --bench lane`).
#[derive(Debug, Default)]
struct Memo {
    block: Vec<u8>,
    head: Option<RequestHead>,
}

impl Memo {
    #[inline]
    fn recall(&self, block: &[u8]) -> Option<RequestHead> {
        self.head.filter(|_| block == self.block)
    }

    fn remember(&mut self, block: &[u8], head: RequestHead) {
        if block.len() <= MEMO_BYTES_MAX {
            self.block.clear();
            self.block.extend_from_slice(block);
            self.head = Some(head);
        }
    }

    fn forget(&mut self) {
        self.head = None;
    }
}

/// The last literal field without indexing (RFC 7541, 6.2.2) whose name is in the static table. Proxies send the path
/// like this, the same one each time: without it a call with ids takes 31 % longer (`cargo bench --bench lane --
/// 64-ids`).
#[derive(Debug, Default)]
struct LastLiteral {
    name: usize,
    is_coded: bool,
    value: Vec<u8>,
    entry: Option<Entry>,
}

impl LastLiteral {
    fn recall(&self, name: usize, value: Text<'_>) -> Option<Entry> {
        let same = self.name == name && self.is_coded == value.is_coded && self.value == value.bytes;
        if same { self.entry.clone() } else { None }
    }

    fn remember(&mut self, name: usize, value: Text<'_>, entry: &Entry) {
        if value.bytes.len() <= MEMO_BYTES_MAX {
            (self.name, self.is_coded, self.entry) = (name, value.is_coded, Some(entry.clone()));
            self.value.clear();
            self.value.extend_from_slice(value.bytes);
        }
    }
}

impl Decoder {
    /// A decoder for this server.
    pub fn new(served: &'static Served) -> Self {
        Self {
            served,
            table: Table::new(),
            kept: KeptHeaders::new(served.kept),
            memo: Memo::default(),
            last_literal: LastLiteral::default(),
            scratch: Vec::new(),
        }
    }

    /// The kept headers of the last block.
    pub fn kept(&self) -> &KeptHeaders {
        &self.kept
    }

    /// Whether it holds more memory than most blocks need.
    pub fn has_spare(&self) -> bool {
        self.scratch.capacity() > SCRATCH_BYTES_KEPT || self.kept.has_spare()
    }

    /// Frees spare memory.
    pub fn shrink(&mut self) {
        self.scratch.clear();
        self.scratch.shrink_to(SCRATCH_BYTES_KEPT);
        self.kept.shrink();
    }

    /// The meaning of a block. Every block of a connection has to be decoded, in order, even if its stream is refused.
    #[inline]
    pub fn decode(&mut self, block: &[u8]) -> Result<RequestHead, DecodeError> {
        self.kept.clear();
        match self.memo.recall(block) {
            Some(head) => Ok(head),
            None => self.decode_fields(block),
        }
    }

    fn decode_fields(&mut self, block: &[u8]) -> Result<RequestHead, DecodeError> {
        let mut head = RequestHead::default();
        let mut input = Input(block);
        let mut changed = false;
        while let Some(&first) = input.0.first() {
            if first & 0xe0 == 0x20 {
                // A table size update is only valid at the start of a block (RFC 7541, 4.2).
                let resized = (head.size == 0).then(|| self.table.resize(input.integer(5)?)).flatten();
                resized.ok_or(DecodeError::Malformed)?;
                changed = true;
                continue;
            }
            if first & 0x80 != 0 {
                let entry = input.integer(7).and_then(|index| self.table.get(index));
                take(entry.ok_or(DecodeError::Malformed)?, &mut head, &mut self.kept);
            } else {
                let entry = self.literal(first, &mut input).ok_or(DecodeError::Malformed)?;
                take(&entry, &mut head, &mut self.kept);
                if first & 0x40 != 0 {
                    self.table.insert(entry);
                    changed = true;
                }
            }
            if head.size > LIST_BYTES_HARD_MAX {
                return Err(DecodeError::TooLarge);
            }
        }
        match changed {
            true => self.memo.forget(),
            // Kept headers differ from call to call, so such a block is not worth remembering.
            false if self.kept.is_empty() => self.memo.remember(block, head),
            false => {}
        }
        Ok(head)
    }

    /// A literal field, whose name may be indexed.
    fn literal(&mut self, first: u8, input: &mut Input<'_>) -> Option<Entry> {
        let enters = first & 0x40 != 0;
        let index = input.integer(if enters { 6 } else { 4 })?;
        if index == 0 {
            input.string(&mut self.scratch)?;
            let (name, name_bytes) = (Name::of(&self.scratch, self.served.kept), self.scratch.len());
            return self.value(name, name_bytes, input.text()?);
        }
        let (name, name_bytes) = self.table.get(index).map(|entry| (entry.name, entry.name_bytes))?;
        let value = input.text()?;
        if enters || index > STATIC_ENTRIES {
            return self.value(name, name_bytes, value);
        }
        self.last_literal.recall(index, value).or_else(|| {
            let entry = self.value(name, name_bytes, value)?;
            self.last_literal.remember(index, value, &entry);
            Some(entry)
        })
    }

    /// The field with this name. A value that is not needed is not decoded.
    fn value(&mut self, name: Name, name_bytes: usize, value: Text<'_>) -> Option<Entry> {
        if name == Name::Other
            && let Some(value_bytes) = value.printable()
        {
            return Some(Entry::unread(name_bytes, value_bytes));
        }
        value.read(&mut self.scratch)?;
        Some(Entry::of(name, name_bytes, &self.scratch, self.served))
    }
}

/// Takes the next field of a block.
#[inline]
fn take(entry: &Entry, head: &mut RequestHead, kept: &mut KeptHeaders) {
    if let (Name::Kept(name), Meaning::Kept(text)) = (entry.name, &entry.meaning) {
        kept.push(name, text);
    }
    head.take(&entry.meaning, entry.size);
}

/// The rest of a block.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// An integer with a prefix of this many bits (RFC 7541, 5.1). Its bound is enough for the length of any string.
    #[inline]
    pub(super) fn integer(&mut self, bits: u32) -> Option<usize> {
        let max = (1_usize << bits) - 1;
        let first = usize::from(self.byte()?) & max;
        if first < max {
            return Some(first);
        }
        let mut value = max;
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// A string, as it was sent.
    fn text(&mut self) -> Option<Text<'a>> {
        let is_coded = self.0.first()? & 0x80 != 0;
        let length = self.integer(7)?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Text { is_coded, bytes })
    }

    /// Decodes a string into `text`, and replaces its content.
    pub(super) fn string(&mut self, text: &mut Vec<u8>) -> Option<()> {
        self.text()?.read(text)
    }
}

/// A string, as it was sent.
#[derive(Clone, Copy)]
struct Text<'a> {
    /// In the Huffman code.
    is_coded: bool,
    bytes: &'a [u8],
}

impl Text<'_> {
    /// Decodes it into `text`, and replaces its content.
    fn read(self, text: &mut Vec<u8>) -> Option<()> {
        text.clear();
        if self.is_coded {
            return huffman::decode(self.bytes, text);
        }
        text.extend_from_slice(self.bytes);
        Some(())
    }

    /// Its decoded length, if it is known without decoding that it is a valid value.
    fn printable(self) -> Option<usize> {
        match self.is_coded {
            true => huffman::length(self.bytes),
            false => is_value(self.bytes).then_some(self.bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests;
