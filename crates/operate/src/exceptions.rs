//! Exceptions that operators make while the limiter runs, and the audit of what they did.
//!
//! In: changes, each with who and why. Out: the exceptions in force at a time, for the service, and lines of the audit.
//! A change is written to the audit before it is done, and its outcome after. What cannot be audited is not done. With a
//! file ([`Book::open`]) exceptions survive a restart: it is written beside, synced and renamed before a change counts.
//! It reads no clock and knows no sockets.
//!
//! - `record`: one exception as people write it, and its JSON
//! - `file`: all of them in a file
//! - `audit`: who did what, when

mod audit;
mod file;
mod record;

pub use self::audit::{Audit, AuditError, Author, Caller};
pub use self::file::FileError;
pub use self::record::Record;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use tidegate_engine::overlay::Exceptions;
use tidegate_engine::time::Timestamp;

/// How many exceptions there may be.
pub const EXCEPTIONS_MAX: usize = 100_000;
/// How many of them may have a `*` or a level without a value. A request is compared with each of these that has its
/// domain and keys.
pub const PATTERNS_MAX: usize = 1_000;

/// All exceptions that were made and not ended.
pub struct Book {
    file: Option<PathBuf>,
    audit: Audit,
    pages: Mutex<Pages>,
    version: watch::Sender<Version>,
}

#[derive(Default)]
struct Pages {
    records: BTreeMap<String, Page>,
    /// The number of the next record: a later one is newer.
    next: u64,
}

