//! Records in a list of this simulation: nodes ask it and hear of changes from it, one after the other.
//!
//! In: changes that operators make, and questions of nodes. Out: answers, after a while or none; and what a node may know.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;
use tidegate_records::RecordKey;
use tidegate_serve::service::{KnownRecords, NoAnswer, RecordAnswer, RecordSource, RecordsOptions};

use super::Run;
use super::cluster;
use super::names::{counter, entries};
use super::records::{Known, RECORDS_TIMEOUT, STALE_MAX, record};
use crate::node::Node;
use crate::oracle;
use crate::random::Random;
use crate::scenario::{HEARD_MAX, Terms};
use crate::world::{MILLI, SECOND, Span, Time, World, lock};

/// A question to the store takes so long at most: while it hangs, no other is asked for its key.
const FETCH_TIMEOUT: Time = SECOND;
/// The store is asked, and answers, within so long each.
const DELAY_MAX: Time = 20 * MILLI;
/// A client that asks so long after a change is decided by it.
const IN_FORCE_AFTER: Time = HEARD_MAX + 4 * DELAY_MAX;

/// The record of one counter, since when.
type History = Vec<(Time, Option<Terms>)>;

/// The store of all records.
#[derive(Default)]
pub(super) struct Shelf {
    histories: Mutex<BTreeMap<(usize, u64), History>>,
    /// When nodes could not reach it.
    away: Mutex<Vec<Span>>,
}

impl Shelf {
    /// The record of a counter now.
    pub(super) fn now(&self, counter: (usize, u64)) -> Option<Terms> {
        lock(&self.histories).get(&counter)?.last()?.1
    }

    /// What was in force at any time from then on.
    fn since(&self, counter: (usize, u64), from: Time) -> SmallVec<[(Time, Option<Terms>); 1]> {
        let histories = lock(&self.histories);
        let history = histories.get(&counter).map_or(&[(0, None)][..], |history| history);
        let first = history.iter().rposition(|&(since, _)| since <= from).unwrap_or(0);
        SmallVec::from_slice(&history[first..])
    }

    /// Until when a node cannot reach it that cannot reach it now.
    fn away_until(&self, node: usize, now: Time) -> Option<Time> {
        let away = lock(&self.away);
        away.iter().filter(|it| it.touches(node, now, now) && now < it.until).map(|it| it.until).max()
    }

    /// When a node could not reach it that felt it at some time from then on.
    fn was_away(&self, node: usize, from: Time) -> Vec<Span> {
        let away = lock(&self.away);
        away.iter().filter(|it| it.node == node && it.until + FETCH_TIMEOUT >= from).copied().collect()
    }
}

/// The store, as one node asks it.
struct Source {
    world: Arc<World>,
    shelf: Arc<Shelf>,
    node: usize,
    /// Delays are drawn from it.
    seed: AtomicU64,
}

impl RecordSource for Source {
    fn get(&self, key: RecordKey) -> RecordAnswer<'_> {
        Box::pin(async move {
            let mut random = Random::new(self.seed.fetch_add(1, Relaxed));
            self.world.until(self.world.now() + random.below(DELAY_MAX)).await;
            if self.shelf.away_until(self.node, self.world.now()).is_some() {
                let hangs = random.pick(&[0, 2 * RECORDS_TIMEOUT, 20 * RECORDS_TIMEOUT]);
                self.world.until(self.world.now() + hangs).await;
                return Err(NoAnswer);
            }
            let terms = counter(&key.decode().1).and_then(|counter| self.shelf.now(counter));
            self.world.until(self.world.now() + random.below(DELAY_MAX)).await;
            Ok(terms.map(record))
        })
    }
}

