//! One exception as operators write it: a JSON object, read strictly and shown the same way.

use serde_json::{Map, Value, json};

use tidegate_engine::overlay::{Effect, Exception, Label};
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::stamp;
use tidegate_engine::time::Timestamp;

/// The longest text of any field, in bytes.
const TEXT_BYTES_MAX: usize = 1_024;
/// Descriptors have no more levels.
const LEVELS_MAX: usize = 32;

/// The fields of an exception.
const FIELDS: [&str; 12] = [
    "id",
    "domain",
    "entries",
    "requests_per_unit",
    "burst",
    "unlimited",
    "deny",
    "who",
    "why",
    "from",
    "until",
    "made",
];
/// The field in files that says which exception is newer.
const NUMBER: &str = "number";

/// An exception, with who made it and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its name, chosen by whoever makes it.
    pub id: String,
    /// What it does, for whom.
    pub exception: Exception,
    /// Who made it, as they say.
    pub who: String,
    /// Why.
    pub why: String,
    /// When it begins; `None`: at once.
    pub from: Option<Timestamp>,
    /// When it ends; `None`: when somebody ends it.
    pub until: Option<Timestamp>,
    /// When it was made.
    pub made: Timestamp,
    /// A later one has a greater number.
    pub number: u64,
}

/// What is wrong with the JSON of an exception.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct BadRecord {
    field: String,
    what: String,
}

pub(super) fn bad<T>(field: impl Into<String>, what: impl Into<String>) -> Result<T, BadRecord> {
    Err(BadRecord { field: field.into(), what: what.into() })
}

impl Record {
    /// Reads an exception that a client sends. `id` is that of the path, which a field may repeat.
    ///
    /// # Errors
    /// The first field that is wrong, with what was expected.
    pub fn of_client(id: &str, value: &Value) -> Result<Self, BadRecord> {
        let fields = object("the body", value, &FIELDS)?;
        match text(fields, "id")? {
            Some(own) if own != id => {
                return bad("id", format!("is {own:?} (expected {id:?} as in the path, or none)"));
            }
            _ => {}
        }
        Self::read(id, fields)
    }

    /// Reads an exception from a file.
    ///
    /// # Errors
    /// The first field that is wrong, with what was expected.
    pub(super) fn of_file(value: &Value) -> Result<Self, BadRecord> {
        let known: Vec<_> = FIELDS.into_iter().chain([NUMBER]).collect();
        let fields = object("an exception", value, &known)?;
        let id = needed(fields, "id")?;
        let mut record = Self::read(&id, fields)?;
        record.number = fields.get(NUMBER).and_then(Value::as_u64).unwrap_or_default();
        record.made = time(fields, "made")?.unwrap_or(record.made);
        Ok(record)
    }

    fn read(id: &str, fields: &Map<String, Value>) -> Result<Self, BadRecord> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if id.is_empty() || id.len() > 128 || !id.bytes().all(is_name) {
            return bad("id", format!("{id:?} (expected 1 to 128 letters, digits, `-`, `_` and `.`)"));
        }
        let (from, until) = (time(fields, "from")?, time(fields, "until")?);
        if let (Some(from), Some(until)) = (from, until)
            && until <= from
        {
            return bad("until", "is not after `from`");
        }
        Ok(Self {
            id: id.to_owned(),
            exception: Exception {
                path: Path { domain: needed(fields, "domain")?.into(), entries: entries(fields)? },
                effect: effect(fields)?,
            },
            who: needed(fields, "who")?,
            why: needed(fields, "why")?,
            from,
            until,
            made: Timestamp::from_nanos(0),
            number: 0,
        })
    }

    /// Its JSON, for clients and the audit.
    pub fn json(&self) -> Value {
        let level = |level: &PathEntry| match &level.value {
            None => json!({"key": level.key}),
            Some(value) => json!({"key": level.key, "value": value}),
        };
        let mut shown = json!({
            "id": self.id,
            "domain": &*self.exception.path.domain,
            "entries": self.exception.path.entries.iter().map(level).collect::<Vec<_>>(),
            "who": self.who,
            "why": self.why,
            "made": stamp::show(self.made),
        });
        let times = [("from", self.from), ("until", self.until)];
        for (name, at) in times.into_iter().filter_map(|(name, at)| Some((name, at?))) {
            shown[name] = stamp::show(at).into();
        }
        match self.exception.effect {
            Effect::Unlimited => shown["unlimited"] = true.into(),
            Effect::Deny => shown["deny"] = true.into(),
            Effect::Limit { requests, burst } => {
                let numbers = [("requests_per_unit", requests), ("burst", burst)];
                for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
                    shown[name] = number.into();
                }
            }
        }
        shown
    }

    /// What explanations and answers say of it.
    pub(super) fn label(&self) -> Label {
        Label { id: self.id.clone(), until: self.until.map(stamp::show) }
    }

    /// Its JSON, for the file.
    pub(super) fn file_json(&self) -> Value {
        let mut shown = self.json();
        shown[NUMBER] = self.number.into();
        shown
    }

    /// Whether it says the same as another one. When and in which order they were made does not matter.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        let parts = |record: &Self| {
            (
                record.id.clone(),
                record.exception.clone(),
                record.who.clone(),
                record.why.clone(),
                record.from,
                record.until,
            )
        };
        parts(self) == parts(other)
    }

    /// Whether it is in force at `now`.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= now) && !self.is_over(now)
    }

    /// Whether it has ended by itself.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// When it begins or ends next, after `now`.
    pub(super) fn changes_after(&self, now: Timestamp) -> Option<Timestamp> {
        [self.from, self.until].into_iter().flatten().filter(|&at| at > now).min()
    }
}

