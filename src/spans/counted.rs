//! The queue of spans, with counts of those that were sent, failed or dropped.
//!
//! The library's own queue drops a span when it is full, and does not say how many. So spans are counted in front of
//! it: a span for which there is no room never gets there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};

/// Counts of spans.
#[derive(Debug, Default)]
pub struct SpanStats {
    /// In the queue now.
    queued: AtomicUsize,
    /// Exported without an error.
    pub sent: AtomicU64,
    /// Their export failed.
    pub refused: AtomicU64,
    /// The queue was full.
    pub dropped: AtomicU64,
}

impl SpanStats {
    /// So many spans left the queue, to be sent.
    pub(super) fn left(&self, spans: usize) {
        self.queued.fetch_sub(spans, Relaxed);
    }

    /// So many spans were sent, with this result.
    pub(super) fn ended(&self, spans: usize, result: &OTelSdkResult) {
        let count = if result.is_ok() { &self.sent } else { &self.refused };
        count.fetch_add(spans as u64, Relaxed);
    }
}

/// A queue of at most so many spans, counted.
#[derive(Debug)]
pub(super) struct Counted<Q> {
    pub(super) queue: Q,
    pub(super) queue_max: usize,
    pub(super) stats: Arc<SpanStats>,
}

impl<Q: SpanProcessor> SpanProcessor for Counted<Q> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.queue.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.stats.queued.fetch_add(1, Relaxed) < self.queue_max {
            return self.queue.on_end(span);
        }
        self.stats.left(1);
        self.stats.dropped.fetch_add(1, Relaxed);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.queue.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.queue.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.queue.set_resource(resource);
    }
}
