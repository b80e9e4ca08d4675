//! The state of the process for people: the contents of the status page, as one JSON value.
//!
//! In: a call a second that samples counts ([`Status::sample`]), and readings of the parts of the process when
//! somebody looks ([`Status::view`]). Out: JSON. Nothing here is on the path of a request. Sampling costs some
//! microseconds a second and a little for each series, even if nobody looks, so that the page shows the last hours at
//! once. All of it is bounded.
//!
//! - `history`: the last day of the process; `rates`: the most important series of limits, and their rates
//! - `troubles`: what is wrong, in words
//! - `view`: all of it as JSON

mod history;
mod rates;
mod troubles;
mod view;

#[cfg(any(test, feature = "fixture"))]
#[doc(hidden)]
pub mod fixture;

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

pub use self::rates::Order;
pub use self::view::{Rows, View};

use self::history::{History, Reading, RoundTripCounts};
use self::rates::Rates;
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::rules::StoreFailure;
use tidegate_redis::{Failure, SharedStore};
use tidegate_serve::bans::SeenBan;
use tidegate_serve::clock::{self, Clock};
use tidegate_serve::denied::{self, DeniedKeys};
use tidegate_serve::health::Health;
use tidegate_serve::metrics::Metrics;
use tidegate_serve::reload::ReloadLog;
use tidegate_serve::service::StaleMode;

/// Series that are read each second: all of them in turn, within 25 s if there are 100,000.
const SERIES_READ: usize = 4_096;

/// The same while somebody looks: within 4 s.
const SERIES_READ_WATCHED: usize = 32_768;

/// Somebody is looking if the last request was no longer ago than this.
const WATCHED_MILLIS: u64 = 5_000;

/// How often the store is asked for its size. That locks every shard in turn, which takes milliseconds.
const STORE_READ_MILLIS: u64 = 5_000;

const DENIED_PERIOD_MILLIS: u64 = denied::PERIOD.as_millis() as u64;

/// The state of the process.
pub struct Status {
    parts: Parts,
    recent: Mutex<Recent>,
}

/// The parts of the process that are shown.
pub struct Parts {
    /// What does not change.
    pub about: About,
    /// All counts.
    pub metrics: Arc<Metrics>,
    /// Whether the process should get requests.
    pub health: Arc<Health>,
    /// The last changes of rules, certificates and other files.
    pub reloads: Arc<ReloadLog>,
    /// Counters in memory.
    pub store: Arc<MemoryStore>,
    /// Counters in Redis, and the fallback when Redis does not answer.
    pub shared: Option<(Arc<SharedStore>, StoreFailure)>,
    /// Whether the store of records answers, and what applies to keys without a known record while it does not.
    /// `None`: there is no store.
    pub records: Option<(Box<dyn Fn() -> bool + Send + Sync>, StaleMode)>,
    /// The keys that were denied most, if their names are kept.
    pub denied: Option<Arc<DeniedKeys>>,
    /// Whether everybody may see them and those that are banned, and not only bearers of the admin token.
    pub denied_for_all: bool,
    /// The bans in force that this node has seen, the one that ends last first, with times of the wall clock.
    pub bans: Box<dyn Fn() -> Vec<SeenBan> + Send + Sync>,
    /// The connections of clients that are open now.
    pub connections: Box<dyn Fn() -> usize + Send + Sync>,
    /// Events that were dropped.
    pub events_dropped: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The exceptions. `None`: there is no admin token, so nobody may see or change them.
    pub exceptions: Option<Box<dyn Fn() -> ExceptionsNow + Send + Sync>>,
    /// What is wrong with exceptions that nodes share, in a sentence.
    pub exceptions_trouble: Box<dyn Fn() -> Option<String> + Send + Sync>,
}

/// What the page may show of exceptions without the admin token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExceptionsNow {
    /// How many were made and not ended.
    pub count: u64,
    /// Grows with every change, so that the page knows when to ask for them again.
    pub changes: u64,
    /// Requests to the admin API that were refused because of their token or origin.
    pub refused: u64,
}

