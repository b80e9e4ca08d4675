//! Records in a folder of this machine: the threads that wait for its disk, and what is logged when it cannot be used.
//!
//! In: calls for the folder. Out: what they return. A folder that cannot be used, at the start or later, is tried again with
//! growing pauses. Meanwhile keys that are not in memory are decided as if the store were away.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;

use super::StoreError;
use super::pool::Pool;
use tidegate_records::{Folder, FolderError};
use tidegate_redis::runtime::{Runtime, Tokio};

/// Threads that read the folder. More of them would wait for the same disk.
const READERS: usize = 4;
/// Reads that wait for one of them. Beyond that the store counts as away.
const READS_MAX: usize = 1_024;
/// Changes that wait for the thread that writes.
const WRITES_MAX: usize = 64;
/// The pauses between tries: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A folder, and the threads that wait for its disk.
pub(super) struct FolderStore<R: Runtime = Tokio> {
    runtime: R,
    folder: Arc<Folder>,
    readers: Pool,
    writer: Pool,
    /// It answers reads.
    is_up: AtomicBool,
    /// It was logged that it does not answer.
    is_logged: AtomicBool,
    failed: Notify,
    /// How often it had been opened at the last call of `was_opened`.
    times_opened: AtomicU64,
}

impl FolderStore {
    /// The folder at this path, which is not opened yet. `prepare` runs first on the thread that writes.
    pub(super) fn new(path: &Path, prepare: fn()) -> Result<Self, StoreError> {
        let readers = Pool::new("records-read", READERS, READS_MAX, || {})?;
        // The store's own thread takes over the priority of the one that opens it.
        let writer = Pool::new("records-write", 1, WRITES_MAX, prepare)?;
        Ok(Self::on(Tokio, Folder::closed(path), readers, writer))
    }
}

impl<R: Runtime> FolderStore<R> {
    /// This folder, which is not opened yet, with these threads. One of them writes.
    pub(super) fn on(runtime: R, folder: Folder, readers: Pool, writer: Pool) -> Self {
        Self {
            runtime,
            folder: Arc::new(folder),
            readers,
            writer,
            is_up: AtomicBool::new(false),
            is_logged: AtomicBool::new(false),
            failed: Notify::new(),
            times_opened: AtomicU64::new(0),
        }
    }

    /// Opens the folder. If that fails, [`keep`](Self::keep) tries again.
    pub(super) async fn open(&self) {
        match self.mend().await {
            Ok(()) => {
                tracing::info!(
                    "records: {} in {} (LIMITS_DIR)",
                    self.count().unwrap_or(0),
                    self.folder.path().display()
                );
            }
            Err(error) => self.is_away(&error),
        }
    }

    /// Reopens the folder whenever it cannot be used; then it calls `notify`. Never returns.
    pub(super) async fn keep(&self, notify: impl Fn()) -> Infallible {
        let mut pause = PAUSE_MIN;
        loop {
            // A folder that fails right after it was opened is no better than one that cannot be opened.
            if self.runtime.timeout(PAUSE_MAX, self.failure()).await.is_none() {
                pause = PAUSE_MIN;
                self.failure().await;
            }
            loop {
                self.runtime.sleep(pause).await;
                pause = (2 * pause).min(PAUSE_MAX);
                match self.mend().await {
                    Ok(()) => break,
                    Err(error) => tracing::warn!("records: {error}; next attempt in {pause:?}"),
                }
            }
            notify();
        }
    }

    /// Waits until it is away.
    async fn failure(&self) {
        // A failure from before it was back is no reason to try again.
        while self.is_up() {
            self.failed.notified().await;
        }
    }

    async fn mend(&self) -> Result<(), StoreError> {
        let folder = Arc::clone(&self.folder);
        self.writer.call(move || folder.mend()).await??;
        self.is_back();
        Ok(())
    }

    fn is_back(&self) {
        self.is_up.store(true, Relaxed);
        if self.is_logged.swap(false, Relaxed) {
            tracing::info!("records: {} can be used again (LIMITS_DIR)", self.folder.path().display());
        }
    }

    /// Logs a failure once for each time that the folder is away.
    fn is_away(&self, error: &StoreError) {
        self.is_up.store(false, Relaxed);
        if !self.is_logged.swap(true, Relaxed) {
            tracing::error!("records: {error}; LIMITS_STALE_MODE applies to keys that are not in memory");
        }
        self.failed.notify_one();
    }

