//! Records in a folder. For now: in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::key::{KeyPrefix, RecordKey};
use crate::record::Record;

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Another process has it.
    #[error("LIMITS_DIR: another process has {} (expected a folder for each process)", .0.display())]
    InUse(PathBuf),
}

/// The records of this machine. Calls may wait for the disk: they are for threads that may.
#[derive(Debug)]
pub struct Folder {
    records: Mutex<BTreeMap<RecordKey, Record>>,
}

impl Folder {
    /// Takes the folder, which is made if it is not there.
    ///
    /// # Errors
    /// When another process has it, or it cannot be written to.
    pub fn open(_path: &Path) -> Result<Self, FolderError> {
        Ok(Self { records: Mutex::default() })
    }

    /// The record of a key.
    ///
    /// # Errors
    /// When the disk refuses, or holds something else.
    pub fn get(&self, key: &RecordKey) -> Result<Option<Record>, FolderError> {
        Ok(self.records.lock().get(key).copied())
    }

    /// Makes a record, or replaces the one of its key. It is on the disk when this returns.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn put(&self, key: &RecordKey, record: &Record) -> Result<(), FolderError> {
        self.load(&[(key.clone(), *record)])
    }

    /// Removes a record. Returns whether there was one. It is off the disk when this returns.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn delete(&self, key: &RecordKey) -> Result<bool, FolderError> {
        Ok(self.records.lock().remove(key).is_some())
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
        let records = self.records.lock();
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = records.range((from, Bound::Unbounded));
        let page = page.filter(|(key, _)| key.as_bytes().starts_with(prefix.as_bytes()));
        Ok(page.take(most).map(|(key, record)| (key.clone(), *record)).collect())
    }

    /// Makes or replaces all of these records, or none. They are on the disk when this returns.
    ///
    /// # Errors
    /// When the disk refuses. None of them counts then.
    pub fn load(&self, batch: &[(RecordKey, Record)]) -> Result<(), FolderError> {
        self.records.lock().extend(batch.iter().cloned());
        Ok(())
    }

    /// How many records there are.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn count(&self) -> Result<u64, FolderError> {
        Ok(self.records.lock().len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_in_the_order_of_their_keys() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(folder.path()).expect("a folder that may be used");
        let key = |value: &str| RecordKey::of("d", [("tenant", value)]).expect("a key");
        let record = Record::of_requests;
        folder.load(&[(key("b"), record(2)), (key("a"), record(1))]).expect("stored");
        assert_eq!(folder.get(&key("b")).expect("read"), Some(record(2)));
        let page = |after| folder.page(&KeyPrefix::everything(), after, 10).expect("read");
        assert_eq!(page(None), [(key("a"), record(1)), (key("b"), record(2))]);
        assert_eq!(page(Some(&key("a"))), [(key("b"), record(2))]);
        assert!(folder.delete(&key("a")).expect("stored") && !folder.delete(&key("a")).expect("stored"));
        assert_eq!(folder.count().expect("read"), 1);
    }
}
