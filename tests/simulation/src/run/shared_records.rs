//! Records in Redis in a run: operators write them through nodes, and nodes read and follow them by the program's own
//! `RecordStore` and `Follower`. The server has no counters.
//!
//! In: changes that operators make, and what happens to the server. Out: by which records a node may decide. What was
//! acknowledged to an operator is in force at once at the process that wrote it, and at all others within a second. Where the
//! server or the way to it failed, for as long as a node takes to find it again, it may decide by what it knew when that
//! began, or by the limit of the rule. A node that starts has the time to find the server first. While a message is slow, a
//! request may not wait for its record.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tidegate_operate::records::{Follower, RecordStore, RedisError, StoreError, looked_up};
use tidegate_records::{KeyPrefix, Record, RecordKey};
use tidegate_redis::address::{Address, Servers};
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_serve::service::{KnownRecords, RecordsOptions};

use super::cluster;
use super::ledger::{Counter, Done, Process};
use super::names::entries;
use super::records::{Known, RECORDS_TIMEOUT, STALE_MAX, record};
use super::{Kind, Run};
use crate::node::Node;
use crate::oracle;
use crate::redis::server::{self, Server};
use crate::scenario::{Fault, Outage, RecordsIn, Scenario, Terms, What};
use crate::world::{MILLI, SECOND, Time, lock};

/// The name of the server.
const OF_RECORDS: &str = "records";
/// What is acknowledged is in force at all nodes after so long.
const IN_FORCE_AFTER: Time = SECOND;
/// A call that hangs has failed after so long.
const ASKED_MAX: Time = SECOND;
/// In an outage a node has noticed after so long that what it knows is too old: a call hangs, and then it looks again.
const STALE_AFTER: Time = STALE_MAX + ASKED_MAX + 500 * MILLI;
/// An operator sends a change again after so long, if it is not done, and so long after the last question at most.
const SENT_AGAIN: Time = SECOND;
const SENT_FOR: Time = 4 * SECOND;
/// Whoever thinks for less has not read the record before.
const THINKS_MIN: Time = 50 * MILLI;

/// A change that an operator wants.
#[derive(Clone, Copy)]
struct Change {
    counter: Counter,
    terms: Option<Terms>,
    /// Between reading and writing.
    thinks: Time,
}

impl Scenario {
    fn shares_records(&self) -> bool {
        self.records_in != RecordsIn::List
    }

    /// What happened to the server of records before now that lasts longer: since when and until when.
    fn outages(&self, now: Time) -> impl Iterator<Item = (Outage, Time)> {
        self.faults.iter().filter_map(move |fault| match fault.what {
            What::OfRecords { what, lasts } if fault.at <= now && now < fault.at + lasts => {
                Some((what, fault.at + lasts))
            }
            _ => None,
        })
    }
}

/// The server of records, if it is one.
pub(super) fn server(scenario: &Scenario) -> Option<Server> {
    match scenario.records_in {
        RecordsIn::List => None,
        RecordsIn::Redis => Some(Server::new(OF_RECORDS, None)),
        RecordsIn::Cluster => Some(Server::new(OF_RECORDS, Some(server::SLOTS))),
    }
}

impl Run {
    /// The server of records: it is behind those of counters.
    fn of_records(&self) -> usize {
        self.scenario.layout.servers()
    }

    /// The records of a node that starts now, and their store.
    pub(super) fn shared_records_of(
        &self,
        runtime: &Node,
        options: RecordsOptions,
    ) -> (Arc<KnownRecords<Node>>, Arc<RecordStore<Node>>) {
        let (workers, pool_size) = (self.scenario.workers, self.scenario.pool_size);
        let host = Address::Tcp(OF_RECORDS.to_owned(), 6379);
        let kind = match self.scenario.records_in {
            RecordsIn::Cluster => Servers::Cluster(vec![host]),
            _ => Servers::Single(host),
        };
        let timeout = Duration::from_nanos(RECORDS_TIMEOUT);
        let redis =
            RedisOptions { workers, pool_size, timeout, ..RedisOptions::new(kind).without_counters() };
        let store = Arc::new(RecordStore::in_redis(RedisStore::on(runtime.clone().without_resets(), redis)));
        let records = looked_up(runtime.clone(), &store, cluster::secret(self.scenario.layout), options);
        (records, store)
    }

