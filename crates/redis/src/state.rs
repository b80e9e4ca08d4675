//! What all connections to one Redis share: how to reach it, the scripts, what is counted, and whether it is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::address::{Address, Kind, Login};
use crate::clock::nanos_since;
use crate::connect::Access;
use crate::failure::Failure;
use crate::key::KeyStyle;
use crate::peer::Peer;
use crate::script::{Clock, Purpose, source};

/// With so many servers, those without connections are forgotten: addresses come and go.
const PEERS_MAX: usize = 1_024;

/// How a shared store is used.
#[derive(Clone)]
pub struct RedisOptions {
    /// The servers.
    pub kind: Kind,
    /// How to connect to servers.
    pub access: Access,
    /// Who we are to sentinels.
    pub sentinel_login: Login,
    /// What settings are called.
    pub setting_names: SettingNames,
    /// Threads that decide, each with connections of its own.
    pub workers: usize,
    /// Connections to one server at most.
    pub pool_size: usize,
    /// The budget of one decision.
    pub timeout: Duration,
    /// Decisions that wait at a time, at most.
    pub in_flight_max: usize,
    /// So many replicas have to have what a decision charged before it is told.
    pub wait_replicas: u32,
    /// How keys are written.
    pub keys: KeyStyle,
    /// Pauses between attempts at start: the first, and the longest.
    pub startup_pauses: (Duration, Duration),
}

impl RedisOptions {
    /// What the program does unless told otherwise, for one thread that decides: a budget of 100 ms, 10,000 decisions
    /// that wait, up to 10 connections to a server, without a login and without TLS.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            access: Access { login: Login::default(), database: 0, tls: None },
            sentinel_login: Login::default(),
            setting_names: SettingNames { server: "login", sentinel: "sentinel_login", kind: "kind" },
            workers: 1,
            pool_size: 10,
            timeout: Duration::from_millis(100),
            in_flight_max: 10_000,
            wait_replicas: 0,
            keys: KeyStyle::default(),
            startup_pauses: (Duration::from_secs(1), Duration::from_secs(30)),
        }
    }
}

/// The names of settings that people can change when a server cannot be used.
#[derive(Clone, Copy, Debug)]
pub struct SettingNames {
    /// Who we are to servers.
    pub server: &'static str,
    /// Who we are to sentinels.
    pub sentinel: &'static str,
    /// Whether there is one server, one behind sentinels, or a Cluster.
    pub kind: &'static str,
}

/// Whether a shared store is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// It was never reached; why, if an attempt has failed.
    Never(Option<String>),
    /// It answers.
    Up,
    /// It was lost, because of this.
    Lost(String),
    /// It can never be used, because of this.
    Unusable(String),
}

/// A script, and the name that Redis knows it by.
pub(super) struct Script {
    pub(super) name: String,
    pub(super) text: String,
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) options: RedisOptions,
    decide: Script,
    decide_each: Script,
    renew: Script,
    give_back: Script,
    pub(super) contact: watch::Sender<Contact>,
    /// Servers to which there are or were connections.
    peers: Mutex<HashMap<Address, Arc<Peer>>>,
    /// A server has lost its memory.
    pub(super) memory_lost: Notify,
    /// Lanes to which all servers answer.
    lanes_up: AtomicUsize,
    /// Give-backs that are under way.
    pub(super) giving_back: watch::Sender<usize>,
    pub(super) stats: Stats,
}

/// What is counted.
#[derive(Default)]
pub struct Stats {
    /// Calls that were sent, by how long they took.
    pub round_trips: RoundTrips,
    /// Decisions that wait now.
    pub in_flight: AtomicUsize,
    /// Connections that are open now.
    pub connections: AtomicUsize,
    /// Connections that were opened.
    pub connections_opened: AtomicU64,
    /// Connections that were given up.
    pub connections_closed: AtomicU64,
    /// Times that the server had lost its memory.
    pub memory_lost: AtomicU64,
    /// Give-backs that were sent.
    pub given_back: AtomicU64,
    /// Calls without an answer, by kind.
    failures: [AtomicU64; Failure::ALL.len()],
}

