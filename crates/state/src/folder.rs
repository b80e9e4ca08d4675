//! The folder of a process: its owner, the names of its files, and the order in which they are written, synced and
//! renamed.
//!
//! A crash of the process or of the machine between any two steps leaves a folder that the next start understands:
//! `tests/deaths.rs` begins from each of them.

use std::fs::{self, DirBuilder, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sequence::{Sequence, SequenceError};
use crate::writer::Writing;
use tidegate_disk::{Disk, DiskError, SystemDisk, temporary_name};

tidegate_engine::named! {
    /// A file of the folder.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum File {
        /// The counters of a process that has ended, written after its last decision.
        Counters = "counters",
        /// The counters of a running process at some moment.
        Checkpoint = "checkpoint",
    }
}

/// Locked by the process that owns the folder.
const LOCK: &str = "lock";
/// Refused files are kept under so many names. A further one replaces the last of them.
const REFUSED_MAX: usize = 8;
/// Nobody else may read the secret of keys, or change counts.
const LOCK_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process owns it.
    #[error("STATE_DIR: another process has {} (expected a folder for each process)", .0.display())]
    InUse(PathBuf),
    /// The system refuses.
    #[error("STATE_DIR: {0} (expected a folder that may be written to)")]
    Io(#[from] DiskError),
    /// Starts cannot be counted.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
}

/// The folder of this process, as long as it lives.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    /// The file in which starts are counted outside of it.
    sequence: Option<Sequence>,
    /// The system unlocks it when the process ends, however that happens.
    _lock: fs::File,
}

impl Folder {
    /// Takes the folder, which is created if it does not exist.
    /// Fails when another process owns it, or it cannot be written to.
    pub fn lock(path: &Path) -> Result<Self, FolderError> {
        Self::lock_on(path, Arc::new(SystemDisk))
    }

    /// The same on another disk.
    /// Fails as [`lock`](Self::lock).
    pub fn lock_on(path: &Path, disk: Arc<dyn Disk>) -> Result<Self, FolderError> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| DiskError { what, path, source }
        };
        DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path).map_err(failed("make", path))?;
        let lock_path = path.join(LOCK);
        let lock = lock_file(&lock_path).map_err(failed("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {
                let folder = Self { path: path.to_owned(), disk, sequence: None, _lock: lock };
                // A process that was killed while it wrote leaves half of a file, which only takes space.
                for file in File::ALL {
                    let _ = folder.disk.remove(&temporary_name(&folder.file(file)));
                }
                Ok(folder)
            }
            Err(TryLockError::WouldBlock) => Err(FolderError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => Err(failed("lock", &lock_path)(source).into()),
        }
    }

    /// Counts starts in a file outside of the folder too, if one is set.
    /// Fails when that file cannot be read, or contains something else.
    pub fn counted_in(mut self, file: Option<&Path>) -> Result<Self, FolderError> {
        self.sequence = file.map(Sequence::read).transpose()?;
        Ok(self)
    }

    /// The number of the last start, if a file outside of the folder has it.
    pub(super) fn last_start(&self) -> u64 {
        self.sequence.as_ref().map_or(0, |sequence| sequence.seen)
    }

    /// Writes the number of this start into that file.
    pub(super) fn note_start(&self, number: u64) -> Result<(), FolderError> {
        let written = self.sequence.as_ref().map(|sequence| sequence.write(&*self.disk, number));
        Ok(written.transpose().map(drop)?)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file.
    pub fn file(&self, file: File) -> PathBuf {
        self.path.join(file.name())
    }

    /// Whether a file exists. If the system cannot say, it counts as existing.
    pub fn has(&self, file: File) -> bool {
        self.file(file).try_exists().unwrap_or(true)
    }

    /// Writes a file, completely or not at all. Returns the number of counters.
    /// Fails as the system does, and as `pause`, which gets the size of every block. Then the previous file stays.
    pub fn write(
        &self,
        file: File,
        writing: &Writing<'_>,
        pause: impl FnMut(usize) -> io::Result<()>,
    ) -> Result<u64, FolderError> {
        Ok(self.disk.replace(&self.file(file), |out| writing.write_to(out, pause))?)
    }

    /// Marks the counters as used: from now on they are those of a running process.
    pub fn consume(&self) -> Result<(), FolderError> {
        Ok(self.disk.rename_synced(&self.file(File::Counters), &self.file(File::Checkpoint))?)
    }

    /// Makes sure that the renames survive. A killed process may not have reached that step: without it a crash of
    /// the machine could bring back counters that were used already.
    pub fn keep_names(&self) -> Result<(), FolderError> {
        let failed = |source| DiskError { what: "sync", path: self.path.clone(), source };
        Ok(self.disk.sync_folder(&self.path).map_err(failed)?)
    }

    /// Renames a refused file, and returns its new path.
    pub fn put_aside(&self, file: File) -> Result<PathBuf, FolderError> {
        let mut names = (1..=REFUSED_MAX).map(|number| self.path.join(format!("refused-{number}")));
        let free = names.clone().find(|path| !path.try_exists().unwrap_or(true));
        let aside = free.or_else(|| names.next_back()).expect("there is more than one name");
        self.disk.rename_synced(&self.file(file), &aside)?;
        Ok(aside)
    }
}

fn lock_file(path: &Path) -> io::Result<fs::File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(LOCK_MODE).open(path)
}
