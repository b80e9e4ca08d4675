//! Lines that are JSON objects. A name is a key of the object; with points, `request.path`, of nested objects.
//!
//! In: the names of the values to read. Out: the values of a line with these names: texts, numbers and booleans. A
//! line is read once from left to right, and other values are skipped, so nothing is allocated.

use std::cell::RefCell;
use std::fmt::{self, Formatter};
use std::io::Write as _;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::{ABSENT, Span, UnknownVariable, Unreadable};

/// The most keys of a line that an error about an unknown key lists.
const KEYS_SHOWN_MAX: usize = 40;

/// The values to read from each line.
#[derive(Debug, Default)]
pub(super) struct Json {
    names: Vec<String>,
    root: Level,
    seen: RefCell<Seen>,
}

/// The keys to read from one object.
#[derive(Debug, Default)]
struct Level(Vec<Wanted>);

/// A key. For `request.path` there are two: that itself, and `request`, in whose object `path` is read.
#[derive(Debug)]
struct Wanted {
    key: String,
    /// The number of the value with this name.
    value: Option<usize>,
    /// The depth of its object.
    depth: usize,
    inside: Level,
}

/// Which keys lines had. A name can be an error at the start only if it is known then that no line has it.
#[derive(Debug, Default)]
struct Seen {
    names: Vec<bool>,
    keys: Vec<String>,
    /// For each name, the depth of the key that this line has for it: if there are two, the outer one is used.
    depths: Vec<usize>,
}

/// The values of one line.
struct Values<'v> {
    spans: &'v mut [Span],
    unescaped: &'v mut Vec<u8>,
    seen: &'v mut [bool],
    depths: &'v mut [usize],
}

impl Json {
    /// The number of the value with this name.
    pub(super) fn want(&mut self, name: &str) -> usize {
        if let Some(at) = self.names.iter().position(|known| known == name) {
            return at;
        }
        self.names.push(name.to_owned());
        self.seen.get_mut().names.push(false);
        let value = self.names.len() - 1;
        self.root.want(name, value, 0);
        value
    }

    /// Copies the values of a line to `unescaped`, and adds their places there.
    pub(super) fn read(
        &self,
        line: &[u8],
        spans: &mut Vec<Span>,
        unescaped: &mut Vec<u8>,
    ) -> Result<(), Unreadable> {
        spans.resize(self.names.len(), ABSENT);
        let Seen { names, keys, depths } = &mut *self.seen.borrow_mut();
        depths.clear();
        depths.resize(self.names.len(), usize::MAX);
        let mut values = Values { spans, unescaped, seen: names, depths };
        let mut json = serde_json::Deserializer::from_slice(line);
        let object = Object { level: &self.root, values: &mut values };
        json.deserialize_map(object).and_then(|()| json.end()).map_err(|error| unreadable(&error))?;
        if keys.is_empty() {
            *keys = keys_of(line);
        }
        Ok(())
    }

    /// A name that no line had, if lines were read and there is one.
    pub(super) fn never_seen(&self) -> Option<UnknownVariable> {
        let seen = self.seen.borrow();
        let at = seen.names.iter().position(|seen| !seen).filter(|_| !seen.keys.is_empty())?;
        Some(UnknownVariable::new(&self.names[at], seen.keys.clone()))
    }
}

/// The first keys of a line, for people.
fn keys_of(line: &[u8]) -> Vec<String> {
    let object = serde_json::from_slice::<serde_json::Map<_, serde_json::Value>>(line).unwrap_or_default();
    object.into_iter().map(|(key, _)| key).take(KEYS_SHOWN_MAX).collect()
}

fn unreadable(error: &serde_json::Error) -> Unreadable {
    if error.is_data() {
        return Unreadable { column: 1, expected: "an object in JSON".to_owned() };
    }
    Unreadable { column: error.column().max(1), expected: "JSON".to_owned() }
}

impl Level {
    fn want(&mut self, name: &str, value: usize, depth: usize) {
        self.key(name, depth).value = Some(value);
        if let Some((first, rest)) = name.split_once('.') {
            self.key(first, depth).inside.want(rest, value, depth + 1);
        }
    }

    fn key(&mut self, key: &str, depth: usize) -> &mut Wanted {
        let at = self.0.iter().position(|known| known.key == key).unwrap_or_else(|| {
            self.0.push(Wanted { key: key.to_owned(), value: None, depth, inside: Level::default() });
            self.0.len() - 1
        });
        &mut self.0[at]
    }
}

impl Values<'_> {
    /// Reads the value of a key; for a value of another type nothing is written.
    fn take(&mut self, wanted: &Wanted, write: impl FnOnce(&mut Vec<u8>) -> Option<()>) {
        let Some(value) = wanted.value.filter(|value| wanted.depth <= self.depths[*value]) else { return };
        let start = self.unescaped.len() as u32;
        let is_text = write(self.unescaped).is_some();
        self.spans[value] = if is_text { (start, self.unescaped.len() as u32) } else { ABSENT };
        self.depths[value] = wanted.depth;
        self.seen[value] = true;
    }

    fn number(&mut self, wanted: &Wanted, number: Number) {
        self.take(wanted, |into| write!(into, "{number}").ok());
    }

    fn no_text(&mut self, wanted: &Wanted) {
        self.take(wanted, |_| None);
    }
}

struct Object<'l, 'v, 'b> {
    level: &'l Level,
    values: &'v mut Values<'b>,
}

impl<'de> Visitor<'de> for Object<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(wanted) = map.next_key_seed(self.level)? {
            match wanted {
                Some(wanted) => map.next_value_seed(Value { wanted, values: self.values })?,
                None => map.next_value::<IgnoredAny>().map(drop)?,
            }
        }
        Ok(())
    }
}

/// Reads a key, and returns whether its value is to be read.
impl<'de, 'l> DeserializeSeed<'de> for &'l Level {
    type Value = Option<&'l Wanted>;

    fn deserialize<D: Deserializer<'de>>(self, key: D) -> Result<Self::Value, D::Error> {
        key.deserialize_str(self)
    }
}

impl<'l> Visitor<'_> for &'l Level {
    type Value = Option<&'l Wanted>;

    fn expecting(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|wanted| wanted.key == key))
    }
}

/// Reads the value of a key.
struct Value<'l, 'v, 'b> {
    wanted: &'l Wanted,
    values: &'v mut Values<'b>,
}

impl<'de> DeserializeSeed<'de> for Value<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.values.take(self.wanted, |into| {
            into.extend_from_slice(text.as_bytes());
            Some(())
        });
        Ok(())
    }

    fn visit_bool<E: Error>(self, is_true: bool) -> Result<(), E> {
        let text = if is_true { "true" } else { "false" };
        self.visit_str(text)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.values.number(self.wanted, number.into());
        Ok(())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.values.number(self.wanted, number.into());
        Ok(())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        let number = Number::from_f64(number).ok_or_else(|| E::custom("expected a finite number"))?;
        self.values.number(self.wanted, number);
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.values.no_text(self.wanted);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        self.values.no_text(self.wanted);
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        self.values.no_text(self.wanted);
        Object { level: &self.wanted.inside, values: self.values }.visit_map(map)
    }
}
