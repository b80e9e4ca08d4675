//! One run: a scenario is played, and judged.

// What there is: nodes, their servers and rules, and a machine where there is no Redis.
mod nodes;
mod cluster;
mod rules;
mod names;
mod alone;

// What clients do, and what becomes of it.
mod ask;
mod batch;
mod call;
mod front;
mod decided;
mod explained;
mod slots;

// What operators do: exceptions of one node or of all, bans, resets, and records in a list or in Redis.
mod book;
mod bans;
mod resets;
mod records;
mod shelf;
mod shared_records;
mod record_writes;
mod folder_records;
mod record_disk;
mod shared_exceptions;
mod exception_changes;
mod ledger;

// What goes wrong.
mod faults;
mod troubles;

// What is judged: each answer, and all of them at the end.
mod answers;
mod decider;
mod sums;
mod leases;
mod recovery;
mod verdict;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tidegate_serve::metrics::Metrics;
use tidegate_serve::service::fixture::metrics;

use crate::network::{Latencies, Network};
use crate::oracle::{BanChange, Census, Loss, Record, Refund, Release, Troubles};
use crate::scenario::Scenario;
use crate::world::{MILLI, SECOND, Span, Time, World, lock};
use alone::Home;
use ledger::Ledger;
use names::RuleIds;
use nodes::State;
use record_disk::RecordDisk;
use resets::Operated;
use shared_exceptions::SharedExceptions;
use shelf::Shelf;
use sums::Sums;

/// How much later than its budget an answer may come: a message of the runtime's own.
const LATE_MAX: Time = 2 * MILLI;
/// A process that could not begin is started again after so long.
const STARTED_AGAIN: Time = 20 * MILLI;
/// An operator sends a change again after so long, if it is not done, and so long after the last question at most.
const SENT_AGAIN: Time = SECOND;
const SENT_FOR: Time = 4 * SECOND;
/// After this all connections are there again, and Redis has received what it missed.
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
    /// How much of what was answered was judged.
    pub census: Census,
    /// What happened, if that was asked for.
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
    /// Hits were denied for which there was room, or an answer says too late when there is room, or too little of how much.
    Starved,
    /// An answer came later than its budget.
    TooLate,
    /// When nothing failed any more, N was not there again.
    NotRecovered,
    /// A request had an error for an answer, though nothing failed.
    NoAnswer,
    /// A request was decided by a limit that was not in force.
    WrongLimit,
    /// An answer is none to its request.
    WrongAnswer,
    /// Metrics are not the sums of what was decided.
    WrongSum,
    /// More calls held slots than there are, or one was denied while there was a slot.
    WrongSlot,
    /// A key was banned without enough denials or for too long, or was not banned though it had to be.
    WrongBan,
    /// A reservation did not count, ended by itself, or counted after its end; or a cost was charged twice or not at all.
    WrongHold,
    /// Leased hits are neither spent nor given back.
    Unaccounted,
    /// A reset was not in force in time, or was forgotten.
    WrongReset,
    /// A process began with something else than the one before had left.
    WrongStart,
}

