//! The memory store: counters in sharded tables, each behind its own lock.
//!
//! In: a plan and a time. Out: verdicts. A request locks the shards of its counters in one fixed order, looks at all
//! of them, settles, charges, and unlocks. The store is bounded in bytes, expires its counters when it is told to
//! [`sweep`](MemoryStore::sweep), reads no clock and starts no thread.

mod budget;
mod kind;
mod shard;
mod table;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{MappedMutexGuard, MutexGuard};
use smallvec::{SmallVec, smallvec};

use crate::engine::decision::Verdicts;
use crate::engine::key::Key;
use crate::engine::limit::{Ahead, Algorithm, Counter, FixedWindow, SlidingWindow, Verdict};
use crate::engine::plan::{Check, Hits, Plan, Step};
use crate::engine::settle::{Looked, Settlement, settle};
use crate::engine::time::Timestamp;
use budget::Budget;
use kind::Kind;
use shard::{Asked, Promised, Room, Shard, ShardOps};

/// How much memory counters may take, and what is answered when that is all taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The most bytes that all counters together take, log entries and buckets included.
    pub max_bytes: u64,
    /// The answer to a descriptor that needs new state when there is no room.
    pub full: StoreFull,
}

/// The answer to a descriptor that needs new state when the store is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreFull {
    /// Over the limit, remaining 0, for one second.
    #[default]
    Deny,
    /// Within the limit, uncounted.
    Allow,
}

/// How often the store had no room for new state, by the answer that was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullTotal {
    /// Answered as over the limit.
    pub deny: u64,
    /// Answered as within the limit, uncounted.
    pub allow: u64,
}

/// What one step of expiry did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Counters that were forgotten.
    pub forgotten: u64,
    /// All shards were visited since the last time that this was true.
    pub round_done: bool,
}

/// All counters, in memory.
#[derive(Debug)]
pub struct MemoryStore {
    full: StoreFull,
    budget: Budget,
    fixed_window: Kind<FixedWindow>,
    sliding_window: Kind<SlidingWindow>,
    expired: AtomicU64,
    full_deny: AtomicU64,
    full_allow: AtomicU64,
    sweep_cursor: AtomicU64,
}

/// Shards that one step of a sweep visits at most.
const SWEEP_SHARDS: usize = 64;

/// Bytes of counters that a shard should hold when the store is full: small enough that growing, sweeping or shrinking
/// one takes a few microseconds.
const SHARD_BYTES: u64 = 64 << 10;

impl MemoryStore {
    /// An empty store. It takes memory as counters come.
    pub fn new(options: MemoryOptions) -> Self {
        let shards = (options.max_bytes / SHARD_BYTES).clamp(64, 1 << 17).next_power_of_two() as usize;
        Self {
            full: options.full,
            budget: Budget::new(options.max_bytes),
            fixed_window: Kind::new(shards),
            sliding_window: Kind::new(shards),
            expired: AtomicU64::new(0),
            full_deny: AtomicU64::new(0),
            full_allow: AtomicU64::new(0),
            sweep_cursor: AtomicU64::new(0),
        }
    }

    /// Asks and charges all counters of a request, as one step: what [`settle`] decides, all or nothing.
    pub fn apply(&self, plan: &Plan<'_>, now: Timestamp) -> Verdicts {
        let mut checks = plan.steps.iter().enumerate().filter_map(|(index, step)| match step {
            Step::Check(check) => Some((index, check)),
            _ => None,
        });
        let mut verdicts: Verdicts = smallvec![None; plan.steps.len()];
        match (checks.next(), checks.next()) {
            (None, _) => {}
            (Some((index, check)), None) => verdicts[index] = Some(self.apply_one(plan, check, now)),
            (Some(_), Some(_)) => self.apply_many(plan, now, &mut verdicts),
        }
        verdicts
    }

