//! Files that no crash leaves half written, and files of people, read within a bound.
//!
//! In: a path, and what writes the bytes. Out: the old file or the new one, whenever the process or the machine dies.
//! A file is written beside the old one, synced, and renamed to its name; then the folder is synced, so that the name
//! stays. Every step goes through a [`Disk`]: `mortal` is one that dies at any step, for tests.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Large writes, for few calls of the system.
const WRITE_BYTES: usize = 1 << 20;
/// What is read of a file that somebody has named at most. Certificates and mappings are smaller by far.
const READ_BYTES_MAX: u64 = 16 << 20;
/// Nobody else may read what is written: secrets of keys, names of users.
const FILE_MODE: u32 = 0o600;

/// The steps of which keeping a file consists.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a file, or empties the one that is there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>>;

    /// Gives a file another name, from which the file that was there is gone.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Waits until the names in this folder outlive a crash of the machine.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// A file that is being written.
pub trait NewFile: Write {
    /// Waits until its bytes outlive a crash of the machine.
    fn sync(&mut self) -> io::Result<()>;
}

/// What the disk refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {}: {source}", path.display())]
pub struct DiskError {
    /// What was tried.
    pub what: &'static str,
    /// With which file.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// The system's.
#[derive(Debug)]
pub struct SystemDisk;

impl dyn Disk + '_ {
    /// Writes a file, whole or not at all, and returns what `write` returns.
    /// Fails as the system does, and as `write`. The file that was there stays then.
    pub fn replace<T>(
        &self,
        path: &Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> Result<T, DiskError> {
        let beside = beside(path);
        let written = self.write_synced(&beside, write).map_err(|source| {
            // What is half written only takes room.
            let _ = self.remove(&beside);
            DiskError { what: "write", path: beside.clone(), source }
        })?;
        self.rename_synced(&beside, path)?;
        Ok(written)
    }

    /// Whether `replace` could write this file: makes another one in its folder, and removes it.
    pub fn try_replace(&self, path: &Path) -> Result<(), DiskError> {
        // Another process may be writing under the name beside.
        let tried = beside(&beside(path));
        let written = self.write_synced(&tried, |out| out.write_all(b"\n"));
        let removed = self.remove(&tried);
        written.and(removed).map_err(|source| DiskError { what: "write", path: path.to_owned(), source })
    }

    /// Renames a file within its folder, and makes sure that it keeps the new name.
    pub fn rename_synced(&self, from: &Path, to: &Path) -> Result<(), DiskError> {
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let renamed = self.rename(from, to).and_then(|()| self.sync_folder(folder));
        renamed.map_err(|source| DiskError { what: "rename", path: from.to_owned(), source })
    }

    fn write_synced<T>(
        &self,
        path: &Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut file = BufWriter::with_capacity(WRITE_BYTES, self.create(path)?);
        let written = write(&mut file)?;
        file.flush()?;
        file.get_mut().sync()?;
        Ok(written)
    }
}

/// The contents of a file that somebody has named: a certificate, a mapping.
/// Fails when it cannot be read, or does not end soon enough, as `/dev/zero`.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(READ_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > READ_BYTES_MAX {
        true => Err(io::Error::other(format!("it is longer than {READ_BYTES_MAX} bytes"))),
        false => Ok(bytes),
    }
}

/// The same, as text.
/// Fails as [`read`], and when it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Where a file is written before it gets its name.
pub fn beside(path: &Path) -> PathBuf {
    let mut beside = path.to_owned().into_os_string();
    beside.push(".new");
    PathBuf::from(beside)
}

impl Disk for SystemDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

impl NewFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

#[cfg(any(test, feature = "fixture"))]
#[doc(hidden)]
pub mod mortal;
#[cfg(test)]
mod tests;
