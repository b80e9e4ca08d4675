//! The connections of one worker: to every server that holds counters, looked up again whenever something about them
//! changes.
//!
//! In: what [`Shared`] says, and links that break. Out: the link for a slot, if there is one now. A task of the
//! worker's own runtime connects, probes once a second, and waits longer and longer between attempts that fail. A
//! request never waits for any of this: without a link there is no answer.

use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::address::{Address, Kind};
use super::generation::Generation;
use super::link::{Link, LinkError};
use super::state::{Contact, Shared};
use super::topology::{Server, servers};

/// How often servers are asked whether they are still the same.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses between attempts after the first contact: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// One worker's connections.
pub(super) struct Lane {
    shared: Arc<Shared>,
    routes: Mutex<Arc<Routes>>,
    changed: Arc<Notify>,
    /// It looks after what one lane has to: whether servers still remember.
    leads: bool,
}

/// Which slots lead where.
#[derive(Default)]
struct Routes(Vec<(RangeInclusive<u16>, Arc<Link>)>);

impl Routes {
    fn of(&self, slot: u16) -> Option<&Arc<Link>> {
        let (_, link) = self.0.iter().find(|(slots, _)| slots.contains(&slot))?;
        (!link.is_broken()).then_some(link)
    }

    fn to(&self, address: &Address) -> Option<Arc<Link>> {
        let known = self.0.iter().find(|(_, link)| link.address == *address && !link.is_broken());
        known.map(|(_, link)| Arc::clone(link))
    }
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, leads: bool) -> Self {
        Self { shared, routes: Mutex::default(), changed: Arc::default(), leads }
    }

    /// The link to the server of this slot.
    pub(super) fn route(&self, slot: u16) -> Option<Arc<Link>> {
        self.routes.lock().of(slot).cloned()
    }

    /// The link to this server.
    pub(super) fn link_to(&self, address: &Address) -> Option<Arc<Link>> {
        self.routes.lock().to(address)
    }

    /// Keeps the connections, for ever.
    pub(super) async fn keep(&self) -> Infallible {
        let mut pauses = Pauses::new(self.shared.options.startup_pauses);
        let (mut generation, mut first) = (Generation::default(), true);
        loop {
            match self.look_again(&mut generation).await {
                Ok(()) => {
                    self.shared.reached(std::mem::take(&mut first));
                    pauses = Pauses::new(PAUSES);
                    let _ = tokio::time::timeout(PROBE_INTERVAL, self.changed.notified()).await;
                    if self.routes.lock().0.iter().any(|(_, link)| link.is_broken()) {
                        self.shared.lost("a connection was given up".to_owned());
                    }
                }
                Err(error) => {
                    match &error {
                        LinkError::TooOld(_) => self.shared.unusable(error.to_string()),
                        _ => self.shared.lost(error.to_string()),
                    }
                    tokio::time::sleep(pauses.next()).await;
                }
            }
        }
    }

    /// Looks the servers up and connects to those that there is no good link to.
    async fn look_again(&self, generation: &mut Generation) -> Result<(), LinkError> {
        let first = *self.shared.contact.borrow() != Contact::Up;
        let old = Arc::clone(&self.routes.lock());
        let servers = match (&self.shared.options.kind, old.0.first()) {
            // One server is where it always was; the others may have moved.
            (Kind::Single(_), Some((_, link))) if !link.is_broken() => None,
            _ => Some(servers(&self.shared, old.0.iter().map(|(_, link)| &link.address)).await?),
        };
        let mut failed = None;
        if let Some(servers) = servers {
            let (mut routes, mut opened) = (Routes::default(), 0);
            for server in servers {
                match self.link(&old, &server).await {
                    Ok((link, is_new)) => {
                        opened += u64::from(is_new);
                        routes.0.push((server.slots, link));
                    }
                    Err(error) => failed = Some(error),
                }
            }
            self.publish(&old, routes, opened);
        }
        let routes = Arc::clone(&self.routes.lock());
        for (_, link) in &routes.0 {
            if self.leads {
                generation.check(&self.shared, link, first).await?;
            } else {
                link.ask::<String>(&redis::cmd("PING"), self.shared.connect_patience()).await?;
            }
        }
        failed.map_or(Ok(()), Err)
    }

    async fn link(&self, old: &Routes, server: &Server) -> Result<(Arc<Link>, bool), LinkError> {
        if let Some(link) = old.to(&server.address) {
            return Ok((link, false));
        }
        let Shared { options, .. } = &*self.shared;
        let patience = (self.shared.connect_patience(), options.timeout);
        let link = Link::open(&server.address, &options.access, patience, &self.changed).await?;
        Ok((Arc::new(link), true))
    }

    fn publish(&self, old: &Routes, routes: Routes, opened: u64) {
        let stats = &self.shared.stats;
        stats.connections_opened.fetch_add(opened, Relaxed);
        let (had, has) = (distinct(old), distinct(&routes));
        stats.connections.fetch_add(has, Relaxed);
        stats.connections.fetch_sub(had, Relaxed);
        stats.connections_closed.fetch_add((had as u64 + opened).saturating_sub(has as u64), Relaxed);
        *self.routes.lock() = Arc::new(routes);
    }
}

/// The number of servers among these routes.
fn distinct(routes: &Routes) -> usize {
    let mut links: Vec<_> = routes.0.iter().map(|(_, link)| Arc::as_ptr(link)).collect();
    links.sort_unstable();
    links.dedup();
    links.len()
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

    fn next(&mut self) -> Duration {
        let mut random = [0; 1];
        // Without randomness the pause is only longer.
        let _ = getrandom::fill(&mut random);
        let pause = self.next.mul_f64(1.0 - f64::from(random[0]) / 512.0);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}
