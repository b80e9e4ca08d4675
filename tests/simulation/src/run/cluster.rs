//! What nodes of a scenario count in: its servers, and the counters of a node that asks them.

use std::sync::Arc;
use std::time::Duration;

use tidegate_engine::clock::Clock;
use tidegate_engine::key::KeySecret;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_redis::address::{Address, Servers};
use tidegate_redis::runtime::Runtime as _;
use tidegate_redis::{DenyCold, RedisOptions, RedisStore, SharedStore, SharedStoreOptions};
use tidegate_serve::service::Counters;

use super::alone;
use super::shared_records;
use crate::node::Node;
use crate::redis::server::Server;
use crate::scenario::{COLD_MAX, Layout, Scenario, Settings};

/// Under which keys of counters and names of records are made.
pub(super) fn secret(layout: Layout) -> KeySecret {
    match layout {
        Layout::Alone(_) => alone::secret().secret(),
        _ => KeySecret::new([7; 16]),
    }
}

/// The servers of a scenario.
pub(super) fn servers(scenario: &Scenario) -> Vec<Server> {
    let servers = servers_of(scenario).into_iter().chain(shared_records::server(scenario));
    servers.map(|server| server.scripts_run_by(scenario.scripts_run_by)).collect()
}

fn servers_of(scenario: &Scenario) -> Vec<Server> {
    match scenario.layout {
        Layout::Single => vec![Server::new("main", None)],
        Layout::PerSecond => ["main", "second"].map(|name| Server::new(name, None)).into(),
        Layout::Sentinel => vec![
            Server::new("one", None),
            Server::new("other", None).replica(scenario.replicas_ahead),
            Server::new("sentinel", None).sentinel("one"),
        ],
        Layout::Cluster(masters) => (0..masters)
            .map(|number| {
                let first = number * 16_384 / masters;
                let last = (number + 1) * 16_384 / masters - 1;
                Server::new(&format!("master{number}"), Some(first as u16..=last as u16))
            })
            .collect(),
        Layout::Alone(_) => Vec::new(),
    }
}

/// The counters of a node that starts now with these settings, in Redis.
pub(super) fn counters(scenario: &Scenario, settings: Settings, node: &Node) -> (Counters<Node>, Clock) {
    let lease_time = Duration::from_nanos(settings.lease_time);
    let host = |name: &str| Address::Tcp(name.to_owned(), 6379);
    let on = |kind| {
        let cold = DenyCold { window_max: Duration::from_nanos(COLD_MAX), lease_time };
        let options = RedisOptions {
            timeout: Duration::from_nanos(scenario.timeout),
            deny_cold: settings.denies_cold.then_some(cold),
            wait_replicas: scenario.wait_replicas,
            workers: scenario.workers,
            pool_size: scenario.pool_size,
            follows_epochs: scenario.follows_resets,
            ..RedisOptions::new(kind)
        };
        RedisStore::on(node.clone(), options)
    };
    let (main, per_second) = match scenario.layout {
        Layout::Single => (on(Servers::Single(host("main"))), None),
        Layout::PerSecond => (on(Servers::Single(host("main"))), Some(on(Servers::Single(host("second"))))),
        Layout::Sentinel => (on(Servers::Sentinel("counters".to_owned(), vec![host("sentinel")])), None),
        Layout::Cluster(_) => (on(Servers::Cluster(vec![host("master0"), host("master1")])), None),
        Layout::Alone(_) => unreachable!("its counters are in memory"),
    };
    let local = MemoryStore::new(MemoryOptions::new(1 << 20));
    let clock = Clock::new(node.monotonic(), node.world_time());
    let options = SharedStoreOptions {
        deny_cache_bytes: scenario.deny_cache_bytes,
        local_share: f64::from(settings.local_share_percent) / 100.0,
        lease_time,
        ..SharedStoreOptions::default()
    };
    let store = SharedStore::new(main, per_second, Arc::new(local), clock, options);
    (Counters::Shared(Arc::new(store)), clock)
}
