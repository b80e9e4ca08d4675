//! Records as decisions look them up, and how a node follows the changes of others.
//!
//! In: the store, and what is changed there. Out: a cache of records that is in step with it. Changes of this node are
//! dropped from the cache at once, and those of others when the stream of changes is read.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::{RecordStore, StoreError};
use tidegate_engine::key::KeySecret;
use tidegate_records::RecordKey;
use tidegate_redis::runtime::{Runtime, Tokio};
use tidegate_serve::service::{KnownRecords, NoAnswer, RecordAnswer, RecordSource, RecordsOptions};

/// How often the stream of changes is read: several times a second, so that a change is in force everywhere within
/// one.
const READ_INTERVAL: Duration = Duration::from_millis(200);
/// How long a store may take for its first answer before that is logged.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(2);

/// The store, as decisions use it.
struct Source<R: Runtime>(Arc<RecordStore<R>>);

impl<R: Runtime> RecordSource for Source<R> {
    fn attach(&self) {
        self.0.attach();
    }

    fn get(&self, key: RecordKey) -> RecordAnswer<'_> {
        // Failures are reported once for the store: a line for each key would be a line for each request.
        Box::pin(async move { self.0.get(key).await.map_err(|_| NoAnswer) })
    }
}

/// The records of a store, for decisions on this runtime. If other nodes change them too, somebody has to
/// [follow](Follower::follow) the changes.
pub fn looked_up<R: Runtime>(
    runtime: R,
    store: &Arc<RecordStore<R>>,
    secret: KeySecret,
    options: RecordsOptions,
) -> Arc<KnownRecords<R>> {
    let records = Arc::new(KnownRecords::on(runtime, Source(Arc::clone(store)), secret, options));
    let hears = Arc::clone(&records);
    store.listen(Box::new(move |key| match key {
        Some(key) => hears.forget(key),
        None => hears.forget_all(),
    }));
    records
}

/// Keeps the cache of records in step with a store that other nodes change.
pub struct Follower<R: Runtime = Tokio> {
    runtime: R,
    store: Arc<RecordStore<R>>,
    records: Arc<KnownRecords<R>>,
    stale_max: Duration,
}

impl<R: Runtime> Follower<R> {
    /// The follower of a store whose records are these. Until it has read the changes once, nothing that is looked up is
    /// cached. `stale_max`: how long cached records count as confirmed while the store does not answer.
    pub fn new(
        runtime: R,
        store: Arc<RecordStore<R>>,
        records: Arc<KnownRecords<R>>,
        stale_max: Duration,
    ) -> Self {
        records.unfollow();
        Self { runtime, store, records, stale_max }
    }

    /// Reads the stream of changes, for ever.
    pub async fn follow(self) -> Infallible {
        let (mut confirmed, mut logged) = (self.runtime.monotonic(), None);
        loop {
            // What was fetched before the first reading is dropped by it.
            let read = self.store.follow().await;
            if read.is_ok() {
                self.records.follow();
                confirmed = self.runtime.monotonic();
            }
            let silent = self.runtime.monotonic().saturating_duration_since(confirmed);
            if is_news(logged, read.is_ok(), silent) {
                logged = Some(read.is_ok());
                self.log(read.as_ref().err());
            }
            self.records.set_stale(read.is_err() && silent > self.stale_max);
            self.runtime.sleep(READ_INTERVAL).await;
        }
    }

    /// Notes whether the store answers.
    fn log(&self, error: Option<&StoreError>) {
        match error {
            None => tracing::info!("records: the store answers (LIMITS_URL)"),
            Some(error) => tracing::warn!(
                "records: {error}; cached records are used for {:?} (LIMITS_STALE_MAX)",
                self.stale_max
            ),
        }
    }
}

