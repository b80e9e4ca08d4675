//! Who is primary, and the mark of it: what no script can see. With COLD_START=deny only.
//!
//! In: what a server says of itself (INFO), on every new connection before it is used, and once a second. Out: the mark
//! of the connection.
//!
//! A script sees that a mark is not there. Three things it cannot see: that the process was a replica meanwhile (then
//! its data have another history), that this node used another primary until just now, and how long leases of other
//! nodes last. These are written into the mark here.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::address::Kind;
use crate::connect_error::ConnectError;
use crate::connection::Connection;
use crate::mark::{Begins, Mark, micros};
use crate::runtime::Runtime;
use crate::script::{self, MARK_LIFE};
use crate::state::Shared;
use crate::topology::names_on;

/// How many names are tried to find one in a slot of the server: enough for a server of a single slot.
const NAMES_MAX: usize = 1 << 18;
/// At this number of primaries those of long ago are forgotten.
const PRIMARIES_MAX: usize = 1_024;

/// A primary, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Primary {
    /// The process.
    run_id: String,
    /// The history of its data.
    history: String,
    /// It has taken its data over from another server. If not, it has given the history its id itself, as when the
    /// first replica comes.
    took_over: bool,
}

impl Primary {
    /// Reads the sections `server` and `replication` of INFO.
    fn read(info: &str) -> Option<Self> {
        let field = |name: &str| info.lines().find_map(|line| line.trim().strip_prefix(name));
        let of_before = field("master_replid2:").unwrap_or_default();
        Some(Self {
            run_id: field("run_id:").filter(|id| !id.is_empty())?.to_owned(),
            history: field("master_replid:").unwrap_or_default().to_owned(),
            took_over: of_before.bytes().any(|digit| digit != b'0'),
        })
    }
}

/// The primaries that a worker has used, and until when it used any.
#[derive(Debug, Default)]
pub(super) struct LastUse(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    until: Option<Instant>,
    is_used: bool,
    /// The history of each, by its process.
    primaries: HashMap<String, String>,
}

impl LastUse {
    /// Notes at `now` whether any primary can be used from now on.
    pub(super) fn note(&self, now: Instant, is_used: bool) {
        let mut used = self.0.lock();
        if std::mem::replace(&mut used.is_used, is_used) || is_used {
            used.until = Some(now);
        }
    }

    /// How long ago at `now` another primary than this one was used last. `None`: never.
    fn ago(&self, primary: &Primary, now: Instant) -> Option<Duration> {
        let used = self.0.lock();
        let continues = |history: &String| *history == primary.history || !primary.took_over;
        let is_known = used.primaries.get(&primary.run_id).is_some_and(continues);
        used.until.filter(|_| !is_known).map(|until| now.saturating_duration_since(until))
    }

    fn remember(&self, primary: Primary) {
        let mut used = self.0.lock();
        if used.primaries.len() >= PRIMARIES_MAX {
            used.primaries.clear();
        }
        used.primaries.insert(primary.run_id, primary.history);
    }
}

/// Reads the mark of a connection's server, which has these slots, and writes what no script can see. `last_use`: the
/// connection is new, and was not used yet.
pub(super) async fn look<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    holds: impl Fn(u16) -> bool,
    last_use: Option<&LastUse>,
) -> Result<(), ConnectError> {
    let Some(deny) = &shared.options.deny_cold else { return Ok(()) };
    let (sent, primary) = (shared.runtime.monotonic(), ask_primary(shared, connection).await?);
    // Without a key in its slots a server has no counters either.
    let Some(key) = key(shared, &primary.run_id, holds) else { return Ok(()) };
    let before = connection.marked.get();
    let longest = before.as_ref().map_or_else(|| shared.lease_times.longest(deny), |it| it.lease_micros);
    // A call may still be on its way for as long as a decision takes.
    let used_ago = last_use.and_then(|last_use| last_use.ago(&primary, sent));
    let used_ago = used_ago.map(|ago| ago.saturating_sub(shared.options.timeout));
    let mut command = redis::cmd("EVAL");
    command
        .arg(script::mark_source())
        .arg(1)
        .arg(&key)
        .arg(&primary.history)
        .arg(u8::from(primary.took_over));
    let signed = |micros: u64| i64::try_from(micros).unwrap_or(i64::MAX);
    command.arg(micros(deny.lease_time)).arg(longest);
    command.arg(before.as_ref().map_or(-1, |before| signed(before.since_micros)));
    command.arg(u8::from(before.is_some_and(|before| before.key != key)));
    command.arg(used_ago.map_or(-1, |ago| signed(micros(ago))));
    command.arg(if last_use.is_some() { MARK_LIFE } else { 0 });
    let reply: Vec<u8> = connection.ask(shared, &command).await?;
    let Some(&[now, since, lease, differ]) = script::numbers(&reply).as_deref() else {
        return Err(ConnectError::Unmarked(connection.wire.address.clone()));
    };
    let (now_micros, since_micros, lease_micros) =
        (now.unsigned_abs(), since.unsigned_abs(), lease.unsigned_abs());
    shared.lease_times.read(lease_micros, differ == 1, deny);
    let is_named = !matches!(shared.options.kind, Kind::Cluster(_));
    let is_other = connection.marked.set(Mark::new(key, (since_micros, lease_micros), deny, is_named));
    if is_other {
        shared.note_cold(&connection.wire.address, Begins { since_micros, now_micros });
    }
    last_use.into_iter().for_each(|last_use| last_use.remember(primary.clone()));
    Ok(())
}

