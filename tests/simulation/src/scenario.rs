//! What one seed means: nodes, servers, limits, everything that clients ask, and everything that goes wrong.
//!
//! A scenario is plain data, so that parts of it can be left out: that is how a failing run is made short.

use std::fmt::{self, Display, Formatter};

use tidegate_engine::limit::Algorithm;
use tidegate_engine::rules::StoreFailure;

use crate::node::NodeClock;
use crate::random::Random;
use crate::redis::server::Trouble;
use crate::world::{MICRO, MILLI, SECOND, Time};

/// All of it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Delays of messages come from it too.
    pub seed: u64,
    /// A clock for each node.
    pub clocks: Vec<NodeClock>,
    /// How servers are arranged.
    pub layout: Layout,
    /// The limits.
    pub limits: Vec<LimitSpec>,
    /// How long leases last.
    pub lease_time: Time,
    /// REDIS_TIMEOUT.
    pub timeout: Time,
    /// REDIS_WAIT_REPLICAS.
    pub wait_replicas: u32,
    /// Bytes of the deny cache.
    pub deny_cache_bytes: usize,
    /// Once in so many messages one takes much longer.
    pub slow_one_in: u64,
    /// What clients ask, by time.
    pub asks: Vec<Ask>,
    /// What goes wrong, or is changed, by time.
    pub faults: Vec<Fault>,
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
}

impl Layout {
    /// How many servers there are.
    pub fn servers(self) -> usize {
        match self {
            Self::Single => 1,
            Self::PerSecond => 2,
            Self::Sentinel => 3,
            Self::Cluster(masters) => masters,
        }
    }
}

/// One limit, under the key `l0`, `l1`, …
#[derive(Clone, Copy, Debug)]
pub struct LimitSpec {
    /// How it counts.
    pub algorithm: Algorithm,
    /// N, before and after a reload.
    pub requests: [u32; 2],
    /// W in seconds, before and after a reload: another W is another counter.
    pub window_secs: [u64; 2],
    /// Requests bring it along, and no rule has it.
    pub is_override: bool,
    /// `shadow_mode`.
    pub is_shadow: bool,
    /// `sync: leased`.
    pub is_leased: bool,
    /// `cost: reported`.
    pub is_reported: bool,
    /// `on_store_failure`.
    pub failure: StoreFailure,
}

impl LimitSpec {
    /// The largest N that is ever in force.
    pub fn most(&self) -> u64 {
        u64::from(self.requests[0].max(self.requests[1]))
    }
}

/// What one client asks.
#[derive(Clone, Debug)]
pub struct Ask {
    /// When.
    pub at: Time,
    /// Which node.
    pub node: usize,
    /// A descriptor each.
    pub items: Vec<Item>,
    /// How long it waits.
    pub deadline: Option<Time>,
    /// When it goes away without waiting for the answer.
    pub cancelled_after: Option<Time>,
    /// How much later it gives back what it was admitted, at another node perhaps.
    pub refunded: Option<(Time, usize)>,
}

/// One descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which limit.
    pub limit: usize,
    /// Which counter of it.
    pub key: u64,
    /// How many hits.
    pub hits: u64,
}

/// Something that goes wrong, or is changed.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// When.
    pub at: Time,
    /// What.
    pub what: What,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// Messages between a node and a server wait.
    Cut {
        /// The node.
        node: usize,
        /// The server.
        server: usize,
        /// For so long.
        lasts: Time,
    },
    /// Connections between a node and a server break.
    Break {
        /// The node.
        node: usize,
        /// The server.
        server: usize,
    },
    /// Connections between a node and a server are open at one end only.
    Lose {
        /// The node.
        node: usize,
        /// The server.
        server: usize,
    },
    /// A server stands still.
    Stop {
        /// Which.
        server: usize,
        /// For so long.
        lasts: Time,
    },
    /// A server refuses what it is asked.
    Refuse {
        /// Which.
        server: usize,
        /// For so long.
        lasts: Time,
        /// Why.
        why: Trouble,
    },
    /// FLUSHALL.
    Flush {
        /// Which.
        server: usize,
    },
    /// A server is restarted without its data.
    Restart {
        /// Which.
        server: usize,
        /// It is away for so long.
        lasts: Time,
    },
    /// A replica takes over that lacks what was written last.
    FailOver {
        /// Which.
        server: usize,
        /// It lacks what was written in so long.
        lacks: Time,
    },
    /// A node stands still, while its clock goes on.
    Pause {
        /// Which.
        node: usize,
        /// For so long.
        lasts: Time,
    },
    /// A node dies, and comes back.
    Crash {
        /// Which.
        node: usize,
        /// It is away for so long.
        lasts: Time,
    },
    /// A node is stopped, and comes back.
    StopNode {
        /// Which.
        node: usize,
        /// It is away for so long.
        lasts: Time,
    },
    /// Half of a master's slots move to another one.
    MoveSlots {
        /// From this server.
        server: usize,
        /// To that one.
        to: usize,
        /// It takes so long.
        lasts: Time,
    },
    /// A node takes other rules.
    Reload {
        /// Which.
        node: usize,
        /// The N and W of each limit that are in force then.
        version: usize,
    },
}

