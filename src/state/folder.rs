//! The folder of a process: who has it, the names of its files, and the order in which they are written, synced and
//! renamed.
//!
//! A crash of the process or of the machine between any two steps leaves a folder that the next start understands:
//! `tests.rs` begins from each of them.

use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::state::writer::Writing;

/// A file of the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// The counters of a process that has ended, after its last decision.
    Counters,
    /// The counters of a process at some moment of its life.
    Checkpoint,
}

impl File {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counters => "counters",
            Self::Checkpoint => "checkpoint",
        }
    }
}

/// Locked by the process that has the folder.
const LOCK: &str = "lock";
/// Files that were not believed are kept under so many names. One more takes the last of them.
const REFUSED_MAX: usize = 8;
/// Large writes, for few calls of the system.
const WRITE_BYTES: usize = 1 << 20;
/// Nobody else may read the secret of keys, or write counts.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has it.
    #[error("STATE_DIR: another process has {} (expected a folder for each process)", .0.display())]
    InUse(PathBuf),
    /// The system refuses.
    #[error("STATE_DIR: cannot {what} {}: {source} (expected a folder that may be written to)", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The folder of this process, as long as it lives.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The system unlocks it when the process ends, however that happens.
    _lock: fs::File,
}

impl Folder {
    /// Takes the folder, which is made if it is not there.
    ///
    /// # Errors
    /// When another process has it, or it cannot be written to.
    pub fn lock(path: &Path) -> Result<Self, FolderError> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| FolderError::Io { what, path, source }
        };
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path).map_err(failed("make", path))?;
        let lock_path = path.join(LOCK);
        let lock = new_file(&lock_path).map_err(failed("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {
                let folder = Self { path: path.to_owned(), _lock: lock };
                // A process that was killed while it wrote leaves half of a file, which only takes room.
                for file in [File::Counters, File::Checkpoint] {
                    let _ = fs::remove_file(folder.beside(file));
                }
                Ok(folder)
            }
            Err(TryLockError::WouldBlock) => Err(FolderError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => Err(failed("lock", &lock_path)(source)),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file.
    pub fn file(&self, file: File) -> PathBuf {
        self.path.join(file.name())
    }

    /// Where a file is written before it gets its name.
    fn beside(&self, file: File) -> PathBuf {
        self.path.join(format!("{}.new", file.name()))
    }

    /// Whether a file is there. One that the system will not say anything of is there.
    pub fn has(&self, file: File) -> bool {
        self.file(file).try_exists().unwrap_or(true)
    }

    /// Writes a file, whole or not at all. Returns the number of counters.
    ///
    /// # Errors
    /// Those of the system and of `pause`, which gets the bytes of every block. The file that was there stays.
    pub fn write(
        &self,
        file: File,
        writing: &Writing<'_>,
        pause: impl FnMut(usize) -> io::Result<()>,
    ) -> Result<u64, FolderError> {
        let beside = self.beside(file);
        let written = write_synced(&beside, writing, pause).map_err(|source| {
            // What is half written only takes room.
            let _ = fs::remove_file(&beside);
            FolderError::Io { what: "write", path: beside.clone(), source }
        })?;
        self.rename(&beside, &self.file(file))?;
        Ok(written)
    }

    /// Marks the counters as taken: from now on they are those of a process that runs.
    ///
    /// # Errors
    /// Those of the system.
    pub fn consume(&self) -> Result<(), FolderError> {
        self.rename(&self.file(File::Counters), &self.file(File::Checkpoint))
    }

    /// Puts a file that is not believed aside, and returns its new path.
    ///
    /// # Errors
    /// Those of the system.
    pub fn put_aside(&self, file: File) -> Result<PathBuf, FolderError> {
        let mut names = (1..=REFUSED_MAX).map(|number| self.path.join(format!("refused-{number}")));
        let free = names.clone().find(|path| !path.try_exists().unwrap_or(true));
        let aside = free.or_else(|| names.next_back()).expect("there is more than one name");
        self.rename(&self.file(file), &aside)?;
        Ok(aside)
    }

    /// Renames a file, and makes sure that it keeps its name if the machine crashes.
    fn rename(&self, from: &Path, to: &Path) -> Result<(), FolderError> {
        let renamed = fs::rename(from, to).and_then(|()| fs::File::open(&self.path)?.sync_all());
        renamed.map_err(|source| FolderError::Io { what: "rename", path: from.to_owned(), source })
    }
}

fn write_synced(
    path: &Path,
    writing: &Writing<'_>,
    pause: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<u64> {
    let mut file = BufWriter::with_capacity(WRITE_BYTES, new_file(path)?);
    file.get_mut().set_len(0)?;
    let written = writing.write_to(&mut file, pause)?;
    file.flush()?;
    file.get_ref().sync_all()?;
    Ok(written)
}

fn new_file(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(FILE_MODE).open(path)
}
