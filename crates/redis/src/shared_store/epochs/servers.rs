//! What this node knows of the numbers of each server, and when it was read.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use crate::address::Address;

/// How often numbers are read and written again if some were ignored or not written: a number that is too far ahead
/// today is not tomorrow.
const AGAIN_INTERVAL: Duration = Duration::from_secs(60);
/// How long a server may have no numbers before that is reported: at the first start no server has any.
const MISSING_MAX: Duration = Duration::from_secs(1);
/// At this number of servers the numbers that were read are forgotten, because addresses change.
const SERVERS_MAX: usize = 1_024;

/// The numbers that were read from each server.
#[derive(Debug, Default)]
pub(in crate::shared_store) struct EpochServers(pub(super) Mutex<HashMap<EpochServer, ServerEpochs>>);

/// Whether it is the store of limits per second, and the server.
pub(super) type EpochServer = (bool, Address);

#[derive(Debug, Default)]
pub(super) struct ServerEpochs {
    /// When the numbers that are in force were asked for, as time since the boot.
    pub(super) read: Duration,
    /// The same for a reading of all of them, which happens only when something has changed.
    pub(super) all_read: Duration,
    /// The text of the field of changes at that reading.
    pub(super) state: Option<Vec<u8>>,
    /// When this node had numbers that this server may not have.
    pub(super) outdated: Duration,
    /// Since when the server has no numbers.
    pub(super) missing_since: Option<Duration>,
    /// What is wrong, to be reported.
    pub(super) trouble: Option<String>,
}

impl EpochServers {
    /// The text of changes of the numbers in force, if it is enough to compare that. A reading begins here, and from
    /// now on [`outdate`](Self::outdate) applies to the server, also during its first reading.
    pub(super) fn state(&self, place: &EpochServer, now: Duration) -> Option<Vec<u8>> {
        let mut servers = self.0.lock();
        let known = servers.entry(place.clone()).or_default();
        let is_enough = known.trouble.is_none() || now < known.all_read + AGAIN_INTERVAL;
        known.state.clone().filter(|_| is_enough && known.all_read > known.outdated)
    }

    /// Whether the numbers in force from this server are those with this text of changes.
    pub(super) fn has_shown(&self, place: &EpochServer, state: &[u8]) -> bool {
        self.0.lock().get(place).is_some_and(|known| known.state.as_deref() == Some(state))
    }

    /// These servers may lack numbers that this node has at `now`: from another server, from a person, or because a
    /// server did not store them. They are read in full again.
    pub(super) fn outdate(&self, may_lack: impl Fn(&EpochServer) -> bool, now: Duration) {
        let mut servers = self.0.lock();
        let those = servers.iter_mut().filter(|(place, _)| may_lack(place));
        those.for_each(|(_, known)| known.outdated = now);
    }

    /// Whether the server has had no numbers for longer than a start takes.
    pub(super) fn is_missing_long(&self, place: &EpochServer, now: Duration) -> bool {
        let since = self.0.lock().get(place).and_then(|known| known.missing_since);
        since.is_some_and(|since| now >= since + MISSING_MAX)
    }

    pub(super) fn note_same(&self, place: &EpochServer, sent: Duration) {
        self.0.lock().entry(place.clone()).or_default().read = sent;
    }

    pub(super) fn note(
        &self,
        place: &EpochServer,
        sent: Duration,
        state: Option<Vec<u8>>,
        trouble: Option<String>,
    ) {
        let mut servers = self.0.lock();
        if servers.len() >= SERVERS_MAX {
            servers.clear();
        }
        let known = servers.entry(place.clone()).or_default();
        (known.read, known.all_read, known.state, known.missing_since) = (sent, sent, state, None);
        drop(servers);
        self.trouble(place, trouble);
    }

    /// Keeps what is wrong, and logs it if it differs from before.
    pub(super) fn trouble(&self, place: &EpochServer, trouble: Option<String>) {
        let mut servers = self.0.lock();
        let known = servers.entry(place.clone()).or_default();
        if known.trouble == trouble {
            return;
        }
        known.trouble.clone_from(&trouble);
        drop(servers);
        match trouble {
            Some(trouble) => tracing::warn!("redis: {}: resets: {trouble}", place.1),
            None => tracing::info!("redis: {}: resets are read", place.1),
        }
    }
}
