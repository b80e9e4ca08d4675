//! Finds the rules files of a layout: chooses names and follows links, within bounds.
//!
//! In: a layout. Out: the paths of the files, and what was skipped. An `Observer` gets every folder and name that the
//! result depends on, always before the walk reads it. So an observer that watches them from then on misses no change.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::{FILES_MAX, Layout, SourceError};

/// The deepest nesting of folders. Rules are not nested like that.
const DEPTH_MAX: usize = 32;

/// The most links on the way to one file; Linux follows as many.
const LINKS_MAX: usize = 40;

/// Gets everything that the result of a walk depends on. All folders are given by their real paths.
pub(super) trait Observer {
    /// The result depends on everything in this folder.
    fn folder(&mut self, folder: &Path);
    /// The result depends on this name in this folder.
    fn name(&mut self, folder: &Path, name: &OsStr);
}

impl Observer for () {
    fn folder(&mut self, _: &Path) {}
    fn name(&mut self, _: &Path, _: &OsStr) {}
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Rules files, in no order.
    pub(super) files: Vec<PathBuf>,
    /// Files and folders that were skipped, and why.
    pub(super) skipped: Vec<(PathBuf, &'static str)>,
}

/// Finds the files of a layout.
pub(super) fn walk(layout: &Layout, observer: &mut impl Observer) -> Result<Found, SourceError> {
    let mut walk = Walk { observer, found: Found::default(), seen: 0, ancestors: Vec::new() };
    match layout {
        Layout::Path(path) => walk.path(path)?,
        Layout::Files(paths) => paths.iter().try_for_each(|path| walk.named_file(path))?,
        Layout::Runtime { root, subdirectory, app_directory, ignore_dot_files, watch_root } => {
            let parent = below(root, subdirectory);
            let beside = *watch_root && walk.files_beside(&parent)?;
            let folder = below(&parent, app_directory);
            match walk.folder(&folder, &Everything { dot_files: !ignore_dot_files }) {
                Err(SourceError::Io { error, .. }) if beside && error.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
    }
    Ok(walk.found)
}

/// `path` below `folder`, even when `path` starts with a slash.
pub(super) fn below(folder: &Path, path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir)).fold(
        folder.to_owned(),
        |mut below, part| {
            below.push(part);
            below
        },
    )
}

struct Walk<'a, O> {
    observer: &'a mut O,
    found: Found,
    /// Names seen so far, of rules or not.
    seen: usize,
    /// Real paths of the folders that are being walked, outermost first.
    ancestors: Vec<PathBuf>,
}

/// What to do with a name in a folder.
enum Choice {
    Take,
    Skip,
    SkipWarned(&'static str),
}

/// Which names in a folder are rules.
trait Choose {
    fn file(&self, name: &str) -> Choice;
    fn folder(&self, name: &str) -> Choice;
}

/// The files of a folder that have a YAML extension.
struct Yaml;

/// Every file at any depth.
struct Everything {
    dot_files: bool,
}

/// Files named `config.…`.
struct Beside;

/// Whether the file has a YAML extension.
pub(super) fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

impl Choose for Yaml {
    fn file(&self, name: &str) -> Choice {
        match name {
            _ if name.starts_with("..") => Choice::Skip,
            _ if name.starts_with('.') => Choice::SkipWarned("skipped, because its name starts with a dot"),
            _ if is_yaml(Path::new(name)) => Choice::Take,
            _ => Choice::SkipWarned("skipped, because its name ends in neither .yaml nor .yml"),
        }
    }

    fn folder(&self, name: &str) -> Choice {
        match name.starts_with('.') {
            true => Choice::Skip,
            false => Choice::SkipWarned("skipped, because it is a folder"),
        }
    }
}

impl Choose for Everything {
    /// Names that start with `..` belong to a ConfigMap that Kubernetes mounted. They lead to the same files once more.
    fn file(&self, name: &str) -> Choice {
        match name.starts_with("..") || (name.starts_with('.') && !self.dot_files) {
            true => Choice::Skip,
            false => Choice::Take,
        }
    }

    fn folder(&self, name: &str) -> Choice {
        self.file(name)
    }
}

impl Choose for Beside {
    fn file(&self, name: &str) -> Choice {
        if name.starts_with("config.") { Choice::Take } else { Choice::Skip }
    }

    fn folder(&self, _: &str) -> Choice {
        Choice::Skip
    }
}

impl<O: Observer> Walk<'_, O> {
    /// A file, or a folder of YAML files.
    fn path(&mut self, path: &Path) -> Result<(), SourceError> {
        let real = self.resolve(path)?;
        let kind = fs::metadata(&real).map_err(|error| io_error(path, error))?;
        match kind.is_dir() {
            true => self.folder(path, &Yaml),
            false => self.file(path, &kind),
        }
    }

