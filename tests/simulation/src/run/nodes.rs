//! The nodes of a run: their processes start, and end by themselves or where they are.
//!
//! In: when a node starts, stops or is killed. Out: its service, as clients and operators reach it, and what survives a process.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use tidegate_engine::rules::Epochs;
use tidegate_operate::exceptions::Book;
use tidegate_operate::records::RecordStore;
use tidegate_operate::resets::Resets;
use tidegate_redis::Contact;
use tidegate_serve::service::{Counters, KnownRecords, Service};
use tokio::sync::Notify;

use super::alone::Home;
use super::cluster;
use super::decider::Excepted;
use super::resets::EpochNumbers;
use super::{Run, STARTED_AGAIN};
use crate::network::Reads;
use crate::node::Node;
use crate::world::{Handle, MILLI, Span, Time, lock};

/// A node, as clients see it.
#[derive(Default)]
pub(super) struct State {
    pub(super) service: Option<Arc<Service<Node>>>,
    /// All of its processes. Those that are stopped end later.
    pub(super) lives: Vec<Weak<Service<Node>>>,
    /// It has the settings that it did not begin with.
    pub(super) is_upgraded: bool,
    pub(super) records: Option<Arc<KnownRecords<Node>>>,
    /// Their store, if it is in Redis.
    pub(super) record_store: Option<Arc<RecordStore<Node>>>,
    /// The machine of a node without Redis.
    pub(super) home: Option<Home>,
    /// Notified when the node stops: one for each worker.
    pub(super) stopping: Vec<Arc<Notify>>,
    pub(super) version: usize,
    /// Its resets, if it follows them through Redis.
    pub(super) resets: Option<Arc<Resets<Node>>>,
    /// The resets that it has received. They survive a crash, because they are in Redis, or in STATE_DIR. A process that
    /// follows them begins without any.
    pub(super) epochs: Epochs,
    /// The same as a number for each counter.
    pub(super) epoch_numbers: EpochNumbers,
    pub(super) excepted: Excepted,
    /// The exceptions that it shares with others, once it has read them.
    pub(super) shared_book: Option<Arc<Book<Node>>>,
    pub(super) starts: u64,
    /// When it was started last.
    pub(super) started: Time,
    /// Requests to its store that wait for an answer.
    pub(super) asking: Arc<AtomicU64>,
}

impl Run {
    /// Starts a node, perhaps again.
    pub(super) fn start(self: &Arc<Self>, number: usize) {
        let mut nodes = lock(&self.nodes);
        let state = &mut nodes[number];
        if state.service.is_some() {
            return;
        }
        state.starts += 1;
        let (started, starts) = (self.world.now(), state.starts);
        let seed = self.scenario.seed ^ (number as u64) << 32 ^ starts;
        let wall_ahead = state.home.as_ref().map(|home| Arc::clone(&home.wall_ahead)).unwrap_or_default();
        let node = Node::new(&self.world, &self.network, number, self.scenario.clocks[number], seed);
        let mut node = node.on_machine(wall_ahead);
        if self.scenario.follows_resets {
            let servers = self.scenario.layout.servers();
            node = node.following(Reads::new(servers, self.scenario.timeout));
            (state.epochs, state.epoch_numbers) = Default::default();
        }
        let begun = match &mut state.home {
            Some(home) => self.begin(home, &node),
            None => {
                let settings = self.scenario.settings_of(number, state.is_upgraded);
                Some(cluster::counters(&self.scenario, settings, &node))
            }
        };
        let Some((counters, clock)) = begun else {
            drop(nodes);
            return self.after(STARTED_AGAIN, move |run| run.start(number));
        };
        if let Counters::Memory(store) = &counters {
            self.keep((number, starts), Arc::clone(store), clock, &node);
        }
        if let Some(home) = &mut state.home {
            self.open_book(home);
            state.epochs = self.kept_resets(home, &state.epochs);
            state.epoch_numbers = self.epochs_of(&state.epochs);
        }
        state.started = started;
        let (records, store) = self.records_of(number, &node, seed).unzip();
        (state.records, state.record_store) = (records, store.flatten());
        let modes = self.scenario.modes;
        let runtime = node.clone();
        let service = Service::on(node, counters, Arc::clone(&self.metrics), clock, modes);
        let service = service.recorded(state.records.clone());
        let service = Arc::new(service);
        service.begin_epochs(&state.epochs);
        service.except(state.excepted.all(&self.scenario.limits));
        service.install(self.rules(state.version));
        state.lives.push(Arc::downgrade(&service));
        state.service = Some(Arc::clone(&service));
        state.asking = Arc::default();
        state.stopping = (0..self.scenario.workers).map(|_| Arc::default()).collect();
        let (stopping, asking) = (state.stopping.clone(), Arc::clone(&state.asking));
        drop(nodes);
        self.put_in_force(number);
        self.world.note(|| format!("node {number} starts"));
        self.note_found((number, started), &service);
        self.follow_records(number, runtime.clone());
        let sharing = Arc::new(self.share_exceptions(number, runtime.clone(), &service));
        self.follow_resets(number, runtime, &service);
        let working = Arc::new(AtomicUsize::new(stopping.len()));
        for (worker, stopping) in stopping.into_iter().enumerate() {
            let (run, service, working) = (Arc::clone(self), Arc::clone(&service), Arc::clone(&working));
            let (asking, sharing) = (Arc::clone(&asking), Arc::clone(&sharing));
            self.world.spawn_on((number, worker), async move {
                service.work(stopping.notified()).await;
                // A request that still waits may hold leased hits. All of them end within their budgets.
                while asking.load(Relaxed) > 0 {
                    run.world.until(run.world.now() + MILLI).await;
                }
                if working.fetch_sub(1, Relaxed) == 1 {
                    run.check_accounts((number, started), &service);
                    run.end_life(number);
                    run.leave_record_disk();
                    sharing.iter().for_each(Handle::abort);
                }
            });
        }
    }