    fn apply_one(&self, plan: &Plan<'_>, check: &Check<'_>, now: Timestamp) -> Verdict {
        match check.limit.algorithm() {
            Algorithm::FixedWindow => self.decide(self.fixed_window.lock(check.key), plan, check, now),
            _ => self.decide(self.sliding_window.lock(check.key), plan, check, now),
        }
    }

    /// The whole step for the only counter of a request.
    fn decide<S: Counter>(
        &self,
        mut shard: MutexGuard<'_, Shard<S>>,
        plan: &Plan<'_>,
        check: &Check<'_>,
        now: Timestamp,
    ) -> Verdict {
        let asked = shard
            .look(check, now, Ahead::default(), &mut Promised::default(), &self.budget)
            .answered(self.full);
        let settlement = settle(plan, |_| asked.looked.over);
        let charged = settlement.charged(check, asked.looked);
        let verdict = shard.finish_at(asked.slot, check, now, &asked, charged, 0);
        self.count_full(&asked);
        verdict
    }

    fn apply_many(&self, plan: &Plan<'_>, now: Timestamp, verdicts: &mut Verdicts) {
        let mut locked = Locked::new(self, plan);
        let asked = locked.look_all(plan, now, &self.budget, self.full);
        let settlement =
            settle(plan, |index| asked.get(index).copied().flatten().is_some_and(|asked| asked.looked.over));
        locked.finish_all(plan, now, &asked, settlement, verdicts);
        drop(locked);
        asked.iter().flatten().for_each(|asked| self.count_full(asked));
    }

