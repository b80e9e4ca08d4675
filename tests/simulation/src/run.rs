//! One run: a scenario is played, and judged.

mod ask;
mod checks;
mod cluster;
mod faults;
mod resets;
mod way;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use tidegate_engine::rules::{Epochs, RuleSet};
use tidegate_redis::SharedStore;

use crate::network::{Latencies, Network};
use crate::node::Node;
use crate::oracle::{Loss, Record};
use crate::scenario::Scenario;
use crate::world::{MILLI, SECOND, Time, World, lock};
use way::Excepted;

/// How much later than its budget an answer may come: a message of the runtime's own.
const LATE_MAX: Time = 2 * MILLI;
/// After this all connections are there again, and Redis has been told what it missed.
const RECOVERED: Time = 8 * SECOND;

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// What may not happen, and did.
    pub violation: Option<Violation>,
    /// Requests that were asked.
    pub requests: u64,
    /// Commands that servers answered.
    pub commands: u64,
    /// Requests that were admitted, denied, and had no answer.
    pub codes: [u64; 3],
    /// What happened, if it was to be told.
    pub story: String,
}

/// Something that may not happen, and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Of what kind.
    pub kind: Kind,
    /// What it was.
    pub what: String,
}

/// Kinds of what may not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// More was admitted than may be.
    TooMuch,
    /// Hits were denied for which there was room.
    Starved,
    /// An answer came later than its budget.
    TooLate,
    /// When nothing failed any more, N was not there again.
    NotRecovered,
    /// Leased hits are neither spent nor given back.
    Unaccounted,
}

/// What clients share.
struct Run {
    world: Arc<World>,
    network: Arc<Network>,
    scenario: Scenario,
    /// The rules of each version.
    rules: [Arc<RuleSet>; 2],
    nodes: Mutex<Vec<State>>,
    records: Mutex<Vec<Record>>,
    losses: Mutex<Vec<Loss>>,
    /// When keys came to servers of a Cluster.
    moves: Mutex<Vec<(usize, Time)>>,
    /// When nodes stood still.
    pauses: Mutex<Vec<(usize, Time, Time)>>,
    violation: Mutex<Option<Violation>>,
    codes: Mutex<[u64; 3]>,
}

/// A node, as clients see it.
#[derive(Default)]
struct State {
    store: Option<Arc<SharedStore<Node>>>,
    runtime: Option<Node>,
    version: usize,
    /// The resets that it has heard of. They survive a crash, because they lie in Redis.
    epochs: Epochs,
    /// Its rules in these epochs, until one of both changes.
    rules: Option<Arc<RuleSet>>,
    excepted: Excepted,
    starts: u64,
    /// Requests to its store that wait for an answer.
    asking: Arc<AtomicU64>,
}

/// Plays a scenario. `tells`: what happens is written down.
pub fn run(scenario: &Scenario, tells: bool) -> Outcome {
    let world = World::new(tells);
    let latencies = Latencies {
        slow_one_in: scenario.slow_one_in,
        calm_from: scenario.asked_until(),
        far: scenario.far.clone(),
    };
    let servers = cluster::servers(scenario);
    let network = Network::new(scenario.seed, scenario.clocks.len(), servers, latencies);
    let rules = [0, 1].map(|version| Arc::new(cluster::rules(&scenario.limits, version)));
    let nodes = scenario.clocks.iter().map(|_| State::default());
    let run = Arc::new(Run {
        world,
        network,
        scenario: scenario.clone(),
        rules,
        nodes: Mutex::new(nodes.collect()),
        records: Mutex::default(),
        losses: Mutex::default(),
        moves: Mutex::default(),
        pauses: Mutex::default(),
        violation: Mutex::default(),
        codes: Mutex::default(),
    });
    run.play();
    let violation = lock(&run.violation).take().or_else(|| run.judged());
    run.world.tell(|| {
        violation
            .as_ref()
            .map_or_else(|| "nothing is wrong".to_owned(), |it| format!("{:?}: {}", it.kind, it.what))
    });
    let outcome = Outcome {
        violation,
        requests: scenario.asks.len() as u64,
        commands: run.network.commands.load(std::sync::atomic::Ordering::Relaxed),
        codes: *lock(&run.codes),
        story: run.world.story(),
    };
    // Stores, tasks and the network hold each other.
    lock(&run.nodes).clear();
    run.world.end();
    run.network.end();
    outcome
}

impl Run {
    fn play(self: &Arc<Self>) {
        (0..self.scenario.clocks.len()).for_each(|node| self.start(node));
        self.ask_from(0);
        for fault in self.scenario.faults.clone() {
            let run = Arc::clone(self);
            self.world.at(fault.at, move |_| run.fault(fault.what));
        }
        let end = self.scenario.asked_until() + RECOVERED;
        self.check_accounts_until(end);
        self.world.run_until(end);
        self.check_recovered();
        self.check_leases();
    }

    /// Starts a node, perhaps again.
    fn start(self: &Arc<Self>, number: usize) {
        let mut nodes = lock(&self.nodes);
        if nodes[number].store.is_some() {
            return;
        }
        nodes[number].starts += 1;
        let seed = self.scenario.seed ^ (number as u64) << 32 ^ nodes[number].starts;
        let node = Node::new(&self.world, &self.network, number, self.scenario.clocks[number], seed);
        let store = Arc::new(cluster::store(&self.scenario, self.world.now(), &node));
        (nodes[number].store, nodes[number].asking) = (Some(Arc::clone(&store)), Arc::default());
        nodes[number].runtime = Some(node);
        drop(nodes);
        self.world.tell(|| format!("node {number} starts"));
        store.attach();
    }

    fn wrong(&self, kind: Kind, what: String) {
        lock(&self.violation).get_or_insert(Violation { kind, what });
    }
}
