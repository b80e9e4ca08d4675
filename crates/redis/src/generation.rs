//! Whether a server still remembers: a key that the first node to come writes, and every node knows by its value. Gone
//! or changed, the server has lost what it knew: FLUSHALL, a failover that lost writes, a new server.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::address::Kind;
use crate::clock::monotonic;
use crate::link::{Link, LinkError};
use crate::routes::Routes;
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
    pub(super) async fn check(
        &mut self,
        shared: &Shared,
        routes: &Routes,
        link: &Arc<Link>,
        just_reached: bool,
    ) -> Result<(), LinkError> {
        let Some(key) = key(shared, |slot| routes.holds(link, slot)) else {
            return link.ask::<String>(&redis::cmd("PING"), shared.connect_patience()).await.map(drop);
        };
        match self.look(shared, link, key, just_reached).await {
            // The slot is on its way to another server.
            Err(LinkError::Redis(error)) if matches!(error.code(), Some("MOVED" | "ASK")) => Ok(()),
            looked => looked,
        }
    }

    async fn look(
        &mut self,
        shared: &Shared,
        link: &Link,
        key: String,
        just_reached: bool,
    ) -> Result<(), LinkError> {
        let patience = shared.connect_patience();
        if just_reached {
            prolong(link, &key, patience).await?;
            warn_of_eviction(shared, link).await;
        }
        let now = match read(link, &key, patience).await? {
            Some(now) => now,
            None => {
                let mut random = [0; 16];
                let _ = getrandom::fill(&mut random);
                let mut set = redis::cmd("SET");
                set.arg(&key).arg(format!("{:032x}", u128::from_le_bytes(random)));
                set.arg("NX").arg("EX").arg(LIFE.as_secs());
                link.ask::<Option<String>>(&set, patience).await?;
                read(link, &key, patience).await?.unwrap_or_default()
            }
        };
        let memory = Memory { key: key.clone().into_bytes(), generation: now.clone().into_bytes() };
        link.remember(memory);
        let before = self.0.insert(key, now.clone());
        if before.is_some_and(|before| before != now) {
            shared.stats.memory_lost.fetch_add(1, Relaxed);
            shared.memory_lost.notify_one();
            tracing::warn!("redis: {} has lost its memory; its counts begin anew", link.address);
        }
        Ok(())
    }
}

/// Prolongs the life of a generation. That is a write, which a server refuses that may not be written to: a replica
/// answers every question and decides nothing.
async fn prolong(link: &Link, key: &str, patience: Duration) -> Result<(), LinkError> {
    let mut command = redis::cmd("EXPIRE");
    command.arg(key).arg(LIFE.as_secs());
    match link.ask::<i64>(&command, patience).await {
        // Scripts may write all the same.
        Err(LinkError::Redis(error)) if error.code() == Some("NOPERM") => Ok(()),
        told => told.map(drop),
    }
}

/// Whether as many replicas as there have to be have what is written to a server that holds these slots.
pub(super) async fn check_replicas(
    shared: &Shared,
    link: &Link,
    slots: &RangeInclusive<u16>,
) -> Result<(), LinkError> {
    let Some(key) = key(shared, |slot| slots.contains(&slot)) else { return Ok(()) };
    prolong(link, &key, shared.connect_patience()).await?;
    let replicated = link.replicate(shared, monotonic() + shared.options.timeout).await;
    replicated.map_err(|_| LinkError::Unreplicated(shared.options.wait_replicas, link.address.clone()))
}

/// The generation under this key, if there is one. What is no text is none of ours, and makes way.
async fn read(link: &Link, key: &str, patience: Duration) -> Result<Option<String>, LinkError> {
    match link.ask(redis::cmd("GET").arg(key), patience).await {
        Err(LinkError::Redis(error)) if error.code() == Some("WRONGTYPE") => {
            tracing::warn!(
                "redis: {}: {key} is not a text: somebody else wrote it; it is replaced",
                link.address
            );
            let mut command = redis::cmd("EVAL");
            command.arg(REMOVE_WRONG_TYPE).arg(1).arg(key);
            link.ask::<i64>(&command, patience).await.map(|_| None)
        }
        told => told,
    }
}

/// The key of a server that holds these slots: the same for all who ask.
fn key(shared: &Shared, holds: impl Fn(u16) -> bool) -> Option<String> {
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
async fn warn_of_eviction(shared: &Shared, link: &Link) {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("maxmemory-policy");
    // Who may not ask is not told.
    let told: Result<Vec<String>, _> = link.ask(&command, shared.connect_patience()).await;
    if let Some(policy) = told.ok().and_then(|told| told.into_iter().nth(1)).filter(|it| it != "noeviction") {
        tracing::warn!(
            "redis: {} may evict counters, and so forget hits: maxmemory-policy is {policy} (expected noeviction)",
            link.address
        );
    }
}