/// Whether it is logged that the store answers, or that it does not: when that changes. `logged`: what was logged last. At the
/// start the store is not connected yet, and may be silent for a while.
fn is_news(logged: Option<bool>, answers: bool, silent: Duration) -> bool {
    logged != Some(answers) && (answers || logged.is_some() || silent > FIRST_ANSWER_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use tidegate_engine::request::Request;
    use tidegate_redis::address::{Address, Servers};
    use tidegate_redis::{RedisOptions, RedisStore};
    use tidegate_serve::service::{Service, ServiceError, StaleMode, fixture};

    const RULES: &str = "
domain: shop
descriptors: [{key: user, limits_from: store, rate_limit: {unit: day, requests_per_unit: 9}}]
";
    const OPTIONS: RecordsOptions =
        RecordsOptions { cache_entries: 9, timeout: READ_INTERVAL, stale_mode: StaleMode::Rule };

    fn secret() -> KeySecret {
        KeySecret::new([7; 16])
    }

    /// Asks for a request of one user, who has no record. Returns how many records are kept then.
    async fn kept(records: &Arc<KnownRecords>) -> usize {
        let service: Service = fixture::service(Some(RULES), &fixture::metrics());
        let service = service.recorded(Some(Arc::clone(records)));
        let read = |request: &mut Request<'_>| {
            *request = Request::new("shop", 1).descriptor(&[("user", "alice")]);
            Ok::<_, ServiceError>(())
        };
        let live = service.snapshot().expect("rules");
        service.finish(live.in_force(), read, None, |_, _| ()).await.expect("memory answers");
        records.cached()
    }

    #[tokio::test]
    async fn what_was_looked_up_is_forgotten_when_it_may_have_changed() {
        let temporary = tempfile::tempdir().expect("a folder for the test");
        let store = Arc::new(RecordStore::in_folder(temporary.path(), || {}).expect("threads"));
        let records = looked_up(Tokio, &store, secret(), OPTIONS);
        store.open().await;
        let key = RecordKey::of("shop", [("user", "alice")]).expect("a key");
        for changed in [Some(&key), None] {
            assert_eq!(kept(&records).await, 1);
            store.changed(changed);
            assert_eq!(records.cached(), 0, "{changed:?}");
        }
    }

    struct NoRecords;

    impl RecordSource for NoRecords {
        fn get(&self, _: RecordKey) -> RecordAnswer<'_> {
            Box::pin(std::future::ready(Ok(None)))
        }
    }

    #[test]
    fn it_is_logged_once_whether_the_store_answers() {
        let (short, long) = (FIRST_ANSWER_MAX, FIRST_ANSWER_MAX + READ_INTERVAL);
        for silent in [short, long] {
            assert!(is_news(None, true, silent) && is_news(Some(false), true, silent));
            assert!(is_news(Some(true), false, silent));
            assert!(!is_news(Some(true), true, silent) && !is_news(Some(false), false, silent));
        }
        assert!(!is_news(None, false, short) && is_news(None, false, long), "it is not connected yet");
    }

    /// Records can be fetched, and changes cannot be read.
    fn unread(stale_max: Duration) -> (Arc<KnownRecords>, Follower) {
        let nobody = Servers::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
        let store = RecordStore::in_redis(RedisStore::new(RedisOptions::new(nobody).without_counters()));
        let records = Arc::new(KnownRecords::new(NoRecords, secret(), OPTIONS));
        let follower = Follower::new(Tokio, Arc::new(store), Arc::clone(&records), stale_max);
        (records, follower)
    }

    /// The clock of the runtime is paused: pauses pass at once.
    #[tokio::test(start_paused = true)]
    async fn without_changes_nothing_is_kept_at_first_and_later_nothing_is_confirmed() {
        let (records, follower) = unread(Duration::ZERO);
        let following = tokio::spawn(follower.follow());
        tokio::time::sleep(READ_INTERVAL).await;
        assert_eq!(kept(&records).await, 0);
        // As if they had been read once.
        records.follow();
        assert_eq!(kept(&records).await, 1);
        assert_eq!(records.stats().stale.load(Relaxed), 0, "it was asked for");
        kept(&records).await;
        assert!(records.stats().stale.load(Relaxed) > 0);
        following.abort();
    }

    /// The clock of the runtime is paused: pauses pass at once.
    #[tokio::test(start_paused = true)]
    async fn what_is_kept_is_confirmed_while_changes_were_not_read_for_a_short_time() {
        let (records, follower) = unread(Duration::from_secs(3_600));
        let following = tokio::spawn(follower.follow());
        // As if they had been read once.
        records.follow();
        assert_eq!(kept(&records).await, 1);
        tokio::time::sleep(3 * READ_INTERVAL).await;
        assert_eq!(kept(&records).await, 1);
        assert_eq!(records.stats().stale.load(Relaxed), 0);
        following.abort();
    }
}
