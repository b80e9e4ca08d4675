//! `concurrency`: calls in flight. A call takes a slot and holds it until it is released, or for W (the `ttl` of the
//! rule) at most. Rules choose it by `concurrency`.
//!
//! A call passes while fewer than N slots are held and its id holds none. 0 hits only ask, or release a slot: that always
//! passes. A call that asks for the very slot that it holds passes too, and then holds it for W from now on.
//!
//! - **Invariant:** there is one slot for each id that was admitted and neither released nor ended at `latest`; all of
//!   them end after `latest`.
//! - **A slot has two names.** The caller chooses the id: a call that is repeated under its id finds its slot taken. The
//!   number is made for the admission and can be guessed by nobody: a release has to know both. So a release frees the
//!   slot that it means or nothing, also when the same id was admitted again.
//! - **Error:** none. A call that is never released counts for W.
//!
//! The limit of a check holds the slot that it is about ([`Limit::for_slot`]). A check without one only asks.
//!
//! ```
//! # use tidegate_engine::key::Key;
//! # use tidegate_engine::limit::{Limit, Slot};
//! # use tidegate_engine::time::{SECOND_NANOS, Timestamp};
//! # use tidegate_engine::memory::{MemoryOptions, MemoryStore};
//! # let store = MemoryStore::new(MemoryOptions::new(1 << 20));
//! # let limit = Limit::concurrency(2, 60 * SECOND_NANOS);
//! # let passes = |id, second| !store.take(&limit.for_slot(Slot::of(id, second)), Key(1), 1, Timestamp::from_secs(second)).over;
//! // Two calls for 60 s at most: the third waits, and so does one that runs already.
//! assert_eq!([passes(7, 0), passes(7, 1), passes(8, 1), passes(9, 59), passes(9, 60)], [true, false, true, false, true]);
//! ```

use std::num::NonZeroU64;

use crate::limit::bytes::{Append as _, Damage, Reader};
use crate::limit::counter::{Counter, Pending, grown_capacity, look_at_count};
use crate::limit::{Limit, Preview};
use crate::time::{SECOND_NANOS, Timestamp};

/// The wait of a call that finds no slot: nobody knows when one is released.
pub(crate) const RETRY_NANOS: u64 = SECOND_NANOS;

/// The names of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// A hash of the id that the caller gave its call.
    pub id: NonZeroU64,
    /// A random number, made for the admission.
    pub number: u64,
}

impl Slot {
    /// The slot of these names. 0 is the same id as 1.
    pub fn of(id: u64, number: u64) -> Self {
        Self { id: NonZeroU64::new(id).unwrap_or(NonZeroU64::MIN), number }
    }

    /// Reads a token that [`fmt::Display`](std::fmt::Display) wrote. `None`: it is none.
    pub fn from_token(token: &str) -> Option<Self> {
        let is_token =
            token.len() == 32 && token.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let names = u128::from_str_radix(token, 16).ok().filter(|_| is_token)?;
        Some(Self { id: NonZeroU64::new((names >> 64) as u64)?, number: names as u64 })
    }
}

/// Its token, which releases it: 32 hexadecimal digits.
impl std::fmt::Display for Slot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:016x}{:016x}", self.id, self.number)
    }
}

/// A slot that is held.
#[derive(Clone, Copy, Debug)]
struct Held {
    slot: Slot,
    until: Timestamp,
}

/// The state: 48 bytes, and 24 for each slot, of which up to a fifth are free.
#[derive(Debug, Default)]
pub(crate) struct Concurrency {
    latest: Timestamp,
    /// No slot ends before this time.
    earliest: Timestamp,
    /// Every slot has ended at this time.
    last: Timestamp,
    /// In the order of their ids.
    held: Vec<Held>,
}

impl Concurrency {
    fn place_of(&self, slot: Slot) -> Result<usize, usize> {
        self.held.binary_search_by_key(&slot.id, |held| held.slot.id)
    }

    /// The place of exactly this slot, if it is held.
    fn exact_place_of(&self, slot: Slot) -> Option<usize> {
        self.place_of(slot).ok().filter(|&place| self.held[place].slot == slot)
    }

    /// Grows by as much as [`growth_bytes`](Counter::growth_bytes) says: counters from a file need no more room than before.
    fn insert(&mut self, place: usize, held: Held) {
        self.held.reserve_exact(grown_capacity(&self.held, 1) - self.held.len());
        self.held.insert(place, held);
    }

    fn bytes_of(capacity: usize) -> usize {
        capacity * size_of::<Held>()
    }

    /// Finds the earliest end: it may be later now that slots were dropped.
    fn note_earliest(&mut self) {
        self.earliest = self.held.iter().map(|held| held.until).min().unwrap_or_default();
        self.forget_if_unused();
    }

    fn forget_if_unused(&mut self) {
        if self.held.is_empty() {
            *self = Self { latest: self.latest, ..Self::default() };
        }
    }
}

