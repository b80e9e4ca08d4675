//! The seam without a server, for the benchmark that counts what a call allocates: no sockets, no runtime, no settings.

use bytes::Bytes;

use super::{Bounds, Reply, Seam};
use crate::metrics::Front;
use crate::service::fixture;

/// What answers encoded requests under these rules, on the thread that asks: `None` to one that is refused.
///
/// # Panics
/// When the rules are bad.
pub fn answerer(rules: &str) -> impl Fn(&[u8]) -> Option<Bytes> + use<> {
    let metrics = fixture::metrics();
    let service = fixture::service(Some(rules), &metrics).into();
    let seam = Seam::new(service, metrics, Bounds::default());
    move |request| match seam.answer(Front::Grpc, request, None) {
        Reply::Now(answer) => answer.ok().map(|answer| answer.message),
        Reply::Later(_) => None,
    }
}
