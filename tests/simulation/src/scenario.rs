//! What one seed means: nodes, servers, limits, everything that clients ask, and everything that goes wrong.
//!
//! A scenario is plain data, so that parts of it can be left out: that is how a failing run is made short.

// How all of it is drawn, and its parts.
mod drawn;
mod limit;
mod ask;
mod fault;

// Scenarios of a kind: made for one plot, or without Redis.
mod stage;
mod plots;
mod alone;

// What limits and their rules may be.
mod shapes;
mod widened;
mod extremes;
mod further;
mod classes;
mod slots;
mod prefixes;
mod calendars;
mod bans;
mod reservations;
mod debts;
mod learning;
mod long_logs;

// What clients and nodes do.
mod batches;
mod mixed;
mod fleet;

// What operators do.
mod operators;
mod exceptions;
mod explained;
mod records;
mod shared_records;
mod folder_records;
mod shared_exceptions;
mod resets;

use std::fmt::{self, Display, Formatter};

use tidegate_engine::plan::Modes;
use tidegate_engine::rules::StoreFailure;
use tidegate_serve::service::StaleMode;

use crate::node::NodeClock;
use crate::redis::scripts::RunBy;
use crate::world::{MILLI, SECOND, Time};
pub use alone::Alone;
pub use ask::{Ask, Cancelled, Form, Item};
pub use bans::Ban;
pub use calendars::{DAY_ENDS, DAY_SECS, Ending};
pub use classes::{Classes, FULL};
pub use debts::DEBT_WINDOWS;
pub use fault::{DiskTrouble, During, Fault, Outage, What, Whom};
pub use fleet::Settings;
pub use further::Further;
pub use limit::{LimitSpec, empties_in};
pub use prefixes::ADDRESSES;
pub use records::{HEARD_MAX, Terms};
pub use reservations::{Hold, Reservation, Reserve};
pub use shapes::{Limitless, Shape};
pub use slots::{IDS, Release, Renewal};

/// How long clients ask.
const ASKED: Time = 20 * SECOND;
/// COLD_START_MAX_WINDOW of nodes with Redis.
pub const COLD_MAX: Time = 3_600 * SECOND;

/// All of it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Delays of messages come from it too.
    pub seed: u64,
    /// Clients begin so much later than usual.
    pub later: Time,
    /// A clock for each node.
    pub clocks: Vec<NodeClock>,
    /// How servers are arranged.
    pub layout: Layout,
    /// What runs the scripts. The run is the same with each of them.
    pub scripts_run_by: RunBy,
    /// The limits.
    pub limits: Vec<LimitSpec>,
    /// What most nodes are set to.
    pub settings: Settings,
    /// A node that begins with others, and what those are. After an upgrade a node has those that it did not have before.
    pub other: Option<(usize, Settings)>,
    /// REDIS_TIMEOUT.
    pub timeout: Time,
    /// REDIS_WAIT_REPLICAS.
    pub wait_replicas: u32,
    /// The clocks of replicas are ahead of those of their masters by so much.
    pub replicas_ahead: Time,
    /// Bytes of the deny cache.
    pub deny_cache_bytes: usize,
    /// SHADOW_MODE, QUOTA_MODE, and STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT.
    pub modes: Modes,
    /// What the unlimited rule replaces.
    pub unlimited_replaces: Option<usize>,
    /// How many workers a node has.
    pub workers: usize,
    /// REDIS_POOL_SIZE: workers beyond share connections.
    pub pool_size: usize,
    /// Once in so many messages one takes much longer. `None`: never.
    pub slow_one_in: Option<u64>,
    /// How much longer each message of a node takes, to servers and back.
    pub far: Vec<[Time; 2]>,
    /// What holds where the store of records does not answer.
    pub stale_mode: StaleMode,
    /// How many keys a node knows of that have records or none.
    pub record_cache: usize,
    /// Nodes follow resets through Redis. Otherwise they hear of them from a list.
    pub follows_resets: bool,
    /// Where records are.
    pub records_in: StoredIn,
    /// Where exceptions are: in the Redis that has the records, or, where nodes share none, in a list of each node.
    pub exceptions_in: StoredIn,
    /// What clients ask, by time.
    pub asks: Vec<Ask>,
    /// What goes wrong, or is changed, by time.
    pub faults: Vec<Fault>,
}

