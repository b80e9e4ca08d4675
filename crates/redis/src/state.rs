//! What all connections to one Redis share: the options, the scripts, the counts, and whether Redis answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, watch};

use crate::address::Address;
use crate::connect_error::ConnectError;
use crate::failure::Failure;
use crate::lost::{Begins, Losses, News};
use crate::options::RedisOptions;
use crate::runtime::Runtime;
use crate::script::{Clock, Lost, Purpose, source};
use crate::server::Server;

/// At this number of servers, those without connections are forgotten, because addresses change.
const SERVERS_MAX: usize = 1_024;
/// At this number of give-backs that are repeated, further ones are sent once.
const REPEATS_MAX: usize = 10_000;

/// Whether Redis answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Contact {
    /// It has never answered. Holds the last error, if an attempt has failed.
    Never(Option<ConnectError>),
    /// It answers.
    Up,
    /// It answered before, and does not now.
    Lost(ConnectError),
    /// It can never be used.
    Unusable(ConnectError),
}

/// A script, and the hash that Redis knows it by.
pub(super) struct Script {
    pub(super) name: String,
    pub(super) text: String,
}

/// All scripts, by [`Purpose`]. They are composed once, and serve all stores.
type Scripts = LazyLock<[Script; Purpose::ALL.len()]>;
static SCRIPTS: Scripts = LazyLock::new(|| Purpose::ALL.map(|purpose| Script::of(purpose, Lost::Allow)));
static SCRIPTS_DENYING: Scripts =
    LazyLock::new(|| Purpose::ALL.map(|purpose| Script::of(purpose, Lost::Deny)));

/// What all connections share.
pub(super) struct Shared<R: Runtime> {
    pub(super) runtime: R,
    pub(super) options: RedisOptions,
    scripts: &'static [Script; Purpose::ALL.len()],
    pub(super) contact: watch::Sender<Contact>,
    /// The number of the newest connection.
    connection: AtomicU64,
    /// The servers that connections were opened to.
    servers: Mutex<HashMap<Address, Arc<Server<R>>>>,
    /// Notified when a server has lost its data.
    pub(super) memory_lost: Notify,
    /// Notified when connections were opened, whose servers' epochs are to be read.
    pub(super) opened: Notify,
    /// The masters, as they were looked up last.
    pub(super) masters: Mutex<Vec<Address>>,
    /// Since when counters are cold, and how long leases of all nodes last. With `deny_cold` only.
    pub(super) losses: Mutex<Losses>,
    /// The workers that all servers answer.
    workers_up: AtomicUsize,
    /// The number of give-backs in flight.
    pub(super) giving_back: watch::Sender<usize>,
    /// One for each give-back that is repeated.
    pub(super) repeats: Arc<Semaphore>,
    pub(super) stats: Stats,
}

/// The counts of one store.
#[derive(Default)]
pub struct Stats {
    /// Calls that were sent, by duration.
    pub round_trips: RoundTrips,
    /// Decisions that wait now.
    pub in_flight: AtomicUsize,
    /// Connections that are open now.
    pub connections: AtomicUsize,
    /// Connections that were opened.
    pub connections_opened: AtomicU64,
    /// Connections that were given up.
    pub connections_closed: AtomicU64,
    /// How often a server had lost its data.
    pub memory_lost: AtomicU64,
    /// Give-backs that were sent.
    pub given_back: AtomicU64,
    /// Calls without an answer, by kind.
    failures: [AtomicU64; Failure::ALL.len()],
}

