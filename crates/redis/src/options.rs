//! How a shared store is reached and used.

use std::time::Duration;

use crate::address::{Access, Login, Servers};
use crate::key::KeyStyle;

/// How a shared store is reached and used.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// The servers.
    pub kind: Servers,
    /// How to connect to the servers.
    pub access: Access,
    /// The login to the sentinels.
    pub sentinel_login: Login,
    /// Workers, each with its own connections.
    pub workers: usize,
    /// The most connections to one server.
    pub pool_size: usize,
    /// How long one decision may take.
    pub timeout: Duration,
    /// The most decisions that wait at a time.
    pub in_flight_max: usize,
    /// How many replicas must have a charge before it is answered.
    pub wait_replicas: u32,
    /// How keys are written.
    pub keys: KeyStyle,
    /// The first and the longest pause between attempts at start.
    pub startup_pauses: (Duration, Duration),
    /// Counters whose hits may be lost count as full. `None`: they start at zero.
    pub deny_cold: Option<DenyCold>,
    /// There are counters in this store, so a loss of its data is noticed.
    pub holds_counters: bool,
    /// Numbers that all nodes agree on are read ([`SharedStore::follow_epochs`](crate::SharedStore::follow_epochs)).
    /// Until then no server decides.
    pub follows_epochs: bool,
}

/// Which counters count as full while their hits may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenyCold {
    /// The counters of limits whose hits count no longer than this.
    pub window_max: Duration,
    /// How long a lease of this node lasts: its hits may be spent for so long after a loss.
    pub lease_time: Duration,
}

impl RedisOptions {
    /// Options for one worker: 100 ms for a decision, 10,000 decisions that wait, 10 connections to a server, no login
    /// and no TLS.
    pub fn new(kind: Servers) -> Self {
        Self {
            kind,
            access: Access::default(),
            sentinel_login: Login::default(),
            workers: 1,
            pool_size: 10,
            timeout: Duration::from_millis(100),
            in_flight_max: 10_000,
            wait_replicas: 0,
            keys: KeyStyle::default(),
            startup_pauses: (Duration::from_secs(1), Duration::from_secs(30)),
            deny_cold: None,
            holds_counters: true,
            follows_epochs: false,
        }
    }

    /// Declares that there are no counters in this store, so that none can be cold.
    #[must_use]
    pub fn without_counters(self) -> Self {
        Self { holds_counters: false, deny_cold: None, ..self }
    }
}
