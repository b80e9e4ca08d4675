//! One shard: a table of counters of one algorithm, and the bytes that it takes. Everything here happens under the
//! shard's lock.

mod usual;

use crate::key::Key;
use crate::limit::{Algorithm, Counter, Limit, Pending, Preview, RETRY_NANOS, Verdict};
use crate::look::{Leaving, Look};
use crate::memory::StoreFull;
use crate::memory::budget::Budget;
use crate::memory::due::whole_seconds;
use crate::memory::table::{Removed, Table};
use crate::plan::{Check, Hits, ReservationStep};
use crate::settle::Settlement;
use crate::time::{SECOND_NANOS, Timestamp};
pub(super) use usual::Usual;

#[derive(Debug)]
pub(super) struct Shard<S> {
    table: Table<S>,
    /// Bytes that the states hold on the heap.
    heap_bytes: u64,
    /// Bytes that were taken from the budget.
    paid: u64,
    /// The time of the last sweep that forgot something here. A decision with an earlier time is moved to this time,
    /// so that it cannot see that a counter is missing.
    swept_at: Timestamp,
}

/// A check before the request is settled: the counter was read, and room for the charge was reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    pub(super) preview: Preview,
    pub(super) room: Room,
    /// The slot of the counter, if there was one.
    pub(super) slot: Option<usize>,
    /// The changes that earlier descriptors of the request make to the counter if the request passes.
    pub(super) pending: Pending,
    /// The most hits that are charged to it.
    pub(super) charge_max: u64,
    /// For so many more nanoseconds it counts as full, whatever it contains; 0: it does not.
    pub(super) cold_nanos: u64,
}

/// Whether there is room for what a check may charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Enough,
    /// There is none: nothing can be charged.
    Short,
    /// There is none, and this is the answer.
    Full(StoreFull),
}

/// The most new counters of one request in one shard that get slots before it is settled.
const INSERTS_AT_ONCE: usize = 8;

/// Bytes that may be used before they are paid for, with the next ones: a request that gives hits back and takes
/// others of the same counter frees its memory first, and then needs some again.
const UNPAID_MAX: u64 = 256;

/// Room in a shard that is reserved for a request and not used yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reserved {
    /// Counters; at most [`INSERTS_AT_ONCE`].
    inserts: usize,
    /// Groups for further counters.
    groups: usize,
    /// Bytes that counters hold on the heap.
    heap_bytes: u64,
}

/// What a request does with a shard of any algorithm.
pub(super) trait ShardOps {
    /// Reads the counter of `check`, and reserves room for its charge, in addition to what is `reserved` already.
    fn prepare(
        &mut self,
        check: &Check<'_>,
        now: Timestamp,
        pending: Pending,
        reserved: &mut Reserved,
        budget: &Budget,
    ) -> Prepared;

