//! The shared store: counters in Redis, or whatever speaks its protocol, under one clock, in one script.
//!
//! In: calls for one slot each and the moment until which somebody waits. Out: numbers, or a [`Failure`]. What becomes
//! of a request without an answer is the business of `failover`, not of this.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::failure::Failure;
use crate::lane::Lane;
use crate::link::Link;
use crate::options::RedisOptions;
use crate::runtime::{Runtime, Tokio};
use crate::script::{Call, Memory, Purpose};
use crate::state::{Contact, Shared, Stats};
use crate::{address, topology};

/// Counters in one Redis: a server, a master behind sentinels, or a Cluster.
pub struct RedisStore<R: Runtime = Tokio> {
    shared: Arc<Shared<R>>,
    /// Workers in the order in which they attached.
    attached: Box<[OnceLock<Attached<R>>]>,
}

/// A worker's number, and its connections.
struct Attached<R: Runtime> {
    worker: usize,
    lane: Arc<Lane<R>>,
}

/// A decision that waits, as long as it lives.
pub(super) struct Waiting<'s>(&'s Stats);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

impl RedisStore {
    /// A store that is not connected yet.
    pub fn new(options: RedisOptions) -> Self {
        Self::on(Tokio, options)
    }
}

impl<R: Runtime> RedisStore<R> {
    /// A store on another runtime than tokio's. It is not connected yet.
    pub fn on(runtime: R, options: RedisOptions) -> Self {
        let attached = (0..options.workers.max(1)).map(|_| OnceLock::new()).collect();
        Self { shared: Arc::new(Shared::new(runtime, options)), attached }
    }

    /// Connects for the calling worker, in the background. Workers beyond the size of the pool share connections.
    pub fn attach(&self) {
        let (worker, pool_size) = (self.shared.runtime.worker(), self.shared.options.pool_size.max(1));
        for (place, attached) in self.attached.iter().enumerate() {
            let shared = || Some(Arc::clone(&self.attached[place.checked_sub(pool_size)?].get()?.lane));
            let lane = || shared().unwrap_or_else(|| self.new_lane(place == 0));
            if attached.get_or_init(|| Attached { worker, lane: lane() }).worker == worker {
                return;
            }
        }
    }

    /// The calling worker's connections; those of the first worker for a thread that has none.
    fn lane(&self) -> Option<&Arc<Lane<R>>> {
        let worker = self.shared.runtime.worker();
        let own = self.attached.iter().map_while(OnceLock::get).find(|attached| attached.worker == worker);
        own.or_else(|| self.attached.first()?.get()).map(|attached| &attached.lane)
    }

    fn new_lane(&self, leads: bool) -> Arc<Lane<R>> {
        let lane = Arc::new(Lane::new(Arc::clone(&self.shared), leads));
        let keeping = Arc::clone(&lane);
        self.shared.runtime.spawn(async move { match keeping.keep().await {} });
        lane
    }

    pub(super) fn runtime(&self) -> &R {
        &self.shared.runtime
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
        let waiting = Waiting(&self.shared.stats);
        if before < self.shared.options.in_flight_max { Ok(waiting) } else { Err(Failure::Overloaded) }
    }

    /// Counts a decision without an answer.
    pub(super) fn failed(&self, failure: Failure) {
        self.shared.stats.failed(failure);
    }

    /// Asks the server of this slot to decide.
    pub(super) async fn decide(&self, slot: u16, call: &Call, until: Instant) -> Result<Reply<R>, Failure> {
        let lane = self.lane().ok_or(Failure::Down)?;
        let link = lane.route(slot).ok_or(Failure::Down)?;
        let purpose = if call.only_renews() { Purpose::Renew } else { Purpose::Decide };
        let error = match link.call(&self.shared, purpose, (slot, call), until).await {
            Ok(numbers) => return Ok(Reply { numbers, link }),
            Err(error) => error,
        };
        // A slot on its way to another server: that one is asked, once.
        let to = error.to.and_then(|(address, asking)| Some((lane.link_to(&address)?, asking)));
        let (link, asking) = to.ok_or(error.failure)?;
        let asked = Box::pin(link.call_alone(&self.shared, purpose, call, until, asking)).await;
        asked.map(|numbers| Reply { numbers, link }).map_err(|error| error.failure)
    }

    /// Waits until as many replicas as there have to be have what that reply says was charged.
    pub(super) async fn replicate(&self, reply: &Reply<R>, until: Instant) -> Result<(), Failure> {
        match self.shared.options.wait_replicas {
            0 => Ok(()),
            _ => {
                let replicated = reply.link.replicate(&self.shared, until).await;
                replicated.inspect_err(|&failure| self.failed(failure))
            }
        }
    }

    /// The memory in which the server of this slot charges now, or one that it has lost since. `None`: not known yet.
    pub(super) fn memory(&self, slot: u16) -> Option<Arc<Memory>> {
        self.lane()?.route(slot)?.memory()
    }

    /// The server has lost its memory, since this was told last.
    pub(super) async fn memory_lost(&self) {
        self.shared.memory_lost.notified().await;
    }

    /// Whether any server can be asked.
    pub(super) fn reaches_any(&self) -> bool {
        self.lane().is_some_and(|lane| lane.leads_anywhere())
    }

    /// Whether the server of this slot can be asked.
    pub(super) fn reaches(&self, slot: u16) -> bool {
        self.lane().is_some_and(|lane| lane.route(slot).is_some())
    }

    /// Gives back, once, in the background. `until_done` is kept until that has happened, or never will.
    pub(super) fn give_back(&self, slot: u16, mut call: Call, until_done: impl Send + 'static) {
        if !matches!(self.shared.options.kind, address::Kind::Cluster(_)) {
            // In a Cluster it may be of another slot: a call may read it there, but not name it.
            call.name_memory();
        }
        let Some(link) = self.lane().and_then(|lane| lane.route(slot)) else { return };
        let shared = Arc::clone(&self.shared);
        let until = shared.runtime.monotonic() + GIVE_BACK_PATIENCE;
        shared.stats.given_back.fetch_add(1, Relaxed);
        let under_way = UnderWay::one_more(&self.shared);
        self.shared.runtime.spawn(async move {
            // Without an answer it may have happened or not: never again, or others could see too much room.
            let _ = link.call_alone(&shared, Purpose::GiveBack, &call, until, false).await;
            drop((until_done, under_way));
        });
    }

    /// Waits for all give-backs that are under way, each of which has an end.
    pub(super) async fn all_given_back(&self) {
        let _ = self.shared.giving_back.subscribe().wait_for(|&under_way| under_way == 0).await;
    }
}

/// A reply, and the connection that it came by.
pub(super) struct Reply<R: Runtime> {
    pub(super) numbers: Vec<i64>,
    link: Arc<Link<R>>,
}

/// A give-back that is under way, as long as it lives.
struct UnderWay<R: Runtime>(Arc<Shared<R>>);

impl<R: Runtime> UnderWay<R> {
    fn one_more(shared: &Arc<Shared<R>>) -> Self {
        shared.giving_back.send_modify(|under_way| *under_way += 1);
        Self(Arc::clone(shared))
    }
}

impl<R: Runtime> Drop for UnderWay<R> {
    fn drop(&mut self) {
        self.0.giving_back.send_modify(|under_way| *under_way -= 1);
    }
}

/// After this a give-back does nothing.
pub(super) const GIVE_BACK_PATIENCE: Duration = Duration::from_secs(1);
