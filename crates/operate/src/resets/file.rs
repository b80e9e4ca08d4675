//! All resets in one file: a line of JSON for each. A reset writes a new file, so that a crash leaves the old file or
//! the new one.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::text::{path, path_json};
use crate::bodies::values::{id, read_id};
use tidegate_disk::{Disk, DiskError};
use tidegate_engine::rules::{Epoch, Epochs, ResetPath};

/// The most bytes that are read: more than all resets take.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Why resets cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses.
    #[error("STATE_DIR: {0}")]
    Io(#[from] DiskError),
    /// A line is no reset.
    #[error("STATE_DIR: {}:{line}: {problem} (expected resets; if you remove the file, all of them are forgotten)", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// Reads a file. A missing file has none.
/// Fails when it cannot be read, or does not contain resets.
pub fn read(at: &Path) -> Result<Epochs, FileError> {
    let failed = |source| DiskError { what: "read", path: at.to_owned(), source };
    let mut text = String::new();
    match File::open(at) {
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Epochs::default()),
        Err(error) => return Err(failed(error).into()),
    };
    let mut epochs = Epochs::default();
    for (number, line) in (1..).zip(text.lines()) {
        let (path, epoch) = reset(line).map_err(|problem| FileError::Line {
            path: at.to_owned(),
            line: number,
            problem: problem.0,
        })?;
        epochs.raise(path, epoch);
    }
    Ok(epochs)
}

/// Writes a file, completely or not at all.
pub(super) fn write(at: &Path, disk: &(dyn Disk + 'static), epochs: &Epochs) -> Result<(), FileError> {
    let line = |(path, epoch): (&ResetPath, Epoch)| {
        let mut line = path_json(path);
        line["id"] = id(epoch).into();
        line
    };
    Ok(disk.replace(at, |out| epochs.iter().try_for_each(|reset| writeln!(out, "{}", line(reset))))?)
}

/// What is wrong with a line.
struct Problem(String);

fn reset(line: &str) -> Result<(ResetPath, Epoch), Problem> {
    let value: Value = serde_json::from_str(line).map_err(|error| Problem(error.to_string()))?;
    let epoch = value.get("id").and_then(Value::as_str).and_then(read_id);
    let epoch = epoch.ok_or_else(|| Problem("id: is no number of 16 digits in hex".to_owned()))?;
    Ok((path(&value).map_err(|error| Problem(error.to_string()))?, epoch))
}
