//! Counters in memory: shown in metrics, and freed once they have expired. Rules that were replaced are freed too.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::app::{Essential, spawn_forever};
use crate::clock::Clock;
use tidegate_engine::memory::MemoryStore;
use tidegate_serve::metrics::{
    MetricType::{Counter, Gauge},
    Metrics,
};
use tidegate_serve::service::Service;

/// How often expired counters are looked for, while there are some, and after a while without any: an idle process
/// seldom wakes.
const SWEEP_INTERVAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));

/// Shows the store, which may take `bytes_max`, in metrics; `is_shared`: most counters are in Redis. Values are read at each
/// scrape.
#[rustfmt::skip]
pub(super) fn register(metrics: &Metrics, store: &Arc<MemoryStore>, bytes_max: u64, is_shared: bool) {
    metrics
        .of(store)
        .value(Gauge, "tidegate_counters_shared", "1: counters are in Redis, and nodes share N. 0: counters are in memory, and each node has its own N.", move |_| u64::from(is_shared))
        .value(Gauge, "tidegate_counters", "Counters that are held.", MemoryStore::counters)
        .value(Gauge, "tidegate_counters_bytes", "Bytes that counters take.", MemoryStore::bytes)
        .value(Gauge, "tidegate_counters_bytes_max", "Bytes that counters may take (MAX_COUNTER_BYTES).", move |_| bytes_max)
        .value(Counter, "tidegate_counters_expired_total", "Counters that were forgotten because they equalled unused ones.", MemoryStore::expired_total)
        .value(Counter, "tidegate_reported_beyond_limit_hits_total", "Hits of reported costs that were charged beyond a limit, by the counters of this process.",
            |store| store.reported_total().beyond)
        .value(Counter, "tidegate_reported_dropped_hits_total", "Hits of reported costs that were dropped: beyond what a counter of this process can hold.",
            |store| store.reported_total().dropped)
        .samples(Counter, "tidegate_store_full_total", "Descriptors that needed a new counter when MAX_COUNTER_BYTES was reached, by the answer they got.", |store, samples| {
            let full = store.full_total();
            samples.push(&[("answer", "deny")], full.deny);
            samples.push(&[("answer", "allow")], full.allow);
        });
}

/// Frees expired counters and old rules.
pub(super) fn keep(tasks: &mut Essential, store: &Arc<MemoryStore>, service: &Arc<Service>, clock: Clock) {
    spawn_forever(tasks, sweep(Arc::clone(store), Arc::clone(service), clock));
}

/// In small steps, so that neither a decision nor a scrape waits for one.
async fn sweep(store: Arc<MemoryStore>, service: Arc<Service>, clock: Clock) -> Infallible {
    let mut pause = SWEEP_INTERVAL.0;
    loop {
        let mut swept = store.sweep(clock.now());
        let mut forgotten = swept.forgotten;
        while !swept.round_done {
            // Yields first to decisions that wait for this core, then to other tasks of this thread.
            std::thread::yield_now();
            tokio::task::yield_now().await;
            swept = store.sweep(clock.now());
            forgotten += swept.forgotten;
        }
        service.reclaim();
        pause = if forgotten > 0 { SWEEP_INTERVAL.0 } else { SWEEP_INTERVAL.1.min(pause * 2) };
        tokio::time::sleep(pause).await;
    }
}
