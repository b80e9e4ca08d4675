//! Records for requests: where they are looked up, how this node follows changes, and metrics of both.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::clock::monotonic;
use crate::configuration::Lookup;
use tidegate_operate::records::{RecordStore, StoreError};
use tidegate_records::RecordKey;
use tidegate_serve::metrics::{
    MetricType::{Counter, Gauge},
    Metrics,
};
use tidegate_serve::service::{KnownRecords, NoAnswer, RecordAnswer, RecordSource};
use tidegate_state::Author;

/// How often the stream of changes is read: several times a second, so that a change is in force everywhere within
/// one.
const READ_INTERVAL: Duration = Duration::from_millis(200);
/// How long a store may take for its first answer before that is logged.
const FIRST_ANSWER_MAX: Duration = Duration::from_secs(2);

/// The store, as decisions use it.
struct Source(Arc<RecordStore>);

impl RecordSource for Source {
    fn attach(&self) {
        self.0.attach();
    }

    fn get(&self, key: RecordKey) -> RecordAnswer<'_> {
        // Failures are reported once for the store: a line for each key would be a line for each request.
        Box::pin(async move { self.0.get(key).await.map_err(|_| NoAnswer) })
    }
}

/// Keeps the cache of records in step with a store that other nodes change.
pub(super) struct Follower {
    store: Arc<RecordStore>,
    records: Arc<KnownRecords>,
    stale_max: Duration,
}

/// The records of a store, for decisions; and the follower of changes, if other nodes make any.
pub(super) fn records(
    store: Option<&Arc<RecordStore>>,
    options: &Lookup,
    author: &Author,
    metrics: &Metrics,
) -> (Option<Arc<KnownRecords>>, Option<Follower>) {
    let Some(store) = store else { return (None, None) };
    let source = Source(Arc::clone(store));
    let records = Arc::new(KnownRecords::new(source, author.secret.secret(), options.records));
    let hears = Arc::clone(&records);
    store.listen(Box::new(move |key| match key {
        Some(key) => hears.forget(key),
        None => hears.forget_all(),
    }));
    register(metrics, store, &records);
    let follower = store.is_shared().then(|| {
        records.unfollow();
        let (store, records) = (Arc::clone(store), Arc::clone(&records));
        Follower { store, records, stale_max: options.stale_max }
    });
    (Some(records), follower)
}

impl Follower {
    /// Reads the stream of changes, for ever.
    pub(super) async fn follow(self) -> Infallible {
        let (mut confirmed, mut logged) = (monotonic(), None);
        loop {
            // What was fetched before the first reading is dropped by it.
            let read = self.store.follow().await;
            if read.is_ok() {
                self.records.follow();
                confirmed = monotonic();
            }
            let silent = monotonic().saturating_duration_since(confirmed);
            // At the start it is not connected yet.
            if logged != Some(read.is_ok()) && (read.is_ok() || logged.is_some() || silent > FIRST_ANSWER_MAX)
            {
                logged = Some(read.is_ok());
                self.log(read.as_ref().err());
            }
            self.records.set_stale(read.is_err() && silent > self.stale_max);
            tokio::time::sleep(READ_INTERVAL).await;
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

#[rustfmt::skip]
fn register(metrics: &Metrics, store: &Arc<RecordStore>, records: &Arc<KnownRecords>) {
    metrics
        .of(records)
        .value(Counter, "tidegate_limits_fetches_total", "Keys whose records were asked of the store.", |records| records.stats().fetches.load(Relaxed))
        .value(Counter, "tidegate_limits_fetch_failures_total", "Of these, those that it did not answer for.", |records| records.stats().failures.load(Relaxed))
        .value(Counter, "tidegate_limits_stale_total", "Descriptors that LIMITS_STALE_MODE decided, because the store was away.",
            |records| records.stats().stale.load(Relaxed))
        .value(Gauge, "tidegate_limits_cached", "Keys whose records are known, or that are known to have none (LIMITS_CACHE_SIZE).", KnownRecords::cached);
    metrics.of(store).value(Gauge, "tidegate_limits_up", "1 while the store of records answers.", |store| {
        u64::from(store.is_up())
    });
}
