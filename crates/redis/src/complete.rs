//! Declares of every primary that its data is complete, before the first node uses it. With COLD_START=deny only.
//!
//! In: options. Out: a mark on each primary, or since when something may be missing there. A program calls it once,
//! when an operator says so; a node never does.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::address::{Address, Servers};
use crate::connect_error::ConnectError;
use crate::connection::Connection;
use crate::inspect::mark_complete;
use crate::options::RedisOptions;
use crate::runtime::Runtime;
use crate::state::Shared;
use crate::topology::{Master, check_role, masters};

/// The mark of a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The primary.
    pub server: Address,
    /// Since when its data is complete, in microseconds of its clock. 0: always. Otherwise a node has used it before,
    /// and its mark was left as it is.
    pub complete_since_micros: u64,
}

/// Declares of every primary that nothing that was counted there is missing, whatever data it has. That is true of
/// servers that no node has used, and of those that have lost nothing since.
/// Fails when a server cannot be used. Servers before it in the list are declared already, and may be declared again.
pub async fn declare_complete<R: Runtime>(
    runtime: R,
    options: RedisOptions,
) -> Result<Vec<Declared>, ConnectError> {
    let shared = Arc::new(Shared::new(runtime, options));
    let masters = masters(&shared, &[]).await?;
    let mut declared: Vec<Declared> = Vec::new();
    for Master { address, .. } in &masters {
        // There is a line for each range of slots.
        if declared.iter().all(|known| known.server != *address) {
            declared.push(declare(&shared, address, &masters).await?);
        }
    }
    Ok(declared)
}

async fn declare<R: Runtime>(
    shared: &Arc<Shared<R>>,
    server: &Address,
    masters: &[Master],
) -> Result<Declared, ConnectError> {
    let connection = Connection::open(server, shared, &Arc::new(Notify::new())).await?;
    if let Servers::Sentinel(..) = shared.options.kind {
        check_role(shared, &connection).await?;
    }
    let own = |master: &&Master| master.address == *server;
    let holds = |slot| masters.iter().filter(own).any(|master| master.slots.contains(&slot));
    let complete_since_micros = mark_complete(shared, &connection, holds).await?;
    Ok(Declared { server: server.clone(), complete_since_micros })
}
