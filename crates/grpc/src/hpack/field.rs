//! The meaning of one header field to a server of unary gRPC calls: a name and a value in, a [`Meaning`] out.

use std::time::Duration;

use super::Served;
use crate::{message, timeout};

/// HTTP methods, as far as they are distinguished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    Post,
    Head,
    #[default]
    Other,
}

/// The path of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// A call: the index of its path in [`Served::calls`].
    Known(u8),
    /// A dialog: the index of its path in [`Served::dialogs`].
    Dialog(u8),
    /// A path that is not served.
    #[default]
    Unknown,
}

/// The name of a field, as far as names are distinguished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    Method,
    Scheme,
    Path,
    Authority,
    ContentType,
    ContentLength,
    Te,
    GrpcTimeout,
    /// A name that an HTTP/2 request must not have.
    Malformed,
    /// A name whose text is kept: its index in [`Served::kept`].
    Kept(u8),
    /// Any other.
    Other,
}

/// The meaning of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning {
    Nothing,
    /// It makes the whole request malformed (RFC 9113, 8.1.1).
    Malformed,
    Method(Method),
    Scheme,
    Path(Route),
    Authority,
    /// The content type, and whether it is gRPC.
    ContentType(bool),
    ContentLength(u64),
    /// How long the caller waits; `None` if the value is malformed.
    Timeout(Option<Duration>),
    /// The text of a header that is kept.
    Kept(Box<[u8]>),
}

impl Name {
    /// Classifies a name, for a server that keeps the headers of these names.
    pub fn of(name: &[u8], kept: &[&str]) -> Self {
        match name {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":path" => Self::Path,
            b":authority" => Self::Authority,
            b"content-type" => Self::ContentType,
            b"content-length" => Self::ContentLength,
            b"te" => Self::Te,
            b"grpc-timeout" => Self::GrpcTimeout,
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                Self::Malformed
            }
            name if name.is_empty() || !name.iter().all(|&byte| is_name_byte(byte)) => Self::Malformed,
            name => kept
                .iter()
                .zip(0..)
                .find(|(kept, _)| kept.as_bytes() == name)
                .map_or(Self::Other, |(_, at)| Self::Kept(at)),
        }
    }
}

impl Meaning {
    /// The meaning of a field with this name and value.
    pub fn of(name: Name, value: &[u8], served: &Served) -> Self {
        if !is_value(value) {
            return Self::Malformed;
        }
        match name {
            Name::Other => Self::Nothing,
            Name::Kept(_) => Self::Kept(value.into()),
            Name::Malformed => Self::Malformed,
            Name::Method => method(value),
            Name::Scheme if value.is_empty() => Self::Malformed,
            Name::Scheme => Self::Scheme,
            Name::Path => path(value, served),
            Name::Authority => Self::Authority,
            Name::ContentType => Self::ContentType(message::is_content_type(value)),
            Name::ContentLength => content_length(value),
            Name::Te if value == b"trailers" => Self::Nothing,
            Name::Te => Self::Malformed,
            Name::GrpcTimeout => Self::Timeout(timeout::parse(value)),
        }
    }
}

fn method(value: &[u8]) -> Meaning {
    match value {
        b"POST" => Meaning::Method(Method::Post),
        b"HEAD" => Meaning::Method(Method::Head),
        [] => Meaning::Malformed,
        _ => Meaning::Method(Method::Other),
    }
}

fn path(value: &[u8], served: &Served) -> Meaning {
    let place =
        |paths: &[&str]| paths.iter().zip(0..).find(|(path, _)| path.as_bytes() == value).map(|(_, at)| at);
    let known = place(served.calls).map(Route::Known).or_else(|| place(served.dialogs).map(Route::Dialog));
    match (known, value) {
        (Some(route), _) => Meaning::Path(route),
        (None, [b'/', ..] | b"*") => Meaning::Path(Route::Unknown),
        (None, _) => Meaning::Malformed,
    }
}