impl Run {
    /// The records of a node that starts now.
    pub(super) fn shelved_records_of(
        &self,
        node: usize,
        runtime: &Node,
        seed: u64,
        options: RecordsOptions,
    ) -> KnownRecords<Node> {
        let (world, shelf) = (Arc::clone(&self.world), Arc::clone(&self.shelf));
        let source = Source { world, shelf, node, seed: AtomicU64::new(!seed) };
        let secret = cluster::secret(self.scenario.layout);
        let records = KnownRecords::on(runtime.clone(), source, secret, options);
        // It hears of no changes yet.
        if self.shelf.away_until(node, self.world.now()).is_some() {
            records.unfollow();
        }
        records
    }

    /// A record is put into the list, or removed. Nodes hear of it one after the other.
    pub(super) fn shelve(self: &Arc<Self>, counter: (usize, u64), terms: Option<Terms>, heard_within: Time) {
        let now = self.world.now();
        lock(&self.shelf.histories).entry(counter).or_insert_with(|| vec![(0, None)]).push((now, terms));
        self.heard_by_all(now, heard_within, move |run, node| run.hear_of_record(node, counter));
    }

    fn hear_of_record(self: &Arc<Self>, node: usize, (limit, key): (usize, u64)) {
        if let Some(until) = self.shelf.away_until(node, self.world.now()) {
            let away = until - self.world.now();
            return self.after(away, move |run| run.hear_of_record(node, (limit, key)));
        }
        let key = RecordKey::of("sim", entries(&self.scenario.limits, limit, key)).expect("a short key");
        self.with_records(node, |records| records.forget(&key));
    }

    /// A node cannot reach the list, for so long. When it reaches it again, it hears of what changed first.
    pub(super) fn leave_shelf(self: &Arc<Self>, node: usize, lasts: Time) {
        let now = self.world.now();
        lock(&self.shelf.away).push(Span { node, from: now, until: now + lasts });
        if lasts > STALE_MAX {
            self.after(STALE_MAX, move |run| run.with_records(node, |records| records.set_stale(true)));
        }
        self.after(lasts + 1, move |run| run.confirm_records(node));
    }

    fn confirm_records(&self, node: usize) {
        if self.shelf.away_until(node, self.world.now()).is_none() {
            self.with_records(node, |records| {
                records.follow();
                records.set_stale(false);
            });
        }
    }

    fn with_records(&self, node: usize, act: impl FnOnce(&KnownRecords<Node>)) {
        // When the run is over, nobody is there any more.
        if let Some(records) = lock(&self.nodes).get(node).and_then(|state| state.records.clone()) {
            act(&records);
        }
    }

    /// What a node may know that hears changes from the list.
    pub(super) fn shelved_known(&self, noted: &oracle::Record) -> Known {
        let (counter, node) = ((noted.limit, noted.key), noted.node);
        let since = noted.asked.saturating_sub(IN_FORCE_AFTER);
        let away = self.shelf.was_away(node, since);
        // What was known when the store went away holds for a while.
        let held = away.iter().filter(|it| noted.asked <= it.from + STALE_MAX + 4 * DELAY_MAX);
        // A node that stood still knows what it knew before, and so does one that was stopped meanwhile.
        let pauses = lock(&self.pauses);
        let pauses = pauses.iter().filter(|pause| pause.node == node);
        let stood = pauses.clone().filter(|pause| pause.until >= since).map(|pause| pause.from).min();
        let from = held.map(|it| it.from).chain(stood).min();
        let known_since = from.map_or(since, |from| from.saturating_sub(IN_FORCE_AFTER).min(since));
        let terms = |since| self.shelf.since(counter, since).into_iter().map(|(_, terms)| terms).collect();
        // A node that stood still notices it later.
        let ran = pauses.map(|pause| pause.until).filter(|until| *until <= noted.asked);
        let runs_since = ran.max().unwrap_or(0);
        let is_stale = |it: &Span| {
            it.from.max(runs_since) + STALE_MAX + 4 * DELAY_MAX < noted.asked && self.world.now() < it.until
        };
        Known {
            may: terms(known_since),
            ever: terms(0),
            is_away: stood.is_some() || !away.is_empty(),
            is_stale: away.iter().any(is_stale),
        }
    }
}
