//! One run: a scenario is played, and judged.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_engine::clock::Clock;
use tidegate_engine::decision::{Code, Verdicts, conclude};
use tidegate_engine::key::KeySecret;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::{MemoryOptions, MemoryStore};
use tidegate_engine::plan::{Modes, Plan, Step};
use tidegate_engine::request::{DescriptorOptions, Entry, Request};
use tidegate_engine::rules::{LoadOptions, RuleSet, SourceFile, StoreFailure, load};
use tidegate_engine::time::Timestamp;
use tidegate_redis::address::{self, Address};
use tidegate_redis::runtime::Runtime as _;
use tidegate_redis::{
    Applied, LeaseTotals, RedisOptions, RedisStore, SharedStore, SharedStoreOptions, StoreError,
};

use crate::network::Network;
use crate::node::Node;
use crate::oracle::{Outcome as Answer, Record, Rules, starved, too_much};
use crate::redis::database::Database;
use crate::redis::server::{EPOCH_MICROS, Server};
use crate::scenario::{Ask, Item, Layout, LimitSpec, Scenario, What};
use crate::world::{MICRO, MILLI, SECOND, Time, World, lock};

/// How much later than its budget an answer may come: a message of the runtime's own.
const LATE_MAX: Time = 2 * MILLI;
/// After this all connections are there again, and Redis has been told what it missed.
const RECOVERED: Time = 8 * SECOND;

/// The keys of limits in requests, and the values of counters.
const LIMITS: [&str; 3] = ["l0", "l1", "l2"];
const KEYS: [&str; 6] = ["k0", "k1", "k2", "k3", "k4", "k5"];

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
    losses: Mutex<Vec<Time>>,
    /// When nodes stood still.
    pauses: Mutex<Vec<(usize, Time, Time)>>,
    violation: Mutex<Option<Violation>>,
    codes: Mutex<[u64; 3]>,
}

/// A node, as clients see it.
struct State {
    store: Option<Arc<SharedStore<Node>>>,
    runtime: Option<Node>,
    version: usize,
    starts: u64,
}

