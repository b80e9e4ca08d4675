//! Watches rules files: a thread that delivers their contents when these have really changed.
//!
//! It watches every folder and name that the last reading depended on (links included, so that a swapped link is seen).
//! It reads again after an event there, and compares the contents now and then without one. `debounce` decides when to
//! read and what to deliver.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::debounce::{Debounce, Fingerprint};
use super::walk::Observer;
use super::{Contents, FileSource, SourceError};

/// The most signals that wait while the thread reads. Further ones would add nothing.
const SIGNALS_MAX: usize = 1024;

/// The most files that are known to be open for writing.
const WRITING_MAX: usize = 1024;

/// A running watch. Dropping it ends the watch.
#[derive(Debug)]
pub struct Watch {
    stopped: Arc<AtomicBool>,
    reread: Reread,
}

/// Asks a watch to deliver the files, changed or not.
#[derive(Clone, Debug)]
pub struct Reread {
    asked: Arc<AtomicBool>,
    wake: SyncSender<Signal>,
}

/// An event from the system.
#[derive(Debug)]
enum Signal {
    Changed,
    /// This file changed and is not closed yet.
    Writing(PathBuf),
    /// This file was closed or removed.
    Closed(PathBuf),
}

/// The folders and names that the last reading depended on.
#[derive(Debug, Default)]
struct Interests {
    folders: HashSet<PathBuf>,
    names: HashMap<PathBuf, HashSet<OsString>>,
}

impl FileSource {
    /// Starts a thread that calls `deliver` with the contents when they differ from those delivered last (at first
    /// from `known`), and with an error when they could not be read for a while. When the thread ends, it drops
    /// `deliver`. `clock` returns the time since any fixed moment and never goes backwards.
    /// Fails when the system cannot start a thread.
    pub fn watch(
        self,
        known: Option<Result<&Contents, &SourceError>>,
        clock: impl Fn() -> Duration + Send + 'static,
        deliver: impl FnMut(Result<Contents, SourceError>) + Send + 'static,
    ) -> io::Result<Watch> {
        let (wake, signals) = sync_channel(SIGNALS_MAX);
        let stopped = Arc::new(AtomicBool::new(false));
        let reread = Reread { asked: Arc::default(), wake: wake.clone() };
        let watching = Watching {
            debounce: Debounce::new(known.map(fingerprint), clock()),
            source: self,
            clock,
            deliver,
            stopped: Arc::clone(&stopped),
            asked: Arc::clone(&reread.asked),
            wake,
            signals,
            armed: None,
            stale: true,
            last: None,
            writing: HashSet::new(),
        };
        std::thread::Builder::new().name("watch".to_owned()).spawn(move || watching.run())?;
        Ok(Watch { stopped, reread })
    }
}

impl Watch {
    /// A handle that asks for the files.
    pub fn reread(&self) -> Reread {
        self.reread.clone()
    }
}

impl Reread {
    /// Has the files read and delivered at once, even if they have not changed.
    pub fn now(&self) {
        self.asked.store(true, Ordering::Release);
        // A full channel wakes the thread as well.
        let _ = self.wake.try_send(Signal::Changed);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        // A full channel wakes the thread as well.
        let _ = self.reread.wake.try_send(Signal::Changed);
    }
}

/// The state of the watching thread.
struct Watching<Clock, Deliver> {
    source: FileSource,
    clock: Clock,
    deliver: Deliver,
    stopped: Arc<AtomicBool>,
    /// A reread was asked for.
    asked: Arc<AtomicBool>,
    wake: SyncSender<Signal>,
    signals: Receiver<Signal>,
    debounce: Debounce,
    armed: Option<Arming>,
    /// The set of folders to watch may have changed: the next reading sets up a new watcher.
    stale: bool,
    last: Option<Fingerprint>,
    writing: HashSet<PathBuf>,
}

