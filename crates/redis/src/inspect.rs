//! Asks servers what they are and which data they still have: the I/O of `lost`.
//!
//! In: a connection, before it is used and then once a second, and the slots of its server. Out: the new beliefs of
//! `lost`, or why the server cannot be used. The words (generation, mark, primary) are defined in `lost`.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use crate::address::Servers;
use crate::connect_error::ConnectError;
use crate::connection::Connection;
use crate::lost::{MarkRead, Primary, Seen, UsedOther};
use crate::routes::Routes;
use crate::runtime::Runtime;
use crate::script::{self, Clock, MARK_LIFE};
use crate::state::Shared;
use crate::topology::names_on;

/// How long a generation lives: twice the longest window. Every node that connects prolongs it.
const GENERATION_LIFE: Duration = Duration::from_secs(MARK_LIFE);
/// How many names are tried to find one for a generation in a slot of the server. That is enough unless the server
/// has only a few of every thousand slots; the generation of such a server is not read.
const GENERATION_NAMES_MAX: usize = 4_096;
/// The same for a mark, without which a server is not used: enough for a server of a single slot.
const MARK_NAMES_MAX: usize = 1 << 18;

/// Checks the type again: another node may have replaced the key already.
const REMOVE_WRONG_TYPE: &str = "if redis.call('TYPE', KEYS[1]).ok == 'string' then return 0 end \
    return redis.call('DEL', KEYS[1])";

/// Inspects the server of a new connection, which has these slots, before the connection is used.
pub(super) async fn before_use<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    holds: impl Fn(u16) -> bool,
    seen: &mut Seen,
) -> Result<(), ConnectError> {
    look_at_mark(shared, connection, holds, Some(seen)).await
}

/// Inspects the server of a connection that is in use. `watched`: the generation is read too, with what was seen
/// before and whether the server was `just_reached`. Such a server has to accept writes, and a warning is logged if
/// it may evict keys.
pub(super) async fn again<R: Runtime>(
    shared: &Shared<R>,
    routes: &Routes<R>,
    connection: &Arc<Connection<R>>,
    watched: Option<(&mut Seen, bool)>,
) -> Result<(), ConnectError> {
    let holds = |slot| routes.holds(connection, slot);
    let of_generation = watched.and_then(|watched| Some((generation_key(shared, holds)?, watched)));
    match of_generation {
        Some((key, (seen, just_reached))) => {
            unless_moving(look_at_generation(shared, connection, key, seen, just_reached).await)?;
        }
        None => drop(connection.ask::<String>(shared, &redis::cmd("PING")).await?),
    }
    // Once its slot has moved, the mark has another name.
    unless_moving(look_at_mark(shared, connection, holds, None).await)
}

/// While the slot of a key moves to another server, there is nothing to see under it.
fn unless_moving(looked: Result<(), ConnectError>) -> Result<(), ConnectError> {
    match looked {
        Err(error) if matches!(error.code(), Some("MOVED" | "ASK")) => Ok(()),
        looked => looked,
    }
}

/// Checks that enough replicas have everything written to a server of these slots.
pub(super) async fn replicas<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    slots: &RangeInclusive<u16>,
) -> Result<(), ConnectError> {
    let Some(key) = generation_key(shared, |slot| slots.contains(&slot)) else { return Ok(()) };
    prolong(shared, connection, &key).await?;
    let replicated = connection.replicate(shared, shared.runtime.monotonic() + shared.options.timeout).await;
    replicated.map_err(|_| {
        ConnectError::Unreplicated(shared.options.wait_replicas, connection.wire.address.clone())
    })
}

/// Reads a server's generation, and makes one if there is none.
async fn look_at_generation<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    key: String,
    seen: &mut Seen,
    just_reached: bool,
) -> Result<(), ConnectError> {
    if just_reached {
        prolong(shared, connection, &key).await?;
        warn_of_eviction(shared, connection).await;
    }
    let generation = match read(shared, connection, &key).await? {
        Some(generation) => generation,
        None => {
            let (one, other) = (shared.runtime.random(), shared.runtime.random());
            let mut set = redis::cmd("SET");
            set.arg(&key).arg(format!("{one:016x}{other:016x}"));
            set.arg("NX").arg("EX").arg(GENERATION_LIFE.as_secs());
            connection.ask::<Option<String>>(shared, &set).await?;
            read(shared, connection, &key).await?.unwrap_or_default()
        }
    };
    connection.server.generation(key.as_bytes(), generation.as_bytes());
    let news = seen.generation(key, &generation, shared.options.deny_cold.is_some());
    shared.hear(&connection.wire.address, news);
    Ok(())
}

