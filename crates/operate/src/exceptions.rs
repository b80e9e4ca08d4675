//! Exceptions that operators make while the limiter runs.
//!
//! In: changes, each with who made it and why. Out: the exceptions in force at a time, for the service, and lines of
//! the audit. A change is written to the audit before it is made, and its outcome after. A change that cannot be
//! audited is not made. With a file ([`Book::open`]) exceptions survive a restart: the file is written under a
//! temporary name, synced and renamed before a change counts. With a Redis ([`Book::shared_in`]) they hold for all
//! nodes, and the file is a copy for a start without Redis. It opens no sockets, and reads no clock but that of its
//! runtime.
//!
//! - `authored`: one exception as operators write it, and its JSON
//! - `pages`: the entry of each id, and the effect of a change; `known`: one entry, as nodes exchange it
//! - `shared`: how nodes agree; `redis`: where they keep what they agree on
//! - `in_force`: how a service decides by them

mod known;
mod pages;
mod authored;
mod redis;
mod shared;
mod in_force;

pub use self::authored::Authored;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use self::known::KnownException;
use self::pages::{Pages, Planned};
use self::redis::InRedis;
use self::shared::Shared;
use crate::audit::{Audit, AuditError, Author, DONE, Does};
use crate::line_file::{FileError, LineFile};
use tidegate_disk::{Disk, SystemDisk};
use tidegate_engine::overlay::Exceptions;
use tidegate_engine::time::Timestamp;
use tidegate_redis::runtime::{Runtime, Tokio};
use tidegate_redis::{ConnectError, RedisStore};

/// How many exceptions there may be.
pub const EXCEPTIONS_MAX: usize = 100_000;
/// How many of them may have a `*` or a level without a value. A request is compared with each of these that has its
/// domain and keys.
pub const PATTERNS_MAX: usize = 1_000;

/// The most bytes of a file: as many as all exceptions take at their longest, and some more.
pub const FILE_BYTES_MAX: usize = 256 << 20;
const FILE: LineFile = LineFile { setting: "EXCEPTIONS_FILE", bytes_max: FILE_BYTES_MAX as u64, advice: "" };

/// An exception, with its line in the file.
type Lined = (Authored, Arc<str>);

/// All exceptions that were made and not ended.
pub struct Book<R: Runtime = Tokio> {
    runtime: R,
    file: Option<PathBuf>,
    disk: Arc<dyn Disk>,
    /// The result of the last attempt to write the file.
    unwritable: Mutex<Option<String>>,
    audit: Arc<Audit>,
    pages: Mutex<Pages>,
    version: watch::Sender<Version>,
    shared: Option<Shared>,
}

/// A change that was asked for.
pub enum WantedChange {
    /// Make an exception. It replaces the one with its id if that is allowed.
    Put {
        /// The exception.
        record: Authored,
        /// Whether it may replace one with its id.
        may_replace: bool,
    },
    /// End an exception.
    End {
        /// Its id.
        id: String,
        /// Why. Empty: no reason was given.
        why: String,
    },
}

impl WantedChange {
    fn id(&self) -> &str {
        match self {
            Self::Put { record, .. } => &record.id,
            Self::End { id, .. } => id,
        }
    }
}

/// A state of the book.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Grows with every change.
    pub number: u64,
    /// How many exceptions there are.
    pub count: u64,
}

