//! What a server has lost, and what this node may believe about its data: a state machine without I/O.
//!
//! In: what `inspect` and the replies to calls show of a server. Out: what this node assumes, what it writes into the
//! server's mark, and what is counted and logged. It sends nothing, logs nothing and reads no clock. Half of the
//! machine runs inside the server, because only there nothing can come in between: the scripts `mark.lua` and
//! `cold.lua`.
//!
//! The knowledge is in four types: [`Losses`] for all servers of a store, [`Seen`] for a worker, [`ServerData`] for
//! a server, [`Marked`] for a connection.
#![doc = include_str!("lost/transitions.md")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::address::Address;
use crate::options::DenyCold;
use crate::script::{DataId, cold_argument};

/// When several nodes notice a new primary one after the other, that is one loss.
const ONE_LOSS: Duration = Duration::from_secs(1);
/// At this number of primaries those of long ago are forgotten.
const PRIMARIES_MAX: usize = 1_024;

/// What is counted and logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// A server has another generation: its counters start at zero.
    MemoryLost,
    /// Counters of a server are cold.
    Cold {
        /// For how long at most.
        lasts: Duration,
        /// The longest that hits of a limit may count for it to be held.
        held: Duration,
        /// Whether that is a loss. It is none when a node starts.
        is_loss: bool,
    },
    /// Nodes differ in their lease times, and did not before.
    LeaseTimesDiffer {
        /// That of this node.
        own: Duration,
        /// The longest.
        longest: Duration,
    },
}

impl News {
    /// Whether it is counted as a loss, so that the deny cache is to be cleared.
    pub(super) fn is_loss(&self) -> bool {
        match self {
            Self::MemoryLost => true,
            Self::Cold { is_loss, .. } => *is_loss,
            Self::LeaseTimesDiffer { .. } => false,
        }
    }

    /// The line in the log.
    pub(super) fn line(&self, server: &Address) -> String {
        match self {
            Self::MemoryLost => format!("redis: {server} has lost its data; its counters start at zero"),
            Self::Cold { lasts, held, .. } => format!(
                "cold: redis: {server} may have lost hits, so each counter counts as full for one window of its limit, \
                 {} s at most; counters of windows longer than {held:?} may start at zero (COLD_START=deny, \
                 COLD_START_MAX_WINDOW)",
                lasts.as_secs_f64().ceil()
            ),
            Self::LeaseTimesDiffer { own, longest } => format!(
                "redis: nodes differ in REDIS_LEASE_TIME: {own:?} here, {longest:?} is the longest (COLD_START=deny \
                 needs the same on all)"
            ),
        }
    }
}

/// What is known of all servers of one store. With COLD_START=deny only.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The latest time since which the data is complete, over all servers.
    cold_since: Option<Instant>,
    /// The last such moment that was logged.
    logged: Option<Instant>,
    /// Whether the data of any server was noted.
    is_known: bool,
    /// The longest lease time of all nodes, as a mark last had it.
    longest_lease_micros: u64,
    lease_times_differ: bool,
}

impl Losses {
    /// The latest time since which the data is complete, if counters may be cold because of that. It is for people
    /// only: the scripts deny.
    pub(super) fn cold_since(&self) -> Option<Instant> {
        self.cold_since
    }

    /// Notes, at `now`, since when the data of a server is complete.
    pub(super) fn begins(&mut self, begins: Begins, held: Duration, now: Instant) -> Option<News> {
        let Begins { since_micros, now_micros } = begins;
        let age = Duration::from_micros(now_micros.saturating_sub(since_micros));
        let is_loss = std::mem::replace(&mut self.is_known, true);
        // Otherwise the hits that may be missing no longer count.
        let since = now.checked_sub(age).filter(|_| age < held)?;
        let since = since + Duration::from_micros(since_micros.saturating_sub(now_micros));
        self.cold_since = self.cold_since.max(Some(since));
        if self.logged.is_some_and(|logged| since < logged + ONE_LOSS) {
            return None;
        }
        self.logged = Some(since);
        Some(News::Cold { lasts: (since + held).saturating_duration_since(now), held, is_loss })
    }

