//! Files that no crash leaves half written, and files that users name, read within a bound.
//!
//! In: a path, and a function that writes the bytes. Out: the old file or the new one, whenever the process or the
//! machine dies. A file is written under a temporary name, synced, and renamed; then the folder is synced, so that
//! the new name survives. Every step goes through a [`Disk`]: `mortal` is one that dies at any step, for tests.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Large writes, for few calls of the system.
const WRITE_BYTES: usize = 1 << 20;
/// The most bytes that are read of a file that a user named. Certificates and mappings are far smaller.
const READ_BYTES_MAX: u64 = 16 << 20;
/// Nobody else may read these files: they contain secrets of keys, and names of users.
const FILE_MODE: u32 = 0o600;

/// The steps of writing a file.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Creates a file, or truncates the existing one.
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>>;

    /// Renames a file. It replaces a file that has the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Waits until the names in this folder survive a crash of the machine.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
}

/// A file that is being written.
pub trait NewFile: Write {
    /// Waits until its bytes survive a crash of the machine.
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
    /// The reason.
    pub source: io::Error,
}

/// The disk of the system.
#[derive(Debug)]
pub struct SystemDisk;

impl dyn Disk + '_ {
    /// Writes a file, completely or not at all, and returns the result of `write`.
    /// Fails as the system does, and as `write`. Then the previous file stays.
    pub fn replace<T>(
        &self,
        path: &Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<T>,
    ) -> Result<T, DiskError> {
        let temporary = temporary_name(path);
        let written = self.write_synced(&temporary, write).map_err(|source| {
            // A half-written file only takes space.
            let _ = self.remove(&temporary);
            DiskError { what: "write", path: temporary.clone(), source }
        })?;
        self.rename_synced(&temporary, path)?;
        Ok(written)
    }

    /// Whether `replace` could write this file: creates a temporary one in its folder, and removes it.
    pub fn try_replace(&self, path: &Path) -> Result<(), DiskError> {
        // Another process may be writing under the temporary name.
        let tried = temporary_name(&temporary_name(path));
        let written = self.write_synced(&tried, |out| out.write_all(b"\n"));
        let removed = self.remove(&tried);
        written.and(removed).map_err(|source| DiskError { what: "write", path: path.to_owned(), source })
    }

    /// Renames a file within its folder, and makes sure that the new name survives a crash.
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

/// The contents of a file that a user named: a certificate, a mapping.
/// Fails when it cannot be read, or is too long, as `/dev/zero` is.
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

/// The temporary name of a file.
pub fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(".new");
    PathBuf::from(name)
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
