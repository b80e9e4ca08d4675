//! Paths and numbers of resets as people, files and Redis have them: a JSON object of a domain and entries (those of a
//! descriptor, if it says `counter`), and the number as sixteen digits in hex, so that texts sort as numbers do.

use serde_json::{Map, Value, json};

use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::rules::{Epoch, Reach, ResetPath};

/// The longest text of any field, in bytes.
const TEXT_BYTES_MAX: usize = 1_024;
/// Descriptors have no more levels.
const LEVELS_MAX: usize = 32;
/// The field that says of a path that it leads to one counter.
const COUNTER: &str = "counter";
/// Digits of a number.
const DIGITS: usize = 16;

/// What is wrong with a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct BadPath {
    field: String,
    what: String,
}

fn bad<T>(field: impl Into<String>, what: impl Into<String>) -> Result<T, BadPath> {
    Err(BadPath { field: field.into(), what: what.into() })
}

/// The number of a reset as a text.
pub fn id(epoch: Epoch) -> String {
    format!("{epoch:016x}")
}

/// Reads what [`id`] writes. 0 is no number.
pub fn read_id(text: &str) -> Option<Epoch> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_number = text.len() == DIGITS && text.bytes().all(is_digit);
    u64::from_str_radix(text, 16).ok().filter(|&epoch| is_number && epoch > 0)
}

/// A path as JSON.
pub fn path_json(path: &ResetPath) -> Value {
    let node = |node: &PathEntry| match &node.value {
        None => json!({"key": node.key}),
        Some(value) => json!({"key": node.key, "value": value}),
    };
    let mut json = json!({"domain": &*path.path.domain, "entries": path.path.entries.iter().map(node).collect::<Vec<_>>()});
    if path.reach == Reach::Counter {
        json[COUNTER] = true.into();
    }
    json
}

/// Reads `domain` and `entries` (which may be absent: all rules of the domain) of an object that may have other fields.
///
/// # Errors
/// The first field that is wrong, with what was expected.
pub fn path(value: &Value) -> Result<ResetPath, BadPath> {
    let Some(fields) = value.as_object() else { return bad("the body", "is no object") };
    let Some(domain) = text(fields, "domain")? else { return bad("domain", "is missing") };
    let none = Vec::new();
    let entries = match fields.get("entries") {
        None => &none,
        Some(Value::Array(entries)) if entries.len() <= LEVELS_MAX => entries,
        Some(_) => {
            return bad(
                "entries",
                format!("expected a list of at most {LEVELS_MAX} objects with `key` and, maybe, `value`"),
            );
        }
    };
    let nodes = entries.iter().enumerate().map(|(at, entry)| {
        node(entry).map_err(|error| BadPath { field: format!("entries[{at}].{}", error.field), ..error })
    });
    let reach = match fields.get(COUNTER) {
        None => Reach::Below,
        Some(Value::Bool(true)) => {
            return counter_of(Path { domain: domain.into(), entries: nodes.collect::<Result<_, _>>()? });
        }
        Some(_) => return bad(COUNTER, "expected true, or nothing"),
    };
    let path = Path { domain: domain.into(), entries: nodes.collect::<Result<_, _>>()? };
    Ok(ResetPath { path, reach })
}

/// Reads `domain` and `entries` of an object that may have other fields, as the path to one counter.
///
/// # Errors
/// The first field that is wrong, with what was expected.
pub fn counter(value: &Value) -> Result<ResetPath, BadPath> {
    counter_of(path(value)?.path)
}

fn counter_of(path: Path) -> Result<ResetPath, BadPath> {
    if path.entries.is_empty() || path.entries.iter().any(|node| node.value.is_none()) {
        return bad("entries", "expected a list of objects with `key` and `value`");
    }
    Ok(ResetPath { path, reach: Reach::Counter })
}

fn node(entry: &Value) -> Result<PathEntry, BadPath> {
    let Some(fields) = entry.as_object() else { return bad("entry", "is no object") };
    if let Some(unknown) = fields.keys().find(|name| !["key", "value"].contains(&name.as_str())) {
        return bad(unknown, "is unknown (expected key, value)");
    }
    match text(fields, "key")? {
        Some(key) => Ok(PathEntry { key, value: text(fields, "value")? }),
        None => bad("key", "is missing"),
    }
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, BadPath> {
    match fields.get(name) {
        None => Ok(None),
        Some(Value::String(text)) if text.len() <= TEXT_BYTES_MAX => Ok(Some(text.clone())),
        Some(_) => bad(name, format!("is no text of at most {TEXT_BYTES_MAX} bytes")),
    }
}