/// The durations of round trips.
#[derive(Default)]
pub struct RoundTrips {
    /// Calls up to each bound, and those beyond the last.
    counts: [AtomicU64; RoundTrips::BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl RoundTrips {
    /// Inclusive upper bounds in nanoseconds, from the round trip to a Redis on the same machine to the longest
    /// timeout.
    pub const BOUNDS: [u64; 14] = {
        const MICRO: u64 = 1_000;
        const MILLI: u64 = 1_000_000;
        [
            50 * MICRO,
            100 * MICRO,
            250 * MICRO,
            500 * MICRO,
            MILLI,
            2_500 * MICRO,
            5 * MILLI,
            10 * MILLI,
            20 * MILLI,
            50 * MILLI,
            100 * MILLI,
            250 * MILLI,
            1_000 * MILLI,
            10_000 * MILLI,
        ]
    };

    /// Counts a round trip of this duration.
    pub(super) fn ended(&self, taken: Duration) {
        let nanos = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
        let bucket = Self::BOUNDS.partition_point(|&bound| bound < nanos);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// The number of round trips up to each bound and beyond the last, and their sum in nanoseconds.
    pub fn read(&self) -> ([u64; Self::BOUNDS.len() + 1], u64) {
        (self.counts.each_ref().map(|count| count.load(Relaxed)), self.nanos.load(Relaxed))
    }

    /// The number of all round trips.
    pub fn count(&self) -> u64 {
        self.read().0.iter().sum()
    }
}

impl Stats {
    pub(super) fn failed(&self, failure: Failure) {
        self.failures[failure as usize].fetch_add(1, Relaxed);
    }

    /// The number of calls without an answer, of this kind.
    pub fn failures(&self, failure: Failure) -> u64 {
        self.failures[failure as usize].load(Relaxed)
    }
}

impl<R: Runtime> Shared<R> {
    pub(super) fn new(runtime: R, options: RedisOptions) -> Self {
        Self {
            runtime,
            scripts: if options.deny_cold.is_some() { &SCRIPTS_DENYING } else { &SCRIPTS },
            options,
            contact: watch::Sender::new(Contact::Never(None)),
            connection: AtomicU64::new(0),
            servers: Mutex::default(),
            memory_lost: Notify::new(),
            opened: Notify::new(),
            masters: Mutex::default(),
            losses: Mutex::default(),
            workers_up: AtomicUsize::new(0),
            giving_back: watch::Sender::new(0),
            repeats: Arc::new(Semaphore::new(REPEATS_MAX)),
            stats: Stats::default(),
        }
    }

    pub(super) fn script(&self, purpose: Purpose) -> &'static Script {
        &self.scripts[purpose as usize]
    }

    /// A number for a new connection.
    pub(super) fn next_connection(&self) -> u64 {
        self.connection.fetch_add(1, Relaxed) + 1
    }

    /// What all connections to this server share.
    pub(super) fn server(&self, address: &Address) -> Arc<Server<R>> {
        let mut servers = self.servers.lock();
        if servers.len() >= SERVERS_MAX {
            servers.retain(|_, server| Arc::strong_count(server) > 1);
        }
        Arc::clone(servers.entry(address.clone()).or_default())
    }

    /// Notes the masters. Each is there once for every range of its slots.
    pub(super) fn note_masters<'m>(&self, found: impl Iterator<Item = &'m Address>) {
        let mut masters = self.masters.lock();
        masters.clear();
        for address in found {
            if !masters.contains(address) {
                masters.push(address.clone());
            }
        }
    }

    /// Notes since when the data of a server is complete.
    pub(super) fn begins(&self, server: &Address, begins: Begins) {
        let Some(deny) = &self.options.deny_cold else { return };
        let news = self.losses.lock().begins(begins, deny.window_max, self.runtime.monotonic());
        self.hear(server, news);
    }

    /// Counts and logs what was seen of a server.
    pub(super) fn hear(&self, server: &Address, news: Option<News>) {
        let Some(news) = news else { return };
        // Whoever reads the line finds it counted.
        if news.is_loss() {
            self.stats.memory_lost.fetch_add(1, Relaxed);
            self.memory_lost.notify_one();
        }
        tracing::warn!("{}", news.line(server));
    }

    /// How long connecting may take. It happens in the background, so it may take longer than a decision.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.options.timeout.max(Duration::from_secs(1))
    }

    /// Notes that all servers answer a worker; `was_up`: they did before. Contact is up when they answer every
    /// worker.
    pub(super) fn reached(&self, was_up: bool) {
        let up = self.workers_up.fetch_add((!was_up).into(), Relaxed) + usize::from(!was_up);
        if up < self.options.workers.min(self.options.pool_size) {
            return;
        }
        self.contact.send_if_modified(|contact| std::mem::replace(contact, Contact::Up) != Contact::Up);
    }