/// Durations of round trips.
#[derive(Default)]
pub struct RoundTrips {
    /// Those up to each bound, and those beyond the last.
    counts: [AtomicU64; RoundTrips::BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl RoundTrips {
    /// Inclusive upper bounds in nanoseconds, from what a Redis beside the node takes to more than anybody waits.
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

    /// Counts one that was sent at this time and has ended now.
    pub(super) fn ended(&self, sent: Instant) {
        let nanos = nanos_since(sent);
        let bucket = Self::BOUNDS.partition_point(|&bound| bound < nanos);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// How many there were up to each bound and beyond the last, and what they took together, in nanoseconds.
    pub fn read(&self) -> ([u64; Self::BOUNDS.len() + 1], u64) {
        (self.counts.each_ref().map(|count| count.load(Relaxed)), self.nanos.load(Relaxed))
    }

    /// All of them.
    pub fn count(&self) -> u64 {
        self.read().0.iter().sum()
    }
}

impl Stats {
    pub(super) fn failed(&self, failure: Failure) {
        self.failures[failure as usize].fetch_add(1, Relaxed);
    }

    /// Calls without an answer, of this kind.
    pub fn failures(&self, failure: Failure) -> u64 {
        self.failures[failure as usize].load(Relaxed)
    }
}

impl Shared {
    pub(super) fn new(options: RedisOptions) -> Self {
        Self {
            options,
            decide: Script::of(Purpose::Decide),
            decide_each: Script::of(Purpose::DecideEach),
            renew: Script::of(Purpose::Renew),
            give_back: Script::of(Purpose::GiveBack),
            contact: watch::Sender::new(Contact::Never(None)),
            peers: Mutex::default(),
            memory_lost: Notify::new(),
            lanes_up: AtomicUsize::new(0),
            giving_back: watch::Sender::new(0),
            stats: Stats::default(),
        }
    }

    pub(super) fn script(&self, purpose: Purpose) -> &Script {
        match purpose {
            Purpose::Decide => &self.decide,
            Purpose::DecideEach => &self.decide_each,
            Purpose::Renew => &self.renew,
            Purpose::GiveBack => &self.give_back,
        }
    }

    /// What all connections to this server share.
    pub(super) fn peer(&self, address: &Address) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        if peers.len() >= PEERS_MAX {
            peers.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        Arc::clone(peers.entry(address.clone()).or_default())
    }

    /// How long connecting may take: it happens in the background.
    pub(super) fn connect_patience(&self) -> Duration {
        self.options.timeout.max(Duration::from_secs(1))
    }

    /// All servers answer a lane, which `was_up` before or not. The store is there when they answer every lane.
    pub(super) fn reached(&self, was_up: bool) {
        let up = self.lanes_up.fetch_add((!was_up).into(), Relaxed) + usize::from(!was_up);
        if up < self.options.workers.min(self.options.pool_size) {
            return;
        }
        let changed = self.contact.send_if_modified(|contact| {
            let changes = *contact != Contact::Up;
            *contact = Contact::Up;
            changes
        });
        if changed {
            tracing::info!("redis: {} answers", self.options.kind);
        }
    }

    /// A server does not answer a lane, which `was_up`: before, all did.
    pub(super) fn lost(&self, was_up: bool, why: String) {
        self.lanes_up.fetch_sub(was_up.into(), Relaxed);
        let mut turned = false;
        self.contact.send_if_modified(|contact| {
            turned = matches!(contact, Contact::Up | Contact::Never(None));
            *contact = match contact {
                Contact::Never(_) => Contact::Never(Some(why.clone())),
                Contact::Unusable(_) => return false,
                _ => Contact::Lost(why.clone()),
            };
            turned
        });
        if turned {
            tracing::error!("redis: {} does not answer: {why}", self.options.kind);
        }
    }

    /// It can never be used. One that could be, once, is only lost.
    pub(super) fn unusable(&self, was_up: bool, why: String) {
        let never = matches!(&*self.contact.borrow(), Contact::Never(_));
        match never {
            true => drop(self.contact.send_replace(Contact::Unusable(why))),
            false => self.lost(was_up, why),
        }
    }
}

impl Script {
    fn of(purpose: Purpose) -> Self {
        let text = source(purpose, Clock::Redis);
        Self { name: redis::Script::new(&text).get_hash().to_owned(), text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    #[test]
    fn the_store_is_there_when_every_lane_is_and_not_now_and_then() {
        let kind = Kind::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
        let shared = Shared::new(RedisOptions { workers: 2, ..RedisOptions::new(kind) });
        let contact = || shared.contact.borrow().clone();
        shared.reached(false);
        assert_eq!(contact(), Contact::Never(None), "one of two");
        shared.reached(false);
        assert_eq!(contact(), Contact::Up);
        shared.lost(true, "gone".to_owned());
        shared.reached(true);
        assert_eq!(contact(), Contact::Lost("gone".to_owned()), "the other one still probes");
        shared.lost(false, "still gone".to_owned());
        shared.reached(false);
        assert_eq!(contact(), Contact::Up);
        shared.unusable(true, "too old".to_owned());
        assert_eq!(contact(), Contact::Lost("too old".to_owned()), "it was of use, and may be again");
    }

    #[test]
    fn round_trips_are_counted_by_bounds_that_ascend() {
        assert!(RoundTrips::BOUNDS.is_sorted_by(|one, next| one < next));
        let trips = RoundTrips::default();
        trips.ended(crate::clock::monotonic());
        assert_eq!((trips.count(), trips.read().0.len()), (1, RoundTrips::BOUNDS.len() + 1));
    }
}