/// Where records are, or exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredIn {
    /// In a list, of which nodes hear changes.
    List,
    /// In a Redis server that has no counters.
    Redis,
    /// In a Cluster of one master that has no counters.
    Cluster,
    /// In a folder of the one node: records only.
    Folder,
}

/// How servers are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One server.
    Single,
    /// One server, and another for limits per second.
    PerSecond,
    /// A master, its replica, and the sentinel that knows which of them is the master.
    Sentinel,
    /// A Cluster of so many masters.
    Cluster(usize),
    /// No server: the one node counts in memory.
    Alone(Alone),
}

impl Layout {
    /// How many servers there are.
    pub fn servers(self) -> usize {
        match self {
            Self::Single => 1,
            Self::PerSecond => 2,
            Self::Sentinel => 3,
            Self::Cluster(masters) => masters,
            Self::Alone(_) => 0,
        }
    }

    /// How many masters the Cluster has, if it is one.
    pub fn masters(self) -> Option<usize> {
        if let Self::Cluster(masters) = self { Some(masters) } else { None }
    }
}

impl Scenario {
    /// All limits that are judged: those of rules and requests, and then the candidate of each, if it has one. Nobody asks
    /// a candidate while Redis does not answer, by a lease, or where an exception or a record holds.
    pub fn judged(&self) -> Vec<LimitSpec> {
        let candidate = |limit: &LimitSpec| LimitSpec {
            requests: [limit.candidate.unwrap_or(0); 2],
            is_leased: false,
            failure: StoreFailure::Error,
            excepted: None,
            recorded: None,
            ..*limit
        };
        let has_redis = self.layout.servers() > 0;
        // Without Redis nothing of it fails.
        let own = |limit: &LimitSpec| LimitSpec {
            failure: if has_redis { limit.failure } else { StoreFailure::Error },
            ..*limit
        };
        self.limits.iter().map(own).chain(self.limits.iter().map(candidate)).collect()
    }

    /// The first limit of the rule of this one.
    pub fn first_limit(&self, limit: usize) -> usize {
        self.limits[limit].further.map_or(limit, |(first, _)| first)
    }

    /// Whether a rule replaces this limit.
    pub fn is_replaced(&self, limit: usize) -> bool {
        self.unlimited_replaces == Some(limit)
            || self.limits.iter().any(|other| other.shape.replaces == Some(limit))
    }

    /// The descriptors that ask this limit.
    fn items_of(&mut self, limit: usize) -> impl Iterator<Item = &mut Item> {
        self.asks.iter_mut().flat_map(|ask| &mut ask.items).filter(move |item| item.limit == limit)
    }

    /// The settings of a node, before its upgrade or after it.
    pub fn settings_of(&self, node: usize, is_upgraded: bool) -> Settings {
        let other = self.other.filter(|(other, _)| (*other == node) != is_upgraded);
        other.map_or(self.settings, |(_, settings)| settings)
    }

    /// All settings that a node may have.
    pub fn all_settings(&self) -> impl Iterator<Item = Settings> {
        [Some(self.settings), self.other.map(|(_, other)| other)].into_iter().flatten()
    }

    /// How long leases last at most.
    pub fn lease_time(&self) -> Time {
        self.all_settings().map(|it| it.lease_time).max().unwrap_or(0)
    }

    /// The largest share of N that a node admits alone by `local`.
    pub fn local_share_percent(&self) -> u32 {
        self.all_settings().map(|it| it.local_share_percent).max().unwrap_or(100)
    }

    /// COLD_START_MAX_WINDOW, if any node has COLD_START=deny.
    pub fn cold_max(&self) -> Option<Time> {
        let denies = self.all_settings().any(|it| it.denies_cold);
        let max = if let Layout::Alone(alone) = self.layout { alone.cold_max } else { COLD_MAX };
        denies.then_some(max)
    }

    /// By how much clocks of servers are set ahead, all in all.
    pub fn lead(&self) -> Time {
        let ahead = |fault: &Fault| match fault.what {
            What::StepServers { by, is_ahead: true } => by,
            What::FailOver { .. } => self.replicas_ahead,
            _ => 0,
        };
        self.faults.iter().map(ahead).sum()
    }

