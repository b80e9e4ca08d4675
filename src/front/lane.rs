//! The lane: our own HTTP/2 for the gRPC port, at the speed of frames. The frames and the connection, which is a state
//! machine without I/O, are the crate `tidegate-grpc`; here it meets sockets and services.
//!
//! It stands behind the same seam as `grpc` and serves the same port; which of the two is a setting. Beside the hot call
//! it answers `grpc.health.v1`; reflection is where tonic serves.
//!
//! - `calls`: what is called: the seam, health
//! - `driver`: a connection's task; `peer_log`: what the log says of peers that misbehave

mod calls;
mod driver;
mod peer_log;

use std::sync::Arc;

pub use self::driver::{bare, serve};

use self::peer_log::PeerLog;
use crate::front::Seam;
use crate::health::Health;

/// What answers on the gRPC port, by the lane. Clones share everything.
#[derive(Clone)]
pub struct LaneFront {
    handler: Arc<Seam>,
    health: Arc<Health>,
    peer_log: Arc<PeerLog>,
}

impl LaneFront {
    /// Answers calls by `seam`, and questions about health by `health`.
    #[must_use]
    pub fn new(handler: Arc<Seam>, health: Arc<Health>) -> Self {
        Self { handler, health, peer_log: Arc::default() }
    }
}
