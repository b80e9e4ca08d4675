//! Why a folder of records cannot be used. Every error names the folder.

use std::io;
use std::path::{Path, PathBuf};

use fjall::LsmError;

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has it.
    #[error("LIMITS_DIR: another process has {} (expected a folder for each process)", .0.display())]
    InUse(PathBuf),
    /// The system refuses.
    #[error("LIMITS_DIR: cannot {what} {}: {source} (expected a folder that may be written to, with room)", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It contains something that this program did not write.
    #[error("LIMITS_DIR: {} is broken: {why} (expected what this program wrote; records can be loaded again into an empty folder)", path.display())]
    Broken {
        /// The folder.
        path: PathBuf,
        /// What was found.
        why: String,
    },
    /// It is not open, or accepts no change since one failed: why.
    #[error("{0}; it is tried again")]
    Closed(String),
}

impl FolderError {
    /// The meaning of an error of the store.
    pub(super) fn of(what: &'static str, path: &Path, error: fjall::Error) -> Self {
        let path = path.to_owned();
        match error {
            fjall::Error::Locked => Self::InUse(path),
            fjall::Error::Io(source) | fjall::Error::Storage(LsmError::Io(source)) => {
                Self::Io { what, path, source }
            }
            fjall::Error::Poisoned => {
                Self::Closed(format!("LIMITS_DIR: the disk refused a change of {}", path.display()))
            }
            // Its variants have the reason; its text is made from them.
            other => Self::Broken { path, why: format!("{other:?}") },
        }
    }
}