    /// Notes the lease times of all nodes, as a mark has them.
    pub(super) fn lease_times(&mut self, read: &MarkRead, deny: &DenyCold) -> Option<News> {
        self.longest_lease_micros = read.lease_micros;
        let did_differ = std::mem::replace(&mut self.lease_times_differ, read.lease_times_differ);
        let longest = Duration::from_micros(read.lease_micros);
        let news = News::LeaseTimesDiffer { own: deny.lease_time, longest };
        (read.lease_times_differ && !did_differ).then_some(news)
    }

    /// The longest lease time of all nodes, in microseconds.
    pub(super) fn longest_lease_micros(&self, deny: &DenyCold) -> u64 {
        self.longest_lease_micros.max(micros(deny.lease_time))
    }

    /// The lease time of this node and the longest of all nodes, if they differ.
    pub(super) fn lease_times_that_differ(&self, deny: &DenyCold) -> Option<[Duration; 2]> {
        let longest = Duration::from_micros(self.longest_lease_micros(deny));
        self.lease_times_differ.then_some([deny.lease_time, longest])
    }
}

/// What a worker has seen of the servers.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The generations by their keys, because slots move between servers.
    generations: HashMap<String, String>,
    /// The history of each primary that was used, by its process.
    primaries: HashMap<String, String>,
    /// Whether any primary can be used now, and until when one could be.
    is_used: bool,
    used_until: Option<Instant>,
}

impl Seen {
    /// Notes the generation that was read under this key; `deny`: marks show losses.
    pub(super) fn generation(&mut self, key: String, generation: &str, deny: bool) -> Option<News> {
        let before = self.generations.insert(key, generation.to_owned());
        (before.is_some_and(|before| before != generation) && !deny).then_some(News::MemoryLost)
    }

    /// Notes at `now` whether any primary can be used from now on.
    pub(super) fn use_of_any(&mut self, now: Instant, is_used: bool) {
        if std::mem::replace(&mut self.is_used, is_used) || is_used {
            self.used_until = Some(now);
        }
    }

    /// Notes that this primary is used from now on.
    pub(super) fn use_of(&mut self, primary: &Primary) {
        if self.primaries.len() >= PRIMARIES_MAX {
            self.primaries.clear();
        }
        self.primaries.insert(primary.run_id.clone(), primary.history.clone());
    }

    /// How long ago, at `now`, another primary than this one was last used. `None`: never. Calls may be in flight for
    /// as long as a decision takes: `call`.
    pub(super) fn used_other_ago(&self, primary: &Primary, now: Instant, call: Duration) -> Option<Duration> {
        let continues = |history: &String| *history == primary.history || !primary.took_over;
        let is_known = self.primaries.get(&primary.run_id).is_some_and(continues);
        let until = self.used_until.filter(|_| !is_known);
        until.map(|until| now.saturating_duration_since(until).saturating_sub(call))
    }
}

/// A primary, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Primary {
    /// The process.
    pub(super) run_id: String,
    /// The history of its data.
    pub(super) history: String,
    /// It has taken over the data of another server. If not, it has made the id of the history itself, as when its
    /// first replica joins.
    took_over: bool,
}

impl Primary {
    /// Reads the sections `server` and `replication` of INFO.
    pub(super) fn read(info: &str) -> Option<Self> {
        let field = |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name));
        let of_before = field("master_replid2:").unwrap_or_default();
        Some(Self {
            run_id: field("run_id:").filter(|id| !id.is_empty())?.to_owned(),
            history: field("master_replid:").unwrap_or_default().to_owned(),
            took_over: of_before.bytes().any(|digit| digit != b'0'),
        })
    }
}

/// The data of a server as it was last read, and the number of the newest connection to it.
#[derive(Debug, Default)]
pub(super) struct ServerData {
    newest: u64,
    known: Option<Arc<DataId>>,
}

