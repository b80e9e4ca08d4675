//! The handler and the lane without a server, for benchmarks that measure them alone: without sockets, runtime or
//! settings.

use std::sync::Arc;

use bytes::Bytes;

use super::lane::{LaneFront, bare};
use super::{Handler, Reply};
use tidegate_serve::health::Health;
use tidegate_serve::metrics::{Front, Metrics};
use tidegate_serve::refusal::Bounds;
use tidegate_serve::service::Service;

/// A connection of the lane: removes complete frames from its input, appends its output, and returns how many bytes
/// it processed.
pub type BareConnection = Box<dyn FnMut(&[u8], &mut Vec<u8>) -> usize>;

/// Returns a function that opens connections of the lane to this service.
pub fn lane(service: Service, metrics: Arc<Metrics>) -> impl Fn() -> BareConnection {
    let handler = Handler::new(service.into(), metrics, Bounds::default());
    let front = LaneFront::new(Arc::new(handler), Arc::new(Health::starting()));
    move || Box::new(bare(front.clone()))
}

/// Returns a function that answers encoded requests to this service, on the calling thread: `None` for a refusal.
pub fn answerer(service: Service, metrics: Arc<Metrics>) -> impl Fn(&[u8]) -> Option<Bytes> {
    let handler = Handler::new(service.into(), metrics, Bounds::default());
    move |request| match handler.answer(Front::Grpc, request, None, None) {
        Reply::Now(answer) => answer.ok().map(|answer| answer.message),
        Reply::Later(_) => None,
    }
}
