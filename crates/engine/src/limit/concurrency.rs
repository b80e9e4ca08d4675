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
use crate::limit::counter::{Counter, Pending, look_at_count};
use crate::limit::indexed_heap::{IndexedHeap, Item};
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
        let (id, number) = token.split_at_checked(16).filter(|_| is_token)?;
        let [id, number] = [id, number].map(|name| u64::from_str_radix(name, 16).ok());
        Some(Self { id: NonZeroU64::new(id?)?, number: number? })
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// Its token, which releases it: 32 hexadecimal digits.
impl std::fmt::Display for Slot {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = u128::from(self.id.get()) << 64 | u128::from(self.number);
        let mut digits = [0; 32];
        for (two, byte) in digits.chunks_exact_mut(2).zip(names.to_be_bytes()) {
            two.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        out.write_str(std::str::from_utf8(&digits).expect("digits"))
    }
}

/// A slot that is held.
#[derive(Clone, Copy, Debug)]
struct Held {
    slot: Slot,
    until: Timestamp,
}

impl Item for Held {
    fn id(&self) -> NonZeroU64 {
        self.slot.id
    }

    fn due(&self) -> Timestamp {
        self.until
    }
}

/// The state: 80 bytes, and up to 56 for each slot.
#[derive(Debug, Default)]
pub(crate) struct Concurrency {
    latest: Timestamp,
    /// Every slot has ended at this time.
    last: Timestamp,
    held: IndexedHeap<Held>,
}

impl Concurrency {
    /// Whether exactly this slot is held.
    fn holds(&self, slot: Slot) -> bool {
        self.held.find(slot.id).is_some_and(|held| held.slot == slot)
    }

    fn put(&mut self, held: Held) {
        self.last = self.last.max(held.until);
        self.held.put(held);
    }

    fn remove(&mut self, slot: Slot) {
        self.held.remove(slot.id);
        if self.held.is_empty() {
            *self = Self { latest: self.latest, ..Self::default() };
        }
    }
}

impl Counter for Concurrency {
    #[inline]
    fn advance(&mut self, _limit: &Limit, now: Timestamp) {
        self.latest = self.latest.max(now);
        while let Some(held) = self.held.first().filter(|held| held.until <= self.latest) {
            self.remove(held.slot);
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
            Some(slot) if self.holds(slot) => Preview { over: false, ..preview },
            Some(slot) => Preview { over: preview.over || self.held.find(slot.id).is_some(), ..preview },
        }
    }

    #[inline]
    fn charge(&mut self, limit: &Limit, _hits: u64) {
        let Some(slot) = limit.slot() else { return };
        let until = self.latest.plus(limit.window_nanos());
        match self.held.find(slot.id) {
            None => self.put(Held { slot, until }),
            Some(&held) if held.slot == slot => self.put(Held { until: until.max(held.until), ..held }),
            // One request may name the same call twice: this is another slot of it.
            Some(_) => {}
        }
    }

    /// What is renewed was held before.
    fn after(&self, limit: &Limit, now: Preview, _hits: u64) -> Preview {
        Preview { over: now.over, ..look_at_count(limit.capacity(), self.held.len() as u64, 0) }
    }

    fn refund(&mut self, limit: &Limit, _hits: u64) {
        let Some(slot) = limit.slot() else { return };
        if self.holds(slot) {
            self.remove(slot);
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
        for Held { slot, until } in self.held.in_order() {
            out.u64(slot.id.get());
            out.u64(slot.number);
            out.u64(until.as_nanos());
        }
        out.u64(0);
    }

    fn decode(bytes: &mut Reader<'_>) -> Result<Self, Damage> {
        let mut state = Self { latest: Timestamp::from_nanos(bytes.u64()?), ..Self::default() };
        let mut last = None;
        while let Some(id) = NonZeroU64::new(bytes.u64()?) {
            let (number, until) = (bytes.u64()?, Timestamp::from_nanos(bytes.u64()?));
            if last.replace(id).is_some_and(|before| before >= id) {
                return Err("the slots are not in order");
            }
            if until <= state.latest {
                return Err("a slot that has ended");
            }
            state.put(Held { slot: Slot { id, number }, until });
        }
        if state.held.is_empty() { Err("no slot is held") } else { Ok(state) }
    }

    fn invariants(&self, _limit: &Limit) -> Result<(), &'static str> {
        // Nothing is later than the end of time.
        let runs = |held: &Held| held.until > self.latest || held.until == Timestamp::MAX;
        match self.held.is_right() && self.held.iter().all(|held| held.until <= self.last && runs(held)) {
            true => Ok(()),
            false => Err("a slot in the wrong place, or one that has ended"),
        }
    }

    fn heap_bytes(&self) -> usize {
        self.held.heap_bytes()
    }

    fn growth_bytes(&self, limit: &Limit) -> usize {
        match self.held.growth_bytes(1) {
            bytes if bytes > 0 && limit.slot().is_none_or(|slot| !self.holds(slot)) => bytes,
            _ => 0,
        }
    }

    fn growth_bytes_after_others(&self, _limit: &Limit) -> usize {
        // Others that were prepared before this one may take the places that are free now.
        self.held.growth_bytes(self.held.len().max(4))
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