fn content_length(value: &[u8]) -> Meaning {
    // More digits might not fit into a `u64`, and nobody sends so many.
    const DIGITS_MAX: usize = 18;
    if value.is_empty() || value.len() > DIGITS_MAX || !value.iter().all(u8::is_ascii_digit) {
        return Meaning::Malformed;
    }
    Meaning::ContentLength(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}

/// Whether it may be in a token in lower case (RFC 9110, 5.6.2; RFC 9113, 8.2.1).
fn is_name_byte(byte: u8) -> bool {
    matches!(byte,
        b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^'
        | b'_' | b'`' | b'|' | b'~')
}

/// Whether each byte is printable, a tab, or beyond ASCII, and neither end is white space (RFC 9113, 8.2.1). The loop
/// has no early exit, so that the compiler can check many bytes at once.
pub(super) fn is_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if is_space(value.first()) || is_space(value.last()) {
        return false;
    }
    value.iter().fold(true, |good, &byte| good & ((byte >= b' ') & (byte != 0x7f) | (byte == b'\t')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{CALL, SERVED};

    fn meaning(name: &[u8], value: &[u8]) -> Meaning {
        Meaning::of(Name::of(name, SERVED.kept), value, &SERVED)
    }

    #[test]
    fn fields_of_a_call_get_their_meaning() {
        let timeout = Some(Duration::from_millis(20));
        for (name, value, expected) in [
            (":method", "POST", Meaning::Method(Method::Post)),
            (":method", "GET", Meaning::Method(Method::Other)),
            (":scheme", "https", Meaning::Scheme),
            (":path", CALL, Meaning::Path(Route::Known(0))),
            (":path", "/grpc.health.v1.Health/Check", Meaning::Path(Route::Known(1))),
            (":path", "/grpc.health.v1.Health/Watch", Meaning::Path(Route::Known(2))),
            (":path", "/talk", Meaning::Path(Route::Dialog(0))),
            (":path", "/", Meaning::Path(Route::Unknown)),
            ("x-kept", "a text", Meaning::Kept((*b"a text").into())),
            (":authority", "", Meaning::Authority),
            ("te", "trailers", Meaning::Nothing),
            ("content-type", "application/grpc", Meaning::ContentType(true)),
            ("content-type", "application/grpc+proto", Meaning::ContentType(true)),
            ("content-type", "application/grpc-web", Meaning::ContentType(false)),
            ("content-length", "0123", Meaning::ContentLength(123)),
            ("grpc-timeout", "20m", Meaning::Timeout(timeout)),
            ("grpc-timeout", "20", Meaning::Timeout(None)),
            ("x-request-id", "caf\u{e9}\t !", Meaning::Nothing),
            ("x-request-id", "", Meaning::Nothing),
        ] {
            assert_eq!(meaning(name.as_bytes(), value.as_bytes()), expected, "{name}: {value}");
        }
    }

    #[test]
    fn malformed_fields_are_recognized() {
        for (name, value) in [
            ("", "x"),
            ("Upper", "x"),
            ("sp ace", "x"),
            (":status", "200"),
            (":protocol", "websocket"),
            (":method", ""),
            (":scheme", ""),
            (":path", ""),
            (":path", "no-slash"),
            ("te", "gzip"),
            ("connection", "close"),
            ("transfer-encoding", "chunked"),
            ("content-length", ""),
            ("content-length", "-1"),
            ("content-length", "9999999999999999999"),
            ("x", "a\0b"),
            ("x", "a\r\n"),
            ("x", "\u{7f}"),
            ("x", " "),
            ("x", " a"),
            ("x", "a "),
            ("x", "\ta"),
            ("x-kept", " a"),
            ("x", "a\t"),
            (":authority", " limiter"),
            (" x", "a"),
            ("x ", "a"),
            (":x", "a"),
            ("x:", "a"),
            ("\u{e9}", "a"),
        ] {
            assert_eq!(meaning(name.as_bytes(), value.as_bytes()), Meaning::Malformed, "{name}: {value}");
        }
    }
}