/// The exceptions in force at some moment.
pub struct Compiled {
    /// For the service.
    pub exceptions: Exceptions,
    /// When one of them begins or ends by itself.
    pub until: Option<Timestamp>,
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is a new exception.
    Made,
    /// It replaced the exception with this id.
    Replaced,
    /// Nothing changed: it was so already.
    Unchanged,
    /// It was ended.
    Ended,
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no exception with this id.
    #[error("there is no exception {0:?}")]
    Unknown(String),
    /// There is one with this id, and it may not be replaced.
    #[error("there is already another exception {0:?}")]
    Exists(String),
    /// It would never be in force.
    #[error("until: is past")]
    Past,
    /// There is no room for another one.
    #[error("there are {EXCEPTIONS_MAX} exceptions already (expected one to be ended first)")]
    Full,
    /// There is no room for another one with a pattern.
    #[error(
        "{PATTERNS_MAX} exceptions have a `*` or a level without a value already (expected values, or one to be ended first)"
    )]
    FullOfPatterns,
    /// It could not be audited, so it was not made.
    #[error("not done, because it cannot be audited: {0}")]
    Audit(#[from] AuditError),
    /// It could not be written to the file, so it was not made.
    #[error("not done, because it cannot be stored: {0}")]
    File(#[from] FileError),
    /// Redis refused it.
    #[error("not done, because Redis does not take it: {0}")]
    Redis(ConnectError),
    /// It may or may not have been made.
    #[error("it is not known whether the change was made (send it again): {0}")]
    NotKnown(ConnectError),
    /// Other nodes changed it first, again and again.
    #[error("not done, because other nodes change it at the same time (send it again)")]
    Busy,
    /// The task that makes it has died.
    #[error("not done: the task that makes it has died")]
    Died,
}

impl Book {
    /// Without a file: exceptions end with the process.
    pub fn new(audit: Audit) -> Self {
        Self::on(Tokio, audit)
    }

    /// The exceptions in this file, which need not exist yet.
    /// Fails when it cannot be read or written, or does not contain exceptions.
    pub fn open(path: PathBuf, audit: Audit) -> Result<Self, FileError> {
        let read = parse(&path, &FILE.text(&path)?)?;
        check(&SystemDisk, &path)?;
        Ok(Self::with(Tokio, Some(path), audit, read))
    }
}

impl<R: Runtime> Book<R> {
    /// Without a file, on this runtime.
    pub fn on(runtime: R, audit: Audit) -> Self {
        Self::with(runtime, None, audit, Vec::new())
    }

    /// Reads the exceptions in the text of a file that another program writes. They replace the previous ones.
    /// Fails when it does not contain exceptions. Then the previous ones stay.
    pub fn replace_all(&self, path: &Path, text: &str) -> Result<(), FileError> {
        let mut pages = self.pages.lock();
        *pages = Pages::new(parse(path, text)?, false);
        self.changed(&pages);
        Ok(())
    }

    fn with(runtime: R, file: Option<PathBuf>, audit: Audit, read: Vec<Lined>) -> Self {
        let pages = Pages::new(read, file.is_some());
        let version = watch::Sender::new(Version { number: 0, count: pages.count() });
        let (disk, unwritable, pages) = (Arc::new(SystemDisk), Mutex::default(), Mutex::new(pages));
        let audit = Arc::new(audit);
        Self { runtime, file, disk, unwritable, audit, pages, version, shared: None }
    }

    /// Writes its file on this disk.
    #[must_use]
    pub fn on_disk(self, disk: Arc<dyn Disk>) -> Self {
        Self { disk, ..self }
    }

    /// Shares them with all nodes that use this Redis. It has no counters, and is not connected yet.
    #[must_use]
    pub fn shared_in(self, store: RedisStore<R>) -> Self {
        self.pages.lock().number_by_time();
        Self { shared: Some(Shared::new(InRedis::new(store))), ..self }
    }

    /// Whether they hold for all nodes with the same Redis.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether they survive a restart.
    pub fn is_kept(&self) -> bool {
        self.file.is_some() || self.is_shared()
    }

    /// Its state now. Does not wait for a change in progress.
    pub fn version(&self) -> Version {
        *self.version.borrow()
    }

    /// The audit.
    pub fn audit(&self) -> &Arc<Audit> {
        &self.audit
    }

    /// Makes a change, and finishes it even if nobody waits for it any more. If there is no room, exceptions that
    /// have ended by themselves are removed: the audit has them.
    /// Fails when another one has its id, there is none to end, it is over already, there is no room, or it cannot be
    /// audited or written. Then nothing has changed, except with [`ChangeError::NotKnown`].
    pub async fn change(
        self: &Arc<Self>,
        wanted: WantedChange,
        author: Author,
        now: Timestamp,
    ) -> Result<Change, ChangeError> {
        let book = Arc::clone(self);
        match &self.shared {
            None => {
                let change = move || book.change_here(&wanted, &author, now);
                self.runtime.unblock(change).await.ok_or(ChangeError::Died)?
            }
            Some(_) => {
                let (done, changed) = oneshot::channel();
                self.runtime.spawn(async move {
                    let shared = book.shared.as_ref().expect("it is shared");
                    // Perhaps nobody waits for it any more.
                    let _ = done.send(book.change_everywhere(shared, wanted, author, now).await);
                });
                changed.await.map_err(|_| ChangeError::Died)?
            }
        }
    }

    /// Audits, writes and makes a change of this process alone, in this order. The outcome is audited too. It writes
    /// files, so do not call it on a thread that decides.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub fn change_here(
        &self,
        wanted: &WantedChange,
        author: &Author,
        now: Timestamp,
    ) -> Result<Change, ChangeError> {
        let mut pages = self.pages.lock();
        let number = pages.next();
        let Planned { change, before, after } = pages.plan(wanted, number, now)?;
        if change == Change::Unchanged {
            return Ok(change);
        }
        let (does, what) = audited(wanted, before.as_deref(), &after);
        let intended = self.audit.intend(author, now, does, what)?;
        let page = pages.forget(wanted.id());
        pages.put(after);
        let kept = self.write(&pages.lines());
        self.audit.ended(intended, now, kept.as_ref().map(|()| DONE.to_owned()).map_err(ToString::to_string));
        if let Err(error) = kept {
            // Nobody has seen it yet: the pages are locked.
            pages.put_back(wanted.id(), page);
            return Err(error.into());
        }
        self.changed(&pages);
        Ok(change)
    }

    /// Writes the file, if there is one.
    fn write(&self, lines: &[Arc<str>]) -> Result<(), FileError> {
        self.file.as_deref().map_or(Ok(()), |path| self.noted(FILE.write(path, &*self.disk, lines)))
    }

    /// Checks that the file can be written, before a change needs it.
    pub fn check_file(&self) {
        let Some(path) = &self.file else { return };
        let has_failed = self.unwritable.lock().is_some();
        // A failure is noted.
        let _ = match has_failed && !self.is_shared() {
            // There may be room for the file of the check but not for all exceptions.
            true => self.write(&self.pages.lock().lines()),
            false => self.noted(check(&*self.disk, path)),
        };
    }

    /// Notes whether the file can be written, and logs it when that changes.
    fn noted(&self, written: Result<(), FileError>) -> Result<(), FileError> {
        let why = written.as_ref().err().map(ToString::to_string);
        let before = std::mem::replace(&mut *self.unwritable.lock(), why.clone());
        match (&why, before) {
            (Some(why), None) => tracing::error!("exceptions: {why}"),
            (None, Some(_)) => tracing::info!("exceptions: EXCEPTIONS_FILE can be written again"),
            _ => {}
        }
        written
    }

    /// Whether the last attempt to write the file succeeded. `None`: there is no file.
    pub fn is_file_up(&self) -> Option<bool> {
        self.file.as_ref().map(|_| self.unwritable.lock().is_none())
    }

    /// Wakes all followers: something has changed.
    fn changed(&self, pages: &Pages) {
        let count = pages.count();
        self.version.send_modify(|version| *version = Version { number: version.number + 1, count });
    }

    /// Changes with every change.
    pub fn changes(&self) -> watch::Receiver<Version> {
        self.version.subscribe()
    }

    /// All of them, by their ids.
    pub fn all(&self) -> Vec<Arc<Authored>> {
        self.pages.lock().records().map(Arc::clone).collect()
    }

    /// Those in force.
    pub fn compile(&self, now: Timestamp) -> Compiled {
        let mut all = self.all();
        all.sort_by_key(|record| record.number);
        let until = all.iter().filter_map(|record| record.changes_after(now)).min();
        all.retain(|record| record.is_in_force(now));
        let labels = all.iter().map(|record| Arc::new(record.label())).collect();
        let exceptions = Exceptions::new(all.iter().map(|record| &record.exception)).labelled(labels);
        Compiled { exceptions, until }
    }
}

