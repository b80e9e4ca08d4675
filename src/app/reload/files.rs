//! Rules from files: the first load, and the watch that goes on.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use super::{Installer, Offer};
use crate::app::{AppError, CONTROL_NICENESS, control};
use crate::clock::monotonic;
use crate::settings::Settings;
use crate::source::file::{Contents, FileSource, Layout, Reread, SourceError, Watch};
use tidegate_engine::rules::Ink;

/// Where rules are read when nothing says where.
const FALLBACK_PATH: &str = "config";
/// The places of `envoyproxy/ratelimit`.
const RUNTIME_ROOT: &str = "/srv/runtime_data/current";
const RUNTIME_APPDIRECTORY: &str = "config";

/// Puts contents of files in force.
pub(in crate::app) struct Reloader {
    source: FileSource,
    installer: Installer,
    /// RULES_MAY_BE_EMPTY.
    may_be_empty: bool,
    /// What is said of a set without a file of rules.
    no_rules: String,
    /// What says where rules lie.
    setting: &'static str,
    /// What shows the lines that problems are about, if they are shown.
    lines: Option<Ink>,
}

/// A running watch. Waiting for its end tells that it died.
pub(in crate::app) struct Watching {
    watch: Watch,
    ended: oneshot::Receiver<Infallible>,
}

impl Reloader {
    /// A reloader of the rules in the files that `settings` name.
    pub(super) fn new(settings: &Settings, installer: Installer, lines: Option<Ink>) -> Self {
        let (layout, setting) = (rules_layout(settings), rules_setting(settings));
        Self {
            no_rules: format!("{}; {setting}", no_rules(&layout)),
            source: FileSource::new(layout, installer.options.max_file_bytes),
            installer,
            may_be_empty: settings.rules_may_be_empty,
            setting,
            // Whoever asks for JSON has a program that reads it.
            lines: lines.filter(|_| !settings.log_format.eq_ignore_ascii_case("json")),
        }
    }

    /// Loads the files, and goes on to watch them. Fails on missing or bad rules, unless `forced`.
    pub(super) fn start(self, forced: bool) -> Result<Watching, AppError> {
        let read = self.source.read();
        match read.as_ref().map(|contents| self.take(contents, forced)) {
            Ok(Err(problems)) if !forced => return Err(AppError::Rules(problems.len())),
            Ok(_) => {}
            Err(_) if !forced => {
                let error = read.expect_err("it was not read");
                return Err(AppError::Source { error, remedy: self.setting });
            }
            Err(error) => self.installer.unreadable(error, self.setting),
        }
        Ok(self.watch(read.as_ref())?)
    }

    /// Watches the files and takes every change of them, on a thread of its own. `known` was taken, or told, already.
    fn watch(self, known: Result<&Contents, &SourceError>) -> io::Result<Watching> {
        let source = self.source.clone();
        Watching::start(source, known, move |read| match read {
            Ok(contents) => drop(self.take(&contents, false)),
            Err(error) => self.installer.unreadable(&error, self.setting),
        })
    }

    /// Takes these files. Where the last one was removed or renamed, nobody meant to lift every limit.
    fn take(&self, contents: &Contents, forced: bool) -> Result<(), Vec<String>> {
        let empty_refused = (!self.may_be_empty && !forced).then_some(&*self.no_rules);
        let offer =
            Offer { files: &contents.files, skipped: &contents.warnings, empty_refused, lines: self.lines };
        self.installer.take(&offer, ToString::to_string)
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
        Ok(Self { watch, ended })
    }

    /// By this its files are taken again although they did not change.
    pub(in crate::app) fn reread(&self) -> Reread {
        self.watch.reread()
    }

    /// Waits for the watch to die: it does not end by itself.
    pub(in crate::app) async fn died(&mut self) {
        let _ = (&mut self.ended).await;
    }
}

/// What is said of a set in which no file is rules.
pub fn no_rules(layout: &Layout) -> String {
    let expected = match layout {
        Layout::Runtime { .. } => "a file with a `domain`, at any depth",
        Layout::Path(_) | Layout::Files(_) => "a file whose name ends in .yaml or .yml",
    };
    let path = layout.path();
    format!("{}: no rules are here (expected {expected}, or RULES_MAY_BE_EMPTY=true)", path.display())
}

/// Which setting says where rules lie, for those who have to mend it.
pub fn rules_setting(settings: &Settings) -> &'static str {
    match rules_layout(settings) {
        Layout::Runtime { .. } => {
            "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY name the folder; CONFIG_PATH would win over them"
        }
        Layout::Path(_) | Layout::Files(_) => match settings.config_path.as_deref() {
            None | Some("") => "set CONFIG_PATH to the file or folder of your rules",
            Some(_) => "CONFIG_PATH names the file or folder of rules",
        },
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

/// What a setting of where rules lie comes to, if it has a say.
pub(in crate::app) fn place<'a>(layout: &'a Layout, setting: &str) -> Option<&'a Path> {
    match (layout, setting) {
        (Layout::Path(path), "CONFIG_PATH") => Some(path),
        (Layout::Runtime { root, .. }, "RUNTIME_ROOT") => Some(root),
        (Layout::Runtime { subdirectory, .. }, "RUNTIME_SUBDIRECTORY") => Some(subdirectory),
        (Layout::Runtime { app_directory, .. }, "RUNTIME_APPDIRECTORY") => Some(app_directory),
        _ => None,
    }
}
