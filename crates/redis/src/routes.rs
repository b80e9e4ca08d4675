//! The way to each slot, as a worker knows it at one moment.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::address::Address;
use crate::link::Link;
use crate::runtime::Runtime;

/// Which slots lead where.
pub(crate) struct Routes<R: Runtime> {
    /// In the order of slots.
    slots: Vec<(RangeInclusive<u16>, Arc<Link<R>>)>,
    /// Each once.
    pub(crate) links: Vec<Arc<Link<R>>>,
}

impl<R: Runtime> Default for Routes<R> {
    fn default() -> Self {
        Self { slots: Vec::new(), links: Vec::new() }
    }
}

impl<R: Runtime> Routes<R> {
    /// The way to the slot, good or broken.
    fn to_slot(&self, slot: u16) -> Option<&Arc<Link<R>>> {
        let at = self.slots.partition_point(|(slots, _)| *slots.end() < slot);
        self.slots.get(at).filter(|(slots, _)| slots.contains(&slot)).map(|(_, link)| link)
    }

    /// The way to the slot, if it is a good one.
    pub(crate) fn of(&self, slot: u16) -> Option<&Arc<Link<R>>> {
        self.to_slot(slot).filter(|link| !link.wire.is_broken())
    }

    /// Whether there is a good way to any slot.
    pub(crate) fn lead_anywhere(&self) -> bool {
        self.links.iter().any(|link| !link.wire.is_broken())
    }

    /// Whether this is the way to the slot.
    pub(crate) fn holds(&self, link: &Arc<Link<R>>, slot: u16) -> bool {
        self.to_slot(slot).is_some_and(|to| Arc::ptr_eq(to, link))
    }

    /// The good link to this server.
    pub(crate) fn to(&self, address: &Address) -> Option<Arc<Link<R>>> {
        self.links.iter().find(|link| link.wire.address == *address && !link.wire.is_broken()).cloned()
    }

    /// There is a way more.
    pub(crate) fn add(&mut self, slots: RangeInclusive<u16>, link: Arc<Link<R>>) {
        if !self.links.iter().any(|known| Arc::ptr_eq(known, &link)) {
            self.links.push(Arc::clone(&link));
        }
        let at = self.slots.partition_point(|(known, _)| known.end() < slots.end());
        self.slots.insert(at, (slots, link));
    }
}
