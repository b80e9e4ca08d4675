//! The number of the last start, in a file outside of the folder. A folder that was restored from a backup cannot
//! detect that by itself: it has the number of an earlier start.
//!
//! In: STATE_SEQUENCE_FILE. Out: the number in it. Each start writes the next one, before its first answer.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tidegate_disk::{Disk, DiskError};

/// No number is longer.
const FILE_BYTES_MAX: u64 = 32;

/// Why starts cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum SequenceError {
    /// It cannot be read.
    #[error("STATE_SEQUENCE_FILE: cannot read {}: {source}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It contains something else.
    #[error("STATE_SEQUENCE_FILE: {} holds no number (expected what Tidegate wrote, or no file)", .0.display())]
    NoNumber(PathBuf),
    /// It cannot be written.
    #[error("STATE_SEQUENCE_FILE: {0} (expected a file in a folder that may be written to)")]
    Io(#[from] DiskError),
}

/// The file, and the number in it.
#[derive(Debug)]
pub struct Sequence {
    path: PathBuf,
    /// The number of the last start; 0: there is no file yet.
    pub seen: u64,
}

impl Sequence {
    /// Reads it.
    /// Fails when there is a file that cannot be read, or contains something else.
    pub fn read(path: &Path) -> Result<Self, SequenceError> {
        let path = path.to_owned();
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self { path, seen: 0 }),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(SequenceError::NoNumber(path));
            }
            Err(source) => return Err(SequenceError::Unreadable { path, source }),
            Ok(_) => {}
        }
        match text.trim_end().parse() {
            Ok(seen) => Ok(Self { path, seen }),
            Err(_) => Err(SequenceError::NoNumber(path)),
        }
    }

    /// Writes the number of this start.
    pub(super) fn write(&self, disk: &(dyn Disk + 'static), number: u64) -> Result<(), SequenceError> {
        Ok(disk.replace(&self.path, |out| writeln!(out, "{number}"))?)
    }
}
