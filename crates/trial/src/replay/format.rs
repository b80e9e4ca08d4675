//! Formats of access logs: a text that describes a line, compiled once, and the values in each line.
//!
//! In: the name of a format (`combined`, `envoy`, `json`), or a format in the syntax of NGINX (`$remote_addr …`) or
//! of Envoy (`%REQ(:PATH)% …`). Out: a [`LogLine`] per line, whose values are read by [`Variable`]s. Variables have
//! NGINX's names in all formats: see `variable`.

mod envoy;
mod json;
mod nginx;
mod template;
mod variable;

use tidegate_engine::Timestamp;
use tidegate_engine::stamp::{self, StampFormat, UnknownConversion};

use self::json::Json;
use self::template::Template;
pub(super) use self::variable::{UnknownVariable, Variable};

/// NGINX's and Apache's `combined`.
const COMBINED: &str = r#"$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent""#;

/// What Envoy writes if no format is configured.
const ENVOY: &str = concat!(
    r#"[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" "#,
    r#"%RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% "#,
    r#"%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "#,
    r#""%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%""#,
);

/// The most values of a line. A format with more is a mistake.
const FIELDS_MAX: usize = 64;

/// A format, compiled.
#[derive(Debug)]
pub(super) struct Format {
    kind: FormatKind,
    /// The place of the timestamp.
    stamp: usize,
    stamp_format: TimeFormat,
}

#[derive(Debug)]
enum FormatKind {
    Template(Template),
    Json(Json),
}

/// How stamps are read.
#[derive(Debug)]
enum TimeFormat {
    Of(StampFormat),
    /// The formats of timestamps.
    Any(Vec<StampFormat>),
}

/// Why a format cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// It is not a format.
    #[error(
        "{0:?} is no format (expected combined, envoy, json, or a format with $variables of NGINX or %OPERATORS% of Envoy)"
    )]
    Unknown(String),
    /// Two values without anything between them.
    #[error("nothing stands between {0} and {1} (expected a character that separates them)")]
    Adjacent(String, String),
    /// An operator has no end, or a `$` no name.
    #[error("{0:?} is no value of a format (expected {1})")]
    Value(String, &'static str),
    /// More than [`FIELDS_MAX`].
    #[error("the format has more than {FIELDS_MAX} values (expected fewer)")]
    TooMany,
    /// No value is a timestamp.
    #[error("the format does not say when a request came (expected {0})")]
    NoStamp(&'static str),
    /// A conversion of the timestamp.
    #[error(transparent)]
    #[allow(private_interfaces, reason = "only its text is used")]
    Conversion(#[from] UnknownConversion),
}

/// Why a line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: expected {expected}")]
pub(super) struct Unreadable {
    /// In bytes, from 1.
    pub(super) column: usize,
    pub(super) expected: String,
}

/// The place of a value in a line: its first byte and the one after its last.
type Span = (u32, u32);

/// The span of a value that is not there.
const ABSENT: Span = (1, 0);

/// Memory for the values of one line, reused for the next.
#[derive(Debug, Default)]
pub(super) struct Fields {
    spans: Vec<Span>,
    /// The values of a line with escapes.
    unescaped: Vec<u8>,
}

/// The values of one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogLine<'r> {
    base: &'r [u8],
    spans: &'r [Span],
    /// The time of the request, as the log has it.
    pub(super) stamp: &'r [u8],
    column: usize,
}

impl Format {
    /// Compiles a format. `time` names the key of the timestamp, which JSON needs.
    pub(super) fn parse(text: &str, time: Option<&str>) -> Result<Self, FormatError> {
        match (text, time) {
            ("json", Some(time)) => Ok(Self::json(time)),
            ("json", None) => Err(FormatError::NoStamp("--time KEY, the key of the time in each line")),
            ("combined", _) => Self::template(nginx::parse(COMBINED)?),
            ("envoy", _) => Self::template(envoy::parse(ENVOY)?),
            (text, _) if text.contains('$') => Self::template(nginx::parse(text)?),
            (text, _) if text.contains('%') => Self::template(envoy::parse(text)?),
            _ => Err(FormatError::Unknown(text.to_owned())),
        }
    }

    fn json(time: &str) -> Self {
        let mut json = Json::default();
        let stamp = json.want(time);
        let known = [stamp::RFC_3339, stamp::COMMON, stamp::EPOCH, "%F %T"];
        let formats = known.iter().filter_map(|format| StampFormat::parse(format).ok()).collect();
        Self { kind: FormatKind::Json(json), stamp, stamp_format: TimeFormat::Any(formats) }
    }

    fn template((template, stamp): (Template, (usize, String))) -> Result<Self, FormatError> {
        let (stamp, format) = stamp;
        let stamp_format = TimeFormat::Of(StampFormat::parse(&format)?);
        Ok(Self { kind: FormatKind::Template(template), stamp, stamp_format })
    }

    /// The number of the field with this name, if lines have it.
    fn field(&mut self, name: &str) -> Option<usize> {
        match &mut self.kind {
            FormatKind::Template(template) => template.names.iter().position(|field| field == name),
            FormatKind::Json(json) => Some(json.want(name)),
        }
    }

    /// The values of a line.
    #[inline]
    pub(super) fn read<'r>(&self, line: &'r [u8], fields: &'r mut Fields) -> Result<LogLine<'r>, Unreadable> {
        fields.spans.clear();
        let base = match &self.kind {
            FormatKind::Template(template) => {
                template.read(line, &mut fields.spans)?;
                line
            }
            FormatKind::Json(json) => {
                fields.unescaped.clear();
                json.read(line, &mut fields.spans, &mut fields.unescaped)?;
                &fields.unescaped
            }
        };
        let is_template = matches!(self.kind, FormatKind::Template(_));
        let spans = &fields.spans;
        let column = if is_template { spans[self.stamp].0 as usize + 1 } else { 1 };
        let stamp = slice(base, spans[self.stamp]).unwrap_or_default();
        Ok(LogLine { base, spans, stamp, column })
    }

    /// The time of a line.
    #[inline]
    pub(super) fn time(&self, line: &LogLine<'_>) -> Result<Timestamp, Unreadable> {
        let found = match &self.stamp_format {
            TimeFormat::Of(format) => format.read(line.stamp),
            TimeFormat::Any(formats) => formats.iter().find_map(|format| format.read(line.stamp)),
        };
        found.ok_or_else(|| Unreadable { column: line.column, expected: "a time".to_owned() })
    }

    /// A variable that no line had so far, if there is one.
    pub(super) fn never_seen(&self) -> Option<UnknownVariable> {
        match &self.kind {
            FormatKind::Template(_) => None,
            FormatKind::Json(json) => json.never_seen(),
        }
    }
}

#[inline]
fn slice(base: &[u8], span: Span) -> Option<&[u8]> {
    base.get(span.0 as usize..span.1 as usize)
}

impl<'r> LogLine<'r> {
    /// The value of a field; `None`: the request had none, which logs write as `-` or as nothing.
    #[inline]
    fn value(&self, field: usize) -> Option<&'r [u8]> {
        let value = slice(self.base, *self.spans.get(field)?)?;
        if matches!(value, b"" | b"-") { None } else { Some(value) }
    }
}

#[cfg(test)]
mod tests;
