//! Whether a server still remembers: a key that the first node to come writes, and every node knows by its value. Gone
//! or changed, the server has lost what it knew: FLUSHALL, a failover that lost writes, a new server.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::address::Kind;
use crate::connect_error::ConnectError;
use crate::link::Link;
use crate::routes::Routes;
use crate::runtime::Runtime;
use crate::script::Memory;
use crate::state::Shared;
use crate::topology::slot_of;

/// It outlives the longest window twice, and is prolonged by every node that connects.
const LIFE: Duration = Duration::from_secs(3 * 366 * 86_400);

/// Names that are tried to find one whose slot a server holds: enough unless it holds a few slots in a thousand, and
/// then it is not watched.
const NAMES_MAX: usize = 4_096;

/// Another node may have replaced it already.
const REMOVE_WRONG_TYPE: &str = "if redis.call('TYPE', KEYS[1]).ok == 'string' then return 0 end \
    return redis.call('DEL', KEYS[1])";

/// What is known of the servers' generations: by key, because slots outlive servers.
#[derive(Default)]
pub(super) struct Generation(HashMap<String, String>);

impl Generation {
    /// Asks a server for its generation; tells, and counts, a change. One that was `just_reached` is also asked whether
    /// it may be written to, and whether it may evict.
    pub(super) async fn check<R: Runtime>(
        &mut self,
        shared: &Shared<R>,
        routes: &Routes<R>,
        link: &Arc<Link<R>>,
        just_reached: bool,
    ) -> Result<(), ConnectError> {
        let Some(key) = key(shared, |slot| routes.holds(link, slot)) else {
            return link.ask::<String>(shared, &redis::cmd("PING")).await.map(drop);
        };
        match self.look(shared, link, key, just_reached).await {
            // The slot is on its way to another server.
            Err(error) if matches!(error.code(), Some("MOVED" | "ASK")) => Ok(()),
            looked => looked,
        }
    }

    async fn look<R: Runtime>(
        &mut self,
        shared: &Shared<R>,
        link: &Link<R>,
        key: String,
        just_reached: bool,
    ) -> Result<(), ConnectError> {
        if just_reached {
            prolong(shared, link, &key).await?;
            warn_of_eviction(shared, link).await;
        }
        let now = match read(shared, link, &key).await? {
            Some(now) => now,
            None => {
                let (one, other) = (shared.runtime.random(), shared.runtime.random());
                let mut set = redis::cmd("SET");
                set.arg(&key).arg(format!("{one:016x}{other:016x}"));
                set.arg("NX").arg("EX").arg(LIFE.as_secs());
                link.ask::<Option<String>>(shared, &set).await?;
                read(shared, link, &key).await?.unwrap_or_default()
            }
        };
        let memory = Memory { key: key.clone().into_bytes(), generation: now.clone().into_bytes() };
        link.remember(memory);
        let before = self.0.insert(key, now.clone());
        if before.is_some_and(|before| before != now) {
            shared.stats.memory_lost.fetch_add(1, Relaxed);
            shared.memory_lost.notify_one();
            tracing::warn!("redis: {} has lost its memory; its counts begin anew", link.wire.address);
        }
        Ok(())
    }
}

/// Prolongs the life of a generation. That is a write, which a server refuses that may not be written to: a replica
/// answers every question and decides nothing.
async fn prolong<R: Runtime>(shared: &Shared<R>, link: &Link<R>, key: &str) -> Result<(), ConnectError> {
    let mut command = redis::cmd("EXPIRE");
    command.arg(key).arg(LIFE.as_secs());
    match link.ask::<i64>(shared, &command).await {
        // Scripts may write all the same.
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        told => told.map(drop),
    }
}

/// Whether as many replicas as there have to be have what is written to a server that holds these slots.
pub(super) async fn check_replicas<R: Runtime>(
    shared: &Shared<R>,
    link: &Link<R>,
    slots: &RangeInclusive<u16>,
) -> Result<(), ConnectError> {
    let Some(key) = key(shared, |slot| slots.contains(&slot)) else { return Ok(()) };
    prolong(shared, link, &key).await?;
    let replicated = link.replicate(shared, shared.runtime.monotonic() + shared.options.timeout).await;
    replicated
        .map_err(|_| ConnectError::Unreplicated(shared.options.wait_replicas, link.wire.address.clone()))
}

/// The generation under this key, if there is one. What is no text is none of ours, and makes way.
async fn read<R: Runtime>(
    shared: &Shared<R>,
    link: &Link<R>,
    key: &str,
) -> Result<Option<String>, ConnectError> {
    match link.ask(shared, redis::cmd("GET").arg(key)).await {
        Err(error) if error.code() == Some("WRONGTYPE") => {
            tracing::warn!(
                "redis: {}: {key} is not a text: somebody else wrote it; it is replaced",
                link.wire.address
            );
            let mut command = redis::cmd("EVAL");
            command.arg(REMOVE_WRONG_TYPE).arg(1).arg(key);
            link.ask::<i64>(shared, &command).await.map(|_| None)
        }
        told => told,
    }
}

/// The key of a server that holds these slots: the same for all who ask.
fn key<R: Runtime>(shared: &Shared<R>, holds: impl Fn(u16) -> bool) -> Option<String> {
    let name = format!("{}tidegate:generation", shared.options.keys.prefix);
    match shared.options.kind {
        Kind::Cluster(_) => {
            let mut names = (0..NAMES_MAX).map(|number| format!("{name}:{number}"));
            names.find(|name| holds(slot_of(name.as_bytes())))
        }
        _ => Some(name),
    }
}

/// Eviction is forgetting.
async fn warn_of_eviction<R: Runtime>(shared: &Shared<R>, link: &Link<R>) {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("maxmemory-policy");
    // Who may not ask is not told.
    let told: Result<Vec<String>, _> = link.ask(shared, &command).await;
    if let Some(policy) = told.ok().and_then(|told| told.into_iter().nth(1)).filter(|it| it != "noeviction") {
        tracing::warn!(
            "redis: {} may evict counters, and so forget hits: maxmemory-policy is {policy} (expected noeviction)",
            link.wire.address
        );
    }
}
