//! The embedded store as this program uses it: its options, how it is opened, and how it is written.

use std::fs::{self, File};
use std::io::Write as _;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fjall::config::{
    BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy, PinningPolicy,
};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Change, FolderError, Tree, Trees};
use crate::key::{KeyPrefix, RecordKey};
use crate::value::{decode, encode};
use tidegate_engine::overlay::Record;

/// Blocks of records that stay in memory.
const CACHE_BYTES: u64 = 32 << 20;
/// Records that are only in the journal and in memory; when there are more, they are sorted into files.
const MEMTABLE_BYTES: u64 = 16 << 20;
/// The journal is read at the start, so it is kept short. The store accepts no smaller size.
const JOURNAL_BYTES: u64 = 64 << 20;
/// Files that stay open.
pub const FILES_MAX: usize = 256;
/// Bits of a filter for each record: one in 300 keys without a record is looked up on the disk.
const FILTER_BITS: f32 = 12.0;
/// Bytes that must fit on the disk before the store is opened again after an error.
const PROBE_BYTES: usize = 1 << 20;

/// The name of the tree with all records in the store.
const RECORDS: &str = "records";

/// Trees of the embedded store.
#[derive(Debug)]
pub struct EmbeddedTrees;

struct EmbeddedTree {
    database: Database,
    records: Keyspace,
    path: PathBuf,
}

impl Trees for EmbeddedTrees {
    fn open(&self, path: &Path) -> Result<Box<dyn Tree>, FolderError> {
        // The store panics at some files that it did not write.
        let opened = catch_unwind(AssertUnwindSafe(|| EmbeddedTree::open(path)));
        let Ok(opened) = opened else {
            let why = "a file that it did not write".to_owned();
            return Err(FolderError::Broken { path: path.to_owned(), why });
        };
        opened
            .map(|tree| Box::new(tree) as Box<dyn Tree>)
            .map_err(|error| FolderError::of("open", path, error))
    }

    fn probe(&self, folder: &Path) -> Result<(), FolderError> {
        let path = folder.join("probe");
        let write = || File::create(&path)?.write_all(&vec![0; PROBE_BYTES]);
        let written = write();
        // A rest of it only takes space, and the next probe overwrites it.
        let _ = fs::remove_file(&path);
        written.map_err(|source| FolderError::Io { what: "write", path: folder.to_owned(), source })
    }
}

impl EmbeddedTree {
    fn open(path: &Path) -> fjall::Result<Self> {
        let database = Database::builder(path)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .max_cached_files(Some(FILES_MAX))
            // One thread sorts in the background. It has the priority of the thread that opens the store.
            .worker_threads(1)
            .open()?;
        let records = database.keyspace(RECORDS, options)?;
        Ok(Self { database, records, path: path.to_owned() })
    }

    fn of_use(&self, error: fjall::Error) -> FolderError {
        FolderError::of("use", &self.path, error)
    }

    fn record(&self, bytes: &[u8]) -> Result<Record, FolderError> {
        decode(bytes).map_err(|error| self.broken(&error))
    }

    fn broken(&self, error: &dyn std::error::Error) -> FolderError {
        FolderError::Broken { path: self.path.clone(), why: error.to_string() }
    }
}

impl Tree for EmbeddedTree {
    fn get(&self, key: &RecordKey) -> Result<Option<Record>, FolderError> {
        let found = self.records.get(key.as_bytes()).map_err(|error| self.of_use(error))?;
        found.map(|bytes| self.record(&bytes)).transpose()
    }

    fn has(&self, key: &RecordKey) -> Result<bool, FolderError> {
        self.records.contains_key(key.as_bytes()).map_err(|error| self.of_use(error))
    }

    fn page(
        &self,
        prefix: &KeyPrefix,
        after: Option<&RecordKey>,
        most: usize,
    ) -> Result<Vec<(RecordKey, Record)>, FolderError> {
        let first = prefix.as_bytes();
        let from = match after.map(RecordKey::as_bytes) {
            Some(after) if after >= first => Bound::Excluded(after),
            _ => Bound::Included(first),
        };
        let pairs =
            self.records.range::<&[u8], _>((from, Bound::Unbounded)).take(most).map(fjall::Guard::into_inner);
        let is_below = |pair: &fjall::Result<fjall::KvPair>| {
            pair.as_ref().map_or(true, |(key, _)| key.starts_with(first))
        };
        let found: Result<Vec<_>, _> = pairs.take_while(is_below).collect();
        let read = |(key, value): &fjall::KvPair| {
            let key = RecordKey::from_bytes(key).map_err(|error| self.broken(&error))?;
            Ok((key, self.record(value)?))
        };
        found.map_err(|error| self.of_use(error))?.iter().map(read).collect()
    }

    fn count(&self) -> u64 {
        self.records.approximate_len() as u64
    }

    fn write(&self, changes: &mut dyn Iterator<Item = Change<'_>>) -> Result<(), FolderError> {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        for (key, record) in changes {
            match record {
                Some(record) => batch.insert(&self.records, key.as_bytes(), encode(record)),
                None => batch.remove(&self.records, key.as_bytes()),
            }
        }
        batch.commit().map_err(|error| self.of_use(error))
    }
}

/// Filters and indexes of all files stay completely in memory: then a key without a record costs no read.
fn options() -> KeyspaceCreateOptions {
    let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(FILTER_BITS));
    KeyspaceCreateOptions::default()
        .max_memtable_size(MEMTABLE_BYTES)
        .filter_policy(FilterPolicy::all(filter))
        .filter_block_pinning_policy(PinningPolicy::all(true))
        .index_block_pinning_policy(PinningPolicy::all(true))
        .filter_block_partitioning_policy(PartitioningPolicy::all(false))
        .index_block_partitioning_policy(PartitioningPolicy::all(false))
}