    /// Has a node that starts follow changes of records, if they are in Redis.
    pub(super) fn follow_records(self: &Arc<Self>, node: usize, runtime: Node) {
        let of = |number: usize| {
            let state = &lock(&self.nodes)[number];
            Some((state.record_store.clone()?, state.records.clone()?))
        };
        let Some((store, records)) = of(node) else { return };
        let follower = Follower::new(runtime, store, records, Duration::from_nanos(STALE_MAX));
        self.world.spawn_on((node, 0), async move { match follower.follow().await {} });
    }

    /// An operator wants a change.
    pub(super) fn change_record(self: &Arc<Self>, counter: Counter, terms: Option<Terms>, thinks: Time) {
        self.send_change(Change { counter, terms, thinks });
    }

    /// An operator has a node do a change that does not stand still, and another one if it fails, until it is done.
    fn send_change(self: &Arc<Self>, change: Change) {
        let now = self.world.now();
        let nodes = self.scenario.clocks.len() as u64;
        let places = (0..nodes).map(|place| ((place + self.scenario.seed + now) % nodes) as usize);
        let mut serving = places.filter(|&node| !self.world.is_frozen(node));
        let store = |node: usize| {
            let state = &lock(&self.nodes)[node];
            Some(((node, state.starts), state.record_store.clone()?))
        };
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        if let Some((process, store)) = serving.find_map(store) {
            let (run, done) = (Arc::clone(self), Arc::clone(&done));
            self.world.spawn(process.0, async move {
                let is_done = match change.terms {
                    Some(terms) if change.thinks < THINKS_MIN => {
                        run.load(process, &store, change, terms).await
                    }
                    _ => run.exchange(process, &store, change).await,
                };
                done.store(is_done, std::sync::atomic::Ordering::Relaxed);
            });
        }
        self.after(SENT_AGAIN + change.thinks, move |run| {
            let is_done = done.load(std::sync::atomic::Ordering::Relaxed);
            if !is_done && run.world.now() < run.scenario.asked_until() + SENT_FOR {
                run.send_change(change);
            }
        });
    }

    /// Puts a record of two counters into the store, in one batch.
    async fn load(&self, process: Process, store: &RecordStore<Node>, change: Change, terms: Terms) -> bool {
        let (limit, key) = change.counter;
        let counters = &[(limit, key), (limit, 1 - key)];
        let batch = counters.iter().map(|&counter| (self.record_key(counter), record(terms))).collect();
        let write = self.ledger.begin(counters, process, Some(terms), self.under_way());
        let loaded = store.load(batch).await;
        self.world.note(|| format!("node {}: records of {counters:?} are {terms:?}: {loaded:?}", process.0));
        self.ledger.end(write, loaded.as_ref().map_or_else(why, |()| Done::Yes), self.world.now());
        loaded.is_ok()
    }

    /// Reads a record, thinks, and changes it if it is still what it was. Otherwise again. One that is as it should be is announced
    /// again, as the program does: a change that failed may not have been.
    async fn exchange(&self, process: Process, store: &RecordStore<Node>, change: Change) -> bool {
        let Change { counter, terms, thinks } = change;
        loop {
            let asked = self.world.now();
            let Ok(before) = store.get(self.record_key(counter)).await else { return false };
            self.check_stored(counter, asked, None, |stored| stored == before);
            if before == terms.map(record) {
                let write = self.ledger.begin(&[counter], process, terms, (asked, self.under_way().1));
                let done = store.announce_again(&self.record_key(counter), before.is_some()).await;
                self.world
                    .note(|| format!("node {}: the record of {counter:?} is {terms:?}: {done:?}", process.0));
                self.ledger.end(write, done.as_ref().map_or_else(why, |()| Done::Yes), self.world.now());
                return done.is_ok();
            }
            self.world.until(self.world.now() + thinks).await;
            let (sent, ends) = self.under_way();
            let write = self.ledger.begin_exchange((counter, before), process, terms, (sent, ends));
            let done = store.exchange(self.record_key(counter), before, terms.map(record)).await;
            self.world.note(|| {
                format!(
                    "node {}: the record of {counter:?} is {terms:?} instead of {before:?}: {done:?}",
                    process.0
                )
            });
            let result = done.as_ref().map_or_else(why, |done| if *done { Done::Yes } else { Done::No });
            self.ledger.end(write, result, self.world.now());
            match done {
                Ok(true) => {
                    self.check_stored(counter, sent, Some(write), |stored| stored == before);
                    return true;
                }
                Ok(false) => self.check_stored(counter, sent, Some(write), |stored| stored != before),
                Err(_) => return false,
            }
        }
    }

