//! Lines that are values with literal text between them: a value ends where the next literal begins.
//!
//! In: names and literals, in turn. Out: the places of a line's values. A value in quotes may contain a quote that is
//! escaped by a backslash.

use memchr::{memchr, memmem};

use super::{FIELDS_MAX, FormatError, Span, Unreadable};

/// A format, as values and the literals around them.
#[derive(Debug)]
pub(super) struct Template {
    /// The names of the values, in their order.
    pub(super) names: Vec<String>,
    /// The literal at the start of a line.
    before: Box<[u8]>,
    /// The literals after each value; the last one may be empty.
    literals: Vec<Literal>,
}

#[derive(Debug)]
struct Literal {
    text: Box<[u8]>,
    /// The value before it is in quotes, and this ends it.
    ends_quotes: bool,
}

/// A part of a format.
pub(super) enum Part {
    Literal(String),
    Value(String),
}

impl Template {
    /// A template of these parts.
    pub(super) fn new(parts: Vec<Part>) -> Result<Self, FormatError> {
        let mut template = Self { names: Vec::new(), before: Box::default(), literals: Vec::new() };
        let mut literal = String::new();
        for part in parts {
            match part {
                Part::Literal(text) => literal.push_str(&text),
                Part::Value(name) => {
                    template.close(&literal, Some(&name))?;
                    literal.clear();
                    template.names.push(name);
                }
            }
        }
        template.close(literal.trim_end_matches(['\r', '\n']), None)?;
        if template.names.len() > FIELDS_MAX { Err(FormatError::TooMany) } else { Ok(template) }
    }

    /// Adds the literal before the next value, or at the end.
    fn close(&mut self, literal: &str, next: Option<&str>) -> Result<(), FormatError> {
        let text: Box<[u8]> = literal.as_bytes().into();
        let Some(last) = self.names.last() else {
            self.before = text;
            return Ok(());
        };
        if let Some(next) = next.filter(|_| literal.is_empty()) {
            return Err(FormatError::Adjacent(last.clone(), next.to_owned()));
        }
        let opened = self.literals.last().map_or(&self.before, |before| &before.text).ends_with(b"\"");
        self.literals.push(Literal { ends_quotes: opened && text.starts_with(b"\""), text });
        Ok(())
    }

    /// Adds the spans of a line's values.
    #[inline]
    pub(super) fn read(&self, line: &[u8], spans: &mut Vec<Span>) -> Result<(), Unreadable> {
        let Some(mut rest) = line.strip_prefix(&*self.before) else {
            return Err(unreadable(0, &self.before));
        };
        for literal in &self.literals {
            let at = line.len() - rest.len();
            let len = literal.find(rest).ok_or_else(|| unreadable(at, &literal.text))?;
            // A line has at most 64 KiB.
            spans.push((at as u32, (at + len) as u32));
            rest = &rest[len + literal.text.len()..];
        }
        if rest.is_empty() { Ok(()) } else { Err(unreadable(line.len() - rest.len(), b"")) }
    }
}

impl Literal {
    /// Where it begins in `text`.
    #[inline]
    fn find(&self, text: &[u8]) -> Option<usize> {
        match *self.text {
            [] => Some(text.len()),
            _ if self.ends_quotes => self.find_unescaped(text),
            [byte] => memchr(byte, text),
            [first, ..] => {
                let at = memchr(first, text)?;
                // The first candidate is almost always the right one.
                if text[at..].starts_with(&self.text) {
                    return Some(at);
                }
                memmem::find(&text[at..], &self.text).map(|further| at + further)
            }
        }
    }

    #[inline]
    fn find_unescaped(&self, text: &[u8]) -> Option<usize> {
        let mut from = 0;
        loop {
            let at = from + memchr(b'"', &text[from..])?;
            let backslashes = text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
            if backslashes % 2 == 0 && text[at..].starts_with(&self.text) {
                return Some(at);
            }
            from = at + 1;
        }
    }
}

fn unreadable(at: usize, literal: &[u8]) -> Unreadable {
    let expected = match literal {
        [] => "the end of the line".to_owned(),
        literal => format!("{:?} there or further on", String::from_utf8_lossy(literal)),
    };
    Unreadable { column: at + 1, expected }
}
