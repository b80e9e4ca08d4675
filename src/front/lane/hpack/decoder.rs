//! Header blocks decoded to a [`RequestHead`].

use super::field::Name;
use super::head::RequestHead;
use super::table::{Entry, Table};
use crate::front::lane::huffman;

/// Decoded bytes of one block beyond which the connection ends: a small block may refer to long entries many times.
const LIST_BYTES_HARD_MAX: usize = 64 * 1_024;
/// The longest block that is remembered. Those of proxies have a few dozen bytes once their tables are filled.
const MEMO_BYTES_MAX: usize = 256;

/// Why a block cannot be decoded. Neither side knows the table after that, so the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// It is no HPACK.
    Malformed,
    /// It says more than anybody has to listen to.
    TooLarge,
}

/// The decoder of one connection.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    memo: Memo,
    /// The text of the field that is being read.
    scratch: Vec<u8>,
}

/// The last block that left the table alone, and what it said: it says the same for as long as the table does not
/// change.
#[derive(Debug, Default)]
struct Memo {
    block: Vec<u8>,
    said: Option<RequestHead>,
}

impl Memo {
    #[inline]
    fn recall(&self, block: &[u8]) -> Option<RequestHead> {
        self.said.filter(|_| block == self.block)
    }

    fn learn(&mut self, block: &[u8], said: RequestHead) {
        if block.len() <= MEMO_BYTES_MAX {
            self.block.clear();
            self.block.extend_from_slice(block);
            self.said = Some(said);
        }
    }

    fn forget(&mut self) {
        self.said = None;
    }
}

impl Decoder {
    pub fn new() -> Self {
        Self { table: Table::new(), memo: Memo::default(), scratch: Vec::new() }
    }

    /// What the block says. Every block of a connection has to come here, in order, whatever becomes of its stream.
    #[inline]
    pub fn decode(&mut self, block: &[u8]) -> Result<RequestHead, DecodeError> {
        match self.memo.recall(block) {
            Some(said) => Ok(said),
            None => self.decode_fields(block),
        }
    }

    fn decode_fields(&mut self, block: &[u8]) -> Result<RequestHead, DecodeError> {
        let mut head = RequestHead::default();
        let mut input = Input(block);
        let mut changed = false;
        while let Some(&first) = input.0.first() {
            if first & 0xe0 == 0x20 {
                // A new size of the table stands at the start of a block only.
                let resized = (head.size == 0).then(|| self.table.resize(input.integer(5)?)).flatten();
                resized.ok_or(DecodeError::Malformed)?;
                changed = true;
                continue;
            }
            let entry = self.field(first, &mut input).ok_or(DecodeError::Malformed)?;
            head.take(entry.meaning, entry.size);
            if head.size > LIST_BYTES_HARD_MAX {
                return Err(DecodeError::TooLarge);
            }
            if first & 0xc0 == 0x40 {
                self.table.insert(entry);
                changed = true;
            }
        }
        match changed {
            true => self.memo.forget(),
            false => self.memo.learn(block, head),
        }
        Ok(head)
    }

    /// One field: indexed, or a literal, which may have an indexed name.
    #[inline]
    fn field(&mut self, first: u8, input: &mut Input<'_>) -> Option<Entry> {
        if first & 0x80 != 0 {
            return self.table.get(input.integer(7)?).copied();
        }
        let index = input.integer(if first & 0x40 != 0 { 6 } else { 4 })?;
        let (name, name_bytes) = match index {
            0 => {
                input.string(&mut self.scratch)?;
                (Name::of(&self.scratch), self.scratch.len())
            }
            _ => self.table.get(index).map(|entry| (entry.name, entry.name_bytes))?,
        };
        input.string(&mut self.scratch)?;
        Some(Entry::of(name, name_bytes, &self.scratch))
    }
}

/// What is left of a block.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// An integer of which the first byte holds this many bits (RFC 7541, 5.1), bounded to what any string may need.
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

    /// A string, in place of what `text` holds.
    pub(super) fn string(&mut self, text: &mut Vec<u8>) -> Option<()> {
        text.clear();
        let huffman = self.0.first()? & 0x80 != 0;
        let length = self.integer(7)?;
        let (string, rest): (&'a [u8], _) = self.0.split_at_checked(length)?;
        self.0 = rest;
        if huffman {
            return huffman::decode(string, text);
        }
        text.extend_from_slice(string);
        Some(())
    }
}

#[cfg(test)]
mod tests;