fn object<'v>(what: &str, value: &'v Value, known: &[&str]) -> Result<&'v Map<String, Value>, BadRecord> {
    let Some(fields) = value.as_object() else { return bad(what, "is no object") };
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => bad(unknown, format!("is unknown (expected of {})", known.join(", "))),
        None => Ok(fields),
    }
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, BadRecord> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) if text.len() <= TEXT_BYTES_MAX => Ok(Some(text.clone())),
        Some(_) => bad(name, format!("is no text of at most {TEXT_BYTES_MAX} bytes")),
    }
}

fn needed(fields: &Map<String, Value>, name: &str) -> Result<String, BadRecord> {
    match text(fields, name)? {
        Some(text) if !text.is_empty() => Ok(text),
        _ => bad(name, "is missing"),
    }
}

fn time(fields: &Map<String, Value>, name: &str) -> Result<Option<Timestamp>, BadRecord> {
    let Some(text) = text(fields, name)? else { return Ok(None) };
    match stamp::rfc_3339(&text) {
        Some(at) => Ok(Some(at)),
        None => bad(name, format!("{text:?} is no time (expected for example 2026-11-30T08:00:00Z)")),
    }
}

fn number(fields: &Map<String, Value>, name: &str) -> Result<Option<u32>, BadRecord> {
    match fields.get(name) {
        None => Ok(None),
        Some(value) => match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => bad(name, format!("{value} (expected a whole number of at most {})", u32::MAX)),
        },
    }
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<bool, BadRecord> {
    match fields.get(name) {
        None | Some(Value::Bool(false)) => Ok(false),
        Some(Value::Bool(true)) => Ok(true),
        Some(_) => bad(name, "expected true or false"),
    }
}

fn effect(fields: &Map<String, Value>) -> Result<Effect, BadRecord> {
    let (requests, burst) = (number(fields, "requests_per_unit")?, number(fields, "burst")?);
    match (requests.is_some() || burst.is_some(), flag(fields, "unlimited")?, flag(fields, "deny")?) {
        (true, false, false) => Ok(Effect::Limit { requests, burst }),
        (false, true, false) => Ok(Effect::Unlimited),
        (false, false, true) => Ok(Effect::Deny),
        _ => bad("effect", "expected exactly one of: requests_per_unit and/or burst; unlimited; deny"),
    }
}

fn entries(fields: &Map<String, Value>) -> Result<Vec<PathEntry>, BadRecord> {
    let entries = fields.get("entries").and_then(Value::as_array);
    let Some(entries) = entries.filter(|entries| (1..=LEVELS_MAX).contains(&entries.len())) else {
        return bad(
            "entries",
            format!("expected a list of 1 to {LEVELS_MAX} objects with `key` and, maybe, `value`"),
        );
    };
    let level = |(at, entry)| {
        let named = |error: BadRecord| BadRecord { field: format!("entries[{at}].{}", error.field), ..error };
        let fields = object("entry", entry, &["key", "value"]).map_err(named)?;
        let key = needed(fields, "key").map_err(named)?;
        Ok(PathEntry { key, value: text(fields, "value").map_err(named)? })
    };
    entries.iter().enumerate().map(level).collect()
}
