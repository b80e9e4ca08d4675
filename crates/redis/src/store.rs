//! Counters in Redis, or in a server that speaks its protocol, decided by one script under the server's clock.
//!
//! In: calls for one slot each, with a deadline. Out: numbers, or a [`Failure`]. `shared_store` decides the fallback
//! of a request without an answer.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue};
use tokio::sync::watch;

use crate::connect_error::ConnectError;
use crate::connection::Connection;
use crate::failure::Failure;
use crate::options::RedisOptions;
use crate::routes::Routes;
use crate::runtime::{Runtime, Tokio};
use crate::script::{Call, DataId, Purpose};
use crate::state::{Contact, Shared, Stats};
use crate::worker_connections::WorkerConnections;
use crate::{address, topology};

/// Counters in one Redis: a server, a master behind sentinels, or a Cluster.
pub struct RedisStore<R: Runtime = Tokio> {
    shared: Arc<Shared<R>>,
    /// The workers, in the order in which they attached.
    attached: Box<[OnceLock<Attached<R>>]>,
}

/// A worker's number, and its connections.
struct Attached<R: Runtime> {
    worker: usize,
    connections: Arc<WorkerConnections<R>>,
}

/// A decision that waits, until it is dropped.
pub(super) struct Waiting<'s>(&'s Stats);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let before = self.0.in_flight.fetch_sub(1, Relaxed);
        debug_assert!(before > 0, "more decisions have ended than began");
    }
}

impl RedisStore {
    /// A store that is not connected yet.
    pub fn new(options: RedisOptions) -> Self {
        Self::on(Tokio, options)
    }
}

impl<R: Runtime> RedisStore<R> {
    /// A store on another runtime than tokio. It is not connected yet.
    pub fn on(runtime: R, options: RedisOptions) -> Self {
        let attached = (0..options.workers.max(1)).map(|_| OnceLock::new()).collect();
        Self { shared: Arc::new(Shared::new(runtime, options)), attached }
    }

    /// Connects for the calling worker, in the background. Workers beyond `pool_size` share connections. With [`Tokio`],
    /// the caller must be in a tokio runtime.
    pub fn attach(&self) {
        let (worker, pool_size) = (self.shared.runtime.worker(), self.shared.options.pool_size.max(1));
        for (place, attached) in self.attached.iter().enumerate() {
            let shared =
                || Some(Arc::clone(&self.attached[place.checked_sub(pool_size)?].get()?.connections));
            let connections =
                || shared().unwrap_or_else(|| self.connect(place == 0 && self.shared.options.holds_counters));
            if attached.get_or_init(|| Attached { worker, connections: connections() }).worker == worker {
                return;
            }
        }
    }

    /// The calling worker's connections. A thread that did not attach uses those of the first worker.
    fn worker_connections(&self) -> Option<&Arc<WorkerConnections<R>>> {
        let worker = self.shared.runtime.worker();
        let own = self.attached.iter().map_while(OnceLock::get).find(|attached| attached.worker == worker);
        own.or_else(|| self.attached.first()?.get()).map(|attached| &attached.connections)
    }

    fn connect(&self, watches_memory: bool) -> Arc<WorkerConnections<R>> {
        let connections = Arc::new(WorkerConnections::new(Arc::clone(&self.shared), watches_memory));
        let kept = Arc::clone(&connections);
        self.shared.runtime.spawn(async move { match kept.keep().await {} });
        connections
    }

    pub(super) fn runtime(&self) -> &R {
        &self.shared.runtime
    }

    /// Whether Redis answers. The receiver sees every change.
    pub fn contact(&self) -> watch::Receiver<Contact> {
        self.shared.contact.subscribe()
    }

    /// The counts of this store.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// The options of this store.
    pub fn options(&self) -> &RedisOptions {
        &self.shared.options
    }

    /// The slot of a key. A single server has only one.
    pub(super) fn slot(&self, key: &[u8]) -> u16 {
        match self.shared.options.kind {
            address::Servers::Cluster(_) => topology::slot_of(key),
            _ => 0,
        }
    }

