//! Records in a folder of a node without Redis: the node reads and writes them by the program's own `RecordStore`, on the disk of
//! its machine (`record_disk`). Operators write them through it (`record_writes`).
//!
//! In: what operators wrote (`ledger`), and what happens to the disk. Out: by which records the node may decide. What was acknowledged
//! to an operator is in force at once, and whenever the folder is opened: then each change that was not acknowledged is there
//! completely or not at all, and stays so. A node may fall back on what LIMITS_STALE_MODE says only where the disk does not answer
//! reads, or nothing is open after a disk that failed: for the longest pause between two tries.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate_operate::records::{Pool, RecordStore, looked_up};
use tidegate_records::{Record, Tree};
use tidegate_serve::service::{KnownRecords, RecordsOptions};

use super::cluster;
use super::ledger::{Counter, Process};
use super::record_disk::{DiskQueue, RecordDisk, SLOW};
use super::records::Known;
use super::{Kind, Run};
use crate::node::Node;
use crate::oracle;
use crate::scenario::{DiskTrouble, Fault, Scenario, StoredIn, What};
use crate::world::{MILLI, SECOND, Time, lock};

/// The longest pause between two tries to open the folder.
const TRIED_AGAIN: Time = 10 * SECOND;
/// A lookup that has failed has answered after so long.
const ANSWERED: Time = 2 * MILLI;

/// The disk of records, if there is one.
pub(super) fn disk(scenario: &Scenario) -> Option<Arc<RecordDisk>> {
    (scenario.records_in == StoredIn::Folder).then(|| RecordDisk::new(scenario.seed))
}

impl Run {
    /// The records of a process that begins, and their store, which is open if the disk lets it.
    pub(super) fn folder_records_of(
        self: &Arc<Self>,
        number: usize,
        runtime: &Node,
        disk: &Arc<RecordDisk>,
        options: RecordsOptions,
    ) -> (Arc<KnownRecords<Node>>, Arc<RecordStore<Node>>) {
        let (folder, life) = disk.begin(self);
        let pool = |writes| {
            let (world, disk) = (Arc::clone(&self.world), Arc::clone(disk));
            Pool::of(DiskQueue { world, disk, node: number, life, writes })
        };
        let store = RecordStore::in_folder_on(runtime.clone(), folder, pool(false), pool(true));
        let store = Arc::new(store);
        let records = looked_up(runtime.clone(), &store, cluster::secret(self.scenario.layout), options);
        let opened = pin!(store.open()).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(opened, Poll::Ready(()), "nothing waits at the start");
        disk.has_begun();
        let keeps = Arc::clone(&store);
        self.world.spawn_on((number, 0), async move { match keeps.keep().await {} });
        (records, store)
    }

    /// The process of a node has ended.
    pub(super) fn leave_record_disk(&self) {
        if let Some(disk) = &self.record_disk {
            let now = self.world.now();
            self.ledger.cut(now);
            disk.die(now);
        }
    }

    /// Whether a process that an operator has called is none any more, where each has the folder for itself.
    pub(super) fn has_left(&self, (node, starts): Process) -> bool {
        let state = &lock(&self.nodes)[node];
        self.record_disk.is_some() && (state.starts != starts || state.record_store.is_none())
    }

    /// The folder was opened, and has what operators wrote.
    pub(super) fn check_opened(&self, tree: &dyn Tree) {
        let now = self.world.now();
        let stored = |counter| tree.get(&self.record_key(counter)).expect("the disk of the test answers");
        let found: BTreeMap<Counter, Option<Record>> =
            self.ledger.counters().into_iter().map(|counter| (counter, stored(counter))).collect();
        self.world.note(|| format!("the folder of records is open: {found:?}"));
        if let Err(what) = self.ledger.opened(&found, now) {
            self.wrong(Kind::WrongLimit, format!("a folder that was opened has {found:?}, though {what}"));
        }
    }

    /// What a node may know of the record of a descriptor that it decides now.
    pub(super) fn known_in_folder(&self, noted: &oracle::Record, disk: &RecordDisk) -> Known {
        let (counter, asked, now) = ((noted.limit, noted.key), noted.asked, self.world.now());
        Known {
            may: self.ledger.heard(counter, (None, asked, asked), now),
            ever: self.ledger.ever(counter, now),
            is_away: self.does_not_read(asked, now) || self.is_closed(disk, asked),
            // What is known stays valid: nobody else changes the folder.
            is_stale: false,
        }
    }

    /// When the run is over, the folder is open, unless the disk failed a moment ago.
    pub(super) fn check_open(&self) {
        let Some(since) = self.record_disk.as_ref().and_then(|disk| disk.closed_since()) else { return };
        let now = self.world.now();
        let is_tried = self.record_disk.iter().all(|disk| self.is_closed(disk, now));
        if !is_tried && lock(&self.nodes).iter().any(|state| state.record_store.is_some()) {
            let what = format!("the folder of records is not open since {} ms", (now - since) / MILLI);
            self.wrong(Kind::NotRecovered, what);
        }
    }

    /// Whether the disk may not have answered reads in time, at some time between these.
    fn does_not_read(&self, from: Time, to: Time) -> bool {
        let touches = |fault: &Fault| match fault.what {
            What::OfDisk { what: DiskTrouble::Broken, lasts } => {
                fault.at <= to && from <= fault.at + lasts + ANSWERED
            }
            What::OfDisk { what: DiskTrouble::Slow, lasts } => {
                fault.at <= to && from <= fault.at + lasts + SLOW + ANSWERED
            }
            _ => false,
        };
        self.scenario.faults.iter().any(touches)
    }

    /// Whether nothing was open at some time from then on, and may have been so after what failed before.
    fn is_closed(&self, disk: &RecordDisk, from: Time) -> bool {
        let may_be = |(since, until): &(Time, Time)| {
            let failed = self.scenario.faults.iter().filter_map(|fault| match fault.what {
                What::OfDisk { what: DiskTrouble::Full | DiskTrouble::Broken, lasts } => {
                    Some((fault.at, fault.at + lasts + TRIED_AGAIN + ANSWERED))
                }
                _ => None,
            });
            failed.into_iter().any(|(at, tried)| at <= *until && *since <= tried && from <= tried)
        };
        disk.was_closed(from).iter().any(may_be)
    }
}
