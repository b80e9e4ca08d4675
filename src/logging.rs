//! Logs: one line per event on stderr, as text or as JSON, at a bounded rate.
//!
//! An error that occurs a thousand times a second is logged a few times a second, and the next line has the number of
//! lines that were left out. So a failing peer cannot fill the disk.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, callsite::Identifier};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime as _;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, time::SystemTime as Rfc3339};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Registry, reload};

use crate::clock;
use tidegate_engine::text::{json_line, one_line};
use tidegate_operate::debug::LogSwitch;
use tidegate_serve::report::REPORT;

/// Lines per second from one place in the code. Further lines are left out until the next second.
const LINES_PER_SECOND_MAX: u32 = 10;

/// The level of the process; set when logging starts.
static LEVEL: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// A log level: its word, and the level that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLevel {
    name: &'static str,
    level: Level,
}

impl LogLevel {
    /// The error text that lists the words.
    pub const EXPECTED: &str = "one of the words expected: panic fatal error warn warning info debug trace";

    /// Parses a word, in upper or lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let words = [
            ("panic", Level::ERROR),
            ("fatal", Level::ERROR),
            ("error", Level::ERROR),
            ("warn", Level::WARN),
            ("warning", Level::WARN),
            ("info", Level::INFO),
            ("debug", Level::DEBUG),
            ("trace", Level::TRACE),
        ];
        let found = words.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        found.map(|(name, level)| Self { name, level })
    }

    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// Starts logging to stderr for the whole process, as JSON or as text. Later calls change nothing.
pub fn start(level: LogLevel, json: bool) {
    let (filter, handle) = reload::Layer::new(LevelFilter::from_level(level.level));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // It would log to stderr, which has just failed, and a failure there ends the thread.
        .log_internal_errors(false)
        .event_format(Lines { json });
    let subscriber = tracing_subscriber::registry().with(filter).with(lines);
    // Only tests start logging twice in one process and get the error.
    if tracing::subscriber::set_global_default(subscriber).is_ok() {
        let _ = LEVEL.set(handle);
    }
}

pub fn level() -> String {
    let level = LEVEL.get().and_then(|handle| handle.clone_current());
    level.map_or_else(|| "off".to_owned(), |level| level.to_string())
}

/// The level as the debug port reads and changes it.
pub const SWITCH: LogSwitch = LogSwitch { level, set_level };

/// Changes the level to this word of LOG_LEVEL.
/// Fails with the list of words, when it is none of them.
pub fn set_level(word: &str) -> Result<(), &'static str> {
    let level = LogLevel::parse(word).ok_or(LogLevel::EXPECTED)?;
    // Logged before the change and at a level that is always on, so the log says why it becomes silent.
    tracing::error!(target: REPORT, "log level is now {}", level.name());
    if let Some(handle) = LEVEL.get() {
        // It fails only without the subscriber, which lives as long as the process.
        let _ = handle.reload(LevelFilter::from_level(level.level));
    }
    Ok(())
}

/// Writes an event as one line.
struct Lines {
    json: bool,
}

/// The lines of this process.
static FLOOD: LazyLock<Flood> = LazyLock::new(Flood::default);

/// Whether a line may be written now. `None`: it is left out. Otherwise the number of lines of the same place that
/// were left out before it.
pub fn admit(metadata: &Metadata<'_>) -> Option<u64> {
    match metadata.target() {
        REPORT => Some(0),
        _ => FLOOD.admit(metadata.callsite(), clock::monotonic()),
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let Some(left_out) = admit(metadata) else { return Ok(()) };
        let mut text = Text::default();
        event.record(&mut text);
        if left_out > 0 {
            let _ = write!(text.fields, " ({left_out} more like this were left out)");
        }
        let level = metadata.level();
        if self.json { write_json(&mut writer, level, &text) } else { write_text(&mut writer, level, &text) }
    }
}

fn write_text(writer: &mut Writer<'_>, level: &Level, text: &Text) -> fmt::Result {
    Rfc3339.format_time(writer)?;
    writeln!(writer, " {level:>5} {}", one_line(&format!("{}{}", text.message, text.fields)))
}

fn write_json(writer: &mut Writer<'_>, level: &Level, text: &Text) -> fmt::Result {
    let mut time = String::new();
    Rfc3339.format_time(&mut Writer::new(&mut time))?;
    let line = serde_json::json!({
        "@timestamp": time,
        "@message": format!("{}{}", text.message, text.fields),
        "level": json_level(level),
    });
    writeln!(writer, "{}", json_line(&line.to_string()))
}

/// The words of `envoyproxy/ratelimit`. Log pipelines are configured for them.
const fn json_level(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// The message, and the fields that follow it as ` name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name => drop(write!(self.fields, " {name}={value:?}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => drop(write!(self.message, "{value:?}")),
            name => drop(write!(self.fields, " {name}={value:?}")),
        }
    }
}

/// Counts the lines of each place in the code in the current second. The number of places bounds the map.
#[derive(Default)]
struct Flood {
    places: Mutex<HashMap<Identifier, Second>>,
}

struct Second {
    began: Instant,
    lines: u32,
    left_out: u64,
}

impl Flood {
    /// `None`: the line is left out. Otherwise the number of lines of the same place that were left out before it.
    fn admit(&self, place: Identifier, now: Instant) -> Option<u64> {
        let mut places = self.places.lock();
        let second = places.entry(place).or_insert(Second { began: now, lines: 0, left_out: 0 });
        let mut left_out = 0;
        if now.saturating_duration_since(second.began) >= Duration::from_secs(1) {
            left_out = second.left_out;
            *second = Second { began: now, lines: 0, left_out: 0 };
        }
        if second.lines == LINES_PER_SECOND_MAX {
            second.left_out += 1;
            return None;
        }
        second.lines += 1;
        Some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        static CALLSITE: &dyn tracing::Callsite = {
            struct Nowhere;
            impl tracing::Callsite for Nowhere {
                fn set_interest(&self, _: tracing::subscriber::Interest) {}
                fn metadata(&self) -> &tracing::Metadata<'_> {
                    unreachable!("never asked in this test")
                }
            }
            &Nowhere
        };
        let (flood, start) = (Flood::default(), clock::monotonic());
        let admitted = |at| flood.admit(Identifier(CALLSITE), at);
        let written = (0..1000).filter(|_| admitted(start).is_some()).count();
        assert_eq!(written, LINES_PER_SECOND_MAX as usize);
        assert_eq!(admitted(start + Duration::from_secs(1)), Some(990));
        assert_eq!(admitted(start + Duration::from_secs(1)), Some(0));
    }
}
