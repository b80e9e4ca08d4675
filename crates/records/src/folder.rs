//! Records in a folder: an embedded store that survives every crash.
//!
//! In: records by their keys. Out: one of them, or a page in the order of keys. What a call has written is on the
//! disk when the call returns, and a batch is stored completely or not at all, whenever the process or the machine
//! dies. One process at a time owns the folder.
//!
//! # The store
//! It is `fjall`, a log-structured tree with Bloom filters, all of whose filters and indexes stay in memory (some 2 bytes a
//! record). Nearly all keys that a limiter asks for have no record, and for those the filter answers without the disk. The
//! other candidate was `redb`, a B-tree; both are Rust. RocksDB, in C++, shows what can be had. Measured in one run, with
//! 10,000,000 records of 27 bytes asked for in random order of keys, in a process that may have 128 MiB with the page cache:
//!
//! | | fjall 3.1 | redb 4.6 | RocksDB 7.8 |
//! | --- | --- | --- | --- |
//! | a key without record | 1.2 µs, 99 % below 3.5 µs | 80 µs, 99 % below 199 µs | 1.3 µs, 99 % below 1.8 µs |
//! | a key with a record | 73 µs, 99 % below 173 µs | 85 µs, 99 % below 204 µs | 84 µs, 99 % below 179 µs |
//! | a random read of 4 KiB beside it | 66 µs, 99 % below 133 µs | 74 µs, 99 % below 150 µs | 67 µs, 99 % below 150 µs |
//! | loaded in order, batches of 10,000, each on the disk | 1,158,000/s | 934,000/s | 1,208,000/s |
//! | on the disk | 326 MB, of it 67 MB of journal | 421 MB | 302 MB |
//! | opened | 1.5 s, most of it for the journal | 1 ms | 20 ms |
//!
//! A filter in front of `redb` would have to be made from all records at every start, or be a second file that no crash
//! separates from the first. `fjall` has it.

mod error;
mod tree;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};

pub use self::error::FolderError;
pub use self::tree::{EmbeddedTrees, FILES_MAX};
use crate::key::{KeyPrefix, RecordKey};
use tidegate_engine::overlay::Record;

/// Nobody else may read names of users.
const FOLDER_MODE: u32 = 0o700;

/// What is written: a key with its record, or without one.
pub type Change<'c> = (&'c RecordKey, Option<&'c Record>);

/// Opens trees in folders. [`EmbeddedTrees`] serves production; a simulation passes one whose disk fails.
pub trait Trees: Send + Sync {
    /// Opens the tree in this folder, which is created if it has none.
    ///
    /// # Errors
    /// When another process has it, the disk refuses, or it contains something else.
    fn open(&self, folder: &Path) -> Result<Box<dyn Tree>, FolderError>;

    /// Makes sure that the disk accepts something, and removes it again.
    ///
    /// # Errors
    /// When the disk refuses.
    fn probe(&self, folder: &Path) -> Result<(), FolderError>;
}

/// All records in the order of their keys, while they are open.
#[allow(clippy::missing_errors_doc, reason = "all fail when the disk refuses, or contains something else")]
pub trait Tree: Send + Sync {
    /// The record of a key.
    fn get(&self, key: &RecordKey) -> Result<Option<Record>, FolderError>;

    /// Whether a key has a record.
    fn has(&self, key: &RecordKey) -> Result<bool, FolderError>;

    /// The first `most` records after `after` whose keys begin with `prefix`.
    fn page(
        &self,
        prefix: &KeyPrefix,
        after: Option<&RecordKey>,
        most: usize,
    ) -> Result<Vec<(RecordKey, Record)>, FolderError>;

    /// How many records there are, roughly.
    fn count(&self) -> u64;

