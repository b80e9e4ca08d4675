//! Records of the keys that requests ask about, as decisions read them.
//!
//! In: a request with its plan. Out: the records of its descriptors, as [`Found`]. Cached records answer at once
//! ([`look`](KnownRecords::look)); others are fetched from the store while the request waits
//! ([`find`](KnownRecords::find)), and are cached. A key without a record is cached too. While the store is away,
//! cached records are used for a while; then [`StaleMode`] applies.
//!
//! Everything is bounded: the cache, the fetches in flight, the requests that wait for them, and how long they wait.
//! A request beyond these bounds is treated as if the store were away.

mod fetches;
#[cfg(test)]
mod batches;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use futures_util::FutureExt;
use smallvec::SmallVec;
use tokio::sync::Semaphore;

use self::fetches::{Fetches, Flight, Landing};
use super::{AllFound, BATCH_MAX};
use tidegate_engine::key::{Key, KeySecret, KeySeed};
use tidegate_engine::known::RecordCache;
use tidegate_engine::overlay::{Finding, Found, Record, Unconfirmed};
use tidegate_engine::plan::Plan;
use tidegate_engine::request::{Entry, Request};
use tidegate_engine::rules::Rule;
use tidegate_records::RecordKey;
use tidegate_redis::runtime::{Runtime, Tokio};

/// Requests that may wait for records at a time. A request that waits takes about 2 KiB.
const WAITING_MAX: usize = 10_000;

/// A fetch that takes longer has failed. Requests wait less long for it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(1);

/// The answer of a store for one key. `Ok(None)`: it has no record.
pub type RecordAnswer<'s> = Pin<Box<dyn Future<Output = Result<Option<Record>, NoAnswer>> + Send + 's>>;

/// Where records are kept.
pub trait RecordSource: Send + Sync + 'static {
    /// Connects the calling worker, in the background.
    fn attach(&self) {}

    /// The record of a key.
    fn get(&self, key: RecordKey) -> RecordAnswer<'_>;
}

/// The store did not answer for a record. The caller has logged why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store of records does not answer")]
pub struct NoAnswer;

/// What applies to a key while the store is away and its cached record is too old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaleMode {
    /// The limit of its rule.
    #[default]
    Rule,
    /// The last known record, however old; without one the limit of its rule.
    Last,
    /// Nothing passes.
    Deny,
}

/// How records are looked up.
#[derive(Clone, Copy, Debug)]
pub struct RecordsOptions {
    /// The most keys in the cache, with a record or without.
    pub cache_entries: usize,
    /// How long a request waits for records.
    pub timeout: Duration,
    /// What applies while the store is away.
    pub stale_mode: StaleMode,
}

/// Records, as far as this node knows them.
pub struct KnownRecords<R: Runtime = Tokio> {
    runtime: R,
    source: Box<dyn RecordSource>,
    secret: KeySecret,
    options: RecordsOptions,
    cache: RecordCache,
    fetches: Fetches,
    waiting: Semaphore,
    /// Changes are followed, so fetched records may be kept.
    is_followed: AtomicBool,
    /// Changes were not followed for too long, so no cached record counts as confirmed.
    is_stale: AtomicBool,
    stats: RecordStats,
}

/// Counts of lookups.
#[derive(Debug, Default)]
pub struct RecordStats {
    /// Keys that the store was asked for.
    pub fetches: AtomicU64,
    /// Keys of these that it did not answer for.
    pub failures: AtomicU64,
    /// Descriptors that were decided by [`StaleMode`].
    pub stale: AtomicU64,
}

/// A check whose key may have a record.
struct RecordCheck<'p, 'e> {
    /// The index of its descriptor.
    descriptor: usize,
    rule: &'p Rule,
    /// The constant part of its record's name, and the entries that are the rest of it.
    seed: &'p KeySeed,
    entries: &'e [Entry<'e>],
}

impl RecordCheck<'_, '_> {
    #[inline]
    fn name(&self) -> Key {
        self.seed.record_name(self.entries.iter().map(|entry| entry.value))
    }
}

impl KnownRecords {
    /// Records of this source. The names in the cache are made under `secret`, as those of rules are.
    pub fn new(source: impl RecordSource, secret: KeySecret, options: RecordsOptions) -> Self {
        Self::on(Tokio, source, secret, options)
    }
}