/// Plays a scenario. `tells`: what happens is written down.
pub fn run(scenario: &Scenario, tells: bool) -> Outcome {
    let world = World::new(tells);
    let network = Network::new(
        scenario.seed,
        scenario.clocks.len(),
        servers(scenario.layout),
        (scenario.slow_one_in, scenario.asked_until()),
    );
    let rules = [0, 1].map(|version| Arc::new(rules(&scenario.limits, version)));
    let nodes = scenario.clocks.iter().map(|_| State { store: None, runtime: None, version: 0, starts: 0 });
    let run = Arc::new(Run {
        world,
        network,
        scenario: scenario.clone(),
        rules,
        nodes: Mutex::new(nodes.collect()),
        records: Mutex::default(),
        losses: Mutex::default(),
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

fn servers(layout: Layout) -> Vec<Server> {
    match layout {
        Layout::Single => vec![Server::new("main".to_owned(), None)],
        Layout::PerSecond => ["main", "second"].map(|name| Server::new(name.to_owned(), None)).into(),
        Layout::Cluster(masters) => (0..masters)
            .map(|number| {
                let first = number * 16_384 / masters;
                let last = (number + 1) * 16_384 / masters - 1;
                Server::new(format!("master{number}"), Some(first as u16..=last as u16))
            })
            .collect(),
    }
}

fn rules(limits: &[LimitSpec], version: usize) -> RuleSet {
    let mut text = "domain: sim\ndescriptors:\n".to_owned();
    for (number, limit) in limits.iter().enumerate() {
        let LimitSpec { algorithm, requests, window_secs, is_leased, is_reported, failure } = limit;
        let failure = match failure {
            StoreFailure::Error => "error",
            StoreFailure::Deny => "deny",
            StoreFailure::Allow => "allow",
            StoreFailure::Local => "local",
        };
        let sync = if *is_leased { ", sync: leased" } else { "" };
        let cost = if *is_reported { "reported" } else { "asked" };
        text += &format!(
            "  - {{key: l{number}, rate_limit: {{window: {window_secs}s, requests_per_unit: {}, algorithm: {}, \
             on_store_failure: {failure}, cost: {cost}{sync}}}}}\n",
            requests[version],
            algorithm.name(),
        );
    }
    let file = SourceFile { name: "sim.yaml".into(), bytes: text.into(), presumed: false };
    let options = LoadOptions::new(KeySecret::new([7; 16])).strict(true);
    load(&[file], &options).expect("good rules").rules
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
        let store = Arc::new(self.store(&node));
        nodes[number].store = Some(Arc::clone(&store));
        nodes[number].runtime = Some(node);
        drop(nodes);
        self.world.tell(|| format!("node {number} starts"));
        store.attach();
    }

    fn store(&self, node: &Node) -> SharedStore<Node> {
        let host = |name: &str| Address::Tcp(name.to_owned(), 6379);
        let options = |kind| RedisOptions::new(kind).timeout(Duration::from_nanos(self.scenario.timeout));
        let single = |name| RedisStore::on(node.clone(), options(address::Kind::Single(host(name))));
        let (main, per_second) = match self.scenario.layout {
            Layout::Single => (single("main"), None),
            Layout::PerSecond => (single("main"), Some(single("second"))),
            Layout::Cluster(_) => {
                let seeds = address::Kind::Cluster(vec![host("master0"), host("master1")]);
                (RedisStore::on(node.clone(), options(seeds)), None)
            }
        };
        let local = MemoryStore::new(MemoryOptions::new(1 << 20));
        let clock =
            Clock::new(node.monotonic(), Timestamp::from_nanos(EPOCH_MICROS * 1_000 + self.world.now()));
        let options = SharedStoreOptions::default()
            .deny_cache_bytes(self.scenario.deny_cache_bytes)
            .lease_time(Duration::from_nanos(self.scenario.lease_time));
        SharedStore::new(main, per_second, Arc::new(local), clock, options)
    }

    /// Clients ask one after the other, from this request on.
    fn ask_from(self: &Arc<Self>, number: usize) {
        let Some(ask) = self.scenario.asks.get(number).cloned() else { return };
        let run = Arc::clone(self);
        self.world.at(ask.at, move |_| {
            run.ask(number, ask);
            run.ask_from(number + 1);
        });
    }

    /// A client asks.
    fn ask(self: &Arc<Self>, number: usize, ask: Ask) {
        let Some(task) = self.request(number, ask.node, ask.items.clone(), 1, ask.deadline) else { return };
        let (run, node, cancelled_after) = (Arc::clone(self), ask.node, ask.cancelled_after);
        let asking = self.world.spawn(node, async move {
            let admitted = task.await;
            let refunded = ask.refunded.filter(|&(after, _)| run.still_counts(&ask, run.world.now() + after));
            if let (Some(true), Some((after, at))) = (admitted, refunded) {
                // Taken out before: whatever becomes of it, the client counts on none of these hits any more.
                lock(&run.records)
                    .iter_mut()
                    .filter(|it| it.request == number)
                    .for_each(|it| it.is_refunded = true);
                let again = Arc::clone(&run);
                run.world.at(run.world.now() + after, move |_| again.refund(number, at, &ask));
            }
        });
        if let Some(after) = cancelled_after {
            self.world.at(self.world.now() + after, move |_| asking.abort());
        }
    }

    /// Whether what was admitted surely counts when it goes back at this time: only such hits may be given back.
    fn still_counts(&self, ask: &Ask, at: Time) -> bool {
        let latest = at + self.scenario.timeout + 10 * MILLI;
        if lock(&self.losses).iter().any(|&loss| loss >= ask.at) {
            return false;
        }
        ask.items.iter().all(|item| {
            let limit = &self.scenario.limits[item.limit];
            let window = limit.window_secs * SECOND;
            match limit.algorithm {
                // The oldest hits drain first, whosoever they are.
                Algorithm::TokenBucket | Algorithm::LeakyBucket => false,
                Algorithm::FixedWindow => {
                    let number = |time| (EPOCH_MICROS * MICRO + time) / window;
                    number(ask.at) == number(latest)
                }
                _ => latest < ask.at + window,
            }
        })
    }

    /// A client gives back what it was admitted.
    fn refund(self: &Arc<Self>, number: usize, node: usize, ask: &Ask) {
        let Some(task) = self.request(number, node, ask.items.clone(), -1, None) else { return };
        let (run, ask) = (Arc::clone(self), ask.clone());
        self.world.spawn(node, async move {
            // The node may have stood still meanwhile.
            if run.still_counts(&ask, run.world.now()) {
                task.await;
            }
        });
    }

    /// A request to a node: whether it was admitted, or `None` without an answer. `sign`: -1 gives hits back.
    fn request(
        self: &Arc<Self>,
        number: usize,
        node: usize,
        items: Vec<Item>,
        sign: i8,
        deadline: Option<Time>,
    ) -> Option<impl Future<Output = Option<bool>> + Send + use<>> {
        let (store, runtime, version) = {
            let nodes = lock(&self.nodes);
            (nodes[node].store.clone()?, nodes[node].runtime.clone()?, nodes[node].version)
        };
        let (run, rules) = (Arc::clone(self), Arc::clone(&self.rules[version]));
        Some(async move {
            let asked = run.world.now();
            let mut request = Request::new("sim", 1);
            for item in &items {
                let options = DescriptorOptions {
                    hits_addend: Some(item.hits),
                    is_negative_hits: sign < 0,
                    ..DescriptorOptions::default()
                };
                request.push([Entry { key: LIMITS[item.limit], value: KEYS[item.key as usize] }], options);
            }
            let plan = rules.plan(&request, Modes::default());
            let first = if sign > 0 { run.note(number, (asked, deadline), &items, &plan) } else { 0 };
            let answered =
                decide((&store, &runtime), &request, &plan, deadline.map(Duration::from_nanos)).await;
            run.answered((number, first), node, (asked, deadline), &items, sign, &plan, answered)
        })
    }

    /// What a client was answered.
    #[allow(clippy::too_many_arguments, reason = "all of it is one answer")]
    fn answered(
        &self,
        (number, first): (usize, usize),
        node: usize,
        (asked, deadline): (Time, Option<Time>),
        items: &[Item],
        sign: i8,
        plan: &Plan<'_>,
        answered: Result<Verdicts, StoreError>,
    ) -> Option<bool> {
        let now = self.world.now();
        let what = if sign < 0 { "gives back" } else { "asks for" };
        let budget = self.scenario.timeout.min(deadline.unwrap_or(Time::MAX)) + LATE_MAX;
        let stood_still =
            lock(&self.pauses).iter().any(|&(other, from, to)| other == node && from <= now && to >= asked);
        if now - asked > budget && !stood_still {
            self.wrong(
                Kind::TooLate,
                format!(
                    "request {number} waited for {} us, its budget was {} us",
                    (now - asked) / MICRO,
                    budget / MICRO
                ),
            );
        }
        let verdicts = match answered {
            Ok(verdicts) => verdicts,
            Err(error) => {
                lock(&self.codes)[2] += 1;
                self.world.tell(|| format!("node {node}: request {number} {what} {items:?}: {error}"));
                return None;
            }
        };
        let is_ok = conclude(plan, &verdicts).code == Code::Ok;
        lock(&self.codes)[usize::from(!is_ok)] += 1;
        self.world.tell(|| {
            let lasted = (now - asked) / MICRO;
            format!(
                "node {node}: request {number} {what} {items:?}: {} after {lasted} us",
                if is_ok { "OK" } else { "over" }
            )
        });
        if sign < 0 {
            return Some(is_ok);
        }
        for (record, verdict) in lock(&self.records)[first..].iter_mut().zip(&verdicts) {
            let over = verdict.is_some_and(|verdict| verdict.over);
            record.outcome = if is_ok { Answer::Admitted } else { Answer::Denied { over } };
            record.answered = now;
        }
        Some(is_ok)
    }

    /// Notes what a request asks. Returns the place of its first record.
    fn note(
        &self,
        number: usize,
        (asked, deadline): (Time, Option<Time>),
        items: &[Item],
        plan: &Plan<'_>,
    ) -> usize {
        let mut records = lock(&self.records);
        let first = records.len();
        for (item, step) in items.iter().zip(&plan.steps) {
            let Step::Check(check) = step else { panic!("every item meets a limit") };
            records.push(Record {
                request: number,
                limit: item.limit,
                key: item.key,
                hits: item.hits,
                asked,
                // A server does nothing after the deadline of a call.
                answered: asked + self.scenario.timeout + LATE_MAX,
                requests: check.limit.requests(),
                is_reported: check.reported,
                is_refunded: false,
                is_plain: items.len() == 1 && deadline.is_none(),
                outcome: Answer::Unknown,
            });
        }
        first
    }

    fn wrong(&self, kind: Kind, what: String) {
        lock(&self.violation).get_or_insert(Violation { kind, what });
    }

    fn judged(&self) -> Option<Violation> {
        let (losses, starts) = (lock(&self.losses), lock(&self.nodes).iter().map(|node| node.starts).sum());
        let is_calm = self.scenario.faults.is_empty() && self.scenario.slow_one_in > u64::from(u32::MAX);
        let rules = Rules {
            limits: &self.scenario.limits,
            starts,
            losses: &losses,
            lease_time: self.scenario.lease_time,
            is_calm,
        };
        let records = lock(&self.records);
        let of_kind = |kind| move |what| Violation { kind, what };
        let too_much = too_much(&rules, &records).map(of_kind(Kind::TooMuch));
        too_much.or_else(|| starved(&rules, &records).map(of_kind(Kind::Starved)))
    }

    /// Something goes wrong, or is changed.
    fn fault(self: &Arc<Self>, what: What) {
        let (world, network, now) = (&self.world, &self.network, self.world.now());
        world.tell(|| format!("{what:?}"));
        let later = |lasts: Time, then: fn(&Arc<Self>, What)| {
            let run = Arc::clone(self);
            world.at(now + lasts, move |_| then(&run, what));
        };
        match what {
            What::Cut { node, server, lasts } => network.cut(node, server, now + lasts),
            What::Break { node, server } => network.break_all(Some(node), server),
            What::Lose { node, server } => network.lose(node, server),
            What::Stop { server, lasts } => network.stop(server, now + lasts),
            What::Refuse { server, lasts, why } => {
                network.server(server, |it| it.trouble = Some(why));
                later(lasts, Self::heal);
            }
            What::Flush { server } => {
                network.server(server, Server::flush);
                lock(&self.losses).push(now);
            }
            What::Restart { server, lasts } => {
                network.break_all(None, server);
                network.set_gone(server, true);
                network.server(server, |it| it.restart(Database::default()));
                lock(&self.losses).push(now);
                later(lasts, Self::heal);
            }
            What::FailOver { server, lacks } => {
                let copy = network.server(server, |it| it.copy());
                let run = Arc::clone(self);
                world.at(now + lacks, move |world| {
                    run.network.break_all(None, server);
                    run.network.server(server, |it| it.restart(copy));
                    lock(&run.losses).push(world.now());
                    world.tell(|| format!("a replica takes over from server {server}"));
                });
            }
            What::Pause { node, lasts } => {
                world.freeze(node);
                lock(&self.pauses).push((node, now, now + lasts));
                later(lasts, Self::heal);
            }
            What::Crash { node, lasts } => {
                let store = lock(&self.nodes)[node].store.take();
                world.kill(Some(node));
                drop(store);
                (0..self.scenario.layout.servers()).for_each(|server| network.break_all(Some(node), server));
                later(lasts, Self::heal);
            }
            What::StopNode { node, lasts } => {
                if let Some(store) = lock(&self.nodes)[node].store.take() {
                    let run = Arc::clone(self);
                    world.spawn(node, async move {
                        store.detach().await;
                        run.check_accounts(node, store.leases());
                    });
                }
                later(lasts, Self::heal);
            }
            What::Reload { node, version } => {
                let mut nodes = lock(&self.nodes);
                nodes[node].version = version;
                nodes[node].store.iter().for_each(|store| store.clear_deny_cache());
            }
        }
    }

    /// A fault is over.
    fn heal(self: &Arc<Self>, what: What) {
        match what {
            What::Refuse { server, .. } => self.network.server(server, |it| it.trouble = None),
            What::Restart { server, .. } => self.network.set_gone(server, false),
            What::Pause { node, .. } => self.world.thaw(node),
            What::Crash { node, .. } | What::StopNode { node, .. } => self.start(node),
            _ => {}
        }
    }

    /// When nothing has failed for a window, all of N is there again.
    fn check_recovered(self: &Arc<Self>) {
        for (number, limit) in self.scenario.limits.clone().into_iter().enumerate() {
            // What was reported, or admitted alone, fills a bucket beyond its size: with what drains in 16 windows at most.
            let overflows = limit.is_reported || limit.failure == StoreFailure::Local;
            let windows = if limit.algorithm.is_bucket() && overflows { 18 } else { 2 };
            let quiet = windows * limit.window_secs * SECOND + self.scenario.lease_time;
            self.world.run_until(self.world.now() + quiet);
            let node = (self.scenario.seed % self.scenario.clocks.len() as u64) as usize;
            let version = lock(&self.nodes)[node].version;
            let hits = u64::from(limit.requests[version]);
            let items = vec![Item { limit: number, key: 0, hits }];
            let request = self.scenario.asks.len() + number;
            let Some(task) = self.request(request, node, items, 1, None) else {
                return self.wrong(Kind::NotRecovered, format!("node {node} did not come back"));
            };
            let answer = Arc::new(Mutex::new(None));
            let told = Arc::clone(&answer);
            self.world.spawn(node, async move { *lock(&told) = Some(task.await) });
            self.world.run_until(self.world.now() + SECOND);
            let answer = *lock(&answer);
            if answer != Some(Some(true)) {
                self.wrong(
                    Kind::NotRecovered,
                    format!("limit {number}: {hits} hits were not there again: {answer:?}"),
                );
            }
        }
    }

    /// Every leased hit is accounted for when all nodes have ended.
    fn check_leases(self: &Arc<Self>) {
        for node in 0..self.scenario.clocks.len() {
            let Some(store) = lock(&self.nodes)[node].store.take() else { continue };
            let run = Arc::clone(self);
            self.world.spawn(node, async move {
                store.detach().await;
                run.check_accounts(node, store.leases());
            });
        }
        self.world.run_until(self.world.now() + 5 * SECOND);
    }

    fn check_accounts(&self, node: usize, totals: LeaseTotals) {
        let LeaseTotals { hits_taken, hits_spent, hits_given_back, .. } = totals;
        if hits_taken != hits_spent + hits_given_back {
            self.wrong(Kind::Unaccounted, format!("node {node} took leases of {hits_taken} hits, of which {hits_spent} were spent and {hits_given_back} went back"));
        }
    }
}

/// The way of a request through the shared store, as the service has it.
async fn decide(
    (store, runtime): (&SharedStore<Node>, &Node),
    request: &Request<'_>,
    plan: &Plan<'_>,
    deadline: Option<Duration>,
) -> Result<Verdicts, StoreError> {
    if store.remembers() {
        let mut applied = Applied::default();
        if store.apply_known(plan, store.moment(runtime.monotonic()), &mut applied) {
            return Ok(applied.verdicts);
        }
    }
    let applied = match store.question(request, plan, deadline) {
        Some(question) => {
            let reply = question.ask().await;
            store.answered(plan, question, reply)?
        }
        None => store.apply(request, plan, deadline).await?,
    };
    Ok(applied.verdicts)
}
