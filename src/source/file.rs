//! Rules from files: finding, reading and watching them.
//!
//! In: a [`Layout`]. Out: [`Contents`], the texts of all rules files and of the lists that they name, at one moment,
//! once or at every change. The engine parses them; this module does not.
//!
//! Reading can neither hang nor fill the memory: only regular files are read, and the numbers of files, bytes, folders
//! and links are bounded.

mod debounce;
mod walk;
mod watch;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

pub use self::watch::{Reread, Watch};

use self::walk::{Found, Observer, walk};
use tidegate_engine::rules::{SourceFile, lists_of};
use tidegate_engine::text::one_line;

/// The most files in one rule set. A folder with more is certainly not a folder of rules.
const FILES_MAX: usize = 10_000;

/// All files of a rule set together may be this many times as large as a single file may be.
const SET_FILES_FULL_SIZE: usize = 8;

/// The place of the rules files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// A file, or a folder. In a folder all `*.yaml` and `*.yml` files are loaded, but no subfolders.
    Path(PathBuf),
    /// These files, with any names. Each of them must exist.
    Files(Vec<PathBuf>),
    /// The folder `root/subdirectory/app_directory`. Every file in it is loaded, at any depth and with any extension.
    Runtime {
        /// The root of the tree.
        root: PathBuf,
        /// Below the root; may be empty.
        subdirectory: PathBuf,
        /// Below the subdirectory.
        app_directory: PathBuf,
        /// Skips names that start with `.`. Names that start with `..` are always skipped.
        ignore_dot_files: bool,
        /// Also loads files named `config.…` next to the folder.
        watch_root: bool,
    },
}

impl Layout {
    /// The file or folder of the layout; the first of several files.
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

/// All rules files at one moment, in the order of their names, and then the lists that they name.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The files. A file that is too large is cut to one byte more than the bound, so that the loader sees that it is
    /// too large.
    pub files: Vec<SourceFile>,
    /// Files that were skipped, and why: one sentence for each, starting with the path.
    pub warnings: Vec<String>,
}

/// Why the rules files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The system returned an error.
    #[error("{}: {error}", shown(path))]
    Io {
        /// The path that could not be read.
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// It is a fifo, a socket or a device, which could block who reads it, or a folder where a list should be.
    #[error("{}: no regular file", shown(path))]
    NotAFile { path: PathBuf },
    /// The folder holds more than rules would.
    #[error("{}: more than {max} {what}", shown(path))]
    TooMuch {
        path: PathBuf,
        max: usize,
        /// The things that are bounded, such as files.
        what: &'static str,
    },
    /// A list that rules name cannot be read.
    #[error("{}: `cidr_file`: {error}", one_line(place))]
    List {
        /// The place that names it.
        place: String,
        #[source]
        error: Box<Self>,
    },
}

/// A path on one line, because people who may write into a folder choose the names in it.
fn shown(path: &Path) -> String {
    one_line(&path.display().to_string()).into_owned()
}

impl SourceError {
    /// The path that the error is about.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. } | Self::NotAFile { path } | Self::TooMuch { path, .. } => path,
            Self::List { error, .. } => error.path(),
        }
    }
}

/// Reads the rules files of a layout.
#[derive(Clone, Debug)]
pub struct FileSource {
    layout: Layout,
    file_bytes_max: usize,
}

impl FileSource {
    /// The files in `layout`. None of them should be larger than `file_bytes_max`.
    pub fn new(layout: Layout, file_bytes_max: usize) -> Self {
        Self { layout, file_bytes_max }
    }

    /// Reads all files.
    /// Fails when the place is missing, anything in it cannot be read, or it holds too much.
    pub fn read(&self) -> Result<Contents, SourceError> {
        self.read_observed(&mut ())
    }

