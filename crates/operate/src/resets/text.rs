//! Paths of resets in files and in Redis: a JSON object of a domain and entries (those of a descriptor, if `counter`
//! is set). The file has a line for each reset.

use std::path::Path as FilePath;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::bodies::asked::RuleNode;
use crate::bodies::values::{List, Text, id, read_id};
use crate::bodies::{Mistake, json, read};
use crate::line_file::{FileError, LineFile};
use tidegate_disk::Disk;
use tidegate_engine::path::{Path, PathEntry};
use tidegate_engine::rules::{Epoch, Epochs, Reach, ResetPath};

const FILE: LineFile = LineFile {
    setting: "STATE_DIR",
    bytes_max: 1 << 30,
    advice: " (expected resets; if you remove the file, all of them are forgotten)",
};

/// A path with its reach. The object may have other fields.
#[derive(Deserialize, Serialize)]
#[serde(expecting = "an object")]
pub(crate) struct Written {
    pub(crate) domain: Text,
    #[serde(default)]
    pub(crate) entries: List<RuleNode, 0>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counter: Option<bool>,
}

/// A path as JSON.
pub fn path_json(path: &ResetPath) -> Value {
    json(&Written::from(path))
}

/// Reads what [`path_json`] writes.
/// Fails with the first field that is wrong, with what was expected.
pub fn path(value: &Value) -> Result<ResetPath, Mistake> {
    let Written { domain, entries, counter } = read(value)?;
    let entries: Vec<_> = entries.0.into_iter().map(PathEntry::from).collect();
    let is_whole = !entries.is_empty() && entries.iter().all(|entry| entry.value.is_some());
    let reach = match counter {
        None => Reach::Below,
        Some(false) => return Err(Mistake::of("counter", "expected true, or nothing, not false")),
        Some(true) if is_whole => Reach::Counter,
        Some(true) => {
            return Err(Mistake::of("entries", "expected a list of objects with `key` and `value`"));
        }
    };
    Ok(ResetPath { path: Path { domain: domain.as_str().into(), entries }, reach })
}

/// Reads the resets of a file. A missing file has none.
/// Fails when it cannot be read, or does not contain resets.
pub fn read_file(at: &FilePath) -> Result<Epochs, FileError> {
    let reset = |_: &str, value: &Value| {
        let epoch = value.get("id").and_then(Value::as_str).and_then(read_id);
        let epoch = epoch.ok_or_else(|| Mistake::of("id", "is no number of 16 digits in hex"))?;
        Ok((path(value)?, epoch))
    };
    let mut epochs = Epochs::default();
    for (path, epoch) in FILE.parse(at, &FILE.text(at)?, reset)? {
        epochs.raise(path, epoch);
    }
    Ok(epochs)
}

/// Writes a file of these resets, completely or not at all.
pub(super) fn write_file(at: &FilePath, disk: &dyn Disk, epochs: &Epochs) -> Result<(), FileError> {
    let line = |(path, epoch): (&ResetPath, Epoch)| {
        let mut line = path_json(path);
        line["id"] = id(epoch).into();
        line
    };
    FILE.write(at, disk, epochs.iter().map(line))
}

impl From<&ResetPath> for Written {
    fn from(ResetPath { path, reach }: &ResetPath) -> Self {
        let node = |PathEntry { key, value }: &PathEntry| RuleNode {
            key: Text::from(key.clone()),
            value: value.clone().map(Text::from),
        };
        Self {
            domain: Text::from(path.domain.to_string()),
            entries: List(path.entries.iter().map(node).collect()),
            counter: (*reach == Reach::Counter).then_some(true),
        }
    }
}
