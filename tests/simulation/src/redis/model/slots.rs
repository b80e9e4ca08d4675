//! Slots of `concurrency`: those that are held, by the ids of their calls.

use std::collections::BTreeMap;

use super::check::{Check, Slot, Stamp};
use super::counter::{Ahead, Kind, Look};
use crate::redis::database::Sorted;

/// By how much the score of `latest` is behind all ends.
const BEHIND: i64 = 1 << 52;

/// The slots that are held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slots {
    latest: i64,
    /// Of each id the number of its slot, and when that ends.
    held: BTreeMap<[u8; 8], ([u8; 8], i64)>,
}

impl Slots {
    /// Those in a sorted set: see `concurrency.lua`.
    pub(super) fn of_sorted(sorted: &Sorted) -> Self {
        let mut slots = Self::default();
        for (member, &score) in sorted {
            match member.split_first() {
                Some((b'n', names)) => {
                    let (id, number) = names.split_at(8);
                    let number = number.try_into().expect("a number of eight bytes");
                    slots.held.insert(id.try_into().expect("an id of eight bytes"), (number, score));
                }
                Some((b'l', _)) => slots.latest = score - BEHIND,
                _ => {}
            }
        }
        slots
    }

    fn holds(&self, slot: &Slot) -> bool {
        self.held.contains_key(&slot.id)
    }

    fn holds_exactly(&self, slot: &Slot) -> bool {
        self.held.get(&slot.id).is_some_and(|(number, _)| *number == slot.number)
    }
}

impl Kind for Slots {
    fn latest(&self) -> i64 {
        self.latest
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn advance(&mut self, _: &Check<'_>, now: i64) -> Option<i64> {
        if now > self.latest {
            self.latest = now;
            self.held.retain(|_, (_, ends)| *ends > now);
        }
        None
    }

    /// A release needs no room, nor does the call that holds this very slot.
    fn look(&self, check: &Check<'_>, hits: i64, ahead: Ahead) -> Look {
        let look = Look::at_count(check.requests, self.held.len() as i64 + ahead.taken, hits);
        match &check.slot {
            None => look,
            Some(slot) => {
                let may = hits == 0 || self.holds_exactly(slot);
                Look { over: !may && (look.over || self.holds(slot)), ..look }
            }
        }
    }

    fn report_max(&self, _: &Check<'_>, _: Ahead) -> i64 {
        0
    }

    fn charge(&mut self, check: &Check<'_>, _: i64) -> Option<i64> {
        let slot = check.slot.filter(|slot| !self.holds(slot) || self.holds_exactly(slot))?;
        let held_until = self.held.get(&slot.id).map_or(0, |(_, ends)| *ends);
        self.held.insert(slot.id, (slot.number, held_until.max(self.latest + check.window)));
        self.held.values().map(|(_, ends)| *ends).max()
    }

    fn charge_at(&mut self, _: &Check<'_>, _: i64, _: i64, _: Ahead) -> Option<i64> {
        None
    }

    fn refund(&mut self, check: &Check<'_>, _: i64) -> Option<i64> {
        let slot = check.slot?;
        if self.holds_exactly(&slot) {
            self.held.remove(&slot.id);
        }
        None
    }

    fn renews(&self, check: &Check<'_>) -> bool {
        check.slot.is_some_and(|slot| self.holds_exactly(&slot))
    }

    /// What was renewed stays.
    fn give_back(&mut self, check: &Check<'_>, renewed: Stamp) -> Option<i64> {
        if renewed.at == 0 { self.refund(check, 0) } else { None }
    }

    fn state(&self, _: &Check<'_>, _: i64, _: bool) -> [Option<i64>; 3] {
        [Some(0), Some(0), None]
    }
}
