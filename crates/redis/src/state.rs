//! What all connections to one Redis share: how to reach it, the scripts, what is counted, and whether it is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::address::Address;
use crate::connect_error::ConnectError;
use crate::failure::Failure;
use crate::options::RedisOptions;
use crate::peer::Peer;
use crate::runtime::Runtime;
use crate::script::{Clock, Purpose, source};

/// With so many servers, those without connections are forgotten: addresses come and go.
const PEERS_MAX: usize = 1_024;

/// Whether a shared store is there.
#[derive(Clone, Debug, PartialEq)]
pub enum Contact {
    /// It was never reached; why, if an attempt has failed.
    Never(Option<ConnectError>),
    /// It answers.
    Up,
    /// It was lost, because of this.
    Lost(ConnectError),
    /// It can never be used, because of this.
    Unusable(ConnectError),
}

/// A script, and the name that Redis knows it by.
pub(super) struct Script {
    pub(super) name: String,
    pub(super) text: String,
}

/// What all connections share.
pub(super) struct Shared<R: Runtime> {
    pub(super) runtime: R,
    pub(super) options: RedisOptions,
    decide: Script,
    decide_each: Script,
    renew: Script,
    give_back: Script,
    pub(super) contact: watch::Sender<Contact>,
    /// Servers to which there are or were connections.
    peers: Mutex<HashMap<Address, Arc<Peer<R>>>>,
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

    /// Counts one that has taken so long.
    pub(super) fn ended(&self, taken: Duration) {
        let nanos = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX);
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

impl<R: Runtime> Shared<R> {
    pub(super) fn new(runtime: R, options: RedisOptions) -> Self {
        Self {
            runtime,
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
    pub(super) fn peer(&self, address: &Address) -> Arc<Peer<R>> {
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
        self.contact.send_if_modified(|contact| std::mem::replace(contact, Contact::Up) != Contact::Up);
    }

    /// A server does not answer a lane, which `was_up`: before, all did.
    pub(super) fn lost(&self, was_up: bool, why: ConnectError) {
        self.lanes_up.fetch_sub(was_up.into(), Relaxed);
        self.contact.send_if_modified(|contact| {
            let turned = matches!(contact, Contact::Up | Contact::Never(None));
            *contact = match contact {
                Contact::Never(_) => Contact::Never(Some(why)),
                Contact::Unusable(_) => return false,
                _ => Contact::Lost(why),
            };
            turned
        });
    }

    /// It can never be used. One that could be, once, is only lost.
    pub(super) fn unusable(&self, was_up: bool, why: ConnectError) {
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
    use crate::address::Kind;
    use crate::runtime::Tokio;

    #[test]
    fn the_store_is_there_when_every_lane_is_and_not_now_and_then() {
        let kind = Kind::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
        let shared = Shared::new(Tokio, RedisOptions::new(kind).workers(2));
        let contact = || shared.contact.borrow().clone();
        shared.reached(false);
        assert_eq!(contact(), Contact::Never(None), "one of two");
        shared.reached(false);
        assert_eq!(contact(), Contact::Up);
        shared.lost(true, ConnectError::Unanswered);
        shared.reached(true);
        assert_eq!(contact(), Contact::Lost(ConnectError::Unanswered), "the other one still probes");
        shared.lost(false, ConnectError::NoSlots);
        shared.reached(false);
        assert_eq!(contact(), Contact::Up);
        let too_old = || ConnectError::TooOld("5".to_owned());
        shared.unusable(true, too_old());
        assert_eq!(contact(), Contact::Lost(too_old()), "it was of use, and may be again");
    }

    #[test]
    fn round_trips_are_counted_by_bounds_that_ascend() {
        assert!(RoundTrips::BOUNDS.is_sorted_by(|one, next| one < next));
        let trips = RoundTrips::default();
        trips.ended(Duration::from_millis(1));
        assert_eq!((trips.count(), trips.read().0.len()), (1, RoundTrips::BOUNDS.len() + 1));
    }
}