impl Counter for Concurrency {
    #[inline]
    fn advance(&mut self, _limit: &Limit, now: Timestamp) {
        self.latest = self.latest.max(now);
        if self.earliest <= self.latest && !self.held.is_empty() {
            let now = self.latest;
            self.held.retain(|held| held.until > now);
            self.note_earliest();
        }
    }

    #[inline]
    fn look(&self, limit: &Limit, pending: Pending, hits: u64) -> Preview {
        let preview = look_at_count(limit.capacity(), self.held.len() as u64 + pending.taken, hits);
        match limit.slot() {
            None => preview,
            // A release needs no room.
            Some(_) if hits == 0 => Preview { over: false, ..preview },
            // Nor does the call that holds this very slot.
            Some(slot) if self.exact_place_of(slot).is_some() => Preview { over: false, ..preview },
            Some(slot) => Preview { over: preview.over || self.place_of(slot).is_ok(), ..preview },
        }
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, _hits: u64) {
        let Some(slot) = limit.slot() else { return };
        let until = self.latest.plus(limit.window_nanos());
        let place = match self.place_of(slot) {
            Err(place) => place,
            Ok(place) => {
                // One request may name the same call twice: then this is another slot of it.
                if self.held[place].slot == slot {
                    self.held[place].until = until.max(self.held[place].until);
                    self.last = self.last.max(until);
                    self.note_earliest();
                }
                return;
            }
        };
        self.earliest = if self.held.is_empty() { until } else { self.earliest.min(until) };
        self.last = self.last.max(until);
        self.insert(place, Held { slot, until });
    }

    /// What is renewed was held before.
    fn after(&self, limit: &Limit, now: Preview, _hits: u64) -> Preview {
        Preview { over: now.over, ..look_at_count(limit.capacity(), self.held.len() as u64, 0) }
    }

    fn refund(&mut self, limit: &Limit, _hits: u64) {
        let Some(slot) = limit.slot() else { return };
        if let Some(place) = self.exact_place_of(slot) {
            self.held.remove(place);
            self.forget_if_unused();
        }
    }

    #[inline]
    fn wait_nanos(&self, _limit: &Limit, _hits: u64) -> u64 {
        RETRY_NANOS
    }

    #[inline]
    fn reset_nanos(&self, _limit: &Limit, _now: Preview, _hits: u64, over: bool) -> u64 {
        if over { RETRY_NANOS } else { 0 }
    }

    fn expires_at(&self) -> Timestamp {
        self.last
    }

    fn latest(&self) -> Timestamp {
        self.latest
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.latest.as_nanos());
        for Held { slot, until } in &self.held {
            out.u64(slot.id.get());
            out.u64(slot.number);
            out.u64(until.as_nanos());
        }
        out.u64(0);
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let mut state = Self { latest: Timestamp::from_nanos(bytes.u64()?), ..Self::default() };
        while let Some(id) = NonZeroU64::new(bytes.u64()?) {
            let (number, until) = (bytes.u64()?, Timestamp::from_nanos(bytes.u64()?));
            if state.held.last().is_some_and(|before| before.slot.id >= id) {
                return Err("the slots are not in order");
            }
            if until <= state.latest {
                return Err("a slot that has ended");
            }
            state.last = state.last.max(until);
            state.insert(state.held.len(), Held { slot: Slot { id, number }, until });
        }
        state.note_earliest();
        if state.held.is_empty() { Err("no slot is held") } else { Ok(state) }
    }

    fn invariants(&self, _limit: &Limit) -> Result<(), &'static str> {
        let in_order = self.held.is_sorted_by(|one, next| one.slot.id < next.slot.id);
        // Nothing is later than the end of time.
        let ends = |held: &Held| self.earliest <= held.until && held.until <= self.last;
        let runs = |held: &Held| held.until > self.latest || held.until == Timestamp::MAX;
        match in_order && self.held.iter().all(|held| ends(held) && runs(held)) {
            true => Ok(()),
            false => Err("a slot in the wrong place, or one that has ended"),
        }
    }

    fn heap_bytes(&self) -> usize {
        Self::bytes_of(self.held.capacity())
    }

    fn growth_bytes(&self, limit: &Limit) -> usize {
        if limit.slot().is_some_and(|slot| self.exact_place_of(slot).is_some()) {
            return 0;
        }
        Self::bytes_of(grown_capacity(&self.held, 1)) - self.heap_bytes()
    }

    fn growth_bytes_after_others(&self, _limit: &Limit) -> usize {
        // Others that were prepared before this one may take the places that are free now.
        Self::bytes_of(grown_capacity(&self.held, self.held.len().max(4))) - self.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_from_a_file_take_no_more_memory_than_before() {
        let limit = Limit::concurrency(10, SECOND_NANOS);
        let mut state = Concurrency::default();
        for id in 1..=10 {
            state.charge(&limit.for_slot(Slot::of(id, id)), 1);
            let mut bytes = Vec::new();
            state.encode(&mut bytes);
            let decoded = Concurrency::decode(&mut Reader::new(&bytes)).expect("what was encoded");
            assert_eq!(decoded.heap_bytes(), state.heap_bytes(), "{id} slots");
        }
    }
}
