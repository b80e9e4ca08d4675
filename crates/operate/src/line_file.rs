//! Files of lines of JSON. A change writes a new file, so that a crash leaves the old file or the new one.
//!
//! In: what a line means. Out: the meaning of every line, or what is wrong with one, and where.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::Value;

use crate::bodies::Mistake;
use tidegate_disk::{Disk, DiskError};

/// What distinguishes such a file from others.
pub(crate) struct LineFile {
    /// The setting that says where it is.
    pub(crate) setting: &'static str,
    /// The most bytes that are read: more than all lines take.
    pub(crate) bytes_max: u64,
    /// What an error about a line says at its end.
    pub(crate) advice: &'static str,
}

/// Why such a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {why}")]
pub struct FileError {
    setting: &'static str,
    why: String,
}

impl LineFile {
    /// The text of a file; empty if there is none.
    pub(crate) fn text(&self, path: &Path) -> Result<String, FileError> {
        let mut text = String::new();
        match File::open(path).and_then(|file| file.take(self.bytes_max).read_to_string(&mut text)) {
            Ok(_) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(text),
            Err(source) => Err(self.failed(DiskError { what: "read", path: path.to_owned(), source })),
        }
    }

    /// The meaning of each line of the text of a file.
    pub(crate) fn parse<T>(
        &self,
        path: &Path,
        text: &str,
        meaning: impl Fn(&str, &Value) -> Result<T, Mistake>,
    ) -> Result<Vec<T>, FileError> {
        let read = |(number, line): (usize, &str)| {
            let value = serde_json::from_str(line).map_err(|error| error.to_string());
            let meant = value.and_then(|value| meaning(line, &value).map_err(|mistake| mistake.to_string()));
            meant.map_err(|why| self.failed(format!("{}:{number}: {why}{}", path.display(), self.advice)))
        };
        (1..).zip(text.lines()).map(read).collect()
    }

    /// Writes a file of these lines, completely or not at all.
    pub(crate) fn write(
        &self,
        path: &Path,
        disk: &dyn Disk,
        lines: impl IntoIterator<Item: Display>,
    ) -> Result<(), FileError> {
        let written =
            disk.replace(path, |out| lines.into_iter().try_for_each(|line| writeln!(out, "{line}")));
        written.map_err(|error| self.failed(error))
    }

    /// Why the file cannot be used.
    pub(crate) fn failed(&self, why: impl Display) -> FileError {
        FileError { setting: self.setting, why: why.to_string() }
    }
}
