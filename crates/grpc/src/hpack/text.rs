//! A decoder that keeps the text of fields, for tests that read a server's answers.

use std::collections::VecDeque;

use super::decoder::Input;
use super::table::FIELDS;
use super::{ENTRY_OVERHEAD, STATIC_ENTRIES, TABLE_BYTES};

/// A name and a value.
pub type Field = (String, String);

/// The decoder of one connection.
#[derive(Default)]
pub struct TextDecoder {
    entries: VecDeque<Field>,
}

impl TextDecoder {
    /// The fields of a block; `None` if it is malformed.
    pub fn decode(&mut self, block: &[u8]) -> Option<Vec<Field>> {
        let mut input = Input(block);
        let mut fields = Vec::new();
        while let Some(&first) = input.0.first() {
            if first & 0xe0 == 0x20 {
                // Servers only ever announce a smaller table, and no test fills one.
                if input.integer(5)? == 0 {
                    self.entries.clear();
                }
                continue;
            }
            let field = self.field(first, &mut input)?;
            if first & 0xc0 == 0x40 {
                self.entries.push_front(field.clone());
                let size = |field: &Field| field.0.len() + field.1.len() + ENTRY_OVERHEAD;
                assert!(self.entries.iter().map(size).sum::<usize>() <= TABLE_BYTES, "nothing is evicted");
            }
            fields.push(field);
        }
        Some(fields)
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
    String::from_utf8(text).ok()
}
