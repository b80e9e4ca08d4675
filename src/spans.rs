//! Spans: one a call, for those whose caller traces, on their way to a collector by OTLP.
//!
//! In: the headers of a call, and what became of it. Out: spans in a bounded queue that a thread of its own empties.
//! A call never waits: a span that finds the queue full is dropped. Where tracing is off there is no [`Tracer`], and a
//! call pays for one look at an `Option`.
//!
//! - `parent`: the caller's trace, out of its headers
//! - `export`: the collector, and how it is reached

mod export;
mod parent;

use std::time::Duration;

use http::HeaderMap;
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, Status, Tracer as _, TracerProvider as _};
use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, Span,
};

pub use self::export::{Collector, ExportError, Protocol};

/// Bytes of one text in a span. Texts come from requests.
const TEXT_BYTES_MAX: usize = 256;
/// Texts in one list.
const LIST_MAX: usize = 16;

/// How long the spans that are left at the end may take.
const LAST_SPANS_TIMEOUT: Duration = Duration::from_secs(2);

/// What is traced, and how it waits for its way out.
#[derive(Clone, Debug)]
pub struct TracingOptions {
    /// The share of calls without a traced caller that are traced: from 0 to 1.
    pub sampling_rate: f64,
    /// What every span says of this process, such as `service.name`.
    pub resource: Vec<(String, String)>,
    /// Spans that may wait; further ones are dropped.
    pub queue_max: usize,
    /// Spans of one export.
    pub batch_max: usize,
    /// How long a span waits for others.
    pub delay: Duration,
}

/// Begins spans. Clones share everything.
#[derive(Clone, Debug)]
pub struct Tracer {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// A call that is traced. In a box, because most calls are not, and what waits should be small.
#[derive(Debug)]
pub struct CallSpan(Box<Span>);

impl Tracer {
    /// Traces to `collector`. Has to be called within the runtime that is to talk to it.
    ///
    /// # Errors
    /// When the collector's address or its certificates make no sense. (That it is not there is no error.)
    pub fn start(options: TracingOptions, collector: &Collector) -> Result<Self, ExportError> {
        let batch = BatchConfigBuilder::default()
            .with_max_queue_size(options.queue_max)
            .with_max_export_batch_size(options.batch_max.min(options.queue_max))
            .with_scheduled_delay(options.delay)
            .build();
        let spans =
            BatchSpanProcessor::builder(export::exporter(collector)?).with_batch_config(batch).build();
        let own = Sampler::TraceIdRatioBased(options.sampling_rate.clamp(0.0, 1.0));
        let attributes = options.resource.into_iter().map(|(name, text)| KeyValue::new(name, text));
        let resource = opentelemetry_sdk::Resource::builder_empty().with_attributes(attributes).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(spans)
            .with_sampler(Sampler::ParentBased(Box::new(own)))
            .with_resource(resource)
            .build();
        Ok(Self { tracer: provider.tracer("tidegate"), provider })
    }

    /// Begins the span of a call with these headers; `None` when it is not sampled.
    pub fn begin(&self, name: &'static str, headers: &HeaderMap) -> Option<CallSpan> {
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        let span = self.tracer.build_with_context(builder, &parent::of(headers));
        span.is_recording().then(|| CallSpan(Box::new(span)))
    }

    /// Sends what is left. Blocks, for a short time at most.
    pub fn finish(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_SPANS_TIMEOUT) {
            tracing::debug!(%error, "the last spans were not sent");
        }
    }
}

impl CallSpan {
    /// Says a text of the call, cut to a bounded length.
    pub fn text(&mut self, name: &'static str, text: &str) {
        self.0.set_attribute(KeyValue::new(name, cut(text).to_owned()));
    }

    /// Says a number of the call.
    pub fn number(&mut self, name: &'static str, number: i64) {
        self.0.set_attribute(KeyValue::new(name, number));
    }

    /// Says the first few of these texts, each cut to a bounded length; nothing when there are none.
    pub fn texts(&mut self, name: &'static str, texts: impl Iterator<Item = String>) {
        let texts: Vec<StringValue> = texts.take(LIST_MAX).map(|text| cut(&text).to_owned().into()).collect();
        if !texts.is_empty() {
            self.0.set_attribute(KeyValue::new(name, Value::Array(Array::String(texts))));
        }
    }

    /// The call failed.
    pub fn failed(&mut self, why: &str) {
        self.0.set_status(Status::error(cut(why).to_owned()));
    }
}

/// As much of the text as may be told.
fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters() {
        let long = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(cut(&long[..]).len(), TEXT_BYTES_MAX);
        assert_eq!(cut(&format!("x{long}")).len(), TEXT_BYTES_MAX - 1);
        assert_eq!((cut("abc"), cut("")), ("abc", ""));
    }
}
