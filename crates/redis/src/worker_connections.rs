//! The connections of one worker, one to each server that holds counters.
//!
//! In: the options in [`Shared`], and connections that break. Out: the connection for a slot, if there is one now.
//! A task of the worker's runtime looks the servers up when something has changed, connects, and probes once a
//! second. It waits longer after each attempt that fails, at once or soon after. A request never waits for a
//! connection: without one there is no answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::address::{Address, Servers};
use crate::connect_error::ConnectError;
use crate::connection::Connection;
use crate::inspect;
use crate::lost::Seen;
use crate::routes::Routes;
use crate::runtime::Runtime;
use crate::state::{Contact, Shared};
use crate::topology::{Master, check_role, masters};

/// How often connections are probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The first and the longest pause between attempts once a server was connected.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

pub(super) struct WorkerConnections<R: Runtime> {
    shared: Arc<Shared<R>>,
    routes: Mutex<Arc<Routes<R>>>,
    changed: Arc<Notify>,
    /// Whether these connections check that servers still have their data. The connections of one worker do it for
    /// all.
    watches_memory: bool,
}

impl<R: Runtime> WorkerConnections<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, watches_memory: bool) -> Self {
        Self { shared, routes: Mutex::default(), changed: Arc::default(), watches_memory }
    }

    /// The open connection for this slot.
    pub(super) fn route(&self, slot: u16) -> Option<Arc<Connection<R>>> {
        self.routes.lock().of(slot).cloned()
    }

    /// The connection for each slot.
    pub(super) fn routes(&self) -> Arc<Routes<R>> {
        Arc::clone(&self.routes.lock())
    }

    /// Whether any connection is open.
    pub(super) fn reaches_any(&self) -> bool {
        self.routes.lock().reach_any()
    }

    /// The open connection to this server.
    pub(super) fn connection_to(&self, address: &Address) -> Option<Arc<Connection<R>>> {
        self.routes.lock().to(address)
    }

    /// Keeps the connections open, for ever.
    pub(super) async fn keep(&self) -> Infallible {
        let runtime = &self.shared.runtime;
        let mut pauses = Pauses::new(self.shared.options.startup_pauses);
        let (mut seen, mut is_up, mut failures) = (Seen::default(), false, 0);
        let mut was_connected = false;
        loop {
            let looked = self.look_again(&mut seen, failures).await;
            // Requests are served from the first connection on, even while looks fail at a later step.
            if !was_connected && !self.routes.lock().connections.is_empty() {
                (was_connected, pauses) = (true, Pauses::new(PAUSES));
            }
            match looked {
                Ok(()) => {
                    self.shared.reached(is_up);
                    is_up = true;
                    let changed = runtime.timeout(PROBE_INTERVAL, self.changed.notified()).await;
                    if changed.is_none() {
                        // Failures are forgotten only after a full interval without a change: a replica answers every
                        // probe but fails every call, and each failed call ends the interval.
                        (failures, pauses) = (0, Pauses::new(PAUSES));
                        continue;
                    }
                    if let Some(why) = self.broken_by() {
                        self.shared.lost(std::mem::take(&mut is_up), why);
                    }
                }
                Err(why) => {
                    let was_up = std::mem::take(&mut is_up);
                    match why {
                        ConnectError::TooOld(_) => self.shared.unusable(was_up, why),
                        _ => self.shared.lost(was_up, why),
                    }
                }
            }
            failures += 1;
            runtime.sleep(pauses.next(runtime.random())).await;
            // The next look sees all changes up to here.
            let _ = self.changed.notified().now_or_never();
        }
    }

    /// Why a connection was given up, if one was.
    fn broken_by(&self) -> Option<ConnectError> {
        self.routes.lock().connections.iter().find_map(|connection| connection.wire.broken_by().cloned())
    }

    /// Looks the servers up, and connects to those without an open connection. After `failures` in a row it asks
    /// another server first, because the previous one may know less.
    async fn look_again(&self, seen: &mut Seen, failures: usize) -> Result<(), ConnectError> {
        let just_reached = *self.shared.contact.borrow() != Contact::Up;
        let old = Arc::clone(&self.routes.lock());
        seen.use_of_any(self.shared.runtime.monotonic(), old.reach_any());
        let masters = match (&self.shared.options.kind, old.connections.first()) {
            // A single server does not move. The others may.
            (Servers::Single(_), Some(connection)) if !connection.wire.is_broken() => None,
            _ => Some(masters(&self.shared, &in_turn(&old.connections, failures)).await?),
        };
        let mut failed = None;
        if let Some(masters) = masters {
            self.shared.note_masters(masters.iter().map(|master| &master.address));
            if self.shared.options.deny_cold.is_some() {
                self.leave(&old, &masters, seen);
            }
            let (mut routes, mut opened, mut silent) = (Routes::default(), 0, Vec::new());
            for master in &masters {
                // A server may hold many ranges. It is tried once.
                if silent.contains(&&master.address) {
                    continue;
                }
                let known = routes.to(&master.address).or_else(|| old.to(&master.address));
                match self.connection(known, master, &masters, seen).await {
                    Ok((connection, is_new)) => {
                        opened += u64::from(is_new);
                        routes.add(master.slots.clone(), connection);
                    }
                    Err(error) => {
                        silent.push(&master.address);
                        failed = Some(error);
                    }
                }
            }
            let is_used = !routes.connections.is_empty();
            self.publish(&old, routes, opened);
            // Requests use them from now on, also if they break before the next look.
            seen.use_of_any(self.shared.runtime.monotonic(), is_used);
        }
        let routes = Arc::clone(&self.routes.lock());
        for connection in &routes.connections {
            let watched = self.watches_memory.then_some((&mut *seen, just_reached));
            inspect::again(&self.shared, &routes, connection, watched).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Gives up connections to servers that are no longer masters. Requests that they still admit have to be known to
    /// the next master before it is used.
    fn leave(&self, old: &Routes<R>, masters: &[Master], seen: &mut Seen) {
        let is_master = |address: &Address| masters.iter().any(|master| master.address == *address);
        for connection in old.connections.iter().filter(|connection| !is_master(&connection.wire.address)) {
            let address = connection.wire.address.clone();
            connection.wire.give_up(ConnectError::NotMaster(address));
        }
        seen.use_of_any(self.shared.runtime.monotonic(), old.reach_any());
    }

    /// The connection to this server, one of all masters: the known one, or else a new one; and whether it is new.
    async fn connection(
        &self,
        known: Option<Arc<Connection<R>>>,
        master: &Master,
        masters: &[Master],
        seen: &mut Seen,
    ) -> Result<(Arc<Connection<R>>, bool), ConnectError> {
        let (connection, is_new) = match known {
            Some(connection) => (connection, false),
            None => {
                let connection = Connection::open(&master.address, &self.shared, &self.changed).await?;
                if self.shared.options.wait_replicas > 0 && connection.was_given_up() {
                    inspect::replicas(&self.shared, &connection, &master.slots).await?;
                }
                (connection, true)
            }
        };
        if let Servers::Sentinel(..) = self.shared.options.kind {
            check_role(&self.shared, &connection).await?;
        }
        if is_new {
            let own = |master: &&Master| master.address == connection.wire.address;
            let holds = |slot| masters.iter().filter(own).any(|master| master.slots.contains(&slot));
            inspect::before_use(&self.shared, &connection, holds, seen).await?;
        }
        Ok((connection, is_new))
    }

    fn publish(&self, old: &Routes<R>, routes: Routes<R>, opened: u64) {
        let stats = &self.shared.stats;
        let (had, has) = (old.connections.len(), routes.connections.len());
        stats.connections.fetch_add(has, Relaxed);
        stats.connections.fetch_sub(had, Relaxed);
        stats.connections_closed.fetch_add((had as u64 + opened).saturating_sub(has as u64), Relaxed);
        *self.routes.lock() = Arc::new(routes);
        // Whoever sees this count asks no earlier connection any more.
        stats.connections_opened.fetch_add(opened, Release);
        if opened > 0 {
            self.shared.opened.notify_one();
        }
    }
}

/// All of these, in the order in which they are asked after so many failures in a row: each has its turn to be first.
fn in_turn<T: Clone>(known: &[T], failures: usize) -> Vec<T> {
    let first = failures.checked_rem(known.len()).unwrap_or(0);
    [&known[first..], &known[..first]].concat()
}

/// Pauses that double, each shortened at random by up to a half, so that nodes do not connect all at once.
struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    fn new((first, longest): (Duration, Duration)) -> Self {
        Self { next: first.min(longest), longest }
    }

    fn next(&mut self, random: u64) -> Duration {
        let pause = self.next.mul_f64(1.0 - (random % 256) as f64 / 512.0);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_each_failure_another_server_is_asked_first() {
        let asked = [0, 1, 2, 3].map(|failures| in_turn(&[7, 8, 9], failures));
        assert_eq!(asked, [[7, 8, 9], [8, 9, 7], [9, 7, 8], [7, 8, 9]]);
        assert!(in_turn::<u8>(&[], 5).is_empty());
    }
}
