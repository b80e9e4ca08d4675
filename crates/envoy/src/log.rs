//! The limiter's log, in Envoy's, at a bounded rate. Envoy chooses the level and the destination.

use std::fmt::{self, Write as _};
use std::sync::Once;

use program::inside::admit;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use crate::abi::{self, Level};

/// Begins to write, once.
pub fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        // Nobody else in this library has a subscriber.
        let _ = tracing::subscriber::set_global_default(Log);
    });
}

/// Writes events as lines.
struct Log;

impl Subscriber for Log {
    /// Envoy's level may change, so it is checked each time.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        abi::log_enabled(level(metadata))
    }

    fn event(&self, event: &Event<'_>) {
        let Some(left_out) = admit(event.metadata()) else { return };
        let mut line = Line("tidegate: ".to_owned());
        event.record(&mut line);
        if left_out > 0 {
            line.0 += &format!(" ({left_out} more like this were left out)");
        }
        abi::log(level(event.metadata()), &line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn level(metadata: &Metadata<'_>) -> Level {
    match *metadata.level() {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warn,
        tracing::Level::INFO => Level::Info,
        tracing::Level::DEBUG => Level::Debug,
        tracing::Level::TRACE => Level::Trace,
    }
}

/// The message of an event, then its fields.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A line that is too long is cut.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