/// The exceptions in the text of a file.
fn parse(path: &Path, text: &str) -> Result<Vec<Lined>, FileError> {
    let records = FILE.parse(path, text, |line, value| Ok((Authored::of_file(value)?, line.into())))?;
    if records.len() > EXCEPTIONS_MAX {
        let many = format!("{} holds more than {EXCEPTIONS_MAX} exceptions", path.display());
        return Err(FILE.failed(many));
    }
    Ok(records)
}

/// Whether the file can be written there.
fn check(disk: &dyn Disk, path: &Path) -> Result<(), FileError> {
    disk.try_replace(path).map_err(|error| FILE.failed(error))
}

/// What the audit has of a change: its kind, and the exception before and after it.
fn audited(wanted: &WantedChange, before: Option<&Authored>, after: &KnownException) -> (Does, Value) {
    let after = match after {
        KnownException::Made(record) => Some(&**record),
        KnownException::Ended { .. } => None,
    };
    let json = |record: Option<&Authored>| record.map_or(Value::Null, Authored::json);
    let mut what = json!({"exception": wanted.id(), "before": json(before), "after": json(after)});
    match wanted {
        WantedChange::Put { .. } => (Does::ExceptionPut, what),
        WantedChange::End { why, .. } => {
            if !why.is_empty() {
                what["why"] = why.as_str().into();
            }
            (Does::ExceptionEnd, what)
        }
    }
}

#[cfg(test)]
mod tests;
