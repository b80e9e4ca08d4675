//! A decoder that keeps the text of fields, for tests that read what a peer sends. It is naive, so that the decoder of the
//! server can be compared with it.

use std::collections::VecDeque;

use super::decoder::Input;
use super::table::FIELDS;
use super::{ENTRY_OVERHEAD, STATIC_ENTRIES, TABLE_BYTES};

/// A name and a value, with one character for each byte.
pub type Field = (String, String);

/// The decoder of one connection.
pub struct TextDecoder {
    /// The newest first.
    entries: VecDeque<Field>,
    capacity: usize,
}

impl Default for TextDecoder {
    fn default() -> Self {
        Self { entries: VecDeque::new(), capacity: TABLE_BYTES }
    }
}

/// The size of fields (RFC 7541, 4.1).
pub fn size<'f>(fields: impl IntoIterator<Item = &'f Field>) -> usize {
    let bytes = |text: &str| text.chars().count();
    fields.into_iter().map(|(name, value)| bytes(name) + bytes(value) + ENTRY_OVERHEAD).sum()
}

impl TextDecoder {
    /// The fields of a block; `None` if it is malformed.
    pub fn decode(&mut self, block: &[u8]) -> Option<Vec<Field>> {
        let mut input = Input(block);
        let mut fields = Vec::new();
        while let Some(&first) = input.0.first() {
            if first & 0xe0 == 0x20 {
                let capacity = input.integer(5)?;
                if capacity > TABLE_BYTES || !fields.is_empty() {
                    return None;
                }
                self.capacity = capacity;
                self.evict();
                continue;
            }
            let field = self.field(first, &mut input)?;
            if first & 0xc0 == 0x40 {
                self.entries.push_front(field.clone());
                self.evict();
            }
            fields.push(field);
        }
        Some(fields)
    }

    /// Drops the oldest entries until the rest fits.
    fn evict(&mut self) {
        while size(&self.entries) > self.capacity {
            self.entries.pop_back();
        }
    }

    fn field(&self, first: u8, input: &mut Input<'_>) -> Option<Field> {
        if first & 0x80 != 0 {
            return self.get(input.integer(7)?);
        }
        let index = input.integer(if first & 0x40 != 0 { 6 } else { 4 })?;
        let name = if index == 0 { text(input)? } else { self.get(index)?.0 };
        Some((name, text(input)?))
    }

    fn get(&self, index: usize) -> Option<Field> {
        match index.checked_sub(STATIC_ENTRIES + 1) {
            None => {
                FIELDS.get(index.checked_sub(1)?).map(|&(name, value)| (name.to_owned(), value.to_owned()))
            }
            Some(dynamic) => self.entries.get(dynamic).cloned(),
        }
    }
}

fn text(input: &mut Input<'_>) -> Option<String> {
    let mut text = Vec::new();
    input.string(&mut text)?;
    Some(text.into_iter().map(char::from).collect())
}
