//! What all connections to one Redis share: how to reach it, the scripts, what is counted, and whether it is there.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::address::{Kind, Login};
use super::connect::Access;
use super::key::KeyStyle;
use super::script::{Clock, Purpose, source};
use crate::clock::nanos_since;
use crate::store::Failure;

/// How a shared store is used.
#[derive(Clone)]
pub struct RedisOptions {
    /// The servers.
    pub kind: Kind,
    /// How to connect to servers.
    pub access: Access,
    /// Who we are to sentinels.
    pub sentinel_login: Login,
    /// Threads that decide, each with connections of its own.
    pub workers: usize,
    /// Connections to one server at most.
    pub pool_size: usize,
    /// The budget of one decision.
    pub timeout: Duration,
    /// Decisions that wait at a time, at most.
    pub in_flight_max: usize,
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
            workers: 1,
            pool_size: 10,
            timeout: Duration::from_millis(100),
            in_flight_max: 10_000,
            keys: KeyStyle::default(),
            startup_pauses: (Duration::from_secs(1), Duration::from_secs(30)),
        }
    }
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
    give_back: Script,
    pub(super) contact: watch::Sender<Contact>,
    /// Lanes that were connected once.
    lanes_ready: AtomicUsize,
    pub(super) stats: Stats,
}

/// What is counted.
#[derive(Default)]
pub struct Stats {
    /// Calls that were sent.
    pub round_trips: AtomicU64,
    /// Nanoseconds that they took together.
    pub round_trip_nanos: AtomicU64,
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

impl Stats {
    pub(super) fn round_trip(&self, sent: Instant) {
        self.round_trips.fetch_add(1, Relaxed);
        self.round_trip_nanos.fetch_add(nanos_since(sent), Relaxed);
    }

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
            give_back: Script::of(Purpose::GiveBack),
            contact: watch::Sender::new(Contact::Never(None)),
            lanes_ready: AtomicUsize::new(0),
            stats: Stats::default(),
        }
    }

    pub(super) fn script(&self, purpose: Purpose) -> &Script {
        match purpose {
            Purpose::Decide => &self.decide,
            Purpose::GiveBack => &self.give_back,
        }
    }

    /// How long connecting may take: it happens in the background.
    pub(super) fn connect_patience(&self) -> Duration {
        self.options.timeout.max(Duration::from_secs(1))
    }

    /// All servers answer a lane; `first`: for the first time. The store is there when they answer every lane.
    pub(super) fn reached(&self, first: bool) {
        let ready = self.lanes_ready.fetch_add(first.into(), Relaxed) + usize::from(first);
        if ready < self.options.workers.min(self.options.pool_size) {
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

    /// A server does not answer.
    pub(super) fn lost(&self, why: String) {
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

    /// It can never be used.
    pub(super) fn unusable(&self, why: String) {
        self.contact.send_replace(Contact::Unusable(why));
    }
}

impl Script {
    fn of(purpose: Purpose) -> Self {
        let text = source(purpose, Clock::Redis);
        Self { name: redis::Script::new(&text).get_hash().to_owned(), text }
    }
}