/// How long clients ask.
const ASKED: Time = 20 * SECOND;

impl Scenario {
    /// What this seed means, with so many nodes if that is said.
    pub fn new(seed: u64, nodes: Option<usize>) -> Self {
        let mut random = Random::new(seed);
        let nodes = nodes.unwrap_or(1 + random.below(4) as usize);
        let layout = random.pick(&[
            Layout::Single,
            Layout::PerSecond,
            Layout::Sentinel,
            Layout::Cluster(1),
            Layout::Cluster(2),
            Layout::Cluster(3),
        ]);
        let clocks = (0..nodes).map(|_| NodeClock {
            offset: random.below(1_000) * SECOND,
            drift_ppm: random.between(0, 100) as i64 - 50,
        });
        let clocks = clocks.collect();
        let limits: Vec<_> = (0..1 + random.below(3)).map(|_| limit(&mut random, layout)).collect();
        let mut scenario = Self {
            seed: random.bits(),
            clocks,
            layout,
            limits,
            lease_time: random.pick(&[50, 100, 100, 200]) * MILLI,
            timeout: random.pick(&[20, 100, 100]) * MILLI,
            wait_replicas: random.pick(&[0, 0, 0, 1]),
            deny_cache_bytes: random.pick(&[0, 0, 1 << 20]),
            slow_one_in: random.pick(&[50, 500, 1 << 40, 1 << 40]),
            asks: Vec::new(),
            faults: Vec::new(),
        };
        scenario.asks = asks(&mut random.fork(), &scenario);
        scenario.faults = faults(&mut random.fork(), &scenario);
        scenario
    }

    /// When clients have asked everything.
    pub fn asked_until(&self) -> Time {
        ASKED
    }
}

fn limit(random: &mut Random, layout: Layout) -> LimitSpec {
    let is_override = random.one_in(8);
    let algorithm = match is_override {
        // Requests bring no algorithm along: they get the usual one.
        true => Algorithm::default(),
        false => random.pick(&[
            Algorithm::SlidingWindow,
            Algorithm::SlidingWindow,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket,
            Algorithm::LeakyBucket,
            Algorithm::FixedWindow,
        ]),
    };
    let requests = random.pick(&[1, 2, 3, 5, 10, 40, 200]);
    let other = if random.one_in(3) { random.pick(&[1, 2, 5, 20, 100]) } else { requests };
    // A minute is of the main store: where there is a second one, some limits have to be there.
    let window = if layout == Layout::PerSecond && random.one_in(2) { 60 } else { 1 + random.below(5) };
    let other_window = if random.one_in(8) { 1 + random.below(5) } else { window };
    LimitSpec {
        algorithm,
        requests: [requests, other],
        window_secs: [window, other_window],
        is_override,
        is_shadow: !is_override && random.one_in(10),
        is_leased: !is_override && algorithm.is_strict() && random.one_in(2),
        is_reported: !is_override && algorithm != Algorithm::FixedWindow && random.one_in(6),
        failure: match is_override {
            true => StoreFailure::Error,
            false => random.pick(&[
                StoreFailure::Error,
                StoreFailure::Error,
                StoreFailure::Deny,
                StoreFailure::Local,
            ]),
        },
    }
}

