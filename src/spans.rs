//! Spans: one per traced call, sent to a collector by OTLP.
//!
//! In: the headers of a call that name its caller's trace ([`HEADERS`]), and its result. Out: spans in a bounded
//! queue, which a thread of its own sends. A call never waits: when the queue is full, the span is dropped. Whether a
//! call is sampled is decided before anything is created for it. Without tracing there is no [`Tracer`], and a call
//! only checks an `Option`.
//!
//! - `parent`: the caller's trace, from the headers
//! - `counted`: counts of spans that were sent, failed or dropped
//! - `export`: the connection to the collector

mod counted;
mod export;
mod parent;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, IdGenerator, RandomIdGenerator, Sampler, SdkTracer,
    SdkTracerProvider, Span,
};

use self::counted::Counted;
pub use self::counted::SpanStats;
pub use self::export::{Collector, ExportError, Protocol};
pub use self::parent::HEADERS;
use self::parent::Parent;

/// The most bytes of one text in a span. Texts come from requests.
const TEXT_BYTES_MAX: usize = 256;
/// The most texts in one list.
const LIST_MAX: usize = 16;

/// How long sending the last spans may take at the end of the process.
const LAST_SPANS_TIMEOUT: Duration = Duration::from_secs(2);

/// Which calls are traced, and how spans are queued.
#[derive(Clone, Debug)]
pub struct TracingOptions {
    /// The share of calls that are traced when the caller sends no trace: from 0 to 1.
    pub sampling_rate: f64,
    /// Attributes of this process on every span, such as `service.name`.
    pub resource: Vec<(String, String)>,
    /// The most spans in the queue; further ones are dropped.
    pub queue_max: usize,
    /// The most spans in one export.
    pub batch_max: usize,
    /// How long a span waits for others to be exported with it.
    pub delay: Duration,
}

/// Begins spans. Clones share everything.
#[derive(Clone, Debug)]
pub struct Tracer {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// For calls without a traced caller: so many of 2^63 are sampled.
    sampled: u64,
    stats: Arc<SpanStats>,
}

/// The span of a traced call. It is boxed because most calls have none, and a waiting call should be small.
#[derive(Debug)]
pub struct CallSpan(Box<Span>);

impl Tracer {
    /// Starts to send spans to `collector`, on the runtime that this is called in.
    /// Fails when the collector's address or certificates are invalid. (A collector that cannot be reached is no
    /// error.)
    pub fn start(options: TracingOptions, collector: &Collector) -> Result<Self, ExportError> {
        let batch = BatchConfigBuilder::default()
            .with_max_queue_size(options.queue_max)
            .with_max_export_batch_size(options.batch_max.min(options.queue_max))
            .with_scheduled_delay(options.delay)
            .build();
        let stats = Arc::<SpanStats>::default();
        let exporter = export::exporter(collector, Arc::clone(&stats))?;
        let queue = BatchSpanProcessor::builder(exporter).with_batch_config(batch).build();
        let spans = Counted { queue, queue_max: options.queue_max, stats: Arc::clone(&stats) };
        let attributes = options.resource.into_iter().map(|(name, text)| KeyValue::new(name, text));
        let resource = opentelemetry_sdk::Resource::builder_empty().with_attributes(attributes).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(spans)
            // It is called only for calls that are already sampled.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource)
            .build();
        let sampled = share_of_draws(options.sampling_rate);
        Ok(Self { tracer: provider.tracer("tidegate"), provider, sampled, stats })
    }

    pub fn stats(&self) -> &Arc<SpanStats> {
        &self.stats
    }

    /// Begins the span of a call, whose [`HEADERS`] `header` finds by their names; `None` when the call is not sampled.
    pub fn begin<'h>(
        &self,
        name: &'static str,
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> Option<CallSpan> {
        let context = match parent::of(header) {
            Some(Parent::Sampled(parent)) => Context::new().with_remote_span_context(*parent),
            Some(Parent::NotSampled) => return None,
            None if self.draws() => Context::new(),
            None => return None,
        };
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        let span = self.tracer.build_with_context(builder, &context);
        // Once the process has begun to stop, spans are no longer recorded.
        span.is_recording().then(|| CallSpan(Box::new(span)))
    }

    /// Whether a call whose caller sends no trace is sampled.
    fn draws(&self) -> bool {
        match self.sampled {
            0 => false,
            ALL_DRAWS => true,
            sampled => {
                let draw = u64::from_be_bytes(RandomIdGenerator::default().new_span_id().to_bytes());
                draw >> 1 < sampled
            }
        }
    }

    /// Sends the spans that are left. Blocks for a bounded time.
    pub fn finish(&self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_SPANS_TIMEOUT) {
            tracing::debug!(%error, "the last spans were not sent");
        }
    }
}

impl CallSpan {
    /// Adds a text attribute, cut to a bounded length.
    pub fn text(&mut self, name: &'static str, text: &str) {
        self.0.set_attribute(KeyValue::new(name, cut(text).to_owned()));
    }

    pub fn number(&mut self, name: &'static str, number: i64) {
        self.0.set_attribute(KeyValue::new(name, number));
    }

    /// Adds the first few of these texts as a list, each cut to a bounded length. Adds nothing when there are none.
    pub fn texts(&mut self, name: &'static str, texts: impl Iterator<Item = String>) {
        let texts: Vec<StringValue> = texts.take(LIST_MAX).map(|text| cut(&text).to_owned().into()).collect();
        if !texts.is_empty() {
            self.0.set_attribute(KeyValue::new(name, Value::Array(Array::String(texts))));
        }
    }

    /// Marks the call as failed.
    pub fn failed(&mut self, why: &str) {
        self.0.set_status(Status::error(cut(why).to_owned()));
    }
}

/// All random draws are below this.
const ALL_DRAWS: u64 = 1 << 63;

/// How many of [`ALL_DRAWS`] a rate from 0 to 1 is.
fn share_of_draws(rate: f64) -> u64 {
    (rate.clamp(0.0, 1.0) * ALL_DRAWS as f64) as u64
}

/// The text, cut to the bound.
fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_share_of_all_draws() {
        let share = |rate| share_of_draws(rate);
        assert_eq!([share(0.0), share(0.25), share(1.0)], [0, 1 << 61, ALL_DRAWS]);
        assert_eq!([share(-1.0), share(2.0), share(f64::NAN)], [0, ALL_DRAWS, 0]);
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let long = "ä".repeat(TEXT_BYTES_MAX);
        assert_eq!(cut(&long[..]).len(), TEXT_BYTES_MAX);
        assert_eq!(cut(&format!("x{long}")).len(), TEXT_BYTES_MAX - 1);
        assert_eq!((cut("abc"), cut("")), ("abc", ""));
    }
}
