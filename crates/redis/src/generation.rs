//! Whether a server still has its memory. The first node writes a random value under a key, the generation, and all
//! nodes read it. When it is gone or has changed, the server has lost its memory: by FLUSHALL, by a failover that
//! lost writes, or because it is a new server.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::connect_error::ConnectError;
use crate::connection::Connection;
use crate::routes::Routes;
use crate::runtime::Runtime;
use crate::state::Shared;
use crate::topology::names_on;

/// How long a generation lives: twice the longest window. Every node that connects prolongs it.
const LIFE: Duration = Duration::from_secs(3 * 366 * 86_400);

/// How many names are tried to find one in a slot of the server. It is enough unless the server holds only a few
/// slots in a thousand; such a server is not watched.
const NAMES_MAX: usize = 4_096;

/// Checks the type again: another node may have replaced the key already.
const REMOVE_WRONG_TYPE: &str = "if redis.call('TYPE', KEYS[1]).ok == 'string' then return 0 end \
    return redis.call('DEL', KEYS[1])";

/// The known generations, by key, because slots move between servers.
#[derive(Default)]
pub(super) struct Generation(HashMap<String, String>);

impl Generation {
    /// Reads a server's generation, and logs and counts a change. If the server was `just_reached`, checks also
    /// that it takes writes and that it evicts nothing.
    pub(super) async fn check<R: Runtime>(
        &mut self,
        shared: &Shared<R>,
        routes: &Routes<R>,
        connection: &Arc<Connection<R>>,
        just_reached: bool,
    ) -> Result<(), ConnectError> {
        let Some(key) = key(shared, |slot| routes.holds(connection, slot)) else {
            return connection.ask::<String>(shared, &redis::cmd("PING")).await.map(drop);
        };
        match self.look(shared, connection, key, just_reached).await {
            // The slot is moving to another server.
            Err(error) if matches!(error.code(), Some("MOVED" | "ASK")) => Ok(()),
            looked => looked,
        }
    }

    async fn look<R: Runtime>(
        &mut self,
        shared: &Shared<R>,
        connection: &Connection<R>,
        key: String,
        just_reached: bool,
    ) -> Result<(), ConnectError> {
        if just_reached {
            prolong(shared, connection, &key).await?;
            warn_of_eviction(shared, connection).await;
        }
        let now = match read(shared, connection, &key).await? {
            Some(now) => now,
            None => {
                let (one, other) = (shared.runtime.random(), shared.runtime.random());
                let mut set = redis::cmd("SET");
                set.arg(&key).arg(format!("{one:016x}{other:016x}"));
                set.arg("NX").arg("EX").arg(LIFE.as_secs());
                connection.ask::<Option<String>>(shared, &set).await?;
                read(shared, connection, &key).await?.unwrap_or_default()
            }
        };
        connection.remember(key.as_bytes(), now.as_bytes());
        let before = self.0.insert(key, now.clone());
        // With marks it is these that tell a loss.
        if before.is_some_and(|before| before != now) && shared.options.deny_cold.is_none() {
            shared.stats.memory_lost.fetch_add(1, Relaxed);
            shared.memory_lost.notify_one();
            tracing::warn!("redis: {} has lost its memory; its counts begin anew", connection.wire.address);
        }
        Ok(())
    }
}

/// Prolongs the life of a generation. It is a write, which a server that takes no writes refuses: a replica answers
/// reads, but cannot decide.
async fn prolong<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    key: &str,
) -> Result<(), ConnectError> {
    let mut command = redis::cmd("EXPIRE");
    command.arg(key).arg(LIFE.as_secs());
    match connection.ask::<i64>(shared, &command).await {
        // Scripts may be allowed to write all the same.
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        answer => answer.map(drop),
    }
}

/// Checks that enough replicas have everything written to a server of these slots.
pub(super) async fn check_replicas<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    slots: &RangeInclusive<u16>,
) -> Result<(), ConnectError> {
    let Some(key) = key(shared, |slot| slots.contains(&slot)) else { return Ok(()) };
    prolong(shared, connection, &key).await?;
    let replicated = connection.replicate(shared, shared.runtime.monotonic() + shared.options.timeout).await;
    replicated.map_err(|_| {
        ConnectError::Unreplicated(shared.options.wait_replicas, connection.wire.address.clone())
    })
}

/// The generation under this key, if there is one. A value that is no text was written by another program, and is
/// replaced.
async fn read<R: Runtime>(
    shared: &Shared<R>,
    connection: &Connection<R>,
    key: &str,
) -> Result<Option<String>, ConnectError> {
    match connection.ask(shared, redis::cmd("GET").arg(key)).await {
        Err(error) if error.code() == Some("WRONGTYPE") => {
            tracing::warn!(
                "redis: {}: {key} is not a text: somebody else wrote it; it is replaced",
                connection.wire.address
            );
            let mut command = redis::cmd("EVAL");
            command.arg(REMOVE_WRONG_TYPE).arg(1).arg(key);
            connection.ask::<i64>(shared, &command).await.map(|_| None)
        }
        answer => answer,
    }
}

/// The key of the generation of a server that holds these slots. All nodes find the same one.
fn key<R: Runtime>(shared: &Shared<R>, holds: impl Fn(u16) -> bool) -> Option<String> {
    let name = format!("{}tidegate:generation", shared.options.keys.prefix);
    names_on(&shared.options.kind, name, NAMES_MAX, holds).next()
}

/// Warns when the server may evict counters: it would lose hits.
async fn warn_of_eviction<R: Runtime>(shared: &Shared<R>, connection: &Connection<R>) {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("maxmemory-policy");
    // A login without the right to ask gets no warning.
    let policy: Result<Vec<String>, _> = connection.ask(shared, &command).await;
    if let Some(policy) =
        policy.ok().and_then(|policy| policy.into_iter().nth(1)).filter(|it| it != "noeviction")
    {
        tracing::warn!(
            "redis: {} may evict counters, and so forget hits: maxmemory-policy is {policy} (expected noeviction)",
            connection.wire.address
        );
    }
}
