//! The shared store: counters in Redis, or whatever speaks its protocol, under one clock, in one script.
//!
//! In: calls for one slot each and the moment until which somebody waits. Out: numbers, or a [`Failure`]. What becomes
//! of a request without an answer is the business of `failover`, not of this.
//!
//! - [`address`], `connect`, `topology`: where Redis is, and how it is reached
//! - `link`, `lane`: a connection, and all of one worker's
//! - [`script`], [`key`]: what is asked, and of which key
//! - `generation`: whether it still remembers

pub mod address;
mod connect;
mod generation;
pub mod key;
mod lane;
mod link;
pub mod script;
mod state;
pub mod tls;
mod topology;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

pub use connect::Access;
pub use state::{Contact, RedisOptions, Stats};

use crate::store::Failure;
use lane::Lane;
use script::{Call, Purpose};
use state::Shared;

/// Counters in one Redis: a server, a master behind sentinels, or a Cluster.
pub struct RedisStore {
    id: u64,
    shared: Arc<Shared>,
    lanes: Mutex<Vec<Arc<Lane>>>,
}

thread_local! {
    // A worker's own connections, by the store's id: there are one or two stores.
    static LANES: RefCell<Vec<(u64, Arc<Lane>)>> = const { RefCell::new(Vec::new()) };
}

/// A decision that waits, as long as it lives.
pub(super) struct Waiting<'s>(&'s Shared);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.stats.in_flight.fetch_sub(1, Relaxed);
    }
}

impl RedisStore {
    /// A store that is not connected yet.
    pub fn new(options: RedisOptions) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Relaxed);
        Self { id, shared: Arc::new(Shared::new(options)), lanes: Mutex::default() }
    }

    /// Connects for the calling worker, in the background, by a task of its runtime. Workers beyond the size of the
    /// pool share connections.
    pub fn attach(&self) {
        self.lane();
    }

    fn lane(&self) -> Arc<Lane> {
        LANES.with_borrow_mut(|own| {
            if let Some((_, lane)) = own.iter().find(|(id, _)| *id == self.id) {
                return Arc::clone(lane);
            }
            let lane = self.new_lane();
            own.push((self.id, Arc::clone(&lane)));
            lane
        })
    }

    fn new_lane(&self) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        if lanes.len() >= self.shared.options.pool_size.max(1) {
            lanes.rotate_left(1);
            return Arc::clone(&lanes[0]);
        }
        let lane = Arc::new(Lane::new(Arc::clone(&self.shared), lanes.is_empty()));
        lanes.push(Arc::clone(&lane));
        let keeping = Arc::clone(&lane);
        tokio::spawn(async move { match keeping.keep().await {} });
        lane
    }

    /// Whether it is there, and every change of that.
    pub fn contact(&self) -> watch::Receiver<Contact> {
        self.shared.contact.subscribe()
    }

    /// What is counted.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// How it is used.
    pub fn options(&self) -> &RedisOptions {
        &self.shared.options
    }

    /// The slot of a key; all keys of a single server are in one.
    pub(super) fn slot(&self, key: &[u8]) -> u16 {
        match self.shared.options.kind {
            address::Kind::Cluster(_) => topology::slot_of(key),
            _ => 0,
        }
    }

    /// One more decision waits, unless too many do.
    pub(super) fn wait(&self) -> Result<Waiting<'_>, Failure> {
        let before = self.shared.stats.in_flight.fetch_add(1, Relaxed);
        let waiting = Waiting(&self.shared);
        if before < self.shared.options.in_flight_max { Ok(waiting) } else { Err(Failure::Overloaded) }
    }

    /// Asks the server of this slot to decide.
    pub(super) async fn decide(&self, slot: u16, call: &Call, until: Instant) -> Result<Vec<i64>, Failure> {
        let asked = async {
            let _waiting = self.wait()?;
            let lane = self.lane();
            let link = lane.route(slot).ok_or(Failure::Down)?;
            let error = match link.call(&self.shared, Purpose::Decide, call, until, false).await {
                Ok(numbers) => return Ok(numbers),
                Err(error) => error,
            };
            // A slot on its way to another server: that one is asked, once.
            let to = error.to.and_then(|(address, asking)| Some((lane.link_to(&address)?, asking)));
            let (link, asking) = to.ok_or(error.failure)?;
            let asked = link.call(&self.shared, Purpose::Decide, call, until, asking).await;
            asked.map_err(|error| error.failure)
        };
        asked.await.inspect_err(|&failure| self.shared.stats.failed(failure))
    }

    /// Gives back, once, in the background.
    pub(super) fn give_back(&self, slot: u16, call: Call) {
        let Some(link) = self.lane().route(slot) else { return };
        let shared = Arc::clone(&self.shared);
        let until = crate::clock::monotonic() + GIVE_BACK_PATIENCE;
        shared.stats.given_back.fetch_add(1, Relaxed);
        tokio::spawn(async move {
            // Without an answer it may have happened or not: never again, or others could see too much room.
            let _ = link.call(&shared, Purpose::GiveBack, &call, until, false).await;
        });
    }
}

/// After this a give-back does nothing.
const GIVE_BACK_PATIENCE: Duration = Duration::from_secs(1);