    /// Reads all files. `observer` gets every folder and name that the result depends on, before it is read.
    fn read_observed(&self, observer: &mut impl Observer) -> Result<Contents, SourceError> {
        let Found { files: mut paths, skipped } = walk(&self.layout, observer)?;
        paths.sort();
        let mut bytes_left = self.file_bytes_max.saturating_mul(SET_FILES_FULL_SIZE);
        let mut read = |path: PathBuf| {
            let bytes = read_file(&path, self.file_bytes_max)?;
            let left = bytes_left.checked_sub(bytes.len());
            bytes_left = left.ok_or_else(|| self.too_many_bytes(&path))?;
            Ok(SourceFile { name: path.display().to_string(), bytes, presumed: self.presumes(&path) })
        };
        let mut files = paths.into_iter().map(&mut read).collect::<Result<Vec<_>, _>>()?;
        let lists = self.lists(&files)?;
        let named = |error: SourceError| match lists.get(error.path()) {
            Some(place) => SourceError::List { place: place.clone(), error: Box::new(error) },
            None => error,
        };
        let unread = lists.keys().filter(|list| !has(&files, list)).cloned().collect();
        let found = walk(&Layout::Files(unread), observer).map_err(named)?;
        let read = found.files.into_iter().map(&mut read).collect::<Result<Vec<_>, _>>();
        files.extend(read.map_err(named)?);
        let is_list = |path: &Path| lists.keys().any(|list| list.starts_with(path));
        let warning =
            |(path, why): (PathBuf, &str)| (!is_list(&path)).then(|| format!("{}: {why}", path.display()));
        Ok(Contents { files, warnings: skipped.into_iter().filter_map(warning).collect() })
    }

    /// The lists that these rules name, each with the place that does.
    fn lists(&self, files: &[SourceFile]) -> Result<BTreeMap<PathBuf, String>, SourceError> {
        // Named files are no rules.
        if matches!(self.layout, Layout::Files(_)) {
            return Ok(BTreeMap::new());
        }
        let lists = lists_of(files, self.file_bytes_max).into_iter();
        let lists: BTreeMap<_, _> = lists.map(|(list, place)| (PathBuf::from(list), place)).collect();
        match lists.keys().nth(FILES_MAX) {
            Some(path) => Err(SourceError::TooMuch { path: path.clone(), max: FILES_MAX, what: "lists" }),
            None => Ok(lists),
        }
    }

    /// Whether the file is only presumed to contain rules: a runtime tree loads files without a YAML extension too.
    fn presumes(&self, path: &Path) -> bool {
        matches!(self.layout, Layout::Runtime { .. }) && !walk::is_yaml(path)
    }

    fn too_many_bytes(&self, path: &Path) -> SourceError {
        let max = self.file_bytes_max.saturating_mul(SET_FILES_FULL_SIZE);
        SourceError::TooMuch { path: path.to_owned(), max, what: "bytes of rules with the files before it" }
    }
}

fn has(files: &[SourceFile], path: &Path) -> bool {
    files.iter().any(|file| Path::new(&file.name) == path)
}

/// Reads at most one byte more than `bytes_max`.
fn read_file(path: &Path, bytes_max: usize) -> Result<Vec<u8>, SourceError> {
    let io_error = |error| SourceError::Io { path: path.to_owned(), error };
    // Opens without blocking: the file may have become a fifo since it was found.
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path);
    let file = file.map_err(io_error)?;
    let metadata = file.metadata().map_err(io_error)?;
    if !metadata.is_file() {
        return Err(SourceError::NotAFile { path: path.to_owned() });
    }
    let bytes_max = (bytes_max as u64).saturating_add(1);
    let mut bytes = Vec::new();
    // Allocates the whole size at once: a buffer that grows by doubling would take three times as much.
    let expected = usize::try_from(metadata.len().min(bytes_max)).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(expected.saturating_add(1)).map_err(|error| io_error(error.into()))?;
    file.take(bytes_max).read_to_end(&mut bytes).map_err(io_error)?;
    Ok(bytes)
}