/// One exception.
struct Page {
    record: Arc<Record>,
    /// Its line in the file; empty without a file. A change writes all lines, and making them takes far longer than
    /// writing them.
    line: Box<str>,
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

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// There is a new exception.
    Made,
    /// An exception of this id is another one now.
    Replaced,
    /// It was so already.
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
    /// There is one with this id, and it was not to be replaced.
    #[error("there is {0:?} already, and it says something else")]
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
    /// It could not be audited, so it was not done.
    #[error("not done, because it cannot be audited: {0}")]
    Audit(#[from] AuditError),
    /// It could not be kept, so it was not done.
    #[error("not done, because it cannot be kept: {0}")]
    File(#[from] FileError),
}

impl Book {
    /// Without a file: exceptions end with the process.
    pub fn new(audit: Audit) -> Self {
        Self { file: None, audit, pages: Mutex::default(), version: watch::Sender::default() }
    }

    /// The exceptions in this file, which need not be there yet.
    ///
    /// # Errors
    /// When it cannot be read, or does not hold exceptions.
    pub fn open(path: PathBuf, audit: Audit) -> Result<Self, FileError> {
        let read = file::read(&path)?;
        let next = read.iter().map(|(record, _)| record.number + 1).max().unwrap_or_default();
        let named =
            |(record, line): (Record, Box<str>)| (record.id.clone(), Page { record: Arc::new(record), line });
        let records: BTreeMap<_, _> = read.into_iter().map(named).collect();
        let version = watch::Sender::new(Version { number: 0, count: records.len() as u64 });
        let pages = Mutex::new(Pages { records, next });
        Ok(Self { file: Some(path), audit, pages, version })
    }

    /// Whether they survive a restart.
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Its state now. Waits for no change.
    pub fn version(&self) -> Version {
        *self.version.borrow()
    }

    /// The audit.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Makes an exception, or replaces the one with its id if it may. Writes files: not for a thread that decides. Where
    /// there is no room, those that have ended by themselves leave: the audit has them.
    ///
    /// # Errors
    /// When another one has its id, it is over already, there is no room, or it cannot be audited or kept. Nothing has
    /// changed then.
    pub fn put(
        &self,
        mut record: Record,
        may_replace: bool,
        author: &Author,
        now: Timestamp,
    ) -> Result<Change, ChangeError> {
        let mut pages = self.pages.lock();
        let before = pages.records.get(&record.id).map(|page| Arc::clone(&page.record));
        match &before {
            Some(before) if before.says_the_same(&record) => return Ok(Change::Unchanged),
            Some(_) if !may_replace => return Err(ChangeError::Exists(record.id)),
            _ if record.is_over(now) => return Err(ChangeError::Past),
            _ => {}
        }
        pages.make_room(&record, now)?;
        (record.number, record.made) = (pages.next, now);
        let after = Arc::new(record);
        let change = if before.is_some() { Change::Replaced } else { Change::Made };
        let (id, before, why) = (&after.id, before.as_deref(), "");
        let what = Audited { does: "exception_put", id, before, after: Some(&after), why };
        self.change(&mut pages, author, now, &what, Some(Arc::clone(&after)))?;
        pages.next += 1;
        Ok(change)
    }

    /// Ends an exception. The audit keeps it, and why, if that is not empty.
    ///
    /// # Errors
    /// When there is none, or it cannot be audited or kept. Nothing has changed then.
    pub fn end(&self, id: &str, why: &str, author: &Author, now: Timestamp) -> Result<Change, ChangeError> {
        let mut pages = self.pages.lock();
        let before = pages.records.get(id).map(|page| Arc::clone(&page.record));
        let before = before.ok_or_else(|| ChangeError::Unknown(id.to_owned()))?;
        let what = Audited { does: "exception_end", id, before: Some(&before), after: None, why };
        self.change(&mut pages, author, now, &what, None)?;
        Ok(Change::Ended)
    }

    /// Audits, keeps and does a change, in this order. The outcome is audited too. `after` takes the place of what has
    /// its id.
    fn change(
        &self,
        pages: &mut Pages,
        author: &Author,
        now: Timestamp,
        what: &Audited<'_>,
        after: Option<Arc<Record>>,
    ) -> Result<(), ChangeError> {
        let intended = self.audit.intend(author, now, what.does, what.json())?;
        let line = |record: &Record| match &self.file {
            Some(_) => file::line(record),
            None => Box::default(),
        };
        let before = pages.replace(what.id, after.map(|record| Page { line: line(&record), record }));
        let lines = pages.records.values().map(|page| &*page.line);
        let kept = self.file.as_deref().map_or(Ok(()), |path| file::write(path, lines));
        self.audit.ended(intended, now, kept.as_ref().map(|()| "done").map_err(ToString::to_string));
        if let Err(error) = kept {
            // Nobody has seen it: the pages are locked.
            pages.replace(what.id, before);
            return Err(error.into());
        }
        let count = pages.records.len() as u64;
        self.version.send_modify(|version| *version = Version { number: version.number + 1, count });
        Ok(())
    }

    /// Changes with every change.
    pub fn changes(&self) -> watch::Receiver<Version> {
        self.version.subscribe()
    }

    /// All of them, by their ids.
    pub fn all(&self) -> Vec<Arc<Record>> {
        self.pages.lock().records.values().map(|page| Arc::clone(&page.record)).collect()
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

impl Pages {
    /// Puts a page in the place of the one with this id, or removes that. Returns what was there.
    fn replace(&mut self, id: &str, after: Option<Page>) -> Option<Page> {
        match after {
            Some(after) => self.records.insert(id.to_owned(), after),
            None => self.records.remove(id),
        }
    }

    fn make_room(&mut self, record: &Record, now: Timestamp) -> Result<(), ChangeError> {
        if self.check_room(record).is_err() {
            self.records.retain(|_, other| !other.record.is_over(now));
        }
        self.check_room(record)
    }

    fn check_room(&self, record: &Record) -> Result<(), ChangeError> {
        let others = self.records.len() - usize::from(self.records.contains_key(&record.id));
        if others >= EXCEPTIONS_MAX {
            return Err(ChangeError::Full);
        }
        if !record.exception.is_exact() {
            let others = self.records.values().map(|page| &page.record).filter(|other| other.id != record.id);
            if others.filter(|other| !other.exception.is_exact()).count() >= PATTERNS_MAX {
                return Err(ChangeError::FullOfPatterns);
            }
        }
        Ok(())
    }
}

/// What a line of the audit says of a change.
struct Audited<'a> {
    does: &'static str,
    id: &'a str,
    before: Option<&'a Record>,
    after: Option<&'a Record>,
    /// Empty: the record says it, or nobody did.
    why: &'a str,
}

impl Audited<'_> {
    fn json(&self) -> Value {
        let record = |record: Option<&Record>| record.map_or(Value::Null, Record::json);
        let mut json =
            json!({"exception": self.id, "before": record(self.before), "after": record(self.after)});
        if !self.why.is_empty() {
            json["why"] = self.why.into();
        }
        json
    }
}

#[cfg(test)]
mod tests;
