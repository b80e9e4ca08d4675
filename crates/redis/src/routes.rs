//! The connection for each slot, as a worker knows it at one moment.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::address::Address;
use crate::connection::Connection;
use crate::runtime::Runtime;

/// The connection for each slot.
pub(crate) struct Routes<R: Runtime> {
    /// In the order of slots.
    slots: Vec<(RangeInclusive<u16>, Arc<Connection<R>>)>,
    /// Each connection once.
    pub(crate) connections: Vec<Arc<Connection<R>>>,
}

impl<R: Runtime> Default for Routes<R> {
    fn default() -> Self {
        Self { slots: Vec::new(), connections: Vec::new() }
    }
}

impl<R: Runtime> Routes<R> {
    /// The connection for the slot, open or broken.
    fn to_slot(&self, slot: u16) -> Option<&Arc<Connection<R>>> {
        let at = self.slots.partition_point(|(slots, _)| *slots.end() < slot);
        self.slots.get(at).filter(|(slots, _)| slots.contains(&slot)).map(|(_, connection)| connection)
    }

    /// The open connection for the slot.
    pub(crate) fn of(&self, slot: u16) -> Option<&Arc<Connection<R>>> {
        self.to_slot(slot).filter(|connection| !connection.wire.is_broken())
    }

    /// Whether any connection is open.
    pub(crate) fn reach_any(&self) -> bool {
        self.connections.iter().any(|connection| !connection.wire.is_broken())
    }

    /// Whether this is the connection for the slot.
    pub(crate) fn holds(&self, connection: &Arc<Connection<R>>, slot: u16) -> bool {
        self.to_slot(slot).is_some_and(|to| Arc::ptr_eq(to, connection))
    }

    /// The open connection to this server.
    pub(crate) fn to(&self, address: &Address) -> Option<Arc<Connection<R>>> {
        self.connections
            .iter()
            .find(|connection| connection.wire.address == *address && !connection.wire.is_broken())
            .cloned()
    }

    /// Adds a connection for these slots.
    pub(crate) fn add(&mut self, slots: RangeInclusive<u16>, connection: Arc<Connection<R>>) {
        if !self.connections.iter().any(|known| Arc::ptr_eq(known, &connection)) {
            self.connections.push(Arc::clone(&connection));
        }
        let at = self.slots.partition_point(|(known, _)| known.end() < slots.end());
        self.slots.insert(at, (slots, connection));
    }
}
