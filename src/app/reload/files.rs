//! Rules from files: loads them at start, then watches them.

use std::convert::Infallible;
use std::io;

use tokio::sync::oneshot;

use crate::app::{AppError, CONTROL_NICENESS, control};
use crate::clock::monotonic;
use crate::configuration::{RuleFiles, no_rules};
use crate::source::file::{Contents, FileSource, Reread, SourceError, Watch};
use tidegate_engine::rules::Ink;
use tidegate_serve::reload::{Installer, Offer};

/// Puts the contents of files in force.
pub(in crate::app) struct Reloader {
    source: FileSource,
    installer: Installer,
    /// Whether a set without any file is served.
    may_be_empty: bool,
    /// The problem of a set without a file of rules.
    no_rules: String,
    /// The settings that name the place of the rules, and how to change them.
    remedy: &'static str,
    /// Shows the lines that problems are about, if they should be shown.
    lines: Option<Ink>,
}

pub(in crate::app) struct Watching {
    watch: Watch,
    ended: oneshot::Receiver<Infallible>,
}

impl Reloader {
    /// A reloader of the rules in these files.
    pub(super) fn new(files: RuleFiles, installer: Installer, lines: Option<Ink>) -> Self {
        let RuleFiles { layout, remedy, may_be_empty } = files;
        Self {
            no_rules: format!("{}; {remedy}", no_rules(&layout)),
            source: FileSource::new(layout, installer.file_bytes_max()),
            installer,
            may_be_empty,
            remedy,
            lines,
        }
    }

    /// Loads the files and begins to watch them. Fails on missing or bad rules, unless `forced`.
    pub(super) fn start(self, forced: bool) -> Result<Watching, AppError> {
        let read = self.source.read();
        match read.as_ref().map(|contents| self.take(contents, forced)) {
            Ok(Err(problems)) if !forced => return Err(AppError::Rules(problems.len())),
            Ok(_) => {}
            Err(_) if !forced => {
                let error = read.expect_err("it was not read");
                return Err(AppError::Source { error, remedy: self.remedy });
            }
            Err(error) => self.installer.unreadable(error, self.remedy),
        }
        Ok(self.watch(read.as_ref())?)
    }

    /// Watches the files and puts every change in force, on a thread of its own. `known` was put in force or logged
    /// already.
    fn watch(self, known: Result<&Contents, &SourceError>) -> io::Result<Watching> {
        let source = self.source.clone();
        Watching::start(source, known, move |read| match read {
            Ok(contents) => drop(self.take(&contents, false)),
            Err(error) => self.installer.unreadable(&error, self.remedy),
        })
    }

    /// Puts these files in force. A set without any is refused: removing the last file is not meant to lift every
    /// limit.
    fn take(&self, contents: &Contents, forced: bool) -> Result<(), Vec<String>> {
        let empty_refused = (!self.may_be_empty && !forced).then_some(&*self.no_rules);
        let offer = Offer {
            files: &contents.files,
            skipped: &contents.warnings,
            empty_refused,
            lines: self.lines,
            warned: None,
        };
        self.installer.take(&offer, ToString::to_string)
    }
}

impl Watching {
    /// Passes every change of these files to `take`, on a thread of its own. `known` was put in force or logged
    /// already.
    pub(in crate::app) fn start(
        source: FileSource,
        known: Result<&Contents, &SourceError>,
        mut take: impl FnMut(Result<Contents, SourceError>) + Send + 'static,
    ) -> io::Result<Self> {
        let (alive, ended) = oneshot::channel::<Infallible>();
        let began = monotonic();
        let mut gives_way = false;
        let deliver = move |read| {
            // Dropped with this closure, at its end or by a panic. That reports the end of the watch.
            let _alive = &alive;
            // This is the thread of the watch. Loading many rules takes a while, and decisions have priority.
            if !std::mem::replace(&mut gives_way, true) {
                control::lower_priority(CONTROL_NICENESS);
            }
            take(read);
        };
        let watch = source.watch(Some(known), move || monotonic().duration_since(began), deliver)?;
        Ok(Self { watch, ended })
    }

    /// Reads the files again even if they did not change.
    pub(in crate::app) fn reread(&self) -> Reread {
        self.watch.reread()
    }

    /// Waits until the watch has died. It never ends by itself.
    pub(in crate::app) async fn died(&mut self) {
        let _ = (&mut self.ended).await;
    }
}