    /// Whether it answers reads, as far as is known.
    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Relaxed)
    }

    /// Whether it was opened since the last call, so that any record may have changed.
    pub(super) fn was_opened(&self) -> bool {
        let times = self.folder.times_opened();
        self.times_opened.swap(times, Relaxed) != times
    }

    /// How many records there are, roughly. `None`: nobody can say.
    pub(super) fn count(&self) -> Option<u64> {
        self.folder.count().ok()
    }

    /// Makes a call that reads.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Folder) -> Result<T, FolderError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let folder = Arc::clone(&self.folder);
        let done = self.readers.call(move || read(&folder)).await?.map_err(StoreError::from);
        done.inspect_err(|error| self.is_away(error))
    }

    /// Makes a call that writes. A folder that is closed or refuses changes is reopened first: perhaps the disk was
    /// full, and has space again.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        write: impl Fn(&Folder) -> Result<T, FolderError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let folder = Arc::clone(&self.folder);
        let write = move || match write(&folder) {
            Err(FolderError::Closed(_)) => (true, folder.mend().and_then(|()| write(&folder))),
            done => (false, done),
        };
        let (was_closed, done) = self.writer.call(write).await?;
        let done = done.map_err(StoreError::from);
        match &done {
            Ok(_) if was_closed => self.is_back(),
            Err(error) if !self.folder.is_open() => self.is_away(error),
            _ => {}
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::time::sleep;

    use super::*;
    use tidegate_records::{Record, RecordKey};
    use tidegate_serve::clock::timer;

    /// The clock of the runtime is paused: pauses pass at once.
    #[tokio::test(start_paused = true)]
    async fn a_folder_that_cannot_be_opened_is_tried_until_it_can() {
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let path = temporary.path().join("records");
        fs::write(&path, "").expect("written");
        let store = Arc::new(FolderStore::new(&path, || {}).expect("threads"));
        store.open().await;
        assert!(!store.is_up() && !store.was_opened());
        let key = RecordKey::of("d", [("a", "b")]).expect("a key");
        let of_key = key.clone();
        let read = store.read(move |folder| folder.get(&of_key)).await;
        let said = read.expect_err("it is not open").to_string();
        assert!(said.contains("cannot make") && said.contains("it is tried again"), "{said}");
        let keeping = Arc::clone(&store);
        let keeping = tokio::spawn(async move { keeping.keep(|| {}).await });
        sleep(3 * PAUSE_MAX).await;
        assert!(!store.is_up());
        fs::remove_file(&path).expect("removed");
        while !store.is_up() {
            sleep(PAUSE_MAX).await;
        }
        assert!(store.was_opened() && !store.was_opened());
        let of_key = key.clone();
        let record = Record::of(5);
        store.write(move |folder| folder.put(&of_key, &record)).await.expect("written");
        assert_eq!(store.read(move |folder| folder.get(&key)).await.expect("read"), Some(record));
        keeping.abort();
    }

    /// The clock of the runtime is paused: pauses pass at once. They grew at the start.
    #[tokio::test(start_paused = true)]
    async fn a_folder_that_was_back_for_long_is_tried_again_after_the_first_pause() {
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let path = temporary.path().join("records");
        fs::write(&path, "").expect("written");
        let store = Arc::new(FolderStore::new(&path, || {}).expect("threads"));
        store.open().await;
        let (keeping, back) = (Arc::clone(&store), Arc::new(Notify::new()));
        let notified = Arc::clone(&back);
        let keeping = tokio::spawn(async move { keeping.keep(|| notified.notify_one()).await });
        sleep(3 * PAUSE_MAX).await;
        fs::remove_file(&path).expect("removed");
        back.notified().await;
        sleep(2 * PAUSE_MAX).await;
        let failed = timer();
        store.is_away(&FolderError::Closed("full".to_owned()).into());
        back.notified().await;
        let paused = timer() - failed;
        assert!((PAUSE_MIN..2 * PAUSE_MIN).contains(&paused), "{paused:?}");
        keeping.abort();
    }

    #[tokio::test]
    async fn a_folder_that_refuses_a_change_answers_reads_and_one_that_refuses_a_read_is_away() {
        fn failed(_: &Folder) -> Result<(), FolderError> {
            let source = std::io::Error::other("on purpose");
            Err(FolderError::Io { what: "use", path: "records".into(), source })
        }
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let store = FolderStore::new(temporary.path(), || {}).expect("threads");
        store.open().await;
        assert!(store.write(failed).await.is_err() && store.is_up());
        assert!(store.read(failed).await.is_err() && !store.is_up());
    }

    /// A change that comes while the folder is closed opens it, and does not wait for the next try.
    #[tokio::test]
    async fn a_change_opens_a_folder_that_is_closed() {
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let other = Folder::open(temporary.path()).expect("a folder that may be used");
        let store = FolderStore::new(temporary.path(), || {}).expect("threads");
        store.open().await;
        let key = RecordKey::of("d", [("a", "b")]).expect("a key");
        let put = || {
            let key = key.clone();
            store.write(move |folder| folder.put(&key, &Record::of(5)))
        };
        let said = put().await.expect_err("another has it").to_string();
        assert!(said.contains("another process has"), "{said}");
        drop(other);
        assert!(!store.is_up());
        put().await.expect("written");
        assert!(store.is_up() && store.was_opened());
    }
}
