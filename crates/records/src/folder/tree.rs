//! The embedded store as this program uses it: its options, how it is opened, and how it is written.

use std::fs::{self, File};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fjall::config::{
    BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy, PinningPolicy,
};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Change, FolderError};
use crate::value::encode;

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

pub(super) struct Tree {
    database: Database,
    pub(super) records: Keyspace,
}

impl Tree {
    /// Opens the store in this folder, which is created if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Self, FolderError> {
        // The store panics at some files that it did not write.
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_store(path)));
        let Ok(opened) = opened else {
            let why = "a file that it did not write".to_owned();
            return Err(FolderError::Broken { path: path.to_owned(), why });
        };
        opened.map_err(|error| FolderError::of("open", path, error))
    }

    fn open_store(path: &Path) -> fjall::Result<Self> {
        let database = Database::builder(path)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .max_cached_files(Some(FILES_MAX))
            // One thread sorts in the background. It has the priority of the thread that opens the store.
            .worker_threads(1)
            .open()?;
        let records = database.keyspace(RECORDS, options)?;
        Ok(Self { database, records })
    }

    /// Writes all of this or nothing, and waits for the disk.
    pub(super) fn write<'c>(&self, changes: impl Iterator<Item = Change<'c>>) -> fjall::Result<()> {
        let mut batch = self.database.batch().durability(Some(PersistMode::SyncData));
        for (key, record) in changes {
            match record {
                Some(record) => batch.insert(&self.records, key.as_bytes(), encode(record)),
                None => batch.remove(&self.records, key.as_bytes()),
            }
        }
        batch.commit()
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

/// Makes sure that the disk accepts something, and removes it again.
pub(super) fn probe(folder: &Path) -> Result<(), FolderError> {
    let path = folder.join("probe");
    let write = || File::create(&path)?.write_all(&vec![0; PROBE_BYTES]);
    let written = write();
    // A rest of it only takes space, and the next probe overwrites it.
    let _ = fs::remove_file(&path);
    written.map_err(|source| FolderError::Io { what: "write", path: folder.to_owned(), source })
}