/// What does not change while the process runs.
#[derive(Clone, Debug)]
pub struct About {
    /// When it started. Times of samples are counted from here.
    pub started: Instant,
    /// The clock of decisions.
    pub clock: Clock,
    /// Threads that answer.
    pub workers: usize,
    /// The most bytes of counters in memory.
    pub store_bytes_max: u64,
    /// The settings that differ from their defaults.
    pub settings: Vec<Setting>,
}

/// A setting that differs from its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The variable's name.
    pub name: &'static str,
    /// Its value. For a secret, only that it is set.
    pub value: String,
    /// `flag` or `variable`.
    pub origin: &'static str,
}

#[derive(Debug, Default)]
struct Recent {
    history: History,
    rates: Rates,
    size: StoreSize,
    viewed_millis: Option<u64>,
    denied_turned_millis: u64,
}

/// The memory that counters take, as it was last read.
#[derive(Clone, Copy, Debug, Default)]
struct StoreSize {
    counters: u64,
    bytes: u64,
    read_millis: Option<u64>,
}

impl StoreSize {
    /// Reads it, if the last time was long ago.
    fn refresh(&mut self, store: &MemoryStore, now_millis: u64) {
        if self.read_millis.is_none_or(|at| now_millis.saturating_sub(at) >= STORE_READ_MILLIS) {
            *self = Self { counters: store.counters(), bytes: store.bytes(), read_millis: Some(now_millis) };
        }
    }
}

impl Status {
    /// The state of these parts.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self { parts, recent: Mutex::default() }
    }

    /// Milliseconds since the start.
    pub fn now_millis(&self) -> u64 {
        clock::nanos_since(self.parts.about.started) / 1_000_000
    }

    /// All counts.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.parts.metrics
    }

    /// Samples all counts, `now_millis` after the start of the process. To be called about once a second.
    pub fn sample(&self, now_millis: u64) {
        let mut recent = self.recent.lock();
        recent.size.refresh(&self.parts.store, now_millis);
        let reading = self.read(now_millis, recent.size.bytes);
        recent.history.add(reading);
        let is_watched =
            recent.viewed_millis.is_some_and(|at| now_millis.saturating_sub(at) < WATCHED_MILLIS);
        let most = if is_watched { SERIES_READ_WATCHED } else { SERIES_READ };
        recent.rates.read(&self.parts.metrics, now_millis, most);
        if let Some(denied) = &self.parts.denied
            && now_millis.saturating_sub(recent.denied_turned_millis) >= DENIED_PERIOD_MILLIS
        {
            recent.denied_turned_millis = now_millis;
            denied.turn();
        }
    }

    fn read(&self, at_millis: u64, store_bytes: u64) -> Reading {
        let mut round_trips = (RoundTripCounts::default(), 0_u64);
        let mut redis_failures = 0;
        for (_, redis) in self.parts.shared.iter().flat_map(|(shared, _)| shared.stores()) {
            let (counts, nanos) = redis.stats().round_trips.read();
            round_trips.0.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            round_trips.1 = round_trips.1.saturating_add(nanos);
            redis_failures += Failure::ALL.iter().map(|kind| redis.stats().failures(*kind)).sum::<u64>();
        }
        Reading {
            at_millis,
            answered: self.parts.metrics.answered(),
            decisions: self.parts.metrics.decision_time(),
            cpu_nanos: clock::cpu_nanos(),
            round_trips,
            redis_failures,
            store_bytes,
            connections: (self.parts.connections)() as u64,
            without_rule: self.parts.metrics.without_rule(),
            events_dropped: (self.parts.events_dropped)(),
        }
    }

    /// Searches series of limits whose names contain `text`: their numbers, in the order in which they were entered.
    /// At most `most` of them. Takes some milliseconds for 100,000 series.
    pub fn find(&self, text: &str, most: usize) -> Vec<usize> {
        let metrics = &self.parts.metrics;
        (0..metrics.limit_series())
            .filter(|&series| metrics.limit_name_holds(series, text))
            .take(most)
            .collect()
    }
}
