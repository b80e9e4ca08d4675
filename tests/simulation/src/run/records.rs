//! Records in a run: the store that has them, what nodes hear of changes, and by which limits they may decide.
//!
//! In: changes that operators make, and questions of nodes. Out: answers, after a while or none. To the judge a node may
//! decide by what was in force since its client asked, or a little earlier: it hears of a change late. It may fall back on
//! the limit of the rule only where the store, the client or the node itself did not wait. What is here is a list; records in
//! Redis are in `shared_records`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tidegate_engine::rules::Unit;
use tidegate_engine::unit::Window;
use tidegate_operate::records::RecordStore;
use tidegate_records::{Record, RecordKey};
use tidegate_serve::service::{
    KnownRecords, NoAnswer, RecordAnswer, RecordSource, RecordsOptions, StaleMode,
};

use super::Run;
use super::cluster;
use super::decider::Decider;
use super::names::{counter, entries};
use crate::node::Node;
use crate::oracle;
use crate::random::Random;
use crate::scenario::{HEARD_MAX, RecordsIn, Scenario, Terms};
use crate::world::{MILLI, SECOND, Span, Time, World, lock};

/// LIMITS_TIMEOUT: how long a request waits for records.
pub(super) const RECORDS_TIMEOUT: Time = 100 * MILLI;
/// LIMITS_STALE_MAX: how long what is known holds while the store is away.
pub(super) const STALE_MAX: Time = 300 * MILLI;
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

/// What a node may know of the record of a descriptor.
pub(super) struct Known {
    /// What its record may say.
    pub(super) may: SmallVec<[Option<Terms>; 1]>,
    /// What it ever said.
    pub(super) ever: SmallVec<[Option<Terms>; 1]>,
    /// The store may not have answered.
    pub(super) is_away: bool,
    /// The store has surely not answered for too long.
    pub(super) is_stale: bool,
}

/// The record that says this.
pub(super) fn record((requests, window_secs): Terms) -> Record {
    let window = window_secs.map(|secs| Window { unit: Unit::Second, multiplier: secs as u32 });
    Record { window, ..Record::of(requests.into()) }
}

/// Records, and their store if that is in Redis.
type Records = (Arc<KnownRecords<Node>>, Option<Arc<RecordStore<Node>>>);

impl Run {
    /// The records of a node that starts now, if any limit has some, and their store if they are in Redis.
    pub(super) fn records_of(&self, node: usize, runtime: &Node, seed: u64) -> Option<Records> {
        let Scenario { limits, stale_mode, record_cache, .. } = &self.scenario;
        if limits.iter().all(|limit| limit.recorded.is_none()) {
            return None;
        }
        let options = RecordsOptions {
            cache_entries: *record_cache,
            timeout: Duration::from_nanos(RECORDS_TIMEOUT),
            stale_mode: *stale_mode,
        };
        if self.scenario.records_in != RecordsIn::List {
            let (records, store) = self.shared_records_of(runtime, options);
            return Some((records, Some(store)));
        }
        let (world, shelf) = (Arc::clone(&self.world), Arc::clone(&self.shelf));
        let source = Source { world, shelf, node, seed: AtomicU64::new(!seed) };
        let records =
            KnownRecords::on(runtime.clone(), source, cluster::secret(self.scenario.layout), options);
        // It hears of no changes yet.
        if self.shelf.away_until(node, self.world.now()).is_some() {
            records.unfollow();
        }
        Some((Arc::new(records), None))
    }

    /// A record is put into the store, or removed. Nodes hear of it one after the other.
    pub(super) fn record(self: &Arc<Self>, counter: (usize, u64), terms: Option<Terms>, heard_within: Time) {
        if self.scenario.records_in != RecordsIn::List {
            return self.change_record(counter, terms, heard_within);
        }
        let now = self.world.now();
        lock(&self.shelf.histories).entry(counter).or_insert_with(|| vec![(0, None)]).push((now, terms));
        let nodes = self.scenario.clocks.len() as u64;
        for node in 0..nodes {
            let place = (node + self.scenario.seed + now) % nodes;
            let run = Arc::clone(self);
            self.world
                .at(now + heard_within * place / nodes, move |_| run.hear_of_record(node as usize, counter));
        }
    }

