//! The connections of one worker: to every server that holds counters, looked up again whenever something about them
//! changes.
//!
//! In: what [`Shared`] says, and links that break. Out: the link for a slot, if there is one now. A task of the
//! worker's own runtime connects, probes once a second, and waits longer and longer between attempts that fail, at once
//! or soon after. A
//! request never waits for any of this: without a link there is no answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::address::{Address, Kind};
use crate::connect_error::ConnectError;
use crate::generation::{Generation, check_replicas};
use crate::link::Link;
use crate::routes::Routes;
use crate::runtime::Runtime;
use crate::state::{Contact, Shared};
use crate::topology::{Server, check_role, servers};

/// How often servers are asked whether they are still the same.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses between attempts after the first contact: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// One worker's connections.
pub(super) struct Lane<R: Runtime> {
    shared: Arc<Shared<R>>,
    routes: Mutex<Arc<Routes<R>>>,
    changed: Arc<Notify>,
    /// It looks after what one lane has to: whether servers still remember.
    leads: bool,
}

impl<R: Runtime> Lane<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, leads: bool) -> Self {
        Self { shared, routes: Mutex::default(), changed: Arc::default(), leads }
    }

    /// The link to the server of this slot.
    pub(super) fn route(&self, slot: u16) -> Option<Arc<Link<R>>> {
        self.routes.lock().of(slot).cloned()
    }

    /// Whether there is a link to any slot.
    pub(super) fn leads_anywhere(&self) -> bool {
        self.routes.lock().lead_anywhere()
    }

    /// The link to this server.
    pub(super) fn link_to(&self, address: &Address) -> Option<Arc<Link<R>>> {
        self.routes.lock().to(address)
    }

    /// Keeps the connections, for ever.
    pub(super) async fn keep(&self) -> Infallible {
        let runtime = &self.shared.runtime;
        let mut pauses = Pauses::new(self.shared.options.startup_pauses);
        let (mut generation, mut is_up, mut failures) = (Generation::default(), false, 0);
        let mut was_ever_up = false;
        loop {
            match self.look_again(&mut generation, failures).await {
                Ok(()) => {
                    self.shared.reached(is_up);
                    is_up = true;
                    if !std::mem::replace(&mut was_ever_up, true) {
                        pauses = Pauses::new(PAUSES);
                    }
                    let changed = runtime.timeout(PROBE_INTERVAL, self.changed.notified()).await;
                    if changed.is_none() {
                        // Only what has served for a while is good: a replica answers every probe, and no call.
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
            // The next look sees what has come up to here.
            let _ = self.changed.notified().now_or_never();
        }
    }

    /// Why a connection was given up, if one was.
    fn broken_by(&self) -> Option<ConnectError> {
        self.routes.lock().links.iter().find_map(|link| link.wire.broken_by().cloned())
    }

    /// Looks the servers up and connects to those that there is no good link to. After `failures` in a row another
    /// server is asked first: the one before may know less than the others.
    async fn look_again(&self, generation: &mut Generation, failures: usize) -> Result<(), ConnectError> {
        let first = *self.shared.contact.borrow() != Contact::Up;
        let old = Arc::clone(&self.routes.lock());
        let servers = match (&self.shared.options.kind, old.links.first()) {
            // One server is where it always was; the others may have moved.
            (Kind::Single(_), Some(link)) if !link.wire.is_broken() => None,
            _ => {
                let mut known = old.links.clone();
                let asked_last = failures.checked_rem(known.len()).unwrap_or(0);
                known.rotate_left(asked_last);
                Some(servers(&self.shared, &known).await?)
            }
        };
        let mut failed = None;
        if let Some(servers) = servers {
            let (mut routes, mut opened, mut silent) = (Routes::default(), 0, Vec::new());
            for server in servers {
                // One that does not answer may hold many ranges.
                if silent.contains(&server.address) {
                    continue;
                }
                match self.link(&old, &routes, &server).await {
                    Ok((link, is_new)) => {
                        opened += u64::from(is_new);
                        routes.add(server.slots, link);
                    }
                    Err(error) => {
                        silent.push(server.address);
                        failed = Some(error);
                    }
                }
            }
            self.publish(&old, routes, opened);
        }
        let routes = Arc::clone(&self.routes.lock());
        for link in &routes.links {
            if self.leads {
                generation.check(&self.shared, &routes, link, first).await?;
            } else {
                link.ask::<String>(&self.shared, &redis::cmd("PING")).await?;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// The link to this server, and whether it is a new one.
    async fn link(
        &self,
        old: &Routes<R>,
        new: &Routes<R>,
        server: &Server,
    ) -> Result<(Arc<Link<R>>, bool), ConnectError> {
        let (link, is_new) = match new.to(&server.address).or_else(|| old.to(&server.address)) {
            Some(link) => (link, false),
            None => {
                let link = Link::open(&server.address, &self.shared, &self.changed).await?;
                if self.shared.options.wait_replicas > 0 && link.was_given_up() {
                    check_replicas(&self.shared, &link, &server.slots).await?;
                }
                (link, true)
            }
        };
        if let Kind::Sentinel(..) = self.shared.options.kind {
            check_role(&self.shared, &link).await?;
        }
        Ok((link, is_new))
    }

    fn publish(&self, old: &Routes<R>, routes: Routes<R>, opened: u64) {
        let stats = &self.shared.stats;
        stats.connections_opened.fetch_add(opened, Relaxed);
        let (had, has) = (old.links.len(), routes.links.len());
        stats.connections.fetch_add(has, Relaxed);
        stats.connections.fetch_sub(had, Relaxed);
        stats.connections_closed.fetch_add((had as u64 + opened).saturating_sub(has as u64), Relaxed);
        *self.routes.lock() = Arc::new(routes);
    }
}

/// Longer and longer pauses, each up to a half shorter by chance, so that nodes do not come all at once.
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
