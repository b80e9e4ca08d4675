//! Whether a server still remembers: a key that the first node to come writes, and every node knows by its value. Gone
//! or changed, the server has lost what it knew: FLUSHALL, a failover that lost writes, a new server.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::address::Kind;
use super::lane::Routes;
use super::link::{Link, LinkError};
use super::state::Shared;
use super::topology::slot_of;

/// It outlives the longest window twice, and is prolonged by every node that looks.
const LIFE: Duration = Duration::from_secs(3 * 366 * 86_400);

/// Names that are tried to find one whose slot a server holds: enough unless it holds a few slots in a thousand, and
/// then it is not watched.
const NAMES_MAX: usize = 4_096;

/// What is known of the servers' generations: by key, because slots outlive servers.
#[derive(Default)]
pub(super) struct Generation(HashMap<String, String>);

impl Generation {
    /// Asks a server for its generation; tells, and counts, a change. `tell_eviction`: it was just reached.
    pub(super) async fn check(
        &mut self,
        shared: &Shared,
        routes: &Routes,
        link: &Arc<Link>,
        tell_eviction: bool,
    ) -> Result<(), LinkError> {
        let patience = shared.connect_patience();
        let Some(key) = key(shared, |slot| routes.holds(link, slot)) else {
            return link.ask::<String>(&redis::cmd("PING"), patience).await.map(drop);
        };
        let known: Option<String> = match link.ask(redis::cmd("GET").arg(&key), patience).await {
            // The slot is on its way to another server.
            Err(LinkError::Redis(error)) if matches!(error.code(), Some("MOVED" | "ASK")) => return Ok(()),
            answer => answer?,
        };
        if tell_eviction {
            warn_of_eviction(shared, link).await;
        }
        let now = match known {
            Some(now) => now,
            None => {
                let mut random = [0; 16];
                let _ = getrandom::fill(&mut random);
                let mut set = redis::cmd("SET");
                set.arg(&key).arg(format!("{:032x}", u128::from_le_bytes(random)));
                set.arg("NX").arg("EX").arg(LIFE.as_secs());
                link.ask::<Option<String>>(&set, patience).await?;
                link.ask::<Option<String>>(redis::cmd("GET").arg(&key), patience).await?.unwrap_or_default()
            }
        };
        let before = self.0.insert(key, now.clone());
        if before.is_some_and(|before| before != now) {
            shared.stats.memory_lost.fetch_add(1, Relaxed);
            tracing::warn!("redis: {} has lost its memory; its counts begin anew", link.address);
        }
        Ok(())
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