    /// A file that the layout names.
    fn named_file(&mut self, path: &Path) -> Result<(), SourceError> {
        let real = self.resolve(path)?;
        let kind = fs::metadata(&real).map_err(|error| io_error(path, error))?;
        self.file(path, &kind)
    }

    /// Takes the files named `config.…` in this folder, if it exists. Returns whether there are any.
    fn files_beside(&mut self, folder: &Path) -> Result<bool, SourceError> {
        match self.folder(folder, &Beside) {
            Err(SourceError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
        Ok(!self.found.files.is_empty())
    }

    fn folder(&mut self, path: &Path, choose: &impl Choose) -> Result<(), SourceError> {
        let real = self.resolve(path)?;
        if self.ancestors.contains(&real) {
            self.warn(path, "skipped, because it leads back to a folder that it lies in");
            return Ok(());
        }
        if self.ancestors.len() == DEPTH_MAX {
            return Err(too_much(path, DEPTH_MAX, "folders within each other"));
        }
        self.observer.folder(&real);
        let names = self.names(path, &real)?;
        self.ancestors.push(real);
        for name in names {
            self.entry(&path.join(&name), &name.to_string_lossy(), choose)?;
        }
        self.ancestors.pop();
        Ok(())
    }

    /// The names in a folder, sorted, so that the order of warnings does not change from one walk to the next.
    fn names(&mut self, path: &Path, real: &Path) -> Result<Vec<OsString>, SourceError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(real).map_err(|error| io_error(path, error))? {
            names.push(entry.map_err(|error| io_error(path, error))?.file_name());
            self.seen += 1;
            if self.seen > FILES_MAX {
                return Err(too_much(path, FILES_MAX, "files"));
            }
        }
        names.sort();
        Ok(names)
    }

    fn entry(&mut self, path: &Path, name: &str, choose: &impl Choose) -> Result<(), SourceError> {
        // This name is skipped, whatever it is: a file that cannot be read, or a broken link, is no error here.
        if let (Choice::Skip, Choice::Skip) = (choose.file(name), choose.folder(name)) {
            return Ok(());
        }
        if let Choice::SkipWarned(why) = choose.file(name)
            && fs::metadata(path).map_or(true, |kind| !kind.is_dir())
        {
            self.warn(path, why);
            return Ok(());
        }
        let real = self.resolve(path)?;
        let kind = fs::metadata(&real).map_err(|error| io_error(path, error))?;
        match if kind.is_dir() { choose.folder(name) } else { choose.file(name) } {
            Choice::Take if kind.is_dir() => return self.folder(path, choose),
            Choice::Take => return self.file(path, &kind),
            Choice::Skip => {}
            Choice::SkipWarned(why) => self.warn(path, why),
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, kind: &fs::Metadata) -> Result<(), SourceError> {
        if !kind.is_file() {
            return Err(SourceError::NotAFile { path: path.to_owned() });
        }
        self.found.files.push(path.to_owned());
        Ok(())
    }

    fn warn(&mut self, path: &Path, why: &'static str) {
        self.found.skipped.push((path.to_owned(), why));
    }

    /// The real path of `path`. The result depends on every link and name on the way: a folder can be replaced.
    fn resolve(&mut self, path: &Path) -> Result<PathBuf, SourceError> {
        let absolute = std::path::absolute(path).map_err(|error| io_error(path, error))?;
        let mut ahead: VecDeque<OsString> = names_of(&absolute).collect();
        let (mut real, mut links) = (PathBuf::from("/"), 0);
        while let Some(name) = ahead.pop_front() {
            if name == ".." {
                real.pop();
                continue;
            }
            self.observer.name(&real, &name);
            let Ok(target) = fs::read_link(real.join(&name)) else {
                real.push(&name);
                continue;
            };
            links += 1;
            if links > LINKS_MAX {
                return Err(too_much(path, LINKS_MAX, "links to follow"));
            }
            if target.is_absolute() {
                real = PathBuf::from("/");
            }
            names_of(&target).collect::<Vec<_>>().into_iter().rev().for_each(|name| ahead.push_front(name));
        }
        Ok(real)
    }
}

/// The parts of a path without its root, as names.
fn names_of(path: &Path) -> impl Iterator<Item = OsString> {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(named).map(|part| part.as_os_str().to_owned())
}

fn io_error(path: &Path, error: io::Error) -> SourceError {
    SourceError::Io { path: path.to_owned(), error }
}

fn too_much(path: &Path, max: usize, what: &'static str) -> SourceError {
    SourceError::TooMuch { path: path.to_owned(), max, what }
}
