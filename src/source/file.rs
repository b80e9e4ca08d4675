//! Rules from files: where they lie, reading them, watching them.
//!
//! In: a [`Layout`]. Out: [`Contents`], the texts of all rules files at one moment, once or at every change. What the
//! texts say is the engine's business; a file is not looked into here.
//!
//! Reading cannot hang and cannot fill the memory: only regular files are opened, and files, bytes, folders and links
//! are bounded.

mod debounce;
mod walk;
mod watch;

#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

pub use self::watch::{Reread, Watch};

use self::walk::{Found, Observer, walk};
use tidegate_engine::rules::SourceFile;

/// Files in one set of rules; the size of a folder that is certainly not one of rules.
const FILES_MAX: usize = 10_000;

/// All files of a set together may be this many times as large as one of them.
const SET_FILES_FULL_SIZE: usize = 8;

/// Where rules files lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A file, or a folder of which all `*.yaml` and `*.yml` files are loaded, but none of its subfolders.
    Path(PathBuf),
    /// These files, whatever they are called, each of which has to be there.
    Files(Vec<PathBuf>),
    /// The folder `root/subdirectory/app_directory`, of which every file is loaded, at any depth and whatever its
    /// extension.
    Runtime {
        /// The root of the tree.
        root: PathBuf,
        /// Below the root; may be empty.
        subdirectory: PathBuf,
        /// Below that.
        app_directory: PathBuf,
        /// Names that start with `.` are skipped. Those that start with `..` always are.
        ignore_dot_files: bool,
        /// Files named `config.…` beside the folder are loaded too.
        watch_root: bool,
    },
}

impl Layout {
    /// The file or folder that it is about, the first one of several.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Files(paths) => paths.first().cloned().unwrap_or_default(),
            Self::Runtime { root, subdirectory, app_directory, .. } => {
                walk::below(&walk::below(root, subdirectory), app_directory)
            }
        }
    }
}

/// All rules files at one moment, in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The files. One that is larger than allowed is cut one byte behind the bound, so that whoever loads it sees
    /// that it is too large.
    pub files: Vec<SourceFile>,
    /// What was skipped, and why: a sentence each, beginning with the path.
    pub warnings: Vec<String>,
}

/// Why the rules files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The system refused.
    #[error("{}: {error}", path.display())]
    Io {
        /// What could not be read.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// A fifo, a socket or a device would make reading wait.
    #[error("{}: neither a file nor a folder", path.display())]
    NotAFile {
        /// What it is about.
        path: PathBuf,
    },
    /// The folder holds too much to be one of rules.
    #[error("{}: more than {max} {what}", path.display())]
    TooMuch {
        /// The folder.
        path: PathBuf,
        /// How much is allowed.
        max: usize,
        /// Of what.
        what: &'static str,
    },
}

impl SourceError {
    /// What it is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. } | Self::NotAFile { path } | Self::TooMuch { path, .. } => path,
        }
    }
}

/// Rules files in a place.
#[derive(Clone, Debug)]
pub struct FileSource {
    layout: Layout,
    file_bytes_max: usize,
}

impl FileSource {
    /// The files in `layout`, of which none should be larger than `file_bytes_max`.
    pub fn new(layout: Layout, file_bytes_max: usize) -> Self {
        Self { layout, file_bytes_max }
    }

    /// Reads all files.
    ///
    /// # Errors
    /// When the place is not there, anything that belongs to it cannot be read, or it holds too much.
    pub fn read(&self) -> Result<Contents, SourceError> {
        self.read_observed(&mut ())
    }

    /// Reads all files; `observer` is told beforehand of whatever the result depends on.
    fn read_observed(&self, observer: &mut impl Observer) -> Result<Contents, SourceError> {
        let Found { mut files, warnings } = walk(&self.layout, observer)?;
        files.sort();
        let mut bytes_left = self.file_bytes_max.saturating_mul(SET_FILES_FULL_SIZE);
        let read = files.into_iter().map(|path| {
            let bytes = read_file(&path, self.file_bytes_max)?;
            let left = bytes_left.checked_sub(bytes.len());
            bytes_left = left.ok_or_else(|| self.too_many_bytes(&path))?;
            Ok(SourceFile { name: path.display().to_string(), bytes, presumed: self.presumes(&path) })
        });
        Ok(Contents { files: read.collect::<Result<_, _>>()?, warnings })
    }

    /// In a runtime tree every file is taken, but one that is not called YAML may be something else.
    fn presumes(&self, path: &Path) -> bool {
        matches!(self.layout, Layout::Runtime { .. }) && !walk::is_yaml(path)
    }

    fn too_many_bytes(&self, path: &Path) -> SourceError {
        let max = self.file_bytes_max.saturating_mul(SET_FILES_FULL_SIZE);
        SourceError::TooMuch { path: path.to_owned(), max, what: "bytes of rules with the files before it" }
    }
}

/// Reads at most one byte more than `bytes_max`.
fn read_file(path: &Path, bytes_max: usize) -> Result<Vec<u8>, SourceError> {
    let io_error = |error| SourceError::Io { path: path.to_owned(), error };
    // Without blocking: what was a file when it was found may be a fifo by now.
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let file = file.map_err(io_error)?;
    let metadata = file.metadata().map_err(io_error)?;
    if !metadata.is_file() {
        return Err(SourceError::NotAFile { path: path.to_owned() });
    }
    let bytes_max = (bytes_max as u64).saturating_add(1);
    let mut bytes = Vec::new();
    // All at once: a buffer that doubles would take three times as much.
    let expected = usize::try_from(metadata.len().min(bytes_max)).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(expected.saturating_add(1)).map_err(|error| io_error(error.into()))?;
    file.take(bytes_max).read_to_end(&mut bytes).map_err(io_error)?;
    Ok(bytes)
}