fn asks(random: &mut Random, scenario: &Scenario) -> Vec<Ask> {
    let (mut asks, mut now) = (Vec::new(), 500 * MILLI);
    let usual = random.pick(&[2 * MILLI, 10 * MILLI, 30 * MILLI]);
    let keys = random.pick(&[1, 2, 6]);
    let several = random.pick(&[2, 5, 1_000]);
    let refunds = random.pick(&[3, 20, 1 << 40]);
    let mut burst = 0;
    while now < ASKED {
        // Quiet and busy by turns; several at the very same time.
        if random.one_in(200) {
            burst = random.below(60);
        }
        now += match burst {
            0 if random.one_in(100) => random.below(1_500 * MILLI),
            0 => random.below(2 * usual),
            _ => random.pick(&[0, 0, 20 * MICRO, 300 * MICRO]),
        };
        burst = burst.saturating_sub(1);
        let count = if random.one_in(several) { 1 + random.below(3) } else { 1 };
        let items = (0..count).map(|_| {
            let limit = random.below(scenario.limits.len() as u64) as usize;
            let most = u64::from(scenario.limits[limit].requests[0]);
            let hits = random.pick(&[0, 1, 1, 1, 1, 1, 2, most / 3 + 1, most]);
            // Most ask for the hot one.
            let key = if random.one_in(3) { random.below(keys) } else { 0 };
            Item { limit, key, hits }
        });
        asks.push(Ask {
            items: items.collect(),
            at: now,
            node: random.below(scenario.clocks.len() as u64) as usize,
            deadline: random.one_in(4).then(|| random.pick(&[1, 5, 20, 50]) * MILLI),
            cancelled_after: random.one_in(30).then(|| random.below(3 * MILLI)),
            refunded: random
                .one_in(refunds)
                .then(|| (random.below(SECOND), random.below(scenario.clocks.len() as u64) as usize)),
        });
    }
    asks
}

fn faults(random: &mut Random, scenario: &Scenario) -> Vec<Fault> {
    let (nodes, servers) = (scenario.clocks.len() as u64, scenario.layout.servers() as u64);
    // Where nothing fails, denials without a reason are seen too.
    let count = random.pick(&[0, 0, 0, 1, 2, 4, 8, 16]);
    let mut faults: Vec<Fault> = (0..count)
        .map(|_| {
            let (node, server) = (random.below(nodes) as usize, random.below(servers) as usize);
            let at = SECOND + random.below(ASKED - SECOND);
            let lasts = random.pick(&[5 * MILLI, 50 * MILLI, 150 * MILLI, 400 * MILLI, SECOND, 3 * SECOND]);
            let to = random.below(servers) as usize;
            let what = match random.below(15) {
                0 | 1 => What::Cut { node, server, lasts },
                2 => What::Break { node, server },
                3 => What::Lose { node, server },
                4 => What::Stop { server, lasts },
                5 => {
                    let why = random.pick(&[Trouble::Loading, Trouble::ReadOnly, Trouble::Full]);
                    What::Refuse { server, lasts, why }
                }
                6 => What::Flush { server },
                7 => What::Restart { server, lasts },
                8 => What::FailOver { server, lacks: lasts },
                9 => What::Pause { node, lasts },
                10 => What::Crash { node, lasts },
                11 => What::StopNode { node, lasts },
                12 | 13 => What::MoveSlots { server, to, lasts },
                _ => What::Reload { node, version: random.below(2) as usize },
            };
            Fault { at, what }
        })
        .collect();
    if random.one_in(3) {
        // A reload reaches all nodes, one after the other.
        let (at, version) = (SECOND + random.below(ASKED - SECOND), 1);
        let all = (0..nodes as usize)
            .map(|node| Fault { at: at + random.below(SECOND), what: What::Reload { node, version } });
        faults.extend(all);
    }
    faults.sort_by_key(|fault| fault.at);
    faults
}

impl Display for Scenario {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{} nodes, {:?}, leases of {} ms, REDIS_TIMEOUT {} ms, {} replicas, {} bytes of deny cache",
            self.clocks.len(),
            self.layout,
            self.lease_time / MILLI,
            self.timeout / MILLI,
            self.wait_replicas,
            self.deny_cache_bytes
        )?;
        for (number, limit) in self.limits.iter().enumerate() {
            let LimitSpec { algorithm, requests, window_secs, failure, .. } = limit;
            let flags = [
                (limit.is_override, "of requests"),
                (limit.is_shadow, "shadow"),
                (limit.is_leased, "leased"),
                (limit.is_reported, "reported"),
            ];
            let flags: Vec<_> = flags.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
            writeln!(
                formatter,
                "limit {number}: {} of {requests:?} in {window_secs:?} s {flags:?}, on failure {failure:?}",
                algorithm.name()
            )?;
        }
        write!(formatter, "{} requests, {} faults", self.asks.len(), self.faults.len())
    }
}
