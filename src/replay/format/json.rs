//! Lines that are JSON objects. A name is a key of the object; with points, `request.path`, of objects in it.
//!
//! In: the names that are wanted. Out: the values of a line that have them: texts, numbers and booleans.

use std::cell::RefCell;
use std::io::Write as _;

use serde_json::Value;

use super::{ABSENT, Span, UnknownVariable, Unreadable};

/// The keys of a line that are named when one is unknown, at most.
const KEYS_SHOWN_MAX: usize = 40;

/// What is wanted of each line.
#[derive(Debug, Default)]
pub(super) struct Json {
    wanted: Vec<String>,
    seen: RefCell<Seen>,
}

/// Which keys lines had. Only what is known beforehand can be an error beforehand.
#[derive(Debug, Default)]
struct Seen {
    wanted: Vec<bool>,
    keys: Vec<String>,
}

impl Json {
    /// The number of the value with this name.
    pub(super) fn want(&mut self, name: &str) -> usize {
        if let Some(at) = self.wanted.iter().position(|known| known == name) {
            return at;
        }
        self.wanted.push(name.to_owned());
        self.seen.get_mut().wanted.push(false);
        self.wanted.len() - 1
    }

    /// Copies the values of a line to `unescaped`, and adds where they stand there.
    pub(super) fn read(
        &self,
        line: &[u8],
        spans: &mut Vec<Span>,
        unescaped: &mut Vec<u8>,
    ) -> Result<(), Unreadable> {
        let value: Value = serde_json::from_slice(line)
            .map_err(|error| Unreadable { column: error.column().max(1), expected: "JSON".to_owned() })?;
        let Value::Object(object) = &value else {
            return Err(Unreadable { column: 1, expected: "an object in JSON".to_owned() });
        };
        let mut seen = self.seen.borrow_mut();
        if seen.keys.is_empty() {
            seen.keys.extend(object.keys().take(KEYS_SHOWN_MAX).cloned());
        }
        for (at, name) in self.wanted.iter().enumerate() {
            let found = find(&value, name);
            seen.wanted[at] |= found.is_some();
            let start = unescaped.len() as u32;
            let span = match found {
                Some(Value::String(text)) => unescaped.write_all(text.as_bytes()).map(|()| start),
                Some(value @ (Value::Number(_) | Value::Bool(_))) => {
                    write!(unescaped, "{value}").map(|()| start)
                }
                _ => Ok(u32::MAX),
            };
            let is_there = span.is_ok_and(|start| start < u32::MAX);
            spans.push(if is_there { (start, unescaped.len() as u32) } else { ABSENT });
        }
        Ok(())
    }

    /// A name that no line had, if lines were read and there is one.
    pub(super) fn never_seen(&self) -> Option<UnknownVariable> {
        let seen = self.seen.borrow();
        let at = seen.wanted.iter().position(|seen| !seen).filter(|_| !seen.keys.is_empty())?;
        Some(UnknownVariable::new(&self.wanted[at], seen.keys.clone()))
    }
}

/// The value with this name: a key, or keys of objects in each other.
fn find<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    let whole = value.get(name);
    whole.or_else(|| name.split_once('.').and_then(|(first, rest)| find(value.get(first)?, rest)))
}
