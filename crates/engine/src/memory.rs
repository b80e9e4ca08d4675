//! The memory store: counters in sharded tables, each behind its own lock.
//!
//! In: a plan and a time. Out: verdicts. A request locks the shards of its counters in one fixed order, looks at all
//! of them, settles, charges, and unlocks. The store is bounded in bytes. Its counters expire when
//! [`sweep`](MemoryStore::sweep) is called. It reads no clock and starts no thread.

mod budget;
mod cold;
mod due;
mod encoded;
mod held;
mod kind;
mod locked;
mod shard;
mod state;
mod table;

use std::sync::atomic::Ordering::Relaxed;

use smallvec::{SmallVec, smallvec};

use crate::decision::Verdicts;
use crate::key::Key;
use crate::limit::{Algorithm, Counter, Limit, Pending, Verdict, with_algorithms};
use crate::look::Looks;
use crate::plan::{Check, Hits, Origin, Plan, Step};
use crate::reported::{Reported, ReportedTotal};
use crate::settle::{Settlement, settle, settle_trial};
use crate::strikes::{after_strike, has_bans, spare, strikes};
use crate::sync::AtomicU64;
use crate::time::Timestamp;
use crate::unit::{Unit, Window};
use budget::Budget;
pub use cold::Cold;
pub use encoded::{Encoded, ImportError};
use kind::{AnyKind, CHUNK_SHARDS, KindShards, Kinds};
use locked::Locked;
use shard::{Prepared, Reserved, Room, ShardOps};
pub use state::{ExportPlace, Exported};

/// How much memory counters may take, and the answer when none is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryOptions {
    /// The most bytes that all counters together take, log entries and buckets included.
    pub max_bytes: u64,
    /// The answer to a descriptor that needs new state when there is no room.
    pub full: StoreFull,
}

impl MemoryOptions {
    /// At most so many bytes; beyond them, descriptors that need new state are denied.
    pub fn new(max_bytes: u64) -> Self {
        Self { max_bytes, full: StoreFull::default() }
    }

    /// Sets [`full`](Self::full).
    #[must_use]
    pub fn full(self, full: StoreFull) -> Self {
        Self { full, ..self }
    }
}

crate::named! {
    /// The answer to a descriptor that needs new state when the store is full. Names are those of settings.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum StoreFull {
        /// Over the limit, remaining 0, for one second.
        #[default]
        Deny = "deny",
        /// Within the limit, uncounted.
        Allow = "allow",
    }
}

/// How often the store had no room for new state, by the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullTotal {
    /// Answered as over the limit.
    pub deny: u64,
    /// Answered as within the limit, uncounted.
    pub allow: u64,
}

/// The result of one step of expiry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Counters that were forgotten.
    pub forgotten: u64,
    /// This step was the last of a round through all shards.
    pub round_done: bool,
}

/// All counters, in memory.
#[derive(Debug)]
pub struct MemoryStore {
    full: StoreFull,
    cold: Cold,
    budget: Budget,
    kinds: Kinds,
    expired: AtomicU64,
    full_deny: AtomicU64,
    full_allow: AtomicU64,
    reported: Reported,
    sweep_cursor: AtomicU64,
}

/// Bytes of counters in a shard when the store is full. Small enough that growing, sweeping or shrinking a shard takes
/// microseconds (the last growth of a full one: 35 µs). Large enough that the shards' locks stay in a processor's
/// cache, and that most pages are used completely.
const SHARD_BYTES: u64 = 128 << 10;

impl MemoryStore {
    /// An empty store. It allocates memory as counters are added.
    pub fn new(options: MemoryOptions) -> Self {
        let shards = (options.max_bytes / SHARD_BYTES).clamp(CHUNK_SHARDS as u64, 1 << 17) as usize;
        Self {
            full: options.full,
            cold: Cold::NEVER,
            budget: Budget::new(options.max_bytes),
            kinds: Kinds::new(shards.div_ceil(CHUNK_SHARDS)),
            expired: AtomicU64::new(0),
            full_deny: AtomicU64::new(0),
            full_allow: AtomicU64::new(0),
            reported: Reported::default(),
            sweep_cursor: AtomicU64::new(0),
        }
    }

