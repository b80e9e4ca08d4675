//! Rules from files: the first load, and the watch that goes on.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use super::Installer;
use crate::app::{AppError, CONTROL_NICENESS, control};
use crate::clock::monotonic;
use crate::settings::Settings;
use crate::source::file::{Contents, FileSource, Layout, SourceError, Watch};

/// Where rules are read when nothing says where.
const FALLBACK_PATH: &str = "config";
/// The places of `envoyproxy/ratelimit`.
const RUNTIME_ROOT: &str = "/srv/runtime_data/current";
const RUNTIME_APPDIRECTORY: &str = "config";

/// Puts contents of files in force.
pub(in crate::app) struct Reloader {
    source: FileSource,
    installer: Installer,
}

/// A running watch. Waiting for its end tells that it died.
pub(in crate::app) struct Watching {
    _watch: Watch,
    ended: oneshot::Receiver<Infallible>,
}

impl Reloader {
    /// A reloader of the rules in the files that `settings` name.
    pub(super) fn new(settings: &Settings, installer: Installer) -> Self {
        Self { source: FileSource::new(rules_layout(settings), installer.options.max_file_bytes), installer }
    }

    /// Loads the files, and goes on to watch them. Fails on missing or bad rules, unless `forced`.
    pub(super) fn start(self, forced: bool) -> Result<Watching, AppError> {
        let read = self.source.read();
        match read.as_ref().map(|contents| self.take(contents)) {
            Ok(Err(problems)) if !forced => return Err(AppError::Rules(problems.len())),
            Ok(_) => {}
            Err(_) if !forced => return Err(AppError::Source(read.expect_err("it was not read"))),
            Err(error) => self.installer.unreadable(error),
        }
        Ok(self.watch(read.as_ref())?)
    }

    /// Watches the files and takes every change of them, on a thread of its own. `known` was taken, or told, already.
    fn watch(self, known: Result<&Contents, &SourceError>) -> io::Result<Watching> {
        let source = self.source.clone();
        Watching::start(source, known, move |read| match read {
            Ok(contents) => drop(self.take(&contents)),
            Err(error) => self.installer.unreadable(&error),
        })
    }

    fn take(&self, contents: &Contents) -> Result<(), Vec<String>> {
        self.installer.take(&contents.files, &contents.warnings, ToString::to_string)
    }
}

impl Watching {
    /// Hands every change of these files to `take`, on a thread of its own. `known` was taken, or told, already.
    pub(in crate::app) fn start(
        source: FileSource,
        known: Result<&Contents, &SourceError>,
        mut take: impl FnMut(Result<Contents, SourceError>) + Send + 'static,
    ) -> io::Result<Self> {
        let (alive, ended) = oneshot::channel::<Infallible>();
        let began = monotonic();
        let mut gives_way = false;
        let deliver = move |read| {
            // Whoever drops this closure, by ending or by a panic, drops what says that it is alive.
            let _alive = &alive;
            // Many rules take a moment, in which decisions go first: the thread of the watch is this one.
            if !std::mem::replace(&mut gives_way, true) {
                control::lower_priority(CONTROL_NICENESS);
            }
            take(read);
        };
        let watch = source.watch(Some(known), move || monotonic().duration_since(began), deliver)?;
        Ok(Self { _watch: watch, ended })
    }

    /// Waits for the watch to die: it does not end by itself.
    pub(in crate::app) async fn died(&mut self) {
        let _ = (&mut self.ended).await;
    }
}

/// Where rules lie: CONFIG_PATH; else the tree of RUNTIME_*, if one of them is set or its usual place is there; else
/// `./config`.
pub fn rules_layout(settings: &Settings) -> Layout {
    if let Some(path) = settings.config_path.as_ref().filter(|path| !path.is_empty()) {
        return Layout::Path(PathBuf::from(path));
    }
    let part = |setting: &Option<String>, default: &str| {
        PathBuf::from(setting.clone().unwrap_or_else(|| default.to_owned()))
    };
    let root = part(&settings.runtime_root, RUNTIME_ROOT);
    let app_directory = part(&settings.runtime_appdirectory, RUNTIME_APPDIRECTORY);
    let told = [&settings.runtime_root, &settings.runtime_subdirectory, &settings.runtime_appdirectory];
    if told.iter().all(|setting| setting.is_none()) && !root.join(&app_directory).exists() {
        return Layout::Path(Path::new(FALLBACK_PATH).to_owned());
    }
    Layout::Runtime {
        root,
        subdirectory: part(&settings.runtime_subdirectory, ""),
        app_directory,
        ignore_dot_files: settings.runtime_ignoredotfiles,
        watch_root: settings.runtime_watch_root,
    }
}