impl<R: Runtime> KnownRecords<R> {
    /// The same on this runtime.
    pub fn on(runtime: R, source: impl RecordSource, secret: KeySecret, options: RecordsOptions) -> Self {
        Self {
            runtime,
            source: Box::new(source),
            secret,
            cache: RecordCache::new(options.cache_entries),
            options,
            fetches: Fetches::default(),
            waiting: Semaphore::new(WAITING_MAX),
            is_followed: AtomicBool::new(true),
            is_stale: AtomicBool::new(false),
            stats: RecordStats::default(),
        }
    }

    /// Connects the calling worker to the store, in the background.
    pub(super) fn attach(&self) {
        self.source.attach();
    }

    /// Adds the records of each request of a batch to `all`, and returns how many keys were answered for.
    pub(super) fn look<'b, 'r: 'b, 'p: 'b>(
        &self,
        requests: impl Iterator<Item = (&'b Request<'r>, &'b Plan<'p>)> + Clone,
        all: &mut AllFound,
    ) -> usize {
        let is_confirmed = self.is_confirmed();
        // The memory of all is prefetched before the first is read.
        let mut names = SmallVec::<[Key; BATCH_MAX]>::new();
        for (request, plan) in requests.clone() {
            for asked in asked(request, plan) {
                let name = asked.name();
                self.cache.fetch(name);
                names.push(name);
            }
        }
        let (mut names, mut keys) = (names.iter(), 0);
        for (place, (request, plan)) in requests.enumerate() {
            all.push(Some(Found::default()));
            let mut looked_up = 0;
            for (RecordCheck { descriptor, rule, .. }, &name) in asked(request, plan).zip(&mut names) {
                looked_up += 1;
                match (self.cache.get(name), &mut all[place]) {
                    (Some(known), Some(found)) => {
                        found.add(descriptor, rule, self.as_known(known, is_confirmed));
                    }
                    (_, found) => *found = None,
                }
            }
            keys += if all[place].is_some() { looked_up } else { 0 };
        }
        keys
    }

    /// The records of a request, from the store as far as they are not known. The caller waits for `timeout`.
    pub(super) async fn find(
        self: &Arc<Self>,
        request: &Request<'_>,
        plan: &Plan<'_>,
        timeout: Option<Duration>,
    ) -> Found {
        let is_confirmed = self.is_confirmed();
        let waiting = self.waiting.try_acquire();
        let time = timeout.unwrap_or(Duration::MAX).min(self.options.timeout);
        let mut time_is_over = pin!(self.runtime.sleep(time).fuse());
        // All fetches begin before the first is waited for.
        let mut all = SmallVec::<[_; 2]>::new();
        for asked in asked(request, plan) {
            let name = asked.name();
            let fetched = self.begin(request.domain(), &asked, name, waiting.is_ok());
            all.push((asked, name, fetched));
        }
        let mut found = Found::default();
        for (RecordCheck { descriptor, rule, .. }, name, fetched) in all {
            let known = match fetched {
                Fetched::Known(known) => Ok(self.as_known(known, is_confirmed)),
                Fetched::Flight(flight) => flight.landed(time_is_over.as_mut()).await.map(Finding::from),
                Fetched::Refused => Err(NoAnswer),
            };
            let known = known.unwrap_or_else(|NoAnswer| self.without_store(self.cache.get(name)));
            found.add(descriptor, rule, known);
        }
        found
    }

    /// The cached record of a key, or the fetch for it.
    fn begin(
        self: &Arc<Self>,
        domain: &str,
        asked: &RecordCheck<'_, '_>,
        name: Key,
        may_wait: bool,
    ) -> Fetched {
        if let Some(known) = self.cache.get(name) {
            return Fetched::Known(known);
        }
        let entries = asked.entries.iter().map(|entry| (entry.key, entry.value));
        let Ok(key) = RecordKey::of(domain, entries) else {
            // Such entries cannot have a record, so there are no changes to follow either.
            self.cache.insert(name, None);
            return Fetched::Known(None);
        };
        if !may_wait {
            return Fetched::Refused;
        }
        let flight = self.fetches.join(name, |landing| self.fetch(key, landing));
        flight.map_or(Fetched::Refused, Fetched::Flight)
    }

    /// Asks the store, on a task of its own, because the requests that wait may go away.
    fn fetch(self: &Arc<Self>, key: RecordKey, landing: Landing) {
        let records = Arc::clone(self);
        self.runtime.spawn(async move {
            records.stats.fetches.fetch_add(1, Relaxed);
            let answer = records.runtime.timeout(FETCH_TIMEOUT, records.source.get(key)).await;
            let known = answer.unwrap_or(Err(NoAnswer));
            if known.is_err() {
                records.stats.failures.fetch_add(1, Relaxed);
            }
            records.fetches.land(landing, known, |name, known| {
                if records.is_followed.load(Relaxed) {
                    records.cache.insert(name, known);
                }
            });
        });
    }

    /// Whether the contents of the cache are confirmed. Call it before reading the cache, and not again for what was
    /// read: when the store comes back, changed records are removed from the cache first, and the rest is confirmed
    /// afterwards.
    fn is_confirmed(&self) -> bool {
        !self.is_stale.load(Acquire)
    }

    /// What applies to a key with this entry in the cache.
    fn as_known(&self, known: Option<Record>, is_confirmed: bool) -> Finding {
        if is_confirmed { known.into() } else { self.without_store(Some(known)) }
    }

    /// What applies to a key while the store is away, with this last known record.
    fn without_store(&self, last: Option<Option<Record>>) -> Finding {
        self.stats.stale.fetch_add(1, Relaxed);
        let (record, unconfirmed) = match (self.options.stale_mode, last) {
            (StaleMode::Last, Some(last)) => (last, Unconfirmed::KnownLast),
            (StaleMode::Last, None) | (StaleMode::Rule, _) => (None, Unconfirmed::NotKnown),
            (StaleMode::Deny, _) => (Some(Record::NOTHING_PASSES), Unconfirmed::NotKnown),
        };
        Finding { record, unconfirmed: Some(unconfirmed) }
    }

    /// The record of this key is now this one, or it has none.
    #[cfg(any(test, feature = "fixture"))]
    pub(super) fn know(&self, key: &RecordKey, record: Option<Record>) {
        self.cache.insert(self.name(key), record);
    }

    fn name(&self, key: &RecordKey) -> Key {
        let (domain, entries) = key.decode();
        let keys = entries.iter().map(|(key, _)| key.as_str());
        self.secret.records(&domain, keys).record_name(entries.iter().map(|(_, value)| value.as_str()))
    }

    /// The record of this key has changed: the next request fetches it again.
    pub fn forget(&self, key: &RecordKey) {
        let name = self.name(key);
        self.fetches.forget(name, || {
            self.cache.remove(name);
        });
    }

    /// Any record may have changed.
    pub fn forget_all(&self) {
        // Fetches that began before this are not kept from here on, so none of them can fill the cache again after it
        // is cleared.
        self.fetches.forget_all();
        self.cache.clear();
    }

    /// Changes are followed from now on.
    pub fn follow(&self) {
        self.is_followed.store(true, Relaxed);
    }

    /// Changes are not followed until [`follow`](Self::follow). Meanwhile nothing that is fetched is kept.
    pub fn unfollow(&self) {
        self.is_followed.store(false, Relaxed);
    }

    /// Whether changes were not followed for so long that cached records no longer count as confirmed.
    pub fn set_stale(&self, is_stale: bool) {
        self.is_stale.store(is_stale, Release);
    }

    /// Counts of lookups.
    pub fn stats(&self) -> &RecordStats {
        &self.stats
    }

    /// Keys in the cache now.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }
}

/// A record that is known, or how it will be.
enum Fetched {
    Known(Option<Record>),
    Flight(Flight),
    /// There are too many fetches, or too many requests that wait.
    Refused,
}

/// The checks of a plan whose keys may have records.
#[inline]
fn asked<'p, 'b>(request: &'b Request<'_>, plan: &'b Plan<'p>) -> impl Iterator<Item = RecordCheck<'p, 'b>> {
    request.descriptors().enumerate().filter_map(|(descriptor, asked)| {
        let rule = plan.recorded_rule(descriptor)?;
        let (seed, entries) = (rule.records.as_ref()?, rule.own_entries(asked.entries));
        Some(RecordCheck { descriptor, rule, seed, entries })
    })
}