    /// When a write is sent now, and until when it may be under way.
    fn under_way(&self) -> (Time, Time) {
        let (now, mut ends) = (self.world.now(), self.world.now() + 2 * ASKED_MAX);
        while let Some(trouble) = (0..self.scenario.clocks.len())
            .find_map(|node| self.record_troubles.of(node, ends, ends).filter(|it| it.until > ends))
        {
            ends = trouble.until;
        }
        (now, ends + ASKED_MAX)
    }

    /// A record that an operator has read, or not found, was in the store at some time since it was asked for, or was not.
    fn check_stored(
        &self,
        counter: Counter,
        asked: Time,
        apart: Option<usize>,
        is_it: impl Fn(Option<Record>) -> bool,
    ) {
        let stored = self.ledger.stored(counter, (asked, self.world.now()), apart);
        if !stored.iter().any(|terms| is_it(terms.map(record))) {
            let what = format!("an operator has another record of {counter:?} than one of {stored:?}");
            self.wrong(Kind::WrongLimit, what);
        }
    }

    fn record_key(&self, (limit, key): Counter) -> RecordKey {
        RecordKey::of("sim", entries(&self.scenario.limits, limit, key)).expect("a short key")
    }

    /// Something happens to the server of records.
    pub(super) fn strike_records(self: &Arc<Self>, what: Outage, lasts: Time) {
        let (network, server, now) = (&self.network, self.of_records(), self.world.now());
        match what {
            Outage::Stop => {
                let stops = |(what, until)| (what == Outage::Stop).then_some(until);
                let until = self.scenario.outages(now).filter_map(stops).max();
                network.stop(server, until.unwrap_or(now + lasts));
            }
            Outage::Restart => {
                network.break_all(server);
                network.server(server, |it| it.restart(it.copy()));
            }
            Outage::Refuse(_) => {}
            Outage::Lose(node) => network.lose(node, server),
            Outage::Flush => {
                network.server(server, Server::flush);
                self.ledger.lost(SmallVec::new(), smallvec![None], now);
            }
            Outage::FailOver => {
                let (copy, stored) = (network.server(server, |it| it.copy()), self.ledger.all(now));
                self.after(lasts, move |run| {
                    run.network.break_all(server);
                    run.network.server(server, |it| it.restart(copy));
                    let now = run.world.now();
                    for counter in run.ledger.all(now).into_keys() {
                        let terms = stored.get(&counter).cloned().unwrap_or_else(|| smallvec![None]);
                        run.ledger.lost(smallvec![counter], terms, now);
                    }
                });
            }
        }
        self.set_outages();
        self.after(lasts, |run| run.set_outages());
    }

    /// The server is away, and refuses, as long as any outage lasts.
    fn set_outages(&self) {
        let all: Vec<_> = self.scenario.outages(self.world.now()).map(|(what, _)| what).collect();
        let why = |what: &Outage| if let Outage::Refuse(why) = what { Some(*why) } else { None };
        self.network.server(self.of_records(), |it| it.trouble = all.iter().find_map(why));
        self.network.set_gone(self.of_records(), all.contains(&Outage::Restart));
    }