/// What clients share.
struct Run {
    world: Arc<World>,
    network: Arc<Network>,
    scenario: Scenario,
    /// Which of them each counter meets.
    rule_ids: RuleIds,
    nodes: Mutex<Vec<State>>,
    records: Mutex<Vec<Record>>,
    /// The places of the records of each request.
    places: Mutex<Vec<Range<usize>>>,
    shelf: Arc<Shelf>,
    /// What operators wrote, where records are in a store of the program.
    ledger: Ledger,
    /// The disk of records of a node without Redis.
    record_disk: Option<Arc<RecordDisk>>,
    /// What operators did with exceptions, where nodes share them.
    shared_exceptions: SharedExceptions,
    /// When nodes may not have reached the server of records.
    record_troubles: Troubles,
    operated: Mutex<Operated>,
    losses: Mutex<Vec<Loss>>,
    /// Hits that went back, or may have.
    refunds: Mutex<Vec<Refund>>,
    /// What operators did with bans.
    ban_changes: Mutex<Vec<BanChange>>,
    /// Tokens of slots, by the places of the records of their calls.
    tokens: Mutex<BTreeMap<usize, String>>,
    /// Those that were sent back.
    releases: Mutex<Vec<Release>>,
    /// When keys came to servers of a Cluster.
    moves: Mutex<Vec<(usize, Time)>>,
    /// When nodes stood still.
    pauses: Mutex<Vec<Span>>,
    /// From when nodes started until they had found their servers.
    starts: Mutex<Vec<Span>>,
    /// What all nodes count, and what they decided.
    metrics: Arc<Metrics>,
    sums: Arc<Sums>,
    violation: Mutex<Option<Violation>>,
    /// Errors for answers: from when they were asked for until they were answered, and what they say.
    errors: Mutex<Vec<(Span, String)>>,
    /// What explanations said of counters, as if they had been asked.
    explained: Mutex<Vec<Record>>,
    codes: Mutex<[u64; 3]>,
    /// By how much the clock of counters was ever set back: by a boot of a node without Redis, or at servers.
    lag: AtomicU64,
}

/// Plays a scenario. `keeps_story`: what happens is written down.
pub fn run(scenario: &Scenario, keeps_story: bool) -> Outcome {
    let world = World::new(keeps_story);
    let latencies = Latencies {
        slow_one_in: scenario.slow_one_in,
        calm_from: scenario.asked_until(),
        far: scenario.far.clone(),
    };
    let servers = cluster::servers(scenario);
    let network = Network::new(scenario.seed, scenario.clocks.len(), servers, latencies);
    let rules = rules::rules(scenario, 0, cluster::secret(scenario.layout));
    let record_troubles = troubles::of_records(scenario);
    let nodes = scenario.clocks.iter().map(|_| State { home: Home::of(scenario), ..State::default() });
    let run = Arc::new(Run {
        world,
        network,
        scenario: scenario.clone(),
        rule_ids: names::rule_ids(&scenario.limits, &rules),
        nodes: Mutex::new(nodes.collect()),
        records: Mutex::new(Vec::with_capacity(2 * scenario.asks.len())),
        places: Mutex::new(vec![0..0; scenario.asks.len()]),
        shelf: Arc::default(),
        ledger: Ledger::default(),
        record_disk: folder_records::disk(scenario),
        shared_exceptions: SharedExceptions::of(scenario, &record_troubles),
        record_troubles,
        operated: Mutex::default(),
        losses: Mutex::default(),
        refunds: Mutex::default(),
        ban_changes: Mutex::default(),
        tokens: Mutex::default(),
        releases: Mutex::default(),
        moves: Mutex::default(),
        pauses: Mutex::default(),
        starts: Mutex::default(),
        metrics: metrics(),
        sums: Arc::default(),
        violation: Mutex::default(),
        errors: Mutex::default(),
        explained: Mutex::default(),
        codes: Mutex::default(),
        lag: AtomicU64::default(),
    });
    run.play();
    let (judged, census) = run.judged();
    let violation = lock(&run.violation).take().or(judged);
    run.world.note(|| {
        violation
            .as_ref()
            .map_or_else(|| "nothing is wrong".to_owned(), |it| format!("{:?}: {}", it.kind, it.what))
    });
    let outcome = Outcome {
        violation,
        requests: scenario.asks.len() as u64,
        commands: run.network.commands.load(Relaxed),
        codes: *lock(&run.codes),
        census,
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
        self.check_resets();
        self.check_records();
        self.check_exceptions();
        self.check_recovered();
        self.check_leases();
        self.sums.check(&self.metrics).into_iter().for_each(|what| self.wrong(Kind::WrongSum, what));
    }

    /// Whether a node stood still at some time since then.
    fn stood_still(&self, node: usize, since: Time) -> bool {
        lock(&self.pauses).iter().any(|pause| pause.touches(node, since, self.world.now()))
    }

    fn wrong(&self, kind: Kind, what: String) {
        lock(&self.violation).get_or_insert(Violation { kind, what });
    }
}