    /// The same store after a loss of its counters: they count as full until `cold` is over.
    #[must_use]
    pub fn cold(self, cold: Cold) -> Self {
        Self { cold, ..self }
    }

    /// For how long lost counters count as full.
    pub fn coldness(&self) -> &Cold {
        &self.cold
    }

    /// Checks and charges all counters of a request in one step, as [`settle`] decides: all or nothing.
    pub fn apply(&self, plan: &Plan<'_>, now: Timestamp) -> Verdicts {
        let mut verdicts = Verdicts::new();
        self.apply_into(plan, now, &mut verdicts);
        verdicts
    }

    /// Like [`apply`](Self::apply), but overwrites `verdicts` in place to avoid a large move.
    pub fn apply_into(&self, plan: &Plan<'_>, now: Timestamp, verdicts: &mut Verdicts) {
        verdicts.clear();
        // Most requests have one descriptor.
        if let ([Step::Check(check)], true) = (&plan.steps[..], plan.candidates.is_empty()) {
            return verdicts.push(Some(self.decide(check, now)));
        }
        verdicts.resize(plan.places(), None);
        if has_bans(plan) {
            return self.apply_with_bans(plan, now, verdicts);
        }
        match self.decide_two(plan, now).or_else(|| self.decide_held(plan, now)) {
            Some(both) => verdicts.iter_mut().zip(both).for_each(|(verdict, own)| *verdict = Some(own)),
            None => self.apply_checks(plan, now, verdicts),
        }
    }

    /// Checks and charges the counters without a verdict.
    fn apply_checks(&self, plan: &Plan<'_>, now: Timestamp, verdicts: &mut Verdicts) {
        let mut checks = plan.steps.iter().enumerate().filter_map(|(index, step)| match step {
            Step::Check(check) if verdicts[index].is_none() => Some((index, check)),
            _ => None,
        });
        match (checks.next(), checks.next()) {
            (None, _) => {}
            (Some((index, check)), None) if plan.candidates.is_empty() => {
                verdicts[index] = Some(self.decide(check, now));
            }
            (Some(_), _) => self.apply_many(plan, now, verdicts),
        }
    }

    /// The same for a request with bans. They are asked first, each by itself: a ban that begins meanwhile is for
    /// the next request.
    #[inline(never)] // Few rules have any: the way of all others stays short.
    fn apply_with_bans(&self, plan: &Plan<'_>, now: Timestamp, verdicts: &mut Verdicts) {
        let mut is_banned = false;
        for place in plan.descriptors()..plan.steps.len() {
            if let Step::Check(ban) = &plan.steps[place]
                && ban.is_ban()
            {
                let verdict = self.decide(ban, now);
                is_banned |= verdict.over && !ban.shadow;
                verdicts[place] = Some(verdict);
            }
        }
        // Other descriptors may report costs, and trials need the verdicts of candidates.
        let is_alone = plan.descriptors() == 1 && plan.candidates.is_empty();
        match (is_banned, is_alone) {
            (false, _) => self.apply_checks(plan, now, verdicts),
            (true, true) => return spare(plan, verdicts),
            (true, false) => self.apply_many(plan, now, verdicts),
        }
        for (place, check) in strikes(plan, verdicts) {
            let strike = self.decide(&check, now);
            verdicts[place] = verdicts[place].map(|before| after_strike(before, &strike));
        }
    }

    /// The verdicts that all counters of a request would give if it came now. Charges nothing and gives nothing back.
    pub fn look(&self, plan: &Plan<'_>, now: Timestamp) -> Looks {
        let mut locked = Locked::new(self, plan);
        let prepared = locked.prepare_all(plan, now);
        locked.look_all(plan, now, &prepared)
    }