    fn count_full(&self, asked: &Asked) {
        match asked.room {
            Room::Full(StoreFull::Deny) => self.full_deny.fetch_add(1, Relaxed),
            Room::Full(StoreFull::Allow) => self.full_allow.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    /// Which lock holds the counter of this check. Locks are taken in ascending order of it.
    fn place(&self, check: &Check<'_>) -> Place {
        match check.limit.algorithm() {
            Algorithm::FixedWindow => (0, self.fixed_window.shard_of(check.key)),
            _ => (1, self.sliding_window.shard_of(check.key)),
        }
    }

    fn lock(&self, (kind, shard): Place) -> Guard<'_> {
        match kind {
            0 => MutexGuard::map(self.fixed_window.lock_shard(shard), |shard| shard as &mut dyn ShardOps),
            _ => MutexGuard::map(self.sliding_window.lock_shard(shard), |shard| shard as &mut dyn ShardOps),
        }
    }

    /// One bounded step of expiry: forgets the counters of the next few shards whose time is over at `now`, which must
    /// not be later than the time of any decision still to come. To be called in a loop, at least until
    /// [`Swept::round_done`], several times a second.
    pub fn sweep(&self, now: Timestamp) -> Swept {
        let start = self.sweep_cursor.fetch_add(SWEEP_SHARDS as u64, Relaxed) as usize;
        let shards = self.fixed_window.shard_count();
        let start = start % shards;
        let range = start..(start + SWEEP_SHARDS).min(shards);
        let forgotten = self.fixed_window.sweep(range.clone(), now, &self.budget)
            + self.sliding_window.sweep(range.clone(), now, &self.budget);
        self.expired.fetch_add(forgotten, Relaxed);
        Swept { forgotten, round_done: range.end == shards }
    }

    /// Counters that are held.
    pub fn counters(&self) -> u64 {
        self.fixed_window.counters() + self.sliding_window.counters()
    }

    /// Bytes that counters take, table space that is free inside included.
    pub fn bytes(&self) -> u64 {
        self.fixed_window.bytes() + self.sliding_window.bytes()
    }

    /// Counters that were forgotten because their time was over, since the start.
    pub fn expired_total(&self) -> u64 {
        self.expired.load(Relaxed)
    }

    /// How often there was no room for new state, since the start.
    pub fn full_total(&self) -> FullTotal {
        FullTotal { deny: self.full_deny.load(Relaxed), allow: self.full_allow.load(Relaxed) }
    }
}

/// A lock's place in the order in which locks are taken: kind of table, shard.
type Place = (u8, usize);
type Guard<'a> = MappedMutexGuard<'a, dyn ShardOps + 'a>;

/// All shards of one request, locked.
struct Locked<'a> {
    guards: SmallVec<[(Place, Guard<'a>); 4]>,
    /// For each step: where its guard is, and the first step on the same counter.
    seats: SmallVec<[Seat; 8]>,
}

#[derive(Clone, Copy, Default)]
struct Seat {
    guard: usize,
    counter: usize,
}

impl<'a> Locked<'a> {
    /// Locks what the plan's checks need: each shard once, in ascending order, so that no two requests wait for each
    /// other.
    fn new(store: &'a MemoryStore, plan: &Plan<'_>) -> Self {
        let mut order = SmallVec::<[(Place, Key, usize); 8]>::new();
        for (index, step) in plan.steps.iter().enumerate() {
            if let Step::Check(check) = step {
                order.push((store.place(check), check.key, index));
            }
        }
        order.sort_unstable();
        let mut locked =
            Self { guards: SmallVec::new(), seats: smallvec![Seat::default(); plan.steps.len()] };
        let mut previous: Option<(Place, Key, usize)> = None;
        for &(place, key, index) in &order {
            if locked.guards.last().is_none_or(|&(last, _)| last != place) {
                locked.guards.push((place, store.lock(place)));
            }
            let same = previous.filter(|&(last, last_key, _)| (last, last_key) == (place, key));
            let counter = same.map_or(index, |(_, _, first)| first);
            locked.seats[index] = Seat { guard: locked.guards.len() - 1, counter };
            previous = Some((place, key, counter));
        }
        locked
    }

    /// What each counter says before anything is charged, in request order.
    fn look_all(
        &mut self,
        plan: &Plan<'_>,
        now: Timestamp,
        budget: &Budget,
        full: StoreFull,
    ) -> SmallVec<[Option<Asked>; 8]> {
        let mut ahead: SmallVec<[Ahead; 8]> = smallvec![Ahead::default(); plan.steps.len()];
        let mut promised: SmallVec<[Promised; 4]> = smallvec![Promised::default(); self.guards.len()];
        let mut look = |(index, step): (usize, &Step<'_>)| {
            let Step::Check(check) = step else { return None };
            let Seat { guard, counter } = self.seats[index];
            let asked = self.guards[guard]
                .1
                .look(check, now, ahead[counter], &mut promised[guard], budget)
                .answered(full);
            match check.hits {
                Hits::GiveBack(hits) => ahead[counter].give_back(hits),
                Hits::Take(_) => ahead[counter].take(asked.charged_if_passing(check)),
            }
            Some(asked)
        };
        plan.steps.iter().enumerate().map(&mut look).collect()
    }

    /// Charges what was settled and tells the verdicts, in request order.
    fn finish_all(
        &mut self,
        plan: &Plan<'_>,
        now: Timestamp,
        asked: &[Option<Asked>],
        settlement: Settlement,
        verdicts: &mut Verdicts,
    ) {
        let mut charged_so_far: SmallVec<[u64; 8]> = smallvec![0; plan.steps.len()];
        for (index, step) in plan.steps.iter().enumerate() {
            let (Step::Check(check), Some(asked)) = (step, asked[index]) else { continue };
            let Seat { guard, counter } = self.seats[index];
            let shard = &mut self.guards[guard].1;
            let (slot, left) = shard.find_left(check);
            let charged = settlement.charged(check, Looked { left, ..asked.looked });
            let uncharged = asked.ahead.taken.saturating_sub(charged_so_far[counter]);
            verdicts[index] = Some(shard.finish_at(slot, check, now, &asked, charged, uncharged));
            charged_so_far[counter] = charged_so_far[counter].saturating_add(charged);
        }
    }
}
