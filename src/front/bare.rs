//! The handler and the lane without a server, for benchmarks that measure them alone: without sockets, runtime or
//! settings.

use std::sync::Arc;

use bytes::Bytes;

use super::lane::{LaneFront, bare};
use super::{Handler, Reply};
use tidegate_records::{Record, RecordKey};
use tidegate_serve::health::Health;
use tidegate_serve::metrics::Front;
use tidegate_serve::refusal::Bounds;
use tidegate_serve::service::fixture;

fn handler(rules: &str) -> Handler {
    let metrics = fixture::metrics();
    let service = fixture::service(Some(rules), &metrics).into();
    Handler::new(service, metrics, Bounds::default())
}

/// A connection of the lane: takes whole frames off its input, appends its output, and returns how many bytes it took.
pub type BareConnection = Box<dyn FnMut(&[u8], &mut Vec<u8>) -> usize>;

/// Returns a function that opens connections of the lane under these rules.
///
/// # Panics
/// When the rules are bad.
pub fn lane(rules: &str) -> impl Fn() -> BareConnection + use<> {
    connections(handler(rules))
}

/// The same with rules whose keys may have records: all of these are known, so no store is asked.
///
/// # Panics
/// When the rules are bad.
pub fn lane_with_records(
    rules: &str,
    known: impl ExactSizeIterator<Item = (RecordKey, Option<Record>)>,
) -> Box<dyn Fn() -> BareConnection> {
    let metrics = fixture::metrics();
    let service = fixture::recorded(fixture::service(Some(rules), &metrics), known);
    Box::new(connections(Handler::new(service.into(), metrics, Bounds::default())))
}

fn connections(handler: Handler) -> impl Fn() -> BareConnection + use<> {
    let front = LaneFront::new(Arc::new(handler), Arc::new(Health::starting()));
    move || Box::new(bare(front.clone()))
}

/// Returns a function that answers encoded requests under these rules, on the calling thread: `None` for a refusal.
///
/// # Panics
/// When the rules are bad.
pub fn answerer(rules: &str) -> impl Fn(&[u8]) -> Option<Bytes> + use<> {
    let handler = handler(rules);
    move |request| match handler.answer(Front::Grpc, request, None, None) {
        Reply::Now(answer) => answer.ok().map(|answer| answer.message),
        Reply::Later(_) => None,
    }
}
