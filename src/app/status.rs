//! The state of the process for the status page: collected from its parts, and sampled once a second.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::App;
use crate::clock::monotonic;
use crate::configuration::InForce;
use crate::front::connections::Workers;
use tidegate_operate::exceptions::{Book, Version};
use tidegate_operate::status::{About, ExceptionsNow, Parts, Setting, Status};

/// How often counts are sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The state of this process. `refused` counts requests to the admin API.
pub(super) fn of(app: &App, workers: &Arc<Workers>, refused: Arc<AtomicU64>) -> Status {
    let configuration = &app.configuration;
    let setting =
        |InForce { name, value, origin, .. }: &InForce| Setting { name, value: value.clone(), origin };
    let mode = configuration.redis.as_ref().map(|redis| redis.failover.mode);
    let workers = Arc::clone(workers);
    Status::new(Parts {
        about: About {
            started: monotonic(),
            clock: app.clock,
            workers: configuration.workers.count,
            store_bytes_max: configuration.memory.max_bytes,
            settings: configuration.changed.iter().map(setting).collect(),
        },
        metrics: Arc::clone(&app.metrics),
        health: Arc::clone(&app.health),
        reloads: Arc::clone(&app.reloads),
        store: Arc::clone(&app.store),
        shared: app.service.counters().shared().cloned().zip(mode),
        records: app.records.clone().map(|store| {
            let is_up: Box<dyn Fn() -> bool + Send + Sync> = Box::new(move || store.is_up());
            (is_up, configuration.limits.lookup.records.stale_mode)
        }),
        denied: app.denied.clone(),
        denied_for_all: configuration.keep_keys,
        bans: {
            let service = Arc::clone(&app.service);
            Box::new(move || service.known_bans())
        },
        connections: Box::new(move || workers.connections()),
        events_dropped: {
            let events = app.event_tasks.events.clone();
            Box::new(move || events.iter().map(|events| events.dropped()).sum())
        },
        exceptions: configuration.admin.has_token().then(|| exceptions(Arc::clone(&app.exceptions), refused)),
        exceptions_trouble: {
            let book = Arc::clone(&app.exceptions);
            Box::new(move || book.trouble())
        },
    })
}

fn exceptions(book: Arc<Book>, refused: Arc<AtomicU64>) -> Box<dyn Fn() -> ExceptionsNow + Send + Sync> {
    Box::new(move || {
        let Version { number, count } = book.version();
        ExceptionsNow { count, changes: number, refused: refused.load(Relaxed) }
    })
}

pub(super) async fn sample(status: Arc<Status>) -> Infallible {
    let mut seconds = interval(SAMPLE_INTERVAL);
    // After a pause, one sample is enough.
    seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        seconds.tick().await;
        status.sample(status.now_millis());
    }
}
