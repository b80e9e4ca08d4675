//! What the control thread does beside serving pages: it sets its priority and the limit of open files, frees expired
//! counters and old rules, and shows the store in metrics.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clock::Clock;
use tidegate_engine::cost::Cost;
use tidegate_engine::memory::MemoryStore;
use tidegate_serve::metrics::{Kind, Metrics};
use tidegate_serve::service::Service;

/// How often expired counters are looked for, while there are such and after a while without any: a process that nobody
/// asks seldom wakes.
const SWEEP_INTERVAL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));

/// Lowers the priority of this thread below the workers'. If the system refuses, only that is lost.
pub(super) fn lower_priority(niceness: i32) {
    if let Err(error) = rustix::process::nice(niceness) {
        tracing::debug!(%error, "the control thread keeps its priority");
    }
}

/// Raises the limit of open files to what the system allows, and returns it.
pub(super) fn open_files_max() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files stays");
            limit.current
        }
    };
    current.map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX))
}

/// Frees expired counters, in steps so small that neither a decision nor a scrape waits for one.
pub(super) async fn sweep(store: Arc<MemoryStore>, service: Arc<Service>, clock: Clock) -> Infallible {
    let mut pause = SWEEP_INTERVAL.0;
    loop {
        let mut swept = store.sweep(clock.now());
        let mut forgotten = swept.forgotten;
        while !swept.round_done {
            // First to decisions that wait for this core, then to other tasks of this thread.
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

/// Shows the store, which may take `bytes_max`, in metrics. Values are read at each scrape.
pub(super) fn register_store(metrics: &Metrics, store: &Arc<MemoryStore>, bytes_max: u64) {
    let register = |name, help, kind, read: fn(&MemoryStore) -> u64| {
        let store = Arc::clone(store);
        metrics.register(name, help, kind, move |samples| samples.push(&[], read(&store)));
    };
    register("tidegate_counters", "Counters that are held.", Kind::Gauge, MemoryStore::counters);
    register("tidegate_counters_bytes", "Bytes that counters take.", Kind::Gauge, MemoryStore::bytes);
    metrics.register(
        "tidegate_counters_bytes_max",
        "Bytes that counters may take (MAX_COUNTER_BYTES).",
        Kind::Gauge,
        move |samples| samples.push(&[], bytes_max),
    );
    register(
        "tidegate_counters_expired_total",
        "Counters that were forgotten because they equalled unused ones.",
        Kind::Counter,
        MemoryStore::expired_total,
    );
    register(
        "tidegate_reported_beyond_limit_hits_total",
        "Hits of reported costs that were charged beyond a limit, by the counters of this process.",
        Kind::Counter,
        |store| store.reported_total().beyond,
    );
    register(
        "tidegate_reported_dropped_hits_total",
        "Hits of reported costs that counters of this process could not hold.",
        Kind::Counter,
        |store| store.reported_total().dropped,
    );
    let store = Arc::clone(store);
    metrics.register(
        "tidegate_store_full_total",
        "Descriptors that needed a new counter when MAX_COUNTER_BYTES was reached, by the answer they got.",
        Kind::Counter,
        move |samples| {
            let full = store.full_total();
            samples.push(&[("answer", "deny")], full.deny);
            samples.push(&[("answer", "allow")], full.allow);
        },
    );
}

/// Shows what rules take descriptors' own costs for.
pub(super) fn register_costs(metrics: &Metrics, service: &Arc<Service>) {
    let service = Arc::clone(service);
    metrics.register(
        "tidegate_rule_costs",
        "Rules by what they take descriptors' own costs for, and whether they say so or have learnt it.",
        Kind::Gauge,
        move |samples| {
            let mut counts = [0_u64; 4];
            service.with_rules(|rules| {
                for rule in rules.iter().flat_map(|rules| rules.rules()) {
                    let learnt = usize::from(rule.cost.said() == Cost::Auto);
                    counts[2 * learnt + usize::from(!rule.cost.is_reported())] += 1;
                }
            });
            for (cost, count) in ["reported", "asked", "auto_reported", "auto_asked"].into_iter().zip(counts)
            {
                samples.push(&[("cost", cost)], count);
            }
        },
    );
}
