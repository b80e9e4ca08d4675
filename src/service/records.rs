//! Records of the keys that requests ask about, as decisions read them.
//!
//! In: a request with its plan. Out: the records of its descriptors, as [`Found`]. What is cached answers at once
//! ([`look`](Records::look)); the rest is fetched from the store while the request waits ([`find`](Records::find)), and is
//! cached. A key without a record is cached too. While the store is away, what was known last holds for a while; then
//! [`StaleMode`] says what does.
//!
//! Everything is bounded: the cache, the fetches under way, the requests that wait for them, and how long they wait. A
//! request beyond these bounds is treated as if the store were away.

mod fetches;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;

use std::hash::BuildHasherDefault;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::FutureExt;
use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use smallvec::SmallVec;
use tokio::sync::Semaphore;

use self::fetches::{Fetches, Flight, Landing};
use tidegate_engine::key::{Key, KeySecret};
use tidegate_engine::keyed::HighHalf;
use tidegate_engine::plan::{Check, Origin, Plan, Step};
use tidegate_engine::records::{Doubt, Found, Terms};
use tidegate_engine::request::Request;
use tidegate_engine::rules::Rule;
use tidegate_records::{Record, RecordKey};
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

/// The store did not answer for a record. Whoever asked it has told why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store of records does not answer")]
pub struct NoAnswer;

/// What holds for a key while the store is away and what was known last is too old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaleMode {
    /// The limit of its rule.
    #[default]
    Rule,
    /// What was known last, however old; the limit of its rule if nothing was.
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
    /// What holds while the store is away.
    pub stale_mode: StaleMode,
}

/// What is known of one key.
type Known = Option<Terms>;

/// Records, as far as they are known here.
pub struct Records<R: Runtime = Tokio> {
    runtime: R,
    source: Box<dyn RecordSource>,
    secret: KeySecret,
    options: RecordsOptions,
    /// A scan through many keys pushes out little that is used (S3-FIFO).
    cache: Cache<Key, Known, UnitWeighter, BuildHasherDefault<HighHalf>>,
    fetches: Fetches,
    waiting: Semaphore,
    /// Changes are heard of, so what is fetched may be kept.
    is_followed: AtomicBool,
    /// Changes were not heard of for too long, so nothing that is known counts as confirmed.
    is_stale: AtomicBool,
    stats: RecordStats,
}

/// What was done to find records.
#[derive(Debug, Default)]
pub struct RecordStats {
    /// Keys that were asked of the store.
    pub fetches: AtomicU64,
    /// Of these, those that it did not answer for.
    pub failures: AtomicU64,
    /// Descriptors that were decided by [`StaleMode`].
    pub stale: AtomicU64,
}

/// A check whose key may have a record.
struct Asked<'p> {
    /// The index of its descriptor.
    descriptor: usize,
    rule: &'p Rule,
    name: Key,
}

impl Records {
    /// Records of this source. The names in the cache are made under `secret`, as those of rules are.
    pub fn new(source: impl RecordSource, secret: KeySecret, options: RecordsOptions) -> Self {
        Self::on(Tokio, source, secret, options)
    }
}

