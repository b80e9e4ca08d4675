//! Reads a JSON value as a type of serde. What is wrong with it comes with its place: `entries[2].key: is missing`.
//!
//! In: a value that was parsed already. Out: the type, or the first mistake. The words of serde are replaced by ours, so that
//! all bodies are answered in one language. A null is never taken for a field that is absent.

use std::fmt::{self, Display};
use std::marker::PhantomData;

use serde::de::value::StrDeserializer;
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// Characters of a wrong text that an error repeats.
const SHOWN_CHARS: usize = 64;

/// The name of what may be null.
const NULLABLE: &str = "nullable";

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where, from the outside: empty for the whole.
    place: String,
    what: String,
}

/// Reads the body of a request.
/// Fails with the first thing that is wrong.
pub fn read<'v, T: Deserialize<'v>>(body: &'v Value) -> Result<T, Mistake> {
    T::deserialize(Part(body))
}

impl Mistake {
    /// In this field.
    pub fn of(field: &str, what: impl Into<String>) -> Self {
        Self { place: field.to_owned(), what: what.into() }
    }

    /// Within this field, or this item.
    #[must_use]
    pub fn within(self, outer: &str) -> Self {
        let place = match self.place.chars().next() {
            None => outer.to_owned(),
            Some('[') => format!("{outer}{}", self.place),
            Some(_) => format!("{outer}.{}", self.place),
        };
        Self { place, ..self }
    }
}

impl Display for Mistake {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.place.is_empty() { "the body" } else { &self.place };
        write!(out, "{place}: {}", self.what)
    }
}

impl std::error::Error for Mistake {}

impl Error for Mistake {
    fn custom<T: Display>(what: T) -> Self {
        Self { place: String::new(), what: what.to_string() }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = expected.to_string();
        let expected = match &*expected {
            "a boolean" => "true or false",
            "a string" => "a text",
            other => other,
        };
        Self::custom(format_args!("expected {expected}, not {}", shown(found)))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn invalid_length(found: usize, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("expected {expected}, not of {found}"))
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        Self::of(field, format!("is unknown (expected one of {})", known.join(", ")))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::of(field, "is missing")
    }
}

/// Reads a field that may be null as well as absent.
pub(super) fn unless_null<'v, T: Deserialize<'v>, D: Deserializer<'v>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    struct OrNull<T>(PhantomData<T>);
    impl<'v, T: Deserialize<'v>> Visitor<'v> for OrNull<T> {
        type Value = Option<T>;
        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("a value or null")
        }
        fn visit_none<E>(self) -> Result<Option<T>, E> {
            Ok(None)
        }
        fn visit_newtype_struct<D: Deserializer<'v>>(self, deserializer: D) -> Result<Option<T>, D::Error> {
            T::deserialize(deserializer).map(Some)
        }
    }
    deserializer.deserialize_newtype_struct(NULLABLE, OrNull(PhantomData))
}

/// A value as JSON has it, not too long.
fn shown(found: Unexpected<'_>) -> String {
    let cut = |text: &str| tidegate_engine::text::cut(text, SHOWN_CHARS).into_owned();
    match found {
        Unexpected::Bool(is) => is.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => format!("{number:?}"),
        Unexpected::Str(text) => format!("{:?}", cut(text)),
        Unexpected::Unit | Unexpected::Option => "null".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        other => other.to_string(),
    }
}

/// A part of a body.
#[derive(Clone, Copy)]
struct Part<'v>(&'v Value);

impl<'de> Deserializer<'de> for Part<'de> {
    type Error = Mistake;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(is) => visitor.visit_bool(*is),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(items) => visitor.visit_seq(Items(items.iter().enumerate())),
            Value::Object(fields) => visitor.visit_map(Fields { rest: fields.iter(), value: None }),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        match self.0 {
            Value::Null if name == NULLABLE => visitor.visit_none(),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    /// Unknown fields come first, which may be known ones that are misspelt, then the others in the order of the type: of
    /// several mistakes the first one is reported. Serde would take a list for an object too, by the order of its fields.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        let fields = match self.0 {
            Value::Object(fields) => fields,
            Value::Array(_) => return Err(Error::invalid_type(Unexpected::Seq, &visitor)),
            _ => return self.deserialize_any(visitor),
        };
        let unknown = fields.iter().filter(|(name, _)| !known.contains(&name.as_str()));
        let in_order = known.iter().filter_map(|name| fields.get_key_value(*name));
        visitor.visit_map(Fields { rest: unknown.chain(in_order), value: None })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

