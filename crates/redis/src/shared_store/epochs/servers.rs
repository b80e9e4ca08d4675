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
pub(in crate::shared_store) struct EpochServers(Mutex<HashMap<EpochServer, ServerEpochs>>);

/// Whether it is the store of limits per second, and the server.
pub(super) type EpochServer = (bool, Address);

#[derive(Debug, Default)]
struct ServerEpochs {
    /// When the numbers that are in force were asked for, as time since the boot.
    read: Duration,
    /// The same for a reading of all of them, which happens only when something has changed.
    all_read: Duration,
    /// The text of the field of changes at that reading.
    state: Option<Vec<u8>>,
    /// When this node had numbers that this server may not have.
    outdated: Duration,
    /// Since when the server has no numbers.
    missing_since: Option<Duration>,
    /// What is wrong, to be reported.
    trouble: Option<String>,
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

    /// Whether it is known which numbers there are, although this server had none at `sent`: other servers show it that were
    /// asked after this one was found without numbers, or all masters were, of each store.
    pub(super) fn show_all(&self, place: &EpochServer, sent: Duration, masters: &[Vec<EpochServer>]) -> bool {
        let mut servers = self.0.lock();
        let own = servers.entry(place.clone()).or_default();
        let since = *own.missing_since.get_or_insert(sent);
        own.read = sent;
        let is_read = |known: &ServerEpochs| known.read >= since;
        let has_some = |(other, known): (&EpochServer, &ServerEpochs)| {
            other != place && is_read(known) && known.missing_since.is_none() && known.state.is_some()
        };
        let are_read = |masters: &Vec<EpochServer>| {
            !masters.is_empty() && masters.iter().all(|master| servers.get(master).is_some_and(is_read))
        };
        servers.iter().any(has_some) || masters.iter().all(are_read)
    }

    /// What is wrong with the numbers of servers.
    pub(super) fn troubles(&self) -> Vec<(EpochServer, String)> {
        let servers = self.0.lock();
        let troubles =
            servers.iter().filter_map(|(place, known)| Some((place.clone(), known.trouble.clone()?)));
        troubles.collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn place(port: u16) -> EpochServer {
        (false, Address::Tcp("127.0.0.1".to_owned(), port))
    }

    #[test]
    fn numbers_of_which_some_were_ignored_are_read_again_after_a_minute() {
        let (known, place) = (EpochServers::default(), place(1));
        let knows_after = |trouble: Option<&str>, seconds: u32| {
            known.note(&place, 5 * SECOND, Some(b"some".to_vec()), trouble.map(str::to_owned));
            known.note_same(&place, (4 + seconds) * SECOND);
            known.state(&place, (5 + seconds) * SECOND).is_some()
        };
        assert_eq!([59, 60].map(|seconds| knows_after(Some("one is ahead"), seconds)), [true, false]);
        assert!(knows_after(None, 3_600));
    }

    /// The server may have been the only one with the newest numbers, and may have lost them after the others were read.
    #[test]
    fn others_show_which_numbers_there_are_after_a_server_was_found_without() {
        let servers = EpochServers::default();
        let [one, other] = [1, 2].map(place);
        servers.note(&other, 5 * SECOND, Some(b"some".to_vec()), None);
        assert!(!servers.show_all(&one, 6 * SECOND, &[vec![]]));
        servers.note_same(&other, 7 * SECOND);
        assert!(servers.show_all(&one, 8 * SECOND, &[vec![]]));
    }

    /// The newest numbers may have been on these two alone.
    #[test]
    fn a_server_that_lost_its_numbers_too_does_not_show_which_there_are() {
        let servers = EpochServers::default();
        let [one, other] = [1, 2].map(place);
        servers.note(&other, 5 * SECOND, Some(b"some".to_vec()), None);
        assert!(!servers.show_all(&one, 6 * SECOND, &[vec![]]));
        assert!(!servers.show_all(&other, 7 * SECOND, &[vec![]]));
        assert!(!servers.show_all(&one, 8 * SECOND, &[vec![]]));
    }

    /// Then no server had any.
    #[test]
    fn all_masters_without_numbers_show_that_there_are_none() {
        let servers = EpochServers::default();
        let [one, other] = [1, 2].map(place);
        let masters = [vec![one.clone(), other.clone()]];
        assert!(!servers.show_all(&one, 6 * SECOND, &masters), "the other was not asked");
        assert!(!servers.show_all(&other, 7 * SECOND, &masters), "the first was asked before");
        assert!(servers.show_all(&one, 8 * SECOND, &masters));
        assert!(!servers.show_all(&one, 8 * SECOND, &[vec![]]), "nobody knows the masters");
        let of_two_stores = [masters[0].clone(), vec![place(3)]];
        assert!(!servers.show_all(&one, 8 * SECOND, &of_two_stores), "one of them was not asked");
    }

    /// One that did not get them, or that lost them at once, shows the same text as before.
    #[test]
    fn numbers_from_elsewhere_have_all_servers_read_in_full() {
        let (servers, text) = (EpochServers::default(), || Some(b"text".to_vec()));
        let [one, other] = [1, 2].map(place);
        [&one, &other].iter().for_each(|place| servers.note(place, SECOND, text(), None));
        let are_enough = || [&one, &other].map(|place| servers.state(place, 9 * SECOND).is_some());
        assert_eq!(are_enough(), [true, true]);
        assert!(servers.has_shown(&one, b"text") && !servers.has_shown(&one, b"new"));
        servers.outdate(|place| *place != one, 3 * SECOND);
        assert_eq!(are_enough(), [true, false]);
        servers.note(&other, 2 * SECOND, text(), None);
        assert_eq!(are_enough(), [true, false], "it was asked before");
        servers.note(&other, 4 * SECOND, text(), None);
        assert_eq!(are_enough(), [true, true]);
        servers.outdate(|_| true, 5 * SECOND);
        assert_eq!(are_enough(), [false, false]);
    }

    /// Its numbers were in force before those of the other, so it was not asked to take them.
    #[test]
    fn a_server_whose_first_reading_is_under_way_is_read_in_full_again() {
        let servers = EpochServers::default();
        let [one, other] = [1, 2].map(place);
        assert_eq!(servers.state(&other, SECOND), None);
        servers.outdate(|place| *place != one, 2 * SECOND);
        servers.note(&other, SECOND, Some(b"text".to_vec()), None);
        assert_eq!(servers.state(&other, 3 * SECOND), None);
        servers.note(&other, 3 * SECOND, Some(b"text".to_vec()), None);
        assert!(servers.state(&other, 4 * SECOND).is_some());
    }
}
