//! All exceptions in one file: a line of JSON for each. A change writes a new file, so that a crash leaves the old
//! file or the new one.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::{Authored, EXCEPTIONS_MAX};
use tidegate_disk::{Disk, DiskError};
use tidegate_engine::text::json_line;

/// The most bytes of a file: as many as all exceptions take at their longest, and some more.
pub const FILE_BYTES_MAX: usize = 256 << 20;

/// Why exceptions cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses.
    #[error("EXCEPTIONS_FILE: {0}")]
    Io(#[from] DiskError),
    /// A line is no exception.
    #[error("EXCEPTIONS_FILE: {}:{line}: {problem}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// There are too many.
    #[error("EXCEPTIONS_FILE: {} holds more than {EXCEPTIONS_MAX} exceptions", .0.display())]
    TooMany(PathBuf),
}

/// Reads a file: each exception with its line. A missing file has none.
pub(super) fn read(path: &Path) -> Result<Vec<(Authored, Arc<str>)>, FileError> {
    let failed = |source| DiskError { what: "read", path: path.to_owned(), source };
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => file.take(FILE_BYTES_MAX as u64).read_to_string(&mut text).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error).into()),
    };
    parse(path, &text)
}

/// The exceptions in the text of a file, likewise.
pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<(Authored, Arc<str>)>, FileError> {
    let record = |(at, line): (usize, &str)| {
        let problem = |problem: String| FileError::Line { path: path.to_owned(), line: at + 1, problem };
        let value: Value = serde_json::from_str(line).map_err(|error| problem(error.to_string()))?;
        let record = Authored::of_file(&value).map_err(|error| problem(error.to_string()))?;
        Ok((record, line.into()))
    };
    let records: Vec<_> = text.lines().enumerate().map(record).collect::<Result<_, FileError>>()?;
    if records.len() > EXCEPTIONS_MAX { Err(FileError::TooMany(path.to_owned())) } else { Ok(records) }
}

/// The line of an exception, without the line feed.
pub(super) fn line(record: &Authored) -> Arc<str> {
    json_line(&record.file_json().to_string()).into()
}

/// Whether a file can be written there.
pub(super) fn check(disk: &dyn Disk, path: &Path) -> Result<(), FileError> {
    Ok(disk.try_replace(path)?)
}

/// Writes a file of these lines, completely or not at all.
pub(super) fn write(disk: &dyn Disk, path: &Path, lines: &[Arc<str>]) -> Result<(), FileError> {
    let write = |line: &str, out: &mut dyn Write| {
        out.write_all(line.as_bytes())?;
        out.write_all(b"\n")
    };
    Ok(disk.replace(path, |out| lines.iter().try_for_each(|line| write(line, out)))?)
}