    /// The N that the record of a counter says now.
    pub(super) fn recorded_now(&self, counter: (usize, u64)) -> Option<u32> {
        match self.scenario.records_in {
            RecordsIn::List => self.shelf.now(counter).map(|(requests, _)| requests),
            _ => self.stored_record(counter).map(|record| record.requests as u32),
        }
    }

    fn hear_of_record(self: &Arc<Self>, node: usize, (limit, key): (usize, u64)) {
        if let Some(until) = self.shelf.away_until(node, self.world.now()) {
            let run = Arc::clone(self);
            return self.world.at(until, move |_| run.hear_of_record(node, (limit, key)));
        }
        let key = RecordKey::of("sim", entries(&self.scenario.limits, limit, key)).expect("a short key");
        self.with_records(node, |records| records.forget(&key));
    }

    /// A node cannot reach the store, for so long.
    pub(super) fn records_are_away(self: &Arc<Self>, node: usize, lasts: Time) {
        if self.scenario.records_in != RecordsIn::List {
            return self.cut_records(node);
        }
        let now = self.world.now();
        lock(&self.shelf.away).push(Span { node, from: now, until: now + lasts });
        if lasts > STALE_MAX {
            let run = Arc::clone(self);
            self.world
                .at(now + STALE_MAX, move |_| run.with_records(node, |records| records.set_stale(true)));
        }
    }

    /// A node reaches the store again. It hears of what changed first.
    pub(super) fn records_are_back(self: &Arc<Self>, node: usize) {
        if self.scenario.records_in != RecordsIn::List {
            return;
        }
        let run = Arc::clone(self);
        self.world.at(self.world.now() + 1, move |_| run.confirm_records(node));
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

    /// How long an answer may take that needs records too.
    pub(super) fn waits_for_records(&self, limits: impl IntoIterator<Item = usize>) -> Time {
        let has_records = limits.into_iter().any(|limit| self.scenario.limits[limit].recorded.is_some());
        if has_records { RECORDS_TIMEOUT } else { 0 }
    }

    /// Every limit by which a record may have a descriptor decided. `noted`: what its rule says. `is_patient`: the
    /// client waited.
    pub(super) fn recorded_limits(&self, noted: &oracle::Record, is_patient: bool) -> SmallVec<[Decider; 1]> {
        let limit = &self.scenario.limits[noted.limit];
        let is_quota = limit.shape.is_quota || self.scenario.modes.quota && limit.further.is_none();
        let of = |(requests, window)| Decider { requests, window, is_shadow: limit.is_shadow, is_quota };
        if limit.recorded.is_none() {
            return smallvec![of((noted.requests, noted.window))];
        }
        let Known { may, ever, is_away, is_stale } = match self.scenario.records_in {
            RecordsIn::List => self.shelf_known(noted),
            RecordsIn::Redis | RecordsIn::Cluster => self.known_records(noted),
        };
        let own = (noted.requests, noted.window);
        let says = |terms: Option<Terms>| {
            terms.map_or(own, |(requests, secs)| (requests, secs.map_or(own.1, |secs| secs * SECOND)))
        };
        let mut may: SmallVec<_> = may.into_iter().map(says).map(of).collect();
        // Long into an outage nothing else holds than what its mode says.
        if is_stale && self.scenario.stale_mode != StaleMode::Last {
            may.clear();
        }
        if !is_patient || is_away {
            match self.scenario.stale_mode {
                StaleMode::Rule => may.push(of(own)),
                StaleMode::Deny => may.push(Decider { is_shadow: false, ..of((0, own.1)) }),
                StaleMode::Last => may.extend(ever.into_iter().map(says).chain([own]).map(of)),
            }
        }
        may
    }

    /// What a node may know that hears changes from the list.
    fn shelf_known(&self, noted: &oracle::Record) -> Known {
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