impl<Clock: Fn() -> Duration, Deliver: FnMut(Result<Contents, SourceError>)> Watching<Clock, Deliver> {
    fn run(mut self) {
        while !self.stopped.load(Ordering::Acquire) {
            if self.asked.swap(false, Ordering::AcqRel) {
                self.deliver_now();
            }
            let wait = self.debounce.next().saturating_sub((self.clock)());
            match self.signals.recv_timeout(wait) {
                Ok(signal) => self.note(signal),
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn note(&mut self, signal: Signal) {
        match signal {
            Signal::Changed => {}
            Signal::Writing(path) => {
                if self.writing.len() < WRITING_MAX {
                    self.writing.insert(path);
                }
            }
            Signal::Closed(path) => {
                self.writing.remove(&path);
            }
        }
        self.stale = true;
        self.debounce.event((self.clock)());
    }

    fn look(&mut self) {
        let reading = if self.stale { self.arm_and_read() } else { self.source.read() };
        let fingerprint = fingerprint(reading.as_ref());
        let changed = self.last.replace(fingerprint).is_some_and(|last| last != fingerprint);
        // When watching failed, it is tried again with every comparison.
        self.stale = changed || self.armed.as_ref().is_none_or(|armed| armed.trouble.is_some());
        let writing = self.is_being_written();
        if self.debounce.read((self.clock)(), fingerprint, writing) {
            self.writing.clear();
            (self.deliver)(reading);
        }
    }

    fn deliver_now(&mut self) {
        let reading = self.arm_and_read();
        let fingerprint = fingerprint(reading.as_ref());
        self.last = Some(fingerprint);
        self.debounce.delivered((self.clock)(), fingerprint);
        self.writing.clear();
        (self.deliver)(reading);
    }

    /// Reads while a new watcher is set up, so that no later change is missed. The old watcher is dropped only then.
    fn arm_and_read(&mut self) -> Result<Contents, SourceError> {
        let mut arming = Arming::new(self.wake.clone());
        let reading = self.source.read_observed(&mut arming);
        let old_trouble = self.armed.as_ref().and_then(|armed| armed.trouble.as_ref());
        if let Some(trouble) = arming.trouble.as_ref().filter(|trouble| Some(*trouble) != old_trouble) {
            tracing::warn!(
                "files cannot be watched, so they are compared at intervals and changes are noticed later: {trouble}"
            );
        }
        self.armed = Some(arming);
        reading
    }

    fn is_being_written(&self) -> bool {
        let Some(armed) = &self.armed else { return false };
        let interests = armed.interests.lock();
        self.writing.iter().any(|path| interests.has_name(path))
    }
}

/// A watcher, which is set up while the files are read.
struct Arming {
    interests: Arc<Mutex<Interests>>,
    watcher: Option<RecommendedWatcher>,
    watched: HashSet<PathBuf>,
    /// Why events may be missed.
    trouble: Option<String>,
}

impl Arming {
    fn new(wake: SyncSender<Signal>) -> Self {
        let interests = Arc::<Mutex<Interests>>::default();
        let relevant = Arc::clone(&interests);
        let watcher = notify::recommended_watcher(move |event| {
            for signal in relevant.lock().signals(event) {
                // When the channel is full, the thread will read anyway.
                let _ = wake.try_send(signal);
            }
        });
        let (watcher, trouble) = match watcher {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { interests, watcher, watched: HashSet::new(), trouble }
    }

    fn watch(&mut self, folder: &Path) {
        let Some(watcher) = &mut self.watcher else { return };
        if !self.watched.insert(folder.to_owned()) {
            return;
        }
        match watcher.watch(folder, RecursiveMode::NonRecursive) {
            Ok(()) => {}
            // The folder that it is missing from is watched.
            Err(error) if is_not_found(&error) => {}
            Err(error) => self.trouble = Some(error.to_string()),
        }
    }
}

fn is_not_found(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound => true,
        notify::ErrorKind::Io(error) => {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        }
        _ => false,
    }
}

impl Observer for Arming {
    fn folder(&mut self, folder: &Path) {
        self.interests.lock().folders.insert(folder.to_owned());
        self.watch(folder);
    }

    fn name(&mut self, folder: &Path, name: &OsStr) {
        self.interests.lock().names.entry(folder.to_owned()).or_default().insert(name.to_owned());
        self.watch(folder);
    }
}

impl Interests {
    /// The signals of an event; none when the files do not depend on its paths.
    fn signals(&self, event: notify::Result<notify::Event>) -> Vec<Signal> {
        let Ok(event) = event else { return vec![Signal::Changed] };
        if event.need_rescan() {
            return vec![Signal::Changed];
        }
        let signal: fn(PathBuf) -> Signal = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => Signal::Closed,
            // Reading is not a change.
            EventKind::Access(_) => return Vec::new(),
            EventKind::Modify(ModifyKind::Data(_)) => Signal::Writing,
            EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => Signal::Closed,
            _ => |_| Signal::Changed,
        };
        event.paths.into_iter().filter(|path| self.concerns(path)).map(signal).collect()
    }

    fn concerns(&self, path: &Path) -> bool {
        let in_folder = path.parent().is_some_and(|folder| self.folders.contains(folder));
        in_folder || self.folders.contains(path) || self.has_name(path)
    }

    fn has_name(&self, path: &Path) -> bool {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
        self.names.get(folder).is_some_and(|names| names.contains(name))
    }
}

fn fingerprint(reading: Result<&Contents, &SourceError>) -> Fingerprint {
    reading.map_or_else(fingerprint_of_error, fingerprint_of_contents)
}

/// An empty folder is usually about to be filled again, so it has to last as long as a failure.
fn fingerprint_of_contents(contents: &Contents) -> Fingerprint {
    let mut hasher = SipHasher13::new();
    for file in &contents.files {
        (&file.name, &file.bytes).hash(&mut hasher);
    }
    (contents.files.len(), &contents.warnings).hash(&mut hasher);
    let kind = if contents.files.is_empty() { Fingerprint::Failed } else { Fingerprint::Read };
    kind(hasher.finish128().as_u128())
}

fn fingerprint_of_error(error: &SourceError) -> Fingerprint {
    let mut hasher = SipHasher13::new();
    error.to_string().hash(&mut hasher);
    Fingerprint::Failed(hasher.finish128().as_u128())
}