    /// Writes all of this or nothing, and waits for the disk. Once that has failed, every other call of it fails with
    /// [`FolderError::Closed`].
    fn write(&self, changes: &mut dyn Iterator<Item = Change<'_>>) -> Result<(), FolderError>;
}

/// The records of this machine. Calls may wait for the disk: they are for threads that may.
pub struct Folder {
    path: PathBuf,
    trees: Arc<dyn Trees>,
    /// Held by the call that writes, and by the one that opens.
    writing: Mutex<()>,
    store: RwLock<TreeState>,
    /// A change failed, so the open store accepts no other. It still answers reads.
    refuses: AtomicBool,
    times_opened: AtomicU64,
}

enum TreeState {
    Open(Box<dyn Tree>),
    /// Why it is not open.
    Closed(String),
}

impl Folder {
    /// Takes the folder, which is created if it does not exist.
    ///
    /// # Errors
    /// As those of [`mend`](Self::mend).
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let folder = Self::closed(path);
        folder.mend().map(|()| folder)
    }

    /// The folder at this path. Every call fails until [`mend`](Self::mend) has taken it.
    pub fn closed(path: &Path) -> Self {
        Self::closed_on(path, Arc::new(EmbeddedTrees))
    }

    /// The same, of a tree that these open.
    pub fn closed_on(path: &Path, trees: Arc<dyn Trees>) -> Self {
        let why = format!("LIMITS_DIR: {} is not open yet", path.display());
        Self {
            path: path.to_owned(),
            trees,
            writing: Mutex::new(()),
            store: RwLock::new(TreeState::Closed(why)),
            refuses: AtomicBool::new(false),
            times_opened: AtomicU64::new(0),
        }
    }

    /// Takes the folder if it is closed, and reopens it if it refuses changes. Otherwise does nothing. A large folder
    /// takes seconds; meanwhile other calls fail, and do not wait.
    ///
    /// # Errors
    /// When another process has it, it cannot be written to, or it contains something else than records.
    pub fn mend(&self) -> Result<(), FolderError> {
        let _one = self.writing.lock();
        let is_open = self.is_open();
        if is_open && !self.refuses.load(Relaxed) {
            return Ok(());
        }
        let may_be_used = self.make(is_open);
        if let (Err(error), false) = (&may_be_used, is_open) {
            self.replace(TreeState::Closed(error.to_string()));
        }
        may_be_used.and_then(|()| self.open_anew())
    }