    /// Notes that a server does not answer a worker; `was_up`: all did before.
    pub(super) fn lost(&self, was_up: bool, why: ConnectError) {
        self.workers_up.fetch_sub(was_up.into(), Relaxed);
        self.contact.send_if_modified(|contact| {
            let now = match contact {
                Contact::Never(_) => Contact::Never(Some(why)),
                Contact::Unusable(_) => return false,
                Contact::Up | Contact::Lost(_) => Contact::Lost(why),
            };
            // A changed reason is reported too: the last problem is seldom the first one.
            let changed = *contact != now;
            *contact = now;
            changed
        });
    }

    /// Notes that Redis can never be used. If it was used before, it counts as lost.
    pub(super) fn unusable(&self, was_up: bool, why: ConnectError) {
        let never = matches!(&*self.contact.borrow(), Contact::Never(_));
        match never {
            true => drop(self.contact.send_replace(Contact::Unusable(why))),
            false => self.lost(was_up, why),
        }
    }
}

impl Script {
    fn of(purpose: Purpose, lost: Lost) -> Self {
        let text = source(purpose, Clock::Redis, lost);
        Self { name: redis::Script::new(&text).get_hash().to_owned(), text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Servers;
    use crate::runtime::Tokio;

    #[test]
    fn contact_is_up_only_while_every_worker_is() {
        let kind = Servers::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
        let shared = Shared::new(Tokio, RedisOptions { workers: 2, ..RedisOptions::new(kind) });
        let contact = || shared.contact.borrow().clone();
        shared.reached(false);
        assert_eq!(contact(), Contact::Never(None), "one of two");
        shared.reached(false);
        assert_eq!(contact(), Contact::Up);
        shared.lost(true, ConnectError::Unanswered);
        shared.reached(true);
        assert_eq!(contact(), Contact::Lost(ConnectError::Unanswered), "the other one still probes");
        let mut seen = shared.contact.subscribe();
        shared.lost(false, ConnectError::Unanswered);
        assert!(!seen.has_changed().expect("it lives"), "the same once more");
        shared.lost(false, ConnectError::NoSlots);
        assert_eq!(*seen.borrow_and_update(), Contact::Lost(ConnectError::NoSlots));
        assert!(!seen.has_changed().expect("it lives"));
        shared.lost(false, ConnectError::Unanswered);
        assert!(seen.has_changed().expect("it lives"), "another reason is shown");
        shared.reached(false);
        assert_eq!(contact(), Contact::Up);
        let too_old = || ConnectError::TooOld("5".to_owned());
        shared.unusable(true, too_old());
        assert_eq!(contact(), Contact::Lost(too_old()), "it was of use, and may be again");
    }

    #[test]
    fn workers_that_share_connections_are_up_with_them() {
        let kind = Servers::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
        let options = RedisOptions { workers: 4, pool_size: 2, ..RedisOptions::new(kind) };
        let shared = Shared::new(Tokio, options);
        let is_up_after_another = || {
            shared.reached(false);
            *shared.contact.borrow() == Contact::Up
        };
        assert_eq!([(); 2].map(|()| is_up_after_another()), [false, true]);
    }

    #[test]
    fn masters_are_those_that_were_found_last() {
        let of = |port| Address::Tcp("127.0.0.1".to_owned(), port);
        let shared = Shared::new(Tokio, RedisOptions::new(Servers::Cluster(vec![of(1)])));
        for found in [vec![of(1), of(2), of(1)], vec![of(2)]] {
            shared.note_masters(found.iter());
        }
        assert_eq!(*shared.masters.lock(), [of(2)]);
    }

    #[test]
    fn round_trips_are_counted_by_bounds_that_ascend() {
        assert!(RoundTrips::BOUNDS.is_sorted_by(|one, next| one < next));
        let trips = RoundTrips::default();
        trips.ended(Duration::from_millis(1));
        assert_eq!((trips.count(), trips.read().0.len()), (1, RoundTrips::BOUNDS.len() + 1));
    }
}
