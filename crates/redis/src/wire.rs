//! The wire of one connection to one server: it sends commands until it is given up.
//!
//! In: commands, and the reason to give the wire up. Out: replies. A broken wire stays broken: its owner opens another.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

use crate::address::Address;
use crate::connect_error::ConnectError;
use crate::runtime::{Runtime, Transport};

/// A wire to one server.
pub(super) struct Wire<R: Runtime> {
    pub(super) address: Address,
    pub(super) transport: R::Transport,
    /// Why no more calls are sent.
    broken: OnceLock<ConnectError>,
    /// Notified when something about the servers has changed.
    changed: Arc<Notify>,
}

impl<R: Runtime> Wire<R> {
    pub(super) fn new(address: Address, transport: R::Transport, changed: Arc<Notify>) -> Self {
        Self { address, transport, broken: OnceLock::new(), changed }
    }

    /// Why no more calls are sent, if it was given up.
    pub(super) fn broken_by(&self) -> Option<&ConnectError> {
        self.broken.get()
    }

    /// Whether it was given up.
    pub(super) fn is_broken(&self) -> bool {
        self.broken_by().is_some()
    }

    /// Makes the owner look at the servers again.
    pub(super) fn servers_changed(&self) {
        self.changed.notify_one();
    }

    /// Sends no more calls. Calls in flight may still be answered.
    pub(super) fn give_up(&self, why: ConnectError) {
        if self.broken.set(why).is_ok() {
            let why = self.broken_by().map(ToString::to_string);
            tracing::debug!(address = %self.address, why, "connection given up");
            self.servers_changed();
        }
    }

    /// Like [`give_up`](Self::give_up), and fails the calls in flight.
    pub(super) fn cut(&self, why: ConnectError) {
        self.give_up(why);
        self.transport.close();
    }
}