    /// Counts one more decision that waits. An error if there are too many.
    pub(super) fn wait(&self) -> Result<Waiting<'_>, Failure> {
        let before = self.shared.stats.in_flight.fetch_add(1, Relaxed);
        let waiting = Waiting(&self.shared.stats);
        if before < self.shared.options.in_flight_max { Ok(waiting) } else { Err(Failure::Overloaded) }
    }

    /// Counts a decision without an answer.
    pub(super) fn failed(&self, failure: Failure) {
        self.shared.stats.failed(failure);
    }

    /// Sends any command to the server of this key, and reads its reply.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        key: impl AsRef<[u8]>,
        command: &Cmd,
    ) -> Result<T, ConnectError> {
        self.connection(key.as_ref())?.ask(&self.shared, command).await
    }

    /// This worker's connection to the server of this key.
    fn connection(&self, key: &[u8]) -> Result<Arc<Connection<R>>, ConnectError> {
        let connections = self.worker_connections().ok_or(ConnectError::NoConnection)?;
        connections.route(self.slot(key)).ok_or(ConnectError::NoConnection)
    }

    /// Waits until enough replicas have what was written before to the server of this key, on the same connection.
    pub(super) async fn replicated(&self, key: impl AsRef<[u8]>) -> Result<(), ConnectError> {
        let replicas = self.shared.options.wait_replicas;
        if replicas == 0 {
            return Ok(());
        }
        let connection = self.connection(key.as_ref())?;
        let mut command = redis::cmd("WAIT");
        // The reply has to arrive within the time of a question.
        command.arg(replicas).arg((self.shared.connect_timeout() / 2).as_millis() as u64);
        match connection.ask::<u32>(&self.shared, &command).await? {
            have if have >= replicas => Ok(()),
            _ => Err(ConnectError::Unreplicated(replicas, connection.wire.address.clone())),
        }
    }

    /// Has the server of this slot decide.
    pub(super) async fn decide(&self, slot: u16, call: &Call, until: Instant) -> Result<Reply<R>, Failure> {
        let connections = self.worker_connections().ok_or(Failure::Down)?;
        let may_decide = |connection: &Arc<Connection<R>>| connection.may_decide(&self.shared);
        let connection = connections.route(slot).filter(may_decide).ok_or(Failure::Down)?;
        let purpose = if call.only_renews() { Purpose::Renew } else { Purpose::Decide };
        let error = match connection.call(&self.shared, purpose, (slot, call), until).await {
            Ok(numbers) => return Ok(Reply { numbers, connection }),
            Err(error) => error,
        };
        // The slot is moving to another server, which is asked once.
        let to = error.to.and_then(|(address, asking)| Some((connections.connection_to(&address)?, asking)));
        let (connection, asking) = to.filter(|(to, _)| may_decide(to)).ok_or(error.failure)?;
        let asked = Box::pin(connection.call_alone(&self.shared, purpose, call, until, asking)).await;
        asked.map(|numbers| Reply { numbers, connection }).map_err(|error| error.failure)
    }

    /// Waits until enough replicas have the charges of this reply.
    pub(super) async fn replicate(&self, reply: &Reply<R>, until: Instant) -> Result<(), Failure> {
        match self.shared.options.wait_replicas {
            0 => Ok(()),
            _ => {
                let replicated = reply.connection.replicate(&self.shared, until).await;
                replicated.inspect_err(|&failure| self.failed(failure))
            }
        }
    }

    /// The data of the server of this slot, as it was last read. `None`: it was not read yet, or it is in the
    /// replies.
    pub(super) fn data(&self, slot: u16) -> Option<Arc<DataId>> {
        if self.denies_cold() { None } else { self.worker_connections()?.route(slot)?.data() }
    }

    /// The data of the server of this slot, whose data is complete since this time.
    pub(super) fn data_since(&self, slot: u16, since_micros: u64) -> Option<Arc<DataId>> {
        let mark = self.worker_connections()?.route(slot)?.marked.get()?;
        Some(Arc::new(mark.data(since_micros)))
    }

    fn denies_cold(&self) -> bool {
        self.shared.options.deny_cold.is_some()
    }

    /// Since when counters are cold, and up to which window. `None`: none is.
    pub(super) fn cold_since(&self) -> Option<(Instant, Duration)> {
        Some((self.shared.losses.lock().cold_since()?, self.shared.options.deny_cold?.window_max))
    }

    /// The lease time of this node and the longest of all nodes, if they differ. With `deny_cold` only.
    pub(super) fn lease_times_differ(&self) -> Option<[Duration; 2]> {
        self.shared.losses.lock().lease_times_that_differ(self.shared.options.deny_cold.as_ref()?)
    }

    /// What all connections of this store share.
    pub(super) fn shared(&self) -> &Shared<R> {
        &self.shared
    }

    /// The connections of all workers.
    pub(super) fn routes(&self) -> impl Iterator<Item = Arc<Routes<R>>> {
        let own = self.attached.iter().take(self.shared.options.pool_size.max(1));
        own.filter_map(OnceLock::get).map(|attached| attached.connections.routes())
    }

    /// Waits until a server loses its data, or has since the last call.
    pub(super) async fn memory_lost(&self) {
        self.shared.memory_lost.notified().await;
    }

    /// Whether any connection is open.
    pub(super) fn reaches_any(&self) -> bool {
        self.worker_connections().is_some_and(|connections| connections.reaches_any())
    }

    /// Whether there is an open connection for this slot.
    pub(super) fn reaches(&self, slot: u16) -> bool {
        self.worker_connections().is_some_and(|connections| connections.route(slot).is_some())
    }

    /// Gives back hits once, in the background, if the server still has the data in which they were charged. Drops
    /// `until_done` when that has ended, with success or not.
    pub(super) fn give_back(&self, slot: u16, data: &DataId, call: Call, until_done: impl Send + 'static) {
        let connection = self.worker_connections().and_then(|connections| connections.route(slot));
        let Some(connection) = connection.filter(|it| it.has_data(data)) else { return };
        let (shared, call) = (Arc::clone(&self.shared), self.naming_memory(call));
        let under_way = UnderWay::one_more(&shared);
        self.shared.runtime.spawn(async move {
            // Not repeated: without an answer the hits may be back already, and giving them back twice would admit
            // too many.
            connection.give_back(&shared, &call).await;
            drop((until_done, under_way));
        });
    }

    /// Gives back slots and holds, in the background, and again until a server has done it, or until they have ended by
    /// themselves. Each has a name that nothing else has: what was given back already is not found.
    pub(super) fn give_back_named(&self, slot: u16, call: Call, ends_in: Duration) {
        let Some(connections) = self.worker_connections().map(Arc::clone) else { return };
        let (shared, call) = (Arc::clone(&self.shared), self.naming_memory(call));
        let ends = shared.runtime.monotonic() + ends_in;
        let repeats = Arc::clone(&shared.repeats).try_acquire_owned();
        let under_way = UnderWay::one_more(&shared);
        self.shared.runtime.spawn(async move {
            let once = async || match connections.route(slot) {
                Some(connection) => connection.give_back(&shared, &call).await,
                None => false,
            };
            let (mut is_done, mut pause) = (once().await, REPEAT_AFTER);
            // The end of the node does not wait for what is repeated.
            drop(under_way);
            while !is_done && repeats.is_ok() && shared.runtime.monotonic() + pause < ends {
                shared.runtime.sleep(pause).await;
                pause = (pause * 2).min(REPEAT_AFTER_MAX);
                is_done = once().await;
            }
        });
    }

    /// Names every key that the script of a give-back reads, as a single server needs. In a Cluster the data's key may be
    /// in another slot, so it cannot be named.
    fn naming_memory(&self, mut call: Call) -> Call {
        if !matches!(self.shared.options.kind, address::Servers::Cluster(_)) {
            call.name_memory();
        }
        call
    }

    /// Waits until no give-back is in flight. Each of them ends in time.
    pub(super) async fn all_given_back(&self) {
        let _ = self.shared.giving_back.subscribe().wait_for(|&under_way| under_way == 0).await;
    }
}

/// A reply, and the connection that it came on.
pub(super) struct Reply<R: Runtime> {
    pub(super) numbers: Vec<i64>,
    connection: Arc<Connection<R>>,
}

/// A give-back in flight, until it is dropped.
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

/// The pause before a give-back is repeated: the first, and the longest of those that double.
const REPEAT_AFTER: Duration = Duration::from_millis(100);
const REPEAT_AFTER_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::{Address, Servers};

    #[test]
    fn no_more_calls_wait_than_may() {
        let kind = Servers::Single(Address::Tcp("127.0.0.1".to_owned(), 1));
        let store = RedisStore::new(RedisOptions { in_flight_max: 2, ..RedisOptions::new(kind) });
        let (first, second) = (store.wait(), store.wait());
        assert!(first.is_ok() && second.is_ok());
        assert_eq!([(); 2].map(|()| store.wait().err()), [Some(Failure::Overloaded); 2]);
        drop(first);
        assert!(store.wait().is_ok(), "those that were refused take no room");
    }
}