    /// Messages between a node and the server of records wait.
    pub(super) fn cut_records(&self, node: usize) {
        let until = |fault: &Fault| match fault.what {
            What::RecordsAway { node: other, lasts } if other == node && fault.at <= self.world.now() => {
                Some(fault.at + lasts)
            }
            _ => None,
        };
        let until = self.scenario.faults.iter().filter_map(until).max();
        self.network.cut(node, self.of_records(), until.unwrap_or(0));
    }

    /// What a node may know of the record of a descriptor that it decides now.
    pub(super) fn known_records(&self, noted: &oracle::Record) -> Known {
        let (counter, node, asked) = ((noted.limit, noted.key), noted.node, noted.asked);
        let now = self.world.now();
        let trouble = self.record_troubles.of(node, asked, now);
        let slow = &lock(&self.network.slow)[self.of_records()];
        let is_slow = slow.iter().any(|span| span.touches(node, asked.saturating_sub(MILLI), now));
        // A process that was started since is not the one that was asked.
        let process = {
            let state = &lock(&self.nodes)[node];
            (state.started <= asked).then_some((node, state.starts))
        };
        // What changed shortly before may not have been read.
        let heard = trouble.map_or(asked, |it| it.from.min(asked)).saturating_sub(IN_FORCE_AFTER);
        Known {
            may: self.ledger.heard(counter, (process, asked, heard), now),
            ever: self.ledger.ever(counter, now),
            is_away: trouble.is_some() || is_slow,
            is_stale: self.are_stale(node, asked),
        }
    }

    /// Whether a node that is asked then has surely noticed that what it knows is too old.
    fn are_stale(&self, node: usize, asked: Time) -> bool {
        let now = self.world.now();
        let lasts = |fault: &Fault| match fault.what {
            What::RecordsAway { node: other, lasts } if other == node => Some(lasts),
            What::OfRecords { what: Outage::Stop | Outage::Restart, lasts } => Some(lasts),
            _ => None,
        };
        let is_long = |fault: &Fault| {
            lasts(fault).is_some_and(|it| fault.at + STALE_AFTER < asked && now < fault.at + it)
        };
        !self.stood_still(node, asked.saturating_sub(STALE_AFTER)) && self.scenario.faults.iter().any(is_long)
    }

    /// What the server of records has for a counter.
    pub(super) fn stored_record(&self, counter: Counter) -> Option<Record> {
        let name = [b"tidegate:limits:k:", self.record_key(counter).as_bytes()].concat();
        let value = self.network.server(self.of_records(), |it| it.text(&name));
        value.map(|value| tidegate_records::decode(&value).expect("nobody else writes there"))
    }

    /// The server has what operators wrote last, and lists it.
    pub(super) fn check_records(self: &Arc<Self>) {
        if !self.scenario.shares_records() {
            return;
        }
        if let Some(counter) = self.ledger.replaced_twice() {
            self.wrong(Kind::WrongLimit, format!("the same record of {counter:?} was replaced twice"));
        }
        let mut expected = Vec::new();
        for (counter, stored) in self.ledger.all(self.world.now()) {
            let found = self.stored_record(counter);
            if !stored.iter().any(|terms| terms.map(record) == found) {
                let what = format!("Redis has {found:?} for {counter:?}, and not one of {stored:?}");
                self.wrong(Kind::WrongLimit, what);
            }
            expected.extend(found.map(|found| (self.record_key(counter), found)));
        }
        expected.sort_by(|one, other| one.0.as_bytes().cmp(other.0.as_bytes()));
        let Some(store) = lock(&self.nodes).iter().find_map(|state| state.record_store.clone()) else {
            return;
        };
        let run = Arc::clone(self);
        self.world.spawn(0, async move {
            let listed = store.page(KeyPrefix::everything(), None, 100).await;
            if listed.as_ref().ok() != Some(&expected) {
                run.wrong(Kind::WrongLimit, format!("a list of {expected:?} is {listed:?}"));
            }
        });
        self.world.run_until(self.world.now() + ASKED_MAX);
    }
}

/// What became of a write that failed.
fn why(error: &StoreError) -> Done {
    match error {
        StoreError::Redis(RedisError::NoAnswer(why)) if !why.may_be_done() => Done::No,
        _ => Done::Perhaps,
    }
}
