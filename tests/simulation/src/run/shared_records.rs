//! Records in Redis in a run: nodes read and follow them by the program's own `RecordStore` and `Follower`. Operators write
//! them through nodes (`record_writes`). The server has no counters.
//!
//! In: what operators wrote (`ledger`), and what happens to the server. Out: by which records a node may decide. What was
//! acknowledged to an operator is in force at once at the process that wrote it, and at all others within a second. Where the
//! server or the way to it failed, for as long as a node takes to find it again, it may decide by what it knew when that
//! began, or by the limit of the rule. A node that starts has the time to find the server first. While a message is slow, a
//! request may not wait for its record.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tidegate_operate::records::{Follower, RecordStore, looked_up};
use tidegate_records::Record;
use tidegate_redis::address::{Address, Servers};
use tidegate_redis::{RedisOptions, RedisStore};
use tidegate_serve::service::{KnownRecords, RecordsOptions};

use super::Run;
use super::cluster;
use super::ledger::Counter;
use super::records::{Known, RECORDS_TIMEOUT, STALE_MAX};
use crate::node::Node;
use crate::oracle;
use crate::redis::database::Database;
use crate::redis::server::{self, Server};
use crate::scenario::{Fault, Outage, Scenario, StoredIn, What};
use crate::world::{MILLI, SECOND, Time, lock};

/// The name of the server.
const OF_RECORDS: &str = "records";
/// What is acknowledged is in force at all nodes after so long.
const IN_FORCE_AFTER: Time = SECOND;
/// A call that hangs has failed after so long.
pub(super) const ASKED_MAX: Time = SECOND;
/// In an outage a node has noticed after so long that what it knows is too old: a call hangs, and then it looks again.
const STALE_AFTER: Time = STALE_MAX + ASKED_MAX + 500 * MILLI;

impl Scenario {
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

/// The server of records, if there is one.
pub(super) fn server(scenario: &Scenario) -> Option<Server> {
    match scenario.operated_in() {
        StoredIn::List | StoredIn::Folder => None,
        StoredIn::Redis => Some(Server::new(OF_RECORDS, None)),
        StoredIn::Cluster => Some(Server::new(OF_RECORDS, Some(server::SLOTS))),
    }
}

impl Run {
    /// The server of records: it is behind those of counters. It has the exceptions that nodes share, too.
    pub(super) fn of_records(&self) -> usize {
        self.scenario.layout.servers()
    }

    /// How nodes connect to it.
    pub(super) fn options_of_records(&self) -> RedisOptions {
        let host = Address::Tcp(OF_RECORDS.to_owned(), 6379);
        let kind = match self.scenario.operated_in() {
            StoredIn::Cluster => Servers::Cluster(vec![host]),
            _ => Servers::Single(host),
        };
        RedisOptions::new(kind).without_counters()
    }

    /// The records of a node that starts now, and their store.
    pub(super) fn shared_records_of(
        &self,
        runtime: &Node,
        options: RecordsOptions,
    ) -> (Arc<KnownRecords<Node>>, Arc<RecordStore<Node>>) {
        let (workers, pool_size) = (self.scenario.workers, self.scenario.pool_size);
        let timeout = Duration::from_nanos(RECORDS_TIMEOUT);
        let redis = RedisOptions { workers, pool_size, timeout, ..self.options_of_records() };
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
            Outage::RestartEmpty => {
                network.break_all(server);
                network.server(server, |it| it.restart(Database::default()));
                self.ledger.lost(SmallVec::new(), smallvec![None], now);
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
        self.network.server(self.of_records(), |it| it.refuses = all.iter().find_map(why));
        let is_gone = |what: &Outage| matches!(what, Outage::Restart | Outage::RestartEmpty);
        self.network.set_gone(self.of_records(), all.iter().any(is_gone));
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
        // A server that is gone refuses at once, and no call hangs, unless the refusal does not come through.
        let is_cut = self.scenario.faults.iter().any(|fault| match fault.what {
            What::RecordsAway { node: other, lasts } => {
                other == node && fault.at <= asked && asked <= fault.at + lasts + STALE_AFTER
            }
            _ => false,
        });
        let noticed_after = |fault: &Fault| match fault.what {
            What::OfRecords { what: Outage::Restart, .. } if !is_cut => STALE_AFTER - ASKED_MAX,
            _ => STALE_AFTER,
        };
        let is_long = |fault: &Fault| {
            lasts(fault).is_some_and(|it| fault.at + noticed_after(fault) < asked && now < fault.at + it)
        };
        !self.stood_still(node, asked.saturating_sub(STALE_AFTER)) && self.scenario.faults.iter().any(is_long)
    }

    /// What the store of records has for a counter.
    pub(super) fn stored_record(&self, counter: Counter) -> Option<Record> {
        if let Some(disk) = &self.record_disk {
            return disk.stored(&self.record_key(counter)).flatten();
        }
        let name = [b"tidegate:limits:k:", self.record_key(counter).as_bytes()].concat();
        let value = self.network.server(self.of_records(), |it| it.text(&name));
        value.map(|value| tidegate_records::decode(&value).expect("nobody else writes there"))
    }
}