impl ServerData {
    /// The data, as it was last read.
    pub(super) fn known(&self) -> Option<Arc<DataId>> {
        self.known.clone()
    }

    /// Notes a new connection. Earlier charges are no longer given back: the new connection may be to another server
    /// that took over the name, and that server may miss the last charges.
    pub(super) fn connected(&mut self, connection: u64) {
        self.newest = connection;
        let renumbered = |data: Arc<DataId>| Arc::new(DataId { connection, ..DataId::clone(&data) });
        self.known = self.known.take().map(renumbered);
    }

    /// Notes the generation that was read under this key.
    pub(super) fn generation(&mut self, key: &[u8], generation: &[u8]) {
        let is = |known: &Arc<DataId>| known.key == key && known.generation == generation;
        if !self.known.as_ref().is_some_and(is) {
            let (key, generation, connection) = (key.to_vec(), generation.to_vec(), self.newest);
            self.known = Some(Arc::new(DataId { key, generation, connection }));
        }
    }

    /// Whether hits that were charged in this data may go back: the connection has this mark, or, without marks,
    /// this data was read. Another primary also has a copy of the previous primary's mark, but under a name that it
    /// does not use.
    pub(super) fn may_take_back(&self, data: &DataId, mark: Option<&Mark>) -> bool {
        match mark {
            Some(mark) => mark.key == data.key,
            None => self.known.as_deref() == Some(data),
        }
    }
}

/// A mark, as a connection knows it.
#[derive(Debug)]
pub(super) struct Mark {
    key: Vec<u8>,
    /// The last argument of calls.
    pub(super) argument: Vec<u8>,
    /// Since when the data is complete, in microseconds of the server's clock.
    since_micros: u64,
    /// The longest lease time of nodes.
    lease_micros: u64,
    /// Whether calls name it among their keys. In a Cluster they cannot, because it is in another slot than their
    /// counters.
    is_named: bool,
}

impl Mark {
    fn new(key: Vec<u8>, since_micros: u64, lease_micros: u64, deny: &DenyCold, is_named: bool) -> Self {
        let argument = cold_argument(micros(deny.window_max), lease_micros, since_micros, &key);
        Self { key, argument, since_micros, lease_micros, is_named }
    }

    /// The key, if calls name it among theirs.
    pub(super) fn named(&self) -> Option<&Vec<u8>> {
        Some(&self.key).filter(|_| self.is_named)
    }

    /// The data in which hits are charged, if the data is complete since this time.
    pub(super) fn data(&self, since_micros: u64) -> DataId {
        let generation = (since_micros as f64).to_le_bytes().to_vec();
        // The key names the process: connections share it.
        DataId { key: self.key.clone(), generation, connection: 0 }
    }
}

/// The mark of the server of one connection. Empty: it was not read, or lost counters start at zero.
#[derive(Debug, Default)]
pub(super) struct Marked(Mutex<Option<Arc<Mark>>>);

impl Marked {
    /// The mark, as it was last read.
    pub(super) fn get(&self) -> Option<Arc<Mark>> {
        self.0.lock().clone()
    }

    /// Whether the server may be asked to decide.
    pub(super) fn lets_decide(&self, deny: Option<&DenyCold>) -> bool {
        deny.is_none() || self.0.lock().is_some()
    }

    /// What is written into the mark under this key; `first`: the connection was not used yet, with the time when
    /// another primary was last used.
    pub(super) fn to_write(
        &self,
        primary: &Primary,
        key: &[u8],
        losses: &Losses,
        deny: &DenyCold,
        first: Option<UsedOther>,
    ) -> ToMark {
        let known = self.get();
        let longest = || losses.longest_lease_micros(deny);
        ToMark {
            history: primary.history.clone(),
            took_over: primary.took_over,
            own_lease_micros: micros(deny.lease_time),
            longest_lease_micros: known.as_ref().map_or_else(longest, |known| known.lease_micros),
            since_micros: known.as_ref().map(|known| known.since_micros),
            is_renamed: known.is_some_and(|known| known.key != key),
            used_other_micros_ago: first.and_then(|UsedOther(ago)| ago).map(micros),
            is_prolonged: first.is_some(),
        }
    }