/// The items of a list that were not read yet.
struct Items<'v>(std::iter::Enumerate<std::slice::Iter<'v, Value>>);

impl<'v> SeqAccess<'v> for Items<'v> {
    type Error = Mistake;

    fn next_element_seed<T: DeserializeSeed<'v>>(&mut self, seed: T) -> Result<Option<T::Value>, Mistake> {
        let Some((at, item)) = self.0.next() else { return Ok(None) };
        seed.deserialize(Part(item)).map(Some).map_err(|mistake| mistake.within(&format!("[{at}]")))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The fields of an object that were not read yet.
struct Fields<'v, I> {
    rest: I,
    /// The field whose name was read.
    value: Option<(&'v str, &'v Value)>,
}

impl<'v, I: Iterator<Item = (&'v String, &'v Value)>> MapAccess<'v> for Fields<'v, I> {
    type Error = Mistake;

    fn next_key_seed<K: DeserializeSeed<'v>>(&mut self, seed: K) -> Result<Option<K::Value>, Mistake> {
        let Some((name, value)) = self.rest.next() else { return Ok(None) };
        self.value = Some((name, value));
        let name: StrDeserializer<'_, Mistake> = name.as_str().into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'v>>(&mut self, seed: T) -> Result<T::Value, Mistake> {
        let (name, value) = self.value.take().ok_or_else(|| Mistake::custom("a value without a name"))?;
        seed.deserialize(Part(value)).map_err(|mistake| mistake.within(name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::asked::{Exception, ListRecords, PutRecord};
    use super::*;

    fn said<'v, T: Deserialize<'v>>(body: &'v Value) -> String {
        read::<T>(body).err().expect("a mistake").to_string()
    }

    fn exception(field: &str, value: Value) -> Value {
        let mut body =
            json!({"domain": "d", "entries": [{"key": "a"}], "deny": true, "who": "jane", "why": "a test"});
        body[field] = value;
        body
    }

    #[test]
    fn a_mistake_has_its_place() {
        for (field, value, expected) in [
            ("entries", json!([{"key": "a"}, {"value": "b"}]), "entries[1].key: is missing"),
            (
                "entries",
                json!(["a"]),
                "entries[0]: expected an object with `key` and, maybe, `value`, not \"a\"",
            ),
            (
                "entries",
                json!([["a", "b"]]),
                "entries[0]: expected an object with `key` and, maybe, `value`, not a list",
            ),
            (
                "entries",
                json!([{"key": "a", "vlaue": 1}]),
                "entries[0].vlaue: is unknown (expected one of key, value)",
            ),
            (
                "entries",
                json!([]),
                "entries: expected a list of 1 to 32 objects with `key` and, maybe, `value`, not of 0",
            ),
            ("burst", json!(1.5), "burst: expected a whole number, 0 to 4294967295, not 1.5"),
            ("deny", json!({}), "deny: expected true or false, not an object"),
            ("until", Value::Null, "until: expected a time such as 2026-11-30T08:00:00Z, not null"),
            ("who", json!(""), "who: is missing"),
        ] {
            assert_eq!(said::<Exception>(&exception(field, value)), expected);
        }
        let list = json!(["d"]);
        assert_eq!(said::<Exception>(&list), "the body: expected an object, not a list");
        let after = json!({"after": {"domain": "d", "entries": [{"key": "a"}]}});
        assert_eq!(said::<ListRecords>(&after), "after.entries[0].value: is missing");
    }

    #[test]
    fn null_is_as_if_absent_only_where_a_field_says_so() {
        let list: ListRecords = read(&json!({"after": null})).expect("good");
        assert!(list.after.is_none());
        let record = json!({
            "domain": "d", "entries": [{"key": "a", "value": "b"}], "unlimited": true, "burst": null, "unit": null,
            "who": "jane", "why": "a test",
        });
        let record: PutRecord = read(&record).expect("good");
        let alone = json!({"domain": "d", "entries": [{"key": "a", "value": "b"}], "unlimited": true});
        assert_eq!(record.record(), alone);
        assert!(said::<ListRecords>(&json!({"most": null})).ends_with("not null"));
    }
}
