//! The schemas of bodies: those of the types, as far as serde cannot say them, and of what is shown without a type.

use std::borrow::Cow;

use schemars::generate::{Contract, SchemaSettings};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::answered::{CounterKey, Error};
use super::asked::Entry;
use super::values::{
    LEVELS_MAX, List, Number, Positive, Requests, ResetId, TEXT_BYTES_MAX, Text, Time, Words,
};
use crate::audit::Does;

/// The answer that one hit would get now, and why.
pub(crate) struct Explanation;

/// The limit of one key. What it leaves out is taken from the rule.
#[derive(JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "it stands for what the records room shows")]
pub(crate) struct Record {
    /// The domain.
    domain: String,
    /// The entries of a descriptor, all of them and in order.
    entries: List<Entry, 1>,
    /// N. Required unless `unlimited`.
    requests_per_unit: Option<Requests>,
    /// The capacity, if the limit is a bucket.
    burst: Option<Positive>,
    /// Another window: second, minute, hour, day, week, month or year.
    unit: Option<String>,
    /// The window is so many units.
    unit_multiplier: Option<Positive>,
    /// Another window as a duration, such as 90s, instead of `unit`.
    window: Option<String>,
    /// Another algorithm.
    algorithm: Option<String>,
    /// Another width of the buckets of sliding_window, such as 1s.
    granularity: Option<String>,
    /// Where the periods of a calendar budget begin: a day of the month such as 15, a weekday such as sunday, or a date such
    /// as 04-06.
    anchor: Option<super::asked::RecordAnchor>,
    /// Whether it only counts and reports.
    shadow_mode: Option<bool>,
    /// Counted, and never denied.
    unlimited: Option<bool>,
}

/// A line of the audit: before a change, or with its outcome.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "it stands for what the audit writes")]
pub(crate) struct AuditLine {
    /// The change: the same in both of its lines.
    id: String,
    /// When.
    at: Time,
    /// What is done.
    does: Option<Does>,
    /// Who does it, by their own account.
    who: Option<String>,
    /// The address that it came from.
    peer: Option<String>,
    /// The name in the client's certificate, if it is that which allows the request.
    certificate: Option<String>,
    /// What is changed, and why.
    what: Option<Map<String, Value>>,
    /// `done`, `failed`, or how far a load came.
    outcome: Option<String>,
    /// Why it failed.
    why: Option<String>,
}

/// The schemas of bodies, as they are asked for: of requests, and of answers.
pub(crate) struct Schemas {
    asked: SchemaGenerator,
    answered: SchemaGenerator,
}

impl Schemas {
    /// With those that every operation may need, and those that are shown without a type.
    pub(crate) fn new() -> Self {
        let (asked, answered) = (generator(Contract::Deserialize), generator(Contract::Serialize));
        let mut schemas = Self { asked, answered };
        schemas.asked::<Record>();
        schemas.asked::<AuditLine>();
        schemas.answered::<Error>();
        schemas
    }

    /// Where the schema of this body of a request is.
    pub(crate) fn asked<T: JsonSchema>(&mut self) -> String {
        place::<T>(&mut self.asked)
    }

    /// Where the schema of this body of an answer is.
    pub(crate) fn answered<T: JsonSchema>(&mut self) -> String {
        place::<T>(&mut self.answered)
    }

    /// All of them, by their names.
    pub(crate) fn all(mut self) -> Map<String, Value> {
        let mut all = self.answered.take_definitions(true);
        // What is in both is as strict as requests are.
        all.append(&mut self.asked.take_definitions(true));
        all.values_mut().for_each(tidied);
        // Requests may leave these out; an exception that was made has them.
        let required = all["Listed"]["required"].as_array_mut().expect("what an exception has");
        required.extend([json!("id"), json!("made")]);
        all
    }
}

fn place<T: JsonSchema>(generator: &mut SchemaGenerator) -> String {
    generator.subschema_for::<T>();
    format!("#/components/schemas/{}", T::schema_name())
}

fn generator(contract: Contract) -> SchemaGenerator {
    SchemaSettings::openapi3().with(|settings| settings.contract = contract).into_generator()
}

/// As OpenAPI 3.0 has it. A field that need not be there is absent then, and never null.
fn tidied(schema: &mut Value) {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, field) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        if let Some(field) = field.as_object_mut() {
            nullable(field, required.contains(&json!(name)));
        }
        tidied(field);
    }
    if let Some(schema) = schema.as_object_mut()
        && schema.get("format").and_then(Value::as_str).is_some_and(|format| format.starts_with("uint"))
    {
        schema.remove("format");
    }
}

fn nullable(field: &mut Map<String, Value>, may_be_null: bool) {
    let choices = field.get("anyOf").and_then(Value::as_array);
    if let Some([one, null]) = choices.map(Vec::as_slice)
        && null["nullable"] == true
    {
        let one = json!([one]);
        field.remove("anyOf");
        field.insert("allOf".to_owned(), one);
        field.insert("nullable".to_owned(), true.into());
    }
    if !may_be_null {
        field.remove("nullable");
        if let Some(values) = field.get_mut("enum").and_then(Value::as_array_mut) {
            values.retain(|value| !value.is_null());
        }
    }
}

/// A schema that stands where it is used.
macro_rules! inline {
    ($($type:ty $([$($parameters:tt)*])? = $schema:expr;)*) => {$(
        impl $(<$($parameters)*>)? JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )*};
}

inline! {
    Text = json_schema!({"type": "string", "maxLength": TEXT_BYTES_MAX});
    Words = json_schema!({"type": "string", "minLength": 1, "maxLength": TEXT_BYTES_MAX});
    Time = json_schema!({"type": "string", "format": "date-time"});
    CounterKey = json_schema!({"type": "string", "pattern": "^[0-9a-f]{32}$"});
    Number<MIN, MAX> [const MIN: u64, const MAX: u64] = match MAX {
        u64::MAX => json_schema!({"type": "integer", "minimum": MIN}),
        _ => json_schema!({"type": "integer", "minimum": MIN, "maximum": MAX}),
    };
}

impl<T: JsonSchema, const MIN: usize> JsonSchema for List<T, MIN> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "List".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let items = generator.subschema_for::<T>();
        let mut schema = json_schema!({"type": "array", "maxItems": LEVELS_MAX, "items": items});
        if MIN > 0 {
            schema.insert("minItems".to_owned(), MIN.into());
        }
        schema
    }
}

impl JsonSchema for ResetId {
    fn schema_name() -> Cow<'static, str> {
        "ResetId".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[0-9a-f]{16}$",
            "description":
                "The number of a reset: nanoseconds since 1970, in hex. A later reset has a greater one.",
        })
    }
}

impl JsonSchema for Explanation {
    fn schema_name() -> Cow<'static, str> {
        "Explanation".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "description": "The answer that one hit would get now, and why."})
    }
}