    /// Prefetches what [`apply`](Self::apply) will read for these plans, all of it at once. Among millions of
    /// counters, waiting for one after the other is most of the time that decisions take: a batch of calls takes 22 %
    /// longer without (`cargo bench --bench lane`). Changes nothing.
    pub fn fetch<'a, 'p: 'a>(&self, plans: impl Iterator<Item = &'a Plan<'p>> + Clone) {
        self.fetch_counters(plans.flat_map(|plan| &plan.steps).filter_map(|step| match step {
            Step::Check(check) => Some((check.limit.algorithm(), check.key)),
            _ => None,
        }));
    }

    /// Like [`fetch`](Self::fetch), for callers that know which counters will be checked.
    pub fn fetch_counters(&self, counters: impl Iterator<Item = (Algorithm, Key)> + Clone) {
        counters.clone().for_each(|(algorithm, key)| self.kinds.fetch_shard(algorithm, key));
        counters.for_each(|(algorithm, key)| self.kinds.fetch_counter(algorithm, key));
    }

    /// [`apply`](Self::apply) for a request with one check only: no mode changes what it charges.
    pub fn decide(&self, check: &Check<'_>, now: Timestamp) -> Verdict {
        macro_rules! decide {
            ($( $(#[$attribute:meta])* $variant:ident: $module:ident, )+) => {
                match check.limit.algorithm() {
                    $( Algorithm::$variant => self.decide_in(&self.kinds.$module, check, now), )+
                }
            };
        }
        with_algorithms!(decide)
    }

    /// Takes hits from one counter: for callers that have a limit and a key, but no rules. 0 hits only ask.
    pub fn take(&self, limit: &Limit, key: Key, hits: u64, now: Timestamp) -> Verdict {
        let origin = Origin::Override { window: Window::of(Unit::Second) };
        let hits = Hits::Take(hits);
        let check = Check::new(origin, *limit, key, hits);
        self.decide(&check, now)
    }

    fn decide_in<S: Counter>(&self, kind: &KindShards<S>, check: &Check<'_>, now: Timestamp) -> Verdict {
        let (mut shard, due) = kind.lock(check.key);
        let cold_nanos = self.cold.nanos_left_of(&check.limit, now);
        if cold_nanos == 0
            && let Some(verdict) = shard.decide_usual(check, now)
        {
            return verdict;
        }
        let prepared = shard
            .prepare(check, now, Pending::default(), &mut Reserved::default(), &self.budget)
            .while_cold(check, cold_nanos)
            .answered(self.full);
        let charged = prepared.charged(Settlement::PASSES, check, prepared.charge_max);
        let verdict = shard.finish_at(prepared.slot, check, now, &prepared, charged, 0);
        due.note(shard.earliest_secs());
        drop(shard);
        self.count_full(&prepared);
        self.count_beyond(check, &prepared, charged);
        verdict
    }

    /// Decides a plan of two checks of one algorithm in the usual case, as [`Locked::decide_usual`] does any plan: without it
    /// a decision with two lengths of a prefix takes a sixth more instructions. `None`: nothing was charged.
    #[inline(never)] // The way of a request with one check stays short.
    fn decide_two(&self, plan: &Plan<'_>, now: Timestamp) -> Option<[Verdict; 2]> {
        let ([Step::Check(first), Step::Check(second)], true) = (&plan.steps[..], plan.candidates.is_empty())
        else {
            return None;
        };
        let checks = [first, second];
        let [algorithm, other] = checks.map(|check| check.limit.algorithm());
        macro_rules! decide {
            ($( $(#[$attribute:meta])* $variant:ident: $module:ident, )+) => {
                match algorithm {
                    $( Algorithm::$variant => self.decide_two_in(&self.kinds.$module, plan, checks, now), )+
                }
            };
        }
        if algorithm == other { with_algorithms!(decide) } else { None }
    }

    fn decide_two_in<S: Counter>(
        &self,
        kind: &KindShards<S>,
        plan: &Plan<'_>,
        checks @ [first, second]: [&Check<'_>; 2],
        now: Timestamp,
    ) -> Option<[Verdict; 2]> {
        let [mut first_shard, mut second_shard] = kind.lock_two(checks.map(|check| check.key))?;
        if checks.iter().any(|check| self.cold.nanos_left_of(&check.limit, now) > 0) {
            return None;
        }
        let seen = [first_shard.see_usual(first, now)?, second_shard.see_usual(second, now)?];
        let settlement = settle(plan, |place| seen[place].preview.over);
        let charged = |place: usize| settlement.charged(checks[place], seen[place].preview.over);
        Some([
            first_shard.charge_usual(&seen[0], first, charged(0)),
            second_shard.charge_usual(&seen[1], second, charged(1)),
        ])
    }

    fn apply_many(&self, plan: &Plan<'_>, now: Timestamp, verdicts: &mut Verdicts) {
        let mut locked = Locked::new(self, plan);
        if locked.decide_usual(plan, now, verdicts) {
            return;
        }
        let owed = locked.owed(plan, now);
        let plan = owed.as_ref().unwrap_or(plan);
        let prepared = locked.prepare_all(plan, now);
        let over = |place: usize| prepared.get(place).copied().flatten().is_some_and(|it| it.preview.over);
        let mut settlements: SmallVec<[Settlement; 1]> = smallvec![settle(plan, over)];
        settlements.extend(plan.candidates.iter().map(|candidate| settle_trial(plan, candidate.rule, over)));
        // Candidates do not change the answer, so they are not counted with the answers.
        let observe = |check: &Check<'_>, it: &Prepared, charged| self.count_beyond(check, it, charged);
        locked.finish_all(plan, now, &prepared, &settlements, verdicts, observe);
        drop(locked);
        let of_steps = prepared.iter().take(plan.steps.len());
        of_steps.flatten().for_each(|prepared| self.count_full(prepared));
    }

    fn count_full(&self, prepared: &Prepared) {
        match prepared.room {
            Room::Full(StoreFull::Deny) => self.full_deny.fetch_add(1, Relaxed),
            Room::Full(StoreFull::Allow) => self.full_allow.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    fn count_beyond(&self, check: &Check<'_>, prepared: &Prepared, charged: u64) {
        if prepared.preview.over {
            self.reported.count(check, prepared.preview.left, charged);
        }
    }

    /// One bounded step of expiry: finds the next chunk of shards where a counter may have expired at `now`, and
    /// forgets those that have. A later decision with an earlier time is treated as of `now`, so nothing is forgotten
    /// too early. Call it in a loop until [`Swept::round_done`], once a second, and several times while any is forgotten.
    pub fn sweep(&self, now: Timestamp) -> Swept {
        let (kinds, chunks) = (self.kinds.all(), self.kinds.chunk_count);
        let start = self.sweep_cursor.load(Relaxed) as usize;
        let due = (start..chunks).find(|&chunk| kinds.iter().any(|kind| kind.is_due(chunk, now)));
        let sweep = |chunk| kinds.iter().map(|kind| kind.sweep(chunk, now, &self.budget)).sum();
        let forgotten = due.map_or(0, sweep);
        self.expired.fetch_add(forgotten, Relaxed);
        let next = due.map_or(chunks, |chunk| chunk + 1);
        let round_done = next == chunks;
        self.sweep_cursor.store(if round_done { 0 } else { next as u64 }, Relaxed);
        Swept { forgotten, round_done }
    }

    /// The number of counters.
    pub fn counters(&self) -> u64 {
        self.kinds.all().into_iter().map(AnyKind::counters).sum()
    }

    /// Bytes that counters take, free slots of tables included.
    pub fn bytes(&self) -> u64 {
        self.kinds.all().into_iter().map(AnyKind::bytes).sum()
    }

    /// Counters that were forgotten, since the start.
    pub fn expired_total(&self) -> u64 {
        self.expired.load(Relaxed)
    }

    /// Hits of reported costs that did not fit, since the start.
    pub fn reported_total(&self) -> ReportedTotal {
        self.reported.total()
    }

    /// How often there was no room for new state, since the start.
    pub fn full_total(&self) -> FullTotal {
        FullTotal { deny: self.full_deny.load(Relaxed), allow: self.full_allow.load(Relaxed) }
    }
}