    /// Keeps the mark that was read under this key. If it is another one, returns since when the server's data is
    /// complete.
    pub(super) fn read(
        &self,
        key: Vec<u8>,
        read: &MarkRead,
        deny: &DenyCold,
        is_named: bool,
    ) -> Option<Begins> {
        let mark = Mark::new(key, read.begins.since_micros, read.lease_micros, deny, is_named);
        self.set(mark).then_some(read.begins)
    }

    /// Keeps the time since which the data is complete, as the reply to a call has it, if that is later than the
    /// known one. Returns it then.
    pub(super) fn answered(&self, begins: Begins, deny: &DenyCold) -> Option<Begins> {
        let known = self.get().filter(|known| known.since_micros < begins.since_micros)?;
        let mark =
            Mark::new(known.key.clone(), begins.since_micros, known.lease_micros, deny, known.is_named);
        self.set(mark).then_some(begins)
    }

    /// Keeps a mark. Returns whether it is another one.
    fn set(&self, mark: Mark) -> bool {
        let mut known = self.0.lock();
        let is_other = known.as_ref().is_none_or(|known| known.argument != mark.argument);
        if is_other {
            *known = Some(Arc::new(mark));
        }
        is_other
    }
}

/// How long ago a worker last used another primary than that of a new connection. `None`: never.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsedOther(pub(super) Option<Duration>);

/// What a node writes into a mark: what no script can see. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToMark {
    /// The history of the server's data.
    history: String,
    /// The server has taken its data over from another.
    took_over: bool,
    own_lease_micros: u64,
    /// The longest lease time that the node has read.
    longest_lease_micros: u64,
    /// Since when the data is complete, as the node knows it.
    since_micros: Option<u64>,
    /// It knows that from a mark of another name.
    is_renamed: bool,
    /// How long ago the node last used another primary.
    used_other_micros_ago: Option<u64>,
    /// The mark's life is to be prolonged.
    is_prolonged: bool,
}

impl ToMark {
    /// The arguments of `mark.lua`, for marks that live for so many seconds.
    pub(super) fn args(&self, life: u64) -> [String; 8] {
        let signed = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX).to_string();
        let or_none = |micros: Option<u64>| micros.map_or_else(|| "-1".to_owned(), signed);
        let flag = |is: bool| u8::from(is).to_string();
        [
            self.history.clone(),
            flag(self.took_over),
            self.own_lease_micros.to_string(),
            self.longest_lease_micros.to_string(),
            or_none(self.since_micros),
            flag(self.is_renamed),
            or_none(self.used_other_micros_ago),
            if self.is_prolonged { life } else { 0 }.to_string(),
        ]
    }
}

/// A mark, as `mark.lua` has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MarkRead {
    pub(super) begins: Begins,
    /// The longest lease time of nodes.
    lease_micros: u64,
    lease_times_differ: bool,
}

impl MarkRead {
    /// Reads the numbers of a reply.
    pub(super) fn read(numbers: &[i64]) -> Option<Self> {
        let &[now, since, lease, differ] = numbers else { return None };
        let begins = Begins { since_micros: since.unsigned_abs(), now_micros: now.unsigned_abs() };
        Some(Self { begins, lease_micros: lease.unsigned_abs(), lease_times_differ: differ == 1 })
    }
}

/// Since when the data of a server is complete, and the server's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begins {
    pub(super) since_micros: u64,
    pub(super) now_micros: u64,
}

impl Begins {
    /// The first and the last number of the reply to a call.
    pub(super) fn of_reply(numbers: &[i64]) -> Option<Self> {
        let &[now, .., since] = numbers else { return None };
        Some(Self { since_micros: since.unsigned_abs(), now_micros: now.unsigned_abs() })
    }
}

/// Microseconds, rounded down: Redis counts in them.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