    /// Whether nothing fails, and no message is slow.
    pub fn is_calm(&self) -> bool {
        let fails = |fault: &Fault| !matches!(fault.what, What::Ban { .. } | What::Explain { .. });
        !self.faults.iter().any(fails) && self.slow_one_in.is_none()
    }

    /// Whether records are in Redis, where nodes share them.
    pub fn shares_records(&self) -> bool {
        matches!(self.records_in, StoredIn::Redis | StoredIn::Cluster)
    }

    /// Whether records are in a store of the program.
    pub fn stores_records(&self) -> bool {
        self.records_in != StoredIn::List
    }

    /// Whether exceptions are in Redis, where nodes share them.
    pub fn shares_exceptions(&self) -> bool {
        self.exceptions_in != StoredIn::List
    }

    /// The Redis that has no counters, if there is one: it has records, or exceptions, or both.
    pub fn operated_in(&self) -> StoredIn {
        if self.shares_records() { self.records_in } else { self.exceptions_in }
    }

    /// When clients have asked everything.
    pub fn asked_until(&self) -> Time {
        self.later + ASKED
    }

    /// Without the last node, and what it does.
    #[must_use]
    pub fn without_last_node(&self) -> Self {
        let mut fewer = self.clone();
        fewer.clocks.pop();
        fewer.far.pop();
        let nodes = fewer.clocks.len();
        fewer.asks.retain(|ask| ask.node < nodes);
        fewer.asks.iter_mut().for_each(|ask| {
            ask.refunded = ask.refunded.filter(|&(_, node)| node < nodes);
            ask.released = ask.released.filter(|release| release.node < nodes);
            ask.renewed = ask.renewed.filter(|renewal| renewal.node < nodes);
        });
        fewer.faults.retain(|fault| fault.what.node().is_none_or(|node| node < nodes));
        fewer
    }
}

impl Display for Scenario {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{} nodes, {:?}, {:?}, others {:?}, REDIS_TIMEOUT {} ms, {} replicas, {} bytes of deny cache",
            self.clocks.len(),
            self.layout,
            self.settings,
            self.other,
            self.timeout / MILLI,
            self.wait_replicas,
            self.deny_cache_bytes,
        )?;
        let far: Vec<_> = self.far.iter().map(|way| way.map(|more| more / MILLI)).collect();
        writeln!(formatter, "{} workers a node, REDIS_POOL_SIZE {}", self.workers, self.pool_size)?;
        writeln!(formatter, "messages of nodes take {far:?} ms longer there and back")?;
        if let Some(times) = self.slow_one_in {
            writeln!(formatter, "one message in {times} takes long")?;
        }
        for (number, limit) in self.limits.iter().enumerate() {
            let LimitSpec {
                algorithm,
                requests,
                window_secs,
                failure,
                buckets,
                burst,
                candidate,
                shape,
                further,
                ..
            } = limit;
            let flags = [
                (limit.is_override, "of requests"),
                (limit.is_shadow, "shadow"),
                (limit.is_leased, "leased"),
                (limit.is_reported, "reported"),
                (limit.excepted.is_some(), "with exceptions"),
                (limit.recorded.is_some(), "with records"),
            ];
            let flags: Vec<_> = flags.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
            writeln!(
                formatter,
                "limit {number}: {} of {requests:?} in {window_secs:?} s {flags:?}, on failure {failure:?}, {buckets} buckets, \
                 burst {burst:?}, candidate {candidate:?}, {shape:?}, further {further:?}",
                algorithm.name()
            )?;
        }
        writeln!(formatter, "{:?}, the unlimited rule replaces {:?}", self.modes, self.unlimited_replaces)?;
        if self.follows_resets {
            writeln!(formatter, "nodes follow resets through Redis")?;
        }
        if self.stores_records() {
            writeln!(formatter, "records are in {:?}", self.records_in)?;
        }
        if self.shares_exceptions() {
            writeln!(formatter, "nodes share exceptions in {:?}", self.exceptions_in)?;
        }
        write!(formatter, "{} requests, {} faults", self.asks.len(), self.faults.len())
    }
}
