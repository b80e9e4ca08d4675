//! What operators write to the store of records in Redis, by the program's own `RecordStore`, and what they read there.
//!
//! In: changes that operators want. Out: writes in the ledger. What an operator reads, and what the server has in the end, is
//! what the ledger says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tidegate_operate::records::{RecordStore, RedisError, StoreError};
use tidegate_records::{KeyPrefix, Record, RecordKey};

use super::ledger::{Counter, Done, Process};
use super::names::entries;
use super::records::record;
use super::shared_records::ASKED_MAX;
use super::{Kind, Run, SENT_AGAIN, SENT_FOR};
use crate::node::Node;
use crate::scenario::Terms;
use crate::world::{MILLI, Time, lock};

/// Whoever thinks for less has not read the record before.
const THINKS_MIN: Time = 50 * MILLI;

/// A change that an operator wants.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) counter: Counter,
    pub(super) terms: Option<Terms>,
    /// Between reading and writing.
    pub(super) thinks: Time,
}

impl Run {
    /// An operator has a node do a change that does not stand still, and another one if it fails, until it is done.
    pub(super) fn send_change(self: &Arc<Self>, change: Change) {
        let store = |node: usize| {
            let state = &lock(&self.nodes)[node];
            Some(((node, state.starts), state.record_store.clone()?))
        };
        let done = Arc::new(AtomicBool::new(false));
        if let Some((process, store)) = self.serving(self.world.now(), store) {
            let (run, done) = (Arc::clone(self), Arc::clone(&done));
            self.world.spawn(process.0, async move {
                let is_done = match change.terms {
                    Some(terms) if change.thinks < THINKS_MIN => {
                        run.load(process, &store, change, terms).await
                    }
                    _ => run.exchange(process, &store, change).await,
                };
                done.store(is_done, Relaxed);
            });
        }
        self.after(SENT_AGAIN + change.thinks, move |run| {
            let is_done = done.load(Relaxed);
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

    /// Reads a record, thinks, and changes it if it is still what it was. Otherwise again. One that is as it should be is
    /// confirmed, as the program does: a change that failed may be done later, or was not announced.
    async fn exchange(&self, process: Process, store: &RecordStore<Node>, change: Change) -> bool {
        let Change { counter, terms, thinks } = change;
        loop {
            let asked = self.world.now();
            let Ok(before) = store.get(self.record_key(counter)).await else { return false };
            self.check_stored(counter, asked, None, |stored| stored == before);
            if before == terms.map(record) {
                let (now, ends) = self.under_way();
                let sent = if self.record_disk.is_some() { now } else { asked };
                let write = self.ledger.begin(&[counter], process, terms, (sent, ends));
                let done = store.confirm(&self.record_key(counter), before).await;
                self.world
                    .note(|| format!("node {}: the record of {counter:?} is {terms:?}: {done:?}", process.0));
                let result = done.as_ref().map_or_else(why, |done| if *done { Done::Yes } else { Done::No });
                self.ledger.end(write, result, self.world.now());
                match done {
                    Ok(false) => continue,
                    done => return done.is_ok(),
                }
            }
            self.world.until(self.world.now() + thinks).await;
            if self.has_left(process) {
                return false;
            }
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
    pub(super) fn under_way(&self) -> (Time, Time) {
        let (now, mut ends) = (self.world.now(), self.world.now() + 2 * ASKED_MAX);
        if self.record_disk.is_some() {
            // What failed may be there when the folder is opened.
            return (now, Time::MAX);
        }
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

    pub(super) fn record_key(&self, (limit, key): Counter) -> RecordKey {
        RecordKey::of("sim", entries(&self.scenario.limits, limit, key)).expect("a short key")
    }

    /// The server has what operators wrote last, and lists it.
    pub(super) fn check_records(self: &Arc<Self>) {
        if !self.scenario.stores_records() {
            return;
        }
        self.check_open();
        if let Some(counter) = self.ledger.replaced_twice() {
            self.wrong(Kind::WrongLimit, format!("the same record of {counter:?} was replaced twice"));
        }
        if self.record_disk.as_ref().is_some_and(|disk| disk.closed_since().is_some()) {
            return;
        }
        let mut expected = Vec::new();
        for (counter, stored) in self.ledger.all(self.world.now()) {
            let found = self.stored_record(counter);
            if !stored.iter().any(|terms| terms.map(record) == found) {
                let what = format!("the store has {found:?} for {counter:?}, and not one of {stored:?}");
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
