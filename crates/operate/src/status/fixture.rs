//! The state of a small process, for tests of the page.

use std::sync::Arc;

use super::{About, Parts, Status};
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_serve::clock::{Clock, monotonic};
use tidegate_serve::health::Health;
use tidegate_serve::metrics::Metrics;
use tidegate_serve::service::fixture;

/// The parts of a process that is starting.
pub fn parts() -> Parts {
    parts_of(fixture::metrics())
}

fn parts_of(metrics: Arc<Metrics>) -> Parts {
    let bytes_max = 1 << 20;
    Parts {
        about: About {
            started: monotonic(),
            clock: Clock::start(),
            workers: 1,
            store_bytes_max: bytes_max,
            settings: Vec::new(),
        },
        metrics,
        health: Arc::new(Health::starting()),
        reloads: Arc::default(),
        store: Arc::new(MemoryStore::new(MemoryOptions::new(bytes_max))),
        shared: None,
        records: None,
        denied: None,
        denied_for_all: false,
        bans: Box::new(Vec::new),
        connections: Box::new(|| 0),
        events_dropped: Box::new(|| 0),
        exceptions: None,
        exceptions_trouble: Box::new(|| None),
    }
}

/// The state of a process with these counts.
pub fn status(metrics: &Arc<Metrics>) -> Arc<Status> {
    Arc::new(Status::new(parts_of(Arc::clone(metrics))))
}