    /// Reads the counter in the usual case; `None`: this is not the usual case, use [`prepare`](Self::prepare).
    fn see(&mut self, check: &Check<'_>, now: Timestamp) -> Option<Usual>;

    /// Charges a counter that was read, if no counter was added to the shard since.
    fn charge_seen(&mut self, usual: &Usual, check: &Check<'_>, charged: u64) -> Verdict;

    /// No counter of the shard expires before this second.
    fn earliest_secs(&self) -> u32;

    /// The slot of the counter now, and the most hits that a reported cost adds to it.
    fn find_report_max(&self, check: &Check<'_>) -> (Option<usize>, u64);

    /// What the open calls of others may cost at most, if it is the counter of holds.
    fn worst_case(&self, check: &Check<'_>) -> u64;

    /// The verdict of the counter for a prepared check. Nothing changes.
    fn look(&self, check: &Check<'_>, now: Timestamp, prepared: &Prepared) -> Look;

    /// Charges `charged` hits (or gives hits back) and returns the verdict. `uncharged` are hits of earlier
    /// descriptors of the request that were pending, but not charged.
    fn finish_at(
        &mut self,
        slot: Option<usize>,
        check: &Check<'_>,
        now: Timestamp,
        prepared: &Prepared,
        charged: u64,
        uncharged: u64,
    ) -> Verdict;
}

impl Prepared {
    /// If there is no room, makes that the answer to hits that would have passed.
    pub(super) fn answered(mut self, full: StoreFull) -> Self {
        if self.room == Room::Short && !self.preview.over {
            self.room = Room::Full(full);
            self.preview.over = full == StoreFull::Deny;
            self.preview.left = 0;
        }
        self
    }

    /// The hits that are charged under this settlement: at most `charge_max`.
    pub(super) fn charged(&self, settlement: Settlement, check: &Check<'_>, charge_max: u64) -> u64 {
        match self.room {
            Room::Enough => settlement.charged(check, self.preview.over).min(charge_max),
            Room::Short | Room::Full(_) => 0,
        }
    }

    fn verdict_when_full(&self, check: &Check<'_>, full: StoreFull) -> Verdict {
        let Preview { before, .. } = self.preview;
        let after = before.saturating_add(hits_taken(check));
        match full {
            StoreFull::Deny => Verdict {
                over: true,
                before,
                after,
                remaining: 0,
                reset_nanos: SECOND_NANOS,
                is_counted: false,
            },
            StoreFull::Allow => Verdict {
                over: false,
                before,
                after,
                remaining: check.limit.capacity(),
                reset_nanos: 0,
                is_counted: false,
            },
        }
    }
}

impl<S> Default for Shard<S> {
    fn default() -> Self {
        Self { table: Table::default(), heap_bytes: 0, paid: 0, swept_at: Timestamp::default() }
    }
}

impl<S: Counter> Shard<S> {
    pub(super) fn counters(&self) -> u64 {
        self.table.len() as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        Table::<S>::bytes_of(self.table.group_count()) as u64 + self.heap_bytes
    }

    /// Appends the counters that have not expired at `now`, and returns how many.
    pub(super) fn export(&self, now: Timestamp, out: &mut Vec<u8>) -> u32 {
        self.table.export(now, out)
    }

    pub(super) fn has(&self, key: Key) -> bool {
        self.table.find(key).is_some()
    }

    /// Adds a counter that is not there, if there are bytes for it. Returns whether it was added.
    pub(super) fn put(&mut self, key: Key, state: S, budget: &Budget) -> bool {
        let wanted = Reserved { inserts: 1, heap_bytes: state.heap_bytes() as u64, ..Reserved::default() };
        if !self.make_slots(&wanted, budget) || !self.pay_for(self.table.group_count(), &wanted, budget) {
            return false;
        }
        self.heap_bytes += wanted.heap_bytes;
        let slot = self.table.insert(key);
        *self.table.state_mut(slot) = state;
        self.expect_end(slot);
        // Bytes that were paid in advance go back: a store that was full has to fit again.
        budget.give_back(self.take_surplus());
        true
    }

    /// Prefetches what the table holds for this key.
    pub(super) fn fetch(&self, key: Key) {
        self.table.fetch(key);
    }

    /// Removes the counters that have expired at `now`. The caller drops them without the lock. Returns how many, and
    /// the bytes to give back to the budget when they are dropped.
    pub(super) fn sweep(&mut self, now: Timestamp, removed: &mut Removed<S>) -> (u64, u64) {
        if whole_seconds(now) < self.table.earliest_secs {
            return (0, 0);
        }
        let (before, mut heap_bytes, mut earliest) = (self.table.len(), 0, Timestamp::MAX);
        let keep = |state: &S| {
            let until = state.expires_at();
            if until > now {
                earliest = earliest.min(until);
            } else {
                heap_bytes += state.heap_bytes() as u64;
            }
            until > now
        };
        self.table.retain(keep, removed);
        self.table.earliest_secs = whole_seconds(earliest);
        self.heap_bytes -= heap_bytes;
        self.table.shrink_if_sparse(removed);
        let surplus = self.take_surplus();
        let forgotten = (before - self.table.len()) as u64;
        if forgotten > 0 {
            self.swept_at = self.swept_at.max(now);
        }
        debug_assert_eq!(self.invariants(), Ok(()));
        (forgotten, surplus)
    }

    /// The bytes that were paid for and are not used. The caller gives them back to the budget.
    fn take_surplus(&mut self) -> u64 {
        let surplus = self.paid.saturating_sub(self.bytes());
        self.paid -= surplus;
        surplus
    }

    /// Pays for a table of this many groups and for what is reserved, and a little in advance if there are enough
    /// bytes.
    fn pay_for(&mut self, groups: usize, reserved: &Reserved, budget: &Budget) -> bool {
        let table_bytes = Table::<S>::bytes_of(groups + reserved.groups) as u64;
        let needed = (table_bytes + self.heap_bytes + reserved.heap_bytes).saturating_sub(self.paid);
        if needed == 0 {
            return true;
        }
        let ahead = (self.bytes() / 64).min(1024);
        let taken = [needed + ahead, needed].into_iter().find(|&bytes| budget.take(bytes));
        self.paid += taken.unwrap_or(0);
        taken.is_some()
    }

    /// Reserves room for what charging this counter may add; and for the counter itself if there is none yet.
    fn make_room(
        &mut self,
        slot: Option<usize>,
        check: &Check<'_>,
        pending: Pending,
        reserved: &mut Reserved,
        budget: &Budget,
    ) -> bool {
        let mut wanted = *reserved;
        let carries = check.reported && check.limit.carries_debt();
        let growth = |state: &S| match (carries, pending == Pending::default()) {
            (true, _) => state.growth_bytes_of_debt(&check.limit),
            (false, true) => state.growth_bytes(&check.limit),
            (false, false) => state.growth_bytes_after_others(&check.limit),
        };
        wanted.heap_bytes += match slot {
            Some(slot) => growth(self.table.state(slot)) as u64,
            None => growth(&S::default()) as u64,
        };
        if slot.is_none() {
            // One request seldom adds more than these. For the next as many, a group is paid for in advance, and
            // allocated when they are added.
            if wanted.inserts == INSERTS_AT_ONCE {
                (wanted.inserts, wanted.groups) = (0, wanted.groups + 1);
            }
            wanted.inserts += 1;
        }
        let slots = slot.is_some() || self.make_slots(&wanted, budget);
        let enough = slots && self.pay_for(self.table.group_count(), &wanted, budget);
        if enough {
            *reserved = wanted;
        }
        enough
    }

    /// Allocates slots for the reserved counters, if there are bytes for them.
    fn make_slots(&mut self, reserved: &Reserved, budget: &Budget) -> bool {
        while !self.table.has_room(reserved.inserts) {
            let groups = self.table.groups_grown();
            if !self.pay_for(groups, reserved, budget) {
                return false;
            }
            self.table.grow(groups);
        }
        true
    }

    /// The preview, and the most hits that are charged to the counter.
    fn look_at(
        &mut self,
        slot: Option<usize>,
        check: &Check<'_>,
        now: Timestamp,
        pending: Pending,
    ) -> (Preview, u64) {
        let absent;
        let state = match slot {
            Some(slot) => {
                self.change(slot, &check.limit, |state| state.advance(&check.limit, now));
                self.table.state(slot)
            }
            None => {
                absent = unused::<S>(check, now);
                &absent
            }
        };
        let preview = match check.hits {
            Hits::Take(hits) => {
                let preview = state.look(&check.limit, pending, hits);
                Preview { over: preview.over || check.denied, ..preview }
            }
            Hits::GiveBack(hits) => {
                let mut pending = pending;
                pending.give_back(hits);
                state.look(&check.limit, pending, 0)
            }
        };
        let report_max = || state.report_max(&check.limit, pending.without_held());
        (preview, if check.reported { report_max() } else { u64::MAX })
    }

    /// The slot of the counter, which is inserted if it does not exist.
    fn slot_or_insert(&mut self, slot: Option<usize>, check: &Check<'_>, now: Timestamp) -> usize {
        slot.unwrap_or_else(|| {
            let slot = self.table.insert(check.key);
            self.table.state_mut(slot).advance(&check.limit, now);
            slot
        })
    }

    /// Notes the expiry of a counter that is new, or that may now expire earlier.
    fn expect_end(&mut self, slot: usize) {
        self.table.earliest_secs =
            self.table.earliest_secs.min(whole_seconds(self.table.state(slot).expires_at()));
    }

    /// Changes a counter, and updates the bytes that the states hold.
    fn change(&mut self, slot: usize, limit: &Limit, change: impl FnOnce(&mut S)) {
        let state = self.table.state_mut(slot);
        let before = state.heap_bytes() as u64;
        change(state);
        self.heap_bytes = self.heap_bytes - before + state.heap_bytes() as u64;
        debug_assert_eq!(state.invariants(limit), Ok(()));
        debug_assert!(
            self.bytes() <= self.paid + UNPAID_MAX,
            "{} of {} bytes are paid",
            self.paid,
            self.bytes()
        );
    }

    /// What is wrong with the shard, if anything is. It looks at every counter.
    fn invariants(&self) -> Result<(), &'static str> {
        if self.table.states().map(|state| state.heap_bytes() as u64).sum::<u64>() != self.heap_bytes {
            return Err("the bytes of the counters are miscounted");
        }
        if self.table.states().any(|state| whole_seconds(state.expires_at()) < self.table.earliest_secs) {
            return Err("a counter expires before the earliest one");
        }
        if self.bytes() > self.paid + UNPAID_MAX { Err("bytes are not paid") } else { Ok(()) }
    }
}

impl<S: Counter> ShardOps for Shard<S> {
    fn prepare(
        &mut self,
        check: &Check<'_>,
        now: Timestamp,
        pending: Pending,
        reserved: &mut Reserved,
        budget: &Budget,
    ) -> Prepared {
        let slot = self.table.find(check.key);
        let (preview, charge_max) = self.look_at(slot, check, now.max(self.swept_at), pending);
        let may_charge = match check.hits {
            Hits::GiveBack(_) | Hits::Take(0) => false,
            Hits::Take(_) if check.reservation == ReservationStep::Bound => false,
            Hits::Take(_) if check.limit.algorithm() == Algorithm::FixedWindow => true,
            Hits::Take(_) => !preview.over || check.reported && charge_max > 0,
        };
        let enough = !may_charge || self.make_room(slot, check, pending, reserved, budget);
        let room = if enough { Room::Enough } else { Room::Short };
        Prepared { preview, room, slot, pending, charge_max, cold_nanos: 0 }
    }

    fn see(&mut self, check: &Check<'_>, now: Timestamp) -> Option<Usual> {
        self.see_usual(check, now)
    }

    fn charge_seen(&mut self, usual: &Usual, check: &Check<'_>, charged: u64) -> Verdict {
        self.charge_usual(usual, check, charged)
    }

    fn earliest_secs(&self) -> u32 {
        self.table.earliest_secs
    }

    fn find_report_max(&self, check: &Check<'_>) -> (Option<usize>, u64) {
        let slot = self.table.find(check.key);
        let most = match slot {
            Some(slot) => self.table.state(slot).report_max(&check.limit, Pending::default()),
            None => S::default().report_max(&check.limit, Pending::default()),
        };
        (slot, most)
    }

    fn worst_case(&self, check: &Check<'_>) -> u64 {
        self.table
            .find(check.key)
            .map_or(0, |slot| self.table.state(slot).worst_case(&check.limit, hits_taken(check)))
    }

    fn look(&self, check: &Check<'_>, now: Timestamp, prepared: &Prepared) -> Look {
        if let Room::Full(full) = prepared.room {
            let verdict = prepared.verdict_when_full(check, full);
            return Look { wait_one_nanos: verdict.reset_nanos, verdict, leaving: None };
        }
        let absent;
        let state = match self.table.find(check.key) {
            Some(slot) => self.table.state(slot),
            None => {
                absent = unused::<S>(check, now.max(self.swept_at));
                &absent
            }
        };
        let (limit, Preview { over, before, left }) = (&check.limit, prepared.preview);
        let hits = hits_taken(check);
        let wanted = hits_wanted(check, prepared.pending.charged());
        let (_, reset_nanos) = status(state, check, prepared.preview, prepared.pending.held, wanted);
        let verdict = Verdict {
            over,
            before,
            after: before.saturating_add(hits),
            remaining: left,
            reset_nanos,
            is_counted: true,
        };
        let fits = |held| !state.look(limit, Pending::held(held), 1).over;
        let wait_one_nanos = match prepared.cold_nanos {
            0 if fits(prepared.pending.held) => 0,
            0 if fits(0) => RETRY_NANOS,
            0 => state.wait_nanos(limit, 1),
            cold => cold,
        };
        let verdict = prepared.verdict_if_warm(verdict);
        Look { verdict, wait_one_nanos, leaving: Leaving::of(state, limit) }
    }

    fn finish_at(
        &mut self,
        slot: Option<usize>,
        check: &Check<'_>,
        now: Timestamp,
        prepared: &Prepared,
        charged: u64,
        uncharged: u64,
    ) -> Verdict {
        let now = now.max(self.swept_at);
        if let Room::Full(full) = prepared.room {
            return prepared.verdict_when_full(check, full);
        }
        let (limit, Preview { over, before, .. }) = (&check.limit, prepared.preview);
        let mut slot = slot;
        if charged > 0 {
            let at = self.slot_or_insert(slot, check, now);
            self.change(at, limit, |state| match check.reported {
                true => state.charge_cost(limit, charged),
                false => state.charge(limit, charged),
            });
            if slot.is_none() {
                self.expect_end(at);
            }
            slot = Some(at);
        }
        // The hits of a cold counter came later than the hits that a client gives back.
        if let (Hits::GiveBack(hits), Some(slot), 0) = (check.hits, slot, prepared.cold_nanos) {
            self.change(slot, limit, |state| state.refund(limit, hits));
            self.expect_end(slot);
        }
        let (hits, wanted) = (hits_taken(check), hits_wanted(check, uncharged));
        let status = |state: &S| status(state, check, prepared.preview, prepared.pending.held, wanted);
        let (remaining, reset_nanos) = match slot {
            Some(slot) => status(self.table.state(slot)),
            None => status(&unused::<S>(check, now)),
        };
        let is_cost = check.reservation == ReservationStep::Commit;
        let after = before.saturating_add(if is_cost { charged } else { hits });
        prepared.verdict_if_warm(Verdict { over, before, after, remaining, reset_nanos, is_counted: true })
    }
}

/// What is wrong with a counter at `now`, if anything is.
fn state_invariants<S: Counter>(state: &S, limit: &Limit, now: Timestamp) -> Result<(), &'static str> {
    let counts = state.look(limit, Pending::default(), 0).before > 0;
    if counts && state.expires_at() <= now {
        return Err("a counter expires while hits count");
    }
    state.invariants(limit)
}

/// What is left apart from what is held, and the reset time. What only holds make over waits for nothing that is known; what
/// was found under the name of a hold stays as it was.
fn status<S: Counter>(
    state: &S,
    check: &Check<'_>,
    Preview { over, left, .. }: Preview,
    held: u64,
    wanted: u64,
) -> (u64, u64) {
    let limit = &check.limit;
    if check.is_of_holds() {
        return (left, 0);
    }
    let is_held = over && held > 0;
    if is_held && !state.look(limit, Pending::default(), wanted).over {
        return (state.status(limit, wanted, false).0, 0);
    }
    state.status(limit, wanted, over)
}

/// The hits that a check takes; none when it gives back.
fn hits_taken(check: &Check<'_>) -> u64 {
    match check.hits {
        Hits::Take(hits) => hits,
        Hits::GiveBack(_) => 0,
    }
}

/// The hits that a client is expected to ask for again, with `uncharged` ones of its request. The reporter of a cost asks for none.
fn hits_wanted(check: &Check<'_>, uncharged: u64) -> u64 {
    if check.reported { 1 } else { hits_taken(check).max(1).saturating_add(uncharged) }
}

/// An unused counter at this time.
fn unused<S: Counter>(check: &Check<'_>, now: Timestamp) -> S {
    let mut state = S::default();
    state.advance(&check.limit, now);
    state
}