    /// Creates the folder. While a store is open, makes sure that there is space first: an open store still answers
    /// reads, so it is kept until then.
    fn make(&self, is_open: bool) -> Result<(), FolderError> {
        let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.path);
        made.map_err(|source| FolderError::Io { what: "make", path: self.path.clone(), source })?;
        if is_open { self.trees.probe(&self.path) } else { Ok(()) }
    }

    /// Closes the open store, which holds the lock of the folder, and opens it again.
    fn open_anew(&self) -> Result<(), FolderError> {
        let why = format!("LIMITS_DIR: {} is being opened", self.path.display());
        let before = self.replace(TreeState::Closed(why));
        drop(before);
        let opened = self.trees.open(&self.path);
        let (store, result) = match opened {
            Ok(tree) => (TreeState::Open(tree), Ok(())),
            Err(error) => (TreeState::Closed(error.to_string()), Err(error)),
        };
        self.refuses.store(false, Relaxed);
        self.times_opened.fetch_add(u64::from(result.is_ok()), Relaxed);
        self.replace(store);
        result
    }

    fn replace(&self, store: TreeState) -> TreeState {
        std::mem::replace(&mut self.store.write(), store)
    }

    /// Whether it answers reads. Does not wait for a disk.
    pub fn is_open(&self) -> bool {
        self.store.try_read().is_some_and(|store| matches!(*store, TreeState::Open(_)))
    }

    /// How often it was opened. A change that failed may be there since the last time.
    pub fn times_opened(&self) -> u64 {
        self.times_opened.load(Relaxed)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The record of a key.
    ///
    /// # Errors
    /// When the disk refuses, or contains something else.
    pub fn get(&self, key: &RecordKey) -> Result<Option<Record>, FolderError> {
        self.with_tree(|tree| tree.get(key))
    }

    /// Adds a record, or replaces the one of its key. It is on the disk when this returns.
    ///
    /// # Errors
    /// As those of [`load`](Self::load).
    pub fn put(&self, key: &RecordKey, record: &Record) -> Result<(), FolderError> {
        let _one = self.writing.lock();
        self.write([(key, Some(record))])
    }

    /// Removes a record. Returns whether there was one. The removal is on the disk when this returns.
    ///
    /// # Errors
    /// As those of [`load`](Self::load).
    pub fn delete(&self, key: &RecordKey) -> Result<bool, FolderError> {
        let _one = self.writing.lock();
        if !self.with_tree(|tree| tree.has(key))? {
            return Ok(false);
        }
        self.write([(key, None)]).map(|()| true)
    }

    /// Adds, replaces or removes a record if the existing one is `before`. Returns whether it was. The change is on
    /// the disk when this returns.
    ///
    /// # Errors
    /// As those of [`load`](Self::load).
    pub fn exchange(
        &self,
        key: &RecordKey,
        before: Option<Record>,
        after: Option<Record>,
    ) -> Result<bool, FolderError> {
        let _one = self.writing.lock();
        if self.get(key)? != before {
            return Ok(false);
        }
        self.write([(key, after.as_ref())]).map(|()| true)
    }

    /// Whether the record of a key is this one, and stays so whenever the folder is opened.
    ///
    /// # Errors
    /// As those of [`load`](Self::load): a change that failed may be there when the folder is opened the next time.
    pub fn confirm(&self, key: &RecordKey, record: Option<Record>) -> Result<bool, FolderError> {
        let _one = self.writing.lock();
        if self.refuses.load(Relaxed) {
            let why = format!("LIMITS_DIR: the disk refused a change of {}", self.path.display());
            return Err(FolderError::Closed(why));
        }
        Ok(self.get(key)? == record)
    }

    /// The first `most` records after `after` whose keys begin with `prefix`, in the order of their keys.
    ///
    /// # Errors
    /// When the disk refuses, or holds something else.
    pub fn page(
        &self,
        prefix: &KeyPrefix,
        after: Option<&RecordKey>,
        most: usize,
    ) -> Result<Vec<(RecordKey, Record)>, FolderError> {
        self.with_tree(|tree| tree.page(prefix, after, most))
    }

    /// Adds or replaces all of these records, or none. They are on the disk when this returns. Of two for one key the
    /// later one counts.
    ///
    /// # Errors
    /// When the disk refuses. Then none of them counts; but a disk that stored all of them and only failed to report
    /// it has them when the folder is opened the next time. After such an error every change fails with
    /// [`FolderError::Closed`], until [`mend`](Self::mend) succeeds.
    pub fn load(&self, batch: &[(RecordKey, Record)]) -> Result<(), FolderError> {
        let _one = self.writing.lock();
        self.write(batch.iter().map(|(key, record)| (key, Some(record))))
    }

    /// How many records there are, roughly: recently replaced or removed ones may be included. Does not wait for a disk:
    /// a folder that is being closed waits for its reads, and whoever locks it then waits for these too.
    ///
    /// # Errors
    /// When the folder is closed, or is being closed.
    pub fn count(&self) -> Result<u64, FolderError> {
        match self.store.try_read().as_deref() {
            Some(TreeState::Open(tree)) => Ok(tree.count()),
            Some(TreeState::Closed(why)) => Err(FolderError::Closed(why.clone())),
            None => Err(FolderError::Closed(format!("LIMITS_DIR: {} is being closed", self.path.display()))),
        }
    }

    /// Writes all of this or nothing, for the thread that holds `writing`.
    fn write<'c>(&self, changes: impl IntoIterator<Item = Change<'c>>) -> Result<(), FolderError> {
        let written = self.with_tree(|tree| tree.write(&mut changes.into_iter()));
        written.inspect_err(|_| self.refuses.store(true, Relaxed))
    }

    fn with_tree<T>(&self, call: impl FnOnce(&dyn Tree) -> Result<T, FolderError>) -> Result<T, FolderError> {
        match &*self.store.read() {
            TreeState::Open(tree) => call(&**tree),
            TreeState::Closed(why) => Err(FolderError::Closed(why.clone())),
        }
    }
}

#[cfg(test)]
mod tests;
