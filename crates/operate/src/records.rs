//! Records: limits for single keys, where they are kept, and who is notified of a change.
//!
//! In: keys and records, from requests and from the admin API. Out: the contents of the store. No thread that decides
//! waits for a disk: reads go to a few threads of their own, with a bounded queue; writes go to another one, so that
//! a bulk load delays no read.
//!
//! - `folder`: records of this machine alone; `pool`: those threads
//! - `redis`: records that several nodes share
//! - `follower`: how decisions look records up, and how a node follows the changes of others

mod folder;
mod pool;
mod redis;
mod follower;

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use self::folder::FolderStore;
pub use self::follower::{Follower, looked_up};
pub use self::pool::{HandOver, Job, Pool, PoolError, Queue};
use self::redis::InRedis;
pub use self::redis::RedisError;
use tidegate_records::{Folder, FolderError, KeyPrefix, Record, RecordKey};
use tidegate_redis::RedisStore;
use tidegate_redis::runtime::{Runtime, Tokio};

/// Is called with every record that was changed, once the change is in force. `None`: any may have changed.
pub type Listener = Box<dyn Fn(Option<&RecordKey>) + Send + Sync>;

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Too many calls wait, or the call failed.
    #[error("the store of records {0}")]
    Pool(#[from] PoolError),
    /// Redis does not answer, or refuses.
    #[error(transparent)]
    Redis(#[from] RedisError),
}

/// All records, in their store.
pub struct RecordStore<R: Runtime = Tokio> {
    store: Backend<R>,
    listener: OnceLock<Listener>,
    /// Whether Redis answered when its changes were read last.
    answers: AtomicBool,
}

/// Where records are kept.
enum Backend<R: Runtime> {
    /// In a folder of this machine.
    Folder(FolderStore<R>),
    /// In Redis, for several nodes.
    Redis(InRedis<R>),
}

impl RecordStore {
    /// Those in this folder, which [`open`](Self::open) opens. `prepare` runs first on each thread that writes, to lower
    /// its priority.
    /// Fails when the system gives no threads.
    pub fn in_folder(path: &Path, prepare: fn()) -> Result<Self, StoreError> {
        let store = Backend::Folder(FolderStore::new(path, prepare)?);
        Ok(Self::kept_in(store))
    }
}

impl<R: Runtime> RecordStore<R> {
    /// Those in this folder, which [`open`](Self::open) opens. `readers` wait for reads, and `writer`, one thread, for all other
    /// calls.
    pub fn in_folder_on(runtime: R, folder: Folder, readers: Pool, writer: Pool) -> Self {
        Self::kept_in(Backend::Folder(FolderStore::on(runtime, folder, readers, writer)))
    }

    /// The records in this Redis, which is connected when workers [attach](Self::attach).
    pub fn in_redis(store: RedisStore<R>) -> Self {
        Self::kept_in(Backend::Redis(InRedis::new(store)))
    }

    fn kept_in(store: Backend<R>) -> Self {
        Self { store, listener: OnceLock::new(), answers: AtomicBool::new(false) }
    }

    /// Connects the calling worker to the store, in the background.
    pub fn attach(&self) {
        if let Backend::Redis(redis) = &self.store {
            redis.attach();
        }
    }

    /// Opens the folder, which is created if it does not exist. If that fails, it is logged: the store is away then,
    /// and [`keep`](Self::keep) tries again.
    pub async fn open(&self) {
        if let Backend::Folder(store) = &self.store {
            store.open().await;
            self.tell_if_opened(store);
        }
    }

    /// Reopens the folder whenever it cannot be used. Never returns.
    pub async fn keep(&self) -> Infallible {
        match &self.store {
            Backend::Folder(store) => store.keep(|| self.tell_if_opened(store)).await,
            Backend::Redis(_) => std::future::pending().await,
        }
    }

    /// Whether the store answers, as far as is known.
    pub fn is_up(&self) -> bool {
        match &self.store {
            Backend::Folder(store) => store.is_up(),
            Backend::Redis(_) => self.answers.load(Relaxed),
        }
    }

    /// Whether other nodes change it too.
    pub fn is_shared(&self) -> bool {
        matches!(self.store, Backend::Redis(_))
    }

    /// Notifies the listener of what other nodes have changed since the last call. At the first call any record may have
    /// changed.
    /// Fails when the store is away.
    pub async fn follow(&self) -> Result<(), StoreError> {
        let Backend::Redis(redis) = &self.store else { return Ok(()) };
        let followed = redis.follow(|key| self.changed(key)).await;
        self.answers.store(followed.is_ok(), Relaxed);
        Ok(followed?)
    }

    /// Notifies one listener of all changes from now on. Further listeners are ignored.
    pub fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    /// The record of a key.
    /// Fails when the store is away.
    pub async fn get(&self, key: RecordKey) -> Result<Option<Record>, StoreError> {
        match &self.store {
            Backend::Folder(store) => store.read(move |folder| folder.get(&key)).await,
            Backend::Redis(redis) => Ok(redis.get(&key).await?),
        }
    }

    /// The first `most` records after `after` whose keys begin with `prefix`, in the order of their keys.
    /// Fails when the store is away.
    pub async fn page(
        &self,
        prefix: KeyPrefix,
        after: Option<RecordKey>,
        most: usize,
    ) -> Result<Vec<(RecordKey, Record)>, StoreError> {
        match &self.store {
            Backend::Folder(store) => {
                store.read(move |folder| folder.page(&prefix, after.as_ref(), most)).await
            }
            Backend::Redis(redis) => Ok(redis.page(&prefix, after.as_ref(), most).await?),
        }
    }

    /// How many records there are, roughly. `None`: not known.
    pub fn count(&self) -> Option<u64> {
        match &self.store {
            Backend::Folder(store) => store.count(),
            Backend::Redis(_) => None,
        }
    }

    /// Adds, replaces or removes a record if the existing one is `before`. Returns whether it was: somebody else may
    /// have changed it since.
    /// Fails when the store did not do it.
    pub async fn exchange(
        &self,
        key: RecordKey,
        before: Option<Record>,
        after: Option<Record>,
    ) -> Result<bool, StoreError> {
        let changed = key.clone();
        let was_before = match &self.store {
            Backend::Folder(store) => {
                self.write(store, move |folder| folder.exchange(&key, before, after)).await?
            }
            Backend::Redis(redis) => redis.exchange(&key, before, after).await?,
        };
        if was_before {
            self.changed(Some(&changed));
        }
        Ok(was_before)
    }

    /// Makes sure that a record which is as it should be stays so, and that all nodes know it: an earlier change that failed may be
    /// done later, or was not announced. Returns whether it is still as it should be.
    /// Fails when the store did not do it.
    pub async fn confirm(&self, key: &RecordKey, record: Option<Record>) -> Result<bool, StoreError> {
        match &self.store {
            Backend::Folder(store) => {
                let key = key.clone();
                self.write(store, move |folder| folder.confirm(&key, record)).await
            }
            Backend::Redis(redis) => {
                redis.announce_again(key, record.is_some()).await?;
                self.changed(Some(key));
                Ok(true)
            }
        }
    }

    /// Adds or replaces all of these, or none.
    /// Fails when the store did not take them.
    pub async fn load(&self, batch: Vec<(RecordKey, Record)>) -> Result<(), StoreError> {
        let batch = Arc::new(batch);
        let loaded = Arc::clone(&batch);
        match &self.store {
            Backend::Folder(store) => self.write(store, move |folder| folder.load(&loaded)).await?,
            Backend::Redis(redis) => redis.load(&loaded).await?,
        }
        batch.iter().for_each(|(key, _)| self.changed(Some(key)));
        Ok(())
    }

    /// Makes a call that writes to the folder. If the folder was reopened for it, the listener is notified, also when
    /// the call fails.
    async fn write<T: Send + 'static>(
        &self,
        store: &FolderStore<R>,
        write: impl Fn(&Folder) -> Result<T, FolderError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let done = store.write(write).await;
        self.tell_if_opened(store);
        done
    }

    /// A folder that was reopened may contain a change that had failed.
    fn tell_if_opened(&self, store: &FolderStore<R>) {
        if store.was_opened() {
            self.changed(None);
        }
    }

    fn changed(&self, key: Option<&RecordKey>) {
        if let Some(listener) = self.listener.get() {
            listener(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;

    use super::*;
    use tidegate_records::{Change, EmbeddedTrees, Tree, Trees};

    #[tokio::test]
    async fn who_listens_hears_of_a_folder_that_was_reopened_by_a_change_that_failed() {
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let records = RecordStore::in_folder(temporary.path(), || {}).expect("threads");
        let Backend::Folder(store) = &records.store else { panic!("it is a folder") };
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&heard);
        records.listen(Box::new(move |key| hears.lock().expect("no panic").push(key.cloned())));
        let refuses = |_: &Folder| Err::<(), _>(FolderError::Closed("full".to_owned()));
        assert!(records.write(store, refuses).await.is_err());
        assert!(records.count().is_some(), "it is open");
        assert_eq!(*heard.lock().expect("no panic"), [None]);
    }

    /// A disk that refuses the first change, and has it when the folder is opened the next time.
    struct LateTrees(Mutex<bool>);

    struct LateTree {
        tree: Box<dyn Tree>,
        refused: Mutex<Option<(RecordKey, Option<Record>)>>,
        refuses: Mutex<bool>,
    }

    impl Trees for LateTrees {
        fn open(&self, folder: &Path) -> Result<Box<dyn Tree>, FolderError> {
            let refuses = std::mem::take(&mut *self.0.lock().expect("no panic"));
            let tree = EmbeddedTrees.open(folder)?;
            Ok(Box::new(LateTree { tree, refused: Mutex::default(), refuses: Mutex::new(refuses) }))
        }

        fn probe(&self, folder: &Path) -> Result<(), FolderError> {
            EmbeddedTrees.probe(folder)
        }
    }

    impl Tree for LateTree {
        fn get(&self, key: &RecordKey) -> Result<Option<Record>, FolderError> {
            self.tree.get(key)
        }

        fn has(&self, key: &RecordKey) -> Result<bool, FolderError> {
            self.tree.has(key)
        }

        fn page(
            &self,
            prefix: &KeyPrefix,
            after: Option<&RecordKey>,
            most: usize,
        ) -> Result<Vec<(RecordKey, Record)>, FolderError> {
            self.tree.page(prefix, after, most)
        }

        fn count(&self) -> u64 {
            self.tree.count()
        }

        fn write(&self, changes: &mut dyn Iterator<Item = Change<'_>>) -> Result<(), FolderError> {
            if !std::mem::take(&mut *self.refuses.lock().expect("no panic")) {
                return self.tree.write(changes);
            }
            let (key, record) = changes.next().expect("a change");
            *self.refused.lock().expect("no panic") = Some((key.clone(), record.copied()));
            let source = std::io::Error::other("on purpose");
            Err(FolderError::Io { what: "use", path: PathBuf::from("late"), source })
        }
    }

    impl Drop for LateTree {
        fn drop(&mut self) {
            if let Some((key, record)) = self.refused.lock().expect("no panic").take() {
                self.tree.write(&mut [(&key, record.as_ref())].into_iter()).expect("written");
            }
        }
    }

    /// Who wants what is there already must not be overtaken by a change that had failed before.
    #[tokio::test]
    async fn what_is_confirmed_is_not_replaced_by_a_change_that_had_failed() {
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let folder = Folder::closed_on(temporary.path(), Arc::new(LateTrees(Mutex::new(true))));
        let pool = || Pool::new("test", 1, 2, || {}).expect("threads");
        let records = RecordStore::in_folder_on(Tokio, folder, pool(), pool());
        records.open().await;
        let key = RecordKey::of("d", [("tenant", "a")]).expect("a key");
        let record = Some(Record::of(5));
        assert!(records.confirm(&key, None).await.expect("read"), "nothing has failed");
        assert!(records.exchange(key.clone(), None, record).await.is_err());
        assert_eq!(records.get(key.clone()).await.expect("read"), None);
        assert!(!records.confirm(&key, None).await.expect("opened again"), "the change is there now");
        assert_eq!(records.get(key.clone()).await.expect("read"), record);
        assert!(records.confirm(&key, record).await.expect("read"));
    }

    /// Only in a Cluster a change may be done and not announced. Elsewhere nobody has to be asked.
    #[tokio::test]
    async fn in_a_cluster_what_cannot_be_announced_is_not_confirmed() {
        use tidegate_redis::RedisOptions;
        use tidegate_redis::address::{Address, Servers};
        let nobody = || Address::Tcp("127.0.0.1".to_owned(), 1);
        let key = RecordKey::of("d", [("tenant", "a")]).expect("a key");
        for (servers, is_done) in
            [(Servers::Cluster(vec![nobody()]), false), (Servers::Single(nobody()), true)]
        {
            let records =
                RecordStore::in_redis(RedisStore::new(RedisOptions::new(servers).without_counters()));
            let heard = Arc::new(Mutex::new(Vec::new()));
            let hears = Arc::clone(&heard);
            records.listen(Box::new(move |key| hears.lock().expect("no panic").push(key.cloned())));
            assert_eq!(records.confirm(&key, None).await.ok(), is_done.then_some(true));
            assert_eq!(heard.lock().expect("no panic").contains(&Some(key.clone())), is_done);
        }
    }

    #[tokio::test]
    async fn a_redis_that_answers_no_more_is_not_up() {
        use tidegate_redis::RedisOptions;
        use tidegate_redis::address::{Address, Servers};
        let nobody = Servers::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
        let records = RecordStore::in_redis(RedisStore::new(RedisOptions::new(nobody).without_counters()));
        records.answers.store(true, Relaxed);
        assert!(records.follow().await.is_err() && !records.is_up());
    }

    #[tokio::test]
    async fn who_listens_hears_of_every_change_once_it_is_in_force() {
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let records = Arc::new(RecordStore::in_folder(temporary.path(), || {}).expect("threads"));
        records.open().await;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&heard);
        let counted = Arc::downgrade(&records);
        records.listen(Box::new(move |key| {
            let count = counted.upgrade().and_then(|records| records.count());
            hears.lock().expect("no panic").push((key.cloned(), count));
        }));
        let key = |tenant: &str| RecordKey::of("d", [("tenant", tenant)]).expect("a key");
        let record = Record::of(5);
        records.load(vec![(key("a"), record), (key("b"), record)]).await.expect("written");
        assert!(records.exchange(key("c"), None, Some(record)).await.expect("written"));
        assert!(!records.exchange(key("c"), None, Some(record)).await.expect("read"));
        assert_eq!(records.get(key("c")).await.expect("read"), Some(record));
        assert!(records.exchange(key("c"), Some(record), None).await.expect("written"));
        assert_eq!(records.get(key("c")).await.expect("read"), None);
        let page = records.page(KeyPrefix::everything(), None, 10).await.expect("read");
        assert_eq!(page, [(key("a"), record), (key("b"), record)]);
        let (keys, counts): (Vec<_>, Vec<_>) = heard.lock().expect("no panic").iter().cloned().unzip();
        assert_eq!(keys, ["a", "b", "c", "c"].map(|tenant| Some(key(tenant))));
        assert_eq!(counts[..3], [2, 2, 3].map(Some), "it is there when somebody hears of it");
    }
}
