//! The lane: our own HTTP/2 server for the gRPC port. Frames and connections, as a state machine without I/O, are the
//! crate `tidegate-grpc`; this module connects it to sockets and to the handler.
//!
//! It serves the same port as `grpc`, with the same handler; a setting chooses between the two. It serves decisions,
//! `grpc.health.v1` and server reflection.
//!
//! - `calls`: calls for decisions, and for health; `reflection`: the description of the services
//! - `driver`: a connection's task; `peer_log`: logs peers that misbehave

mod calls;
mod driver;
mod peer_log;
mod reflection;

use std::sync::Arc;

pub use self::driver::{bare, serve};

use self::peer_log::PeerLog;
use crate::front::Handler;
use tidegate_serve::health::Health;

/// The lane, as a front of the gRPC port. Clones share everything.
#[derive(Clone)]
pub struct LaneFront {
    handler: Arc<Handler>,
    health: Arc<Health>,
    peer_log: Arc<PeerLog>,
}

impl LaneFront {
    /// A front that answers decisions by `handler`, and health checks by `health`.
    #[must_use]
    pub fn new(handler: Arc<Handler>, health: Arc<Health>) -> Self {
        Self { handler, health, peer_log: Arc::default() }
    }
}