impl<R: Runtime> Records<R> {
    /// The same on this runtime.
    pub fn on(runtime: R, source: impl RecordSource, secret: KeySecret, options: RecordsOptions) -> Self {
        let entries = options.cache_entries.max(1);
        let cache = Cache::with(
            entries,
            entries as u64,
            UnitWeighter,
            BuildHasherDefault::default(),
            DefaultLifecycle::default(),
        );
        Self {
            runtime,
            source: Box::new(source),
            secret,
            options,
            cache,
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

    /// The records of a request, and how many keys were looked up. `None`: one is not known here.
    pub(super) fn look(&self, request: &Request<'_>, plan: &Plan<'_>) -> Option<(Found, usize)> {
        let (mut found, mut keys) = (Found::default(), 0);
        for Asked { descriptor, rule, name } in asked(request, plan) {
            let known = self.cache.get(&name)?;
            let (known, doubt) = self.as_confirmed(known);
            known.into_iter().for_each(|terms| found.add(descriptor, rule, terms));
            doubt.into_iter().for_each(|doubt| found.doubt(descriptor, doubt));
            keys += 1;
        }
        Some((found, keys))
    }

    /// The records of a request, from the store as far as they are not known. The caller waits for `timeout`.
    pub(super) async fn find(
        self: &Arc<Self>,
        request: &Request<'_>,
        plan: &Plan<'_>,
        timeout: Option<Duration>,
    ) -> Found {
        let waiting = self.waiting.try_acquire();
        let time = timeout.unwrap_or(Duration::MAX).min(self.options.timeout);
        let mut time_is_over = pin!(self.runtime.sleep(time).fuse());
        // All fetches begin before the first is waited for.
        let mut all = SmallVec::<[_; 2]>::new();
        for asked in asked(request, plan) {
            let fetched = self.begin(request, &asked, waiting.is_ok());
            all.push((asked, fetched));
        }
        let mut found = Found::default();
        for (Asked { descriptor, rule, name }, fetched) in all {
            let known = match fetched {
                Fetched::Known(known) => Ok(self.as_confirmed(known)),
                Fetched::Flight(flight) => {
                    flight.landed(time_is_over.as_mut()).await.map(|known| (known, None))
                }
                Fetched::Refused => Err(NoAnswer),
            };
            let (known, doubt) = known.unwrap_or_else(|NoAnswer| self.without_store(self.cache.get(&name)));
            known.into_iter().for_each(|terms| found.add(descriptor, rule, terms));
            doubt.into_iter().for_each(|doubt| found.doubt(descriptor, doubt));
        }
        found
    }

    /// What is known of a key, or the flight that fetches it.
    fn begin(self: &Arc<Self>, request: &Request<'_>, asked: &Asked<'_>, may_wait: bool) -> Fetched {
        if let Some(known) = self.cache.get(&asked.name) {
            return Fetched::Known(known);
        }
        let entries = request.descriptors().nth(asked.descriptor).map(|descriptor| descriptor.entries);
        let entries = entries.unwrap_or_default().iter().map(|entry| (entry.key, entry.value));
        let Ok(key) = RecordKey::of(request.domain(), entries) else {
            // No record can be for such entries, so there is nothing to hear of either.
            self.cache.insert(asked.name, None);
            return Fetched::Known(None);
        };
        if !may_wait {
            return Fetched::Refused;
        }
        self.fetches
            .join(asked.name, |landing| self.fetch(key, landing))
            .map_or(Fetched::Refused, Fetched::Flight)
    }

    /// Asks the store, on a task of its own: whoever waits may go away.
    fn fetch(self: &Arc<Self>, key: RecordKey, landing: Landing) {
        let records = Arc::clone(self);
        self.runtime.spawn(async move {
            records.stats.fetches.fetch_add(1, Relaxed);
            let answer = records.runtime.timeout(FETCH_TIMEOUT, records.source.get(key)).await;
            let known = answer.unwrap_or(Err(NoAnswer)).map(|record| record.map(terms));
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

    /// What holds for a key of which this is in the cache.
    fn as_confirmed(&self, known: Known) -> (Known, Option<Doubt>) {
        if self.is_stale.load(Relaxed) { self.without_store(Some(known)) } else { (known, None) }
    }

    /// What holds for a key while the store is away, of which this was known last.
    fn without_store(&self, last: Option<Known>) -> (Known, Option<Doubt>) {
        self.stats.stale.fetch_add(1, Relaxed);
        let (known, doubt) = match (self.options.stale_mode, last) {
            (StaleMode::Last, Some(last)) => (last, Doubt::KnownLast),
            (StaleMode::Last, None) | (StaleMode::Rule, _) => (None, Doubt::NotKnown),
            (StaleMode::Deny, _) => (Some(Terms::NOTHING_PASSES), Doubt::NotKnown),
        };
        (known, Some(doubt))
    }

    /// The record of this key is this one, or it has none.
    pub(super) fn know(&self, key: &RecordKey, record: Option<Record>) {
        self.cache.insert(self.name(key), record.map(terms));
    }

    fn name(&self, key: &RecordKey) -> Key {
        let (domain, entries) = key.decode();
        let entries = entries.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        self.secret.records(&domain).record_name(entries)
    }

    /// The record of this key has changed: it is asked for again.
    pub fn forget(&self, key: &RecordKey) {
        let name = self.name(key);
        self.fetches.forget(name, || {
            self.cache.remove(&name);
        });
    }

    /// Any record may have changed.
    pub fn forget_all(&self) {
        self.fetches.forget_all(|| self.cache.clear());
    }

    /// Whether changes are heard of from now on. Until they are, nothing that is fetched is kept.
    pub fn follow(&self, is_followed: bool) {
        self.is_followed.store(is_followed, Relaxed);
    }

    /// Whether changes were not heard of for so long that what is known counts as confirmed no more.
    pub fn doubt(&self, is_stale: bool) {
        self.is_stale.store(is_stale, Relaxed);
    }

    /// What was done to find records.
    pub fn stats(&self) -> &RecordStats {
        &self.stats
    }

    /// Keys in the cache now.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }
}

/// What is known of a key, or how it will be.
enum Fetched {
    Known(Known),
    Flight(Flight),
    /// There are too many fetches, or too many that wait.
    Refused,
}

/// The checks of a plan whose keys may have records.
fn asked<'p>(request: &Request<'_>, plan: &Plan<'p>) -> impl Iterator<Item = Asked<'p>> {
    let steps = plan.steps.iter().zip(request.descriptors()).enumerate();
    steps.filter_map(|(descriptor, (step, asked))| match step {
        Step::Check(Check { origin: Origin::Rule(rule), .. }) => {
            Some(Asked { descriptor, rule, name: rule.record_name(asked.entries)? })
        }
        _ => None,
    })
}

/// A record in the words of the engine.
fn terms(record: Record) -> Terms {
    Terms {
        requests: record.requests,
        burst: record.burst,
        window: record.window.map(|window| (window.multiplier, window.unit)),
        algorithm: record.algorithm,
        granularity_nanos: record.granularity_nanos,
        shadow: record.shadow,
        unlimited: record.unlimited,
    }
}
