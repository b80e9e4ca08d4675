//! The bounded queue to an outlet, and how many of its events were sent, dropped or failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::{mpsc, watch};

use super::event::{Event, KeyNames};
use tidegate_engine::text::json_line;

/// The end of a queue that events are put into.
pub struct Outlet {
    /// Its name in metrics.
    pub name: &'static str,
    events: mpsc::Sender<Arc<Event>>,
    totals: Arc<OutletTotals>,
}

/// The end of a queue that events are taken from.
pub struct Queue {
    events: mpsc::Receiver<Arc<Event>>,
    names: KeyNames,
    totals: Arc<OutletTotals>,
    end: watch::Receiver<()>,
    is_ending: bool,
}

/// How many events of an outlet were sent, dropped or failed.
#[derive(Debug, Default)]
pub struct OutletTotals {
    sent: AtomicU64,
    /// The queue was full.
    dropped_full: AtomicU64,
    /// The receiver did not take them.
    dropped_failed: AtomicU64,
    /// Attempts that failed. The event may have been sent by a later one.
    failures: AtomicU64,
}

impl Outlet {
    /// An outlet with this name, in which so many events may wait. `end` becomes true when no more events will
    /// follow.
    pub fn new(
        name: &'static str,
        queue_max: usize,
        names: KeyNames,
        end: watch::Receiver<()>,
    ) -> (Self, Queue) {
        let (sender, events) = mpsc::channel(queue_max);
        let totals = Arc::<OutletTotals>::default();
        let queue = Queue { events, names, totals: Arc::clone(&totals), end, is_ending: false };
        (Self { name, events: sender, totals }, queue)
    }

    /// Puts an event into the queue, or drops it. Never waits.
    pub(super) fn push(&self, event: &Arc<Event>) {
        if self.events.try_send(Arc::clone(event)).is_err() {
            self.totals.dropped_full.fetch_add(1, Relaxed);
        }
    }

    /// Events that wait.
    pub fn waiting(&self) -> usize {
        self.events.max_capacity() - self.events.capacity()
    }

    /// How many of its events were sent, dropped or failed.
    pub fn totals(&self) -> &OutletTotals {
        &self.totals
    }
}

impl Queue {
    /// Takes at most so many of the waiting events, as lines of JSON. Waits until there is one. None: there will be
    /// no more.
    pub async fn take(&mut self, count_max: usize) -> Vec<String> {
        let mut taken = Vec::new();
        loop {
            tokio::select! {
                biased;
                _ = self.end.changed(), if !self.is_ending => {
                    self.is_ending = true;
                    self.events.close();
                }
                _ = self.events.recv_many(&mut taken, count_max) => {
                    let json = |event: &Arc<Event>| event.to_json(&self.names);
                    return taken.iter().map(|event| json_line(&json(event)).into_owned()).collect();
                }
            }
        }
    }

    /// Whether the process is ending: then there is no time to try again.
    pub fn is_ending(&self) -> bool {
        self.is_ending || self.end.has_changed().unwrap_or(true)
    }

    /// Waits until the process ends.
    pub async fn ending(&mut self) {
        // An error means that the sender is gone.
        let _ = self.end.clone().changed().await;
    }

    /// The receiver took so many events, or they were dropped.
    pub fn settle(&self, count: usize, is_sent: bool) {
        let total = if is_sent { &self.totals.sent } else { &self.totals.dropped_failed };
        total.fetch_add(count as u64, Relaxed);
    }

    /// An attempt failed.
    pub fn failed(&self) {
        self.totals.failures.fetch_add(1, Relaxed);
    }
}

impl OutletTotals {
    /// Events that the receiver took.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Events that were dropped, by reason.
    pub fn dropped(&self) -> [(&'static str, u64); 2] {
        [("queue", self.dropped_full.load(Relaxed)), ("failed", self.dropped_failed.load(Relaxed))]
    }

    /// Attempts that failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }
}