/// Marks a connection's server, which has these slots, as one of which nothing is missing, unless it has a mark. Returns
/// since when nothing is missing, in microseconds of its clock.
pub(super) async fn mark_whole<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    holds: impl Fn(u16) -> bool,
) -> Result<u64, ConnectError> {
    let primary = ask_primary(shared, connection).await?;
    let Some(key) = key(shared, &primary.run_id, holds) else { return Ok(0) };
    let mark = script::mark_value(0, 0, 0, &primary.history);
    let mut set = redis::cmd("SET");
    set.arg(&key).arg(mark).arg("NX").arg("EX").arg(MARK_LIFE);
    if connection.ask::<Option<String>>(shared, &set).await?.is_some() {
        return Ok(0);
    }
    let mark: Vec<u8> = connection.ask(shared, redis::cmd("GET").arg(&key)).await?;
    let since = mark.first_chunk().map(|since| f64::from_le_bytes(*since) as u64);
    since.ok_or_else(|| ConnectError::Unmarked(connection.wire.address.clone()))
}

async fn ask_primary<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
) -> Result<Primary, ConnectError> {
    let mut info = connection.ask::<String>(shared, redis::cmd("INFO").arg("server")).await?;
    info += &connection.ask::<String>(shared, redis::cmd("INFO").arg("replication")).await?;
    Primary::read(&info).ok_or_else(|| ConnectError::Unmarked(connection.wire.address.clone()))
}

/// The key of a primary's mark. All nodes find the same one.
fn key<R: Runtime>(shared: &Shared<R>, run_id: &str, holds: impl Fn(u16) -> bool) -> Option<Vec<u8>> {
    let name = format!("{}tidegate:mark:{run_id}", shared.options.keys.prefix);
    names_on(&shared.options.kind, name, NAMES_MAX, holds).next().map(String::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    const SERVER: &str = "# Server\r\nredis_version:7.2.0\r\nrun_id:9b\r\n";

    fn primary(history: &str, of_before: &str) -> Primary {
        let info = format!(
            "{SERVER}# Replication\r\nrole:master\r\nmaster_replid:{history}\r\nmaster_replid2:{of_before}\r\n"
        );
        Primary::read(&info).expect("it says its run id")
    }

    #[test]
    fn a_primary_is_its_process_and_the_history_of_its_data() {
        let (first, took_over) = (primary("aa", "0000"), primary("bb", "00c0"));
        assert_eq!((first.run_id.as_str(), first.history.as_str(), first.took_over), ("9b", "aa", false));
        assert!(took_over.took_over);
        assert_eq!(Primary::read("run_id:\r\n"), None);
    }

    #[test]
    fn another_primary_was_used_until_the_connections_to_it_were_given_up() {
        let (last_use, began) = (LastUse::default(), monotonic());
        let at = |secs| began + Duration::from_secs(secs);
        let (one, other) = (primary("aa", "00"), Primary { run_id: "7c".to_owned(), ..primary("aa", "00") });
        assert_eq!(last_use.ago(&one, at(0)), None, "none was used");
        last_use.remember(one.clone());
        [(1, true), (2, true), (3, false), (4, false)]
            .iter()
            .for_each(|&(secs, is)| last_use.note(at(secs), is));
        assert_eq!(last_use.ago(&one, at(9)), None, "it is the one that was used");
        assert_eq!(last_use.ago(&other, at(9)), Some(Duration::from_secs(6)), "it broke before 3");
        let own_name = Primary { history: "dd".to_owned(), ..one.clone() };
        assert_eq!(last_use.ago(&own_name, at(9)), None, "its first replica came");
        let was_replica = Primary { took_over: true, ..own_name };
        assert_eq!(last_use.ago(&was_replica, at(9)), Some(Duration::from_secs(6)));
    }
}