/// Prolongs the life of a generation. That is a write, so a server that accepts no writes refuses it: a replica
/// answers reads, but cannot decide.
async fn prolong<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    key: &str,
) -> Result<(), ConnectError> {
    let mut command = redis::cmd("EXPIRE");
    command.arg(key).arg(GENERATION_LIFE.as_secs());
    match connection.ask::<i64>(shared, &command).await {
        // Scripts may still be allowed to write.
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        answer => answer.map(drop),
    }
}

/// The generation under this key, if there is one. A value that is not text was written by another program, and is
/// replaced.
async fn read<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    key: &str,
) -> Result<Option<String>, ConnectError> {
    match connection.ask(shared, redis::cmd("GET").arg(key)).await {
        Err(error) if error.code() == Some("WRONGTYPE") => {
            tracing::warn!(
                "redis: {}: {key} has another type, written by another program; it is replaced",
                connection.wire.address
            );
            let mut command = redis::cmd("EVAL");
            command.arg(REMOVE_WRONG_TYPE).arg(1).arg(key);
            connection.ask::<i64>(shared, &command).await.map(|_| None)
        }
        answer => answer,
    }
}

/// Warns when the server may evict counters: it would lose hits.
async fn warn_of_eviction<R: Runtime>(shared: &Shared<R>, connection: &Connection<R>) {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("maxmemory-policy");
    // A login that may not ask gets no warning.
    let policy: Result<Vec<String>, _> = connection.ask(shared, &command).await;
    if let Some(policy) =
        policy.ok().and_then(|policy| policy.into_iter().nth(1)).filter(|it| it != "noeviction")
    {
        tracing::warn!(
            "redis: {} may evict counters, and so lose hits: maxmemory-policy is {policy} (expected noeviction)",
            connection.wire.address
        );
    }
}

/// Reads the mark of a connection's server, which has these slots, and writes what no script can see. `new`: the
/// connection was not yet used, together with what the worker has seen of other primaries.
async fn look_at_mark<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    holds: impl Fn(u16) -> bool,
    new: Option<&mut Seen>,
) -> Result<(), ConnectError> {
    let Some(deny) = &shared.options.deny_cold else { return Ok(()) };
    let (sent, primary) = (shared.runtime.monotonic(), ask_primary(shared, connection).await?);
    // Without a key in its slots a server has no counters either.
    let Some(key) = mark_key(shared, &primary, holds) else { return Ok(()) };
    let used_other = |seen: &&mut Seen| seen.used_other_ago(&primary, sent, shared.options.timeout);
    let first = new.as_ref().map(used_other).map(UsedOther);
    let to_write = connection.marked.to_write(&primary, &key, &shared.losses.lock(), deny, first);
    let mut command = redis::cmd("EVAL");
    command.arg(script::mark_source(Clock::Redis)).arg(1).arg(&key).arg(&to_write.args(MARK_LIFE));
    let reply: Vec<u8> = connection.ask(shared, &command).await?;
    let read = script::numbers(&reply).as_deref().and_then(MarkRead::read);
    let read = read.ok_or_else(|| ConnectError::Unmarked(connection.wire.address.clone()))?;
    let news = shared.losses.lock().lease_times(&read, deny);
    shared.hear(&connection.wire.address, news);
    let is_named = !matches!(shared.options.kind, Servers::Cluster(_));
    if let Some(begins) = connection.marked.read(key, &read, deny, is_named) {
        shared.begins(&connection.wire.address, begins);
    }
    new.into_iter().for_each(|seen| seen.use_of(&primary));
    Ok(())
}

/// Gives the server of a connection, which has these slots, a mark that declares its data complete, unless it has a
/// mark. Returns since when its data is complete, in microseconds of its clock.
pub(super) async fn mark_complete<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    holds: impl Fn(u16) -> bool,
) -> Result<u64, ConnectError> {
    let primary = ask_primary(shared, connection).await?;
    let Some(key) = mark_key(shared, &primary, holds) else { return Ok(0) };
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

/// The key of the generation of a server that holds these slots. All nodes find the same one.
fn generation_key<R: Runtime>(shared: &Shared<R>, holds: impl Fn(u16) -> bool) -> Option<String> {
    let name = format!("{}tidegate:generation", shared.options.keys.prefix);
    names_on(&shared.options.kind, name, GENERATION_NAMES_MAX, holds).next()
}

/// The key of a primary's mark. All nodes find the same one.
fn mark_key<R: Runtime>(
    shared: &Shared<R>,
    primary: &Primary,
    holds: impl Fn(u16) -> bool,
) -> Option<Vec<u8>> {
    let name = format!("{}tidegate:mark:{}", shared.options.keys.prefix, primary.run_id);
    names_on(&shared.options.kind, name, MARK_NAMES_MAX, holds).next().map(String::into_bytes)
}