    /// Notes when a node that starts has found all of its servers.
    fn note_found(self: &Arc<Self>, (number, started): (usize, Time), service: &Service<Node>) {
        let Some(store) = service.counters().shared() else { return };
        let mut starts = lock(&self.starts);
        let before = starts.iter_mut().filter(|before| before.node == number);
        before.for_each(|before| before.until = started.min(before.until));
        let place = starts.len();
        starts.push(Span { node: number, from: started, until: Time::MAX });
        let contacts: Vec<_> = store.stores().map(|(_, store)| store.contact()).collect();
        let run = Arc::clone(self);
        self.world.spawn(number, async move {
            for mut contact in contacts {
                if contact.wait_for(|contact| *contact == Contact::Up).await.is_err() {
                    return;
                }
            }
            lock(&run.starts)[place].until = run.world.now();
        });
    }

    /// What the first node has that serves operators: one after the other, beginning with another one each time.
    pub(super) fn serving<T>(&self, turn: u64, has: impl Fn(usize) -> Option<T>) -> Option<T> {
        let nodes = self.scenario.clocks.len() as u64;
        let mut places = (0..nodes).map(|place| ((place + self.scenario.seed + turn) % nodes) as usize);
        places.find_map(|node| if self.world.is_frozen(node) { None } else { has(node) })
    }

    /// All nodes hear of something, one after the other, within so long. Not always in the same order.
    pub(super) fn heard_by_all(
        self: &Arc<Self>,
        turn: u64,
        within: Time,
        hear: impl Fn(&Arc<Self>, usize) + Copy + Send + 'static,
    ) {
        let nodes = self.scenario.clocks.len() as u64;
        for node in 0..nodes {
            let place = (node + self.scenario.seed + turn) % nodes;
            self.after(within * place / nodes, move |run| hear(run, node as usize));
        }
    }

    /// A node serves nobody any more, and gives back what it has of leases.
    pub(super) fn stop_node(&self, node: usize) {
        let state = &mut lock(&self.nodes)[node];
        (state.service, state.resets, state.record_store) = (None, None, None);
        state.shared_book = None;
        state.stopping.iter().for_each(|worker| worker.notify_one());
    }

    /// The process of a node ends where it is.
    pub(super) fn kill(&self, node: usize) {
        let process = {
            let state = &mut lock(&self.nodes)[node];
            (state.service.take(), state.resets.take(), state.record_store.take(), state.shared_book.take())
        };
        self.world.kill(Some(node));
        self.leave_record_disk();
        drop(process);
        self.network.close_all(node);
        lock(&self.nodes)[node].home.iter_mut().for_each(Home::killed);
    }
}
