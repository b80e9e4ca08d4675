//! Text from outside: decodes percent-encoding, and writes lines that no text can forge.
//!
//! Values, keys and domains come from anybody's requests. Before people see them (in logs, pages, messages) they go
//! through [`one_line`] or [`json_line`]: a value must not begin a second line, move a terminal's cursor, or reverse
//! text. A text of many lines, whose values went through these, goes through [`lines`] when it leaves the program.

use std::borrow::Cow;

/// The text as one line: control characters, and characters that break or reorder lines, are written as in Rust
/// (`\n`, `\u{1b}`).
pub fn one_line(text: &str) -> Cow<'_, str> {
    replaced(text, is_unsafe, |line, char| line.extend(char.escape_default()))
}

/// Like [`one_line`], for a text of several lines: the ends of lines and tabs stay.
pub fn lines(text: &str) -> Cow<'_, str> {
    let is_unsafe = |char| !matches!(char, '\n' | '\t') && is_unsafe(char);
    replaced(text, is_unsafe, |lines, char| lines.extend(char.escape_default()))
}

/// Like [`one_line`], for JSON: a parser reads the same value from it.
pub fn json_line(json: &str) -> Cow<'_, str> {
    // All of these characters have four hexadecimal digits at most, and only occur within strings.
    replaced(json, is_unsafe, |line, char| line.push_str(&format!("\\u{:04x}", u32::from(char))))
}

/// A time for people in its two largest units, rounded up: `45 s`, `1 h 10 min`, `3 d`.
pub fn span(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    // Rounding up may fill the next unit.
    let rounded = match seconds {
        0..3_600 => seconds,
        3_600..86_400 => seconds.div_ceil(60).saturating_mul(60),
        _ => seconds.div_ceil(3_600).saturating_mul(3_600),
    };
    let Some(at) = units.iter().position(|(_, size)| rounded >= *size) else { return "0 s".to_owned() };
    let (unit, size) = units[at];
    let whole = format!("{} {unit}", rounded / size);
    match units.get(at + 1).map(|(unit, smaller)| (rounded % size / smaller, unit)) {
        Some((rest, unit)) if rest > 0 => format!("{whole} {rest} {unit}"),
        _ => whole,
    }
}

/// The first `chars_max` characters of the text, with `…` in place of the rest.
pub fn cut(text: &str, chars_max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

fn replaced(
    text: &str,
    is_unsafe: impl Fn(char) -> bool,
    replace: impl Fn(&mut String, char),
) -> Cow<'_, str> {
    if !text.contains(&is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match is_unsafe(char) {
            true => replace(&mut line, char),
            false => line.push(char),
        }
    }
    Cow::Owned(line)
}

/// Control characters (U+0085, a line's end, is one), the separators of lines and paragraphs, the marks that change
/// the direction of writing, and the byte order mark, which is invisible.
pub fn is_unsafe(char: char) -> bool {
    matches!(
        char,
        '\u{61c}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}'
    ) || char.is_control()
}

/// Why a text cannot be percent-decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PercentError {
    /// A `%` without two hexadecimal digits.
    Escape,
    /// The bytes that it stands for are not UTF-8.
    NotUtf8,
}

/// The text with every `%XX` as the byte that it stands for.
///
/// # Errors
/// What is wrong with the text.
pub fn percent_decoded(text: &str) -> Result<Cow<'_, str>, PercentError> {
    decoded(text, false)
}

/// Like [`percent_decoded`], for a part of a URL's query, where `+` is a space.
///
/// # Errors
/// What is wrong with the text.
pub fn query_decoded(text: &str) -> Result<Cow<'_, str>, PercentError> {
    decoded(text, true)
}

/// Borrowed when there is nothing to decode.
fn decoded(text: &str, plus_is_space: bool) -> Result<Cow<'_, str>, PercentError> {
    if !text.bytes().any(|byte| byte == b'%' || (plus_is_space && byte == b'+')) {
        return Ok(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match first {
            b'%' => escaped_byte(after).ok_or(PercentError::Escape)?,
            b'+' if plus_is_space => (b' ', after),
            byte => (byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).map(Cow::Owned).map_err(|_| PercentError::NotUtf8)
}

/// The byte that the two hexadecimal digits at the front of `text` stand for, and the rest.
pub fn escaped_byte(text: &[u8]) -> Option<(u8, &[u8])> {
    let (&[high, low], rest) = text.split_first_chunk()?;
    // Parsing a number would accept a sign.
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some(((digit(high)? << 4 | digit(low)?) as u8, rest))
}

/// The decoded value of the first parameter with this name in the query of a request's target. It decodes as Envoy
/// does: a `%` that begins no escape stays, and so does a `+`.
pub fn query_parameter<'t>(target: &'t str, name: &str) -> Option<Cow<'t, [u8]>> {
    let (_, query) = target.split_once('?')?;
    let parameters = query.split('&').map(|it| it.split_once('=').unwrap_or((it, "")));
    let mut named = parameters.filter(|(key, _)| *bytes_of(key) == *name.as_bytes());
    named.next().map(|(_, value)| bytes_of(value))
}

fn bytes_of(raw: &str) -> Cow<'_, [u8]> {
    if !raw.contains('%') {
        return Cow::Borrowed(raw.as_bytes());
    }
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let escaped = if first == b'%' { escaped_byte(after) } else { None };
        let (byte, after) = escaped.unwrap_or((first, after));
        bytes.push(byte);
        rest = after;
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_can_forge_a_line_or_steer_a_terminal() {
        assert_eq!(one_line("a\r\n2026 ERROR b\u{1b}[2K\u{9b}1A"), "a\\r\\n2026 ERROR b\\u{1b}[2K\\u{9b}1A");
        assert_eq!(one_line("a\u{85}b\u{2028}c\u{202e}d"), "a\\u{85}b\\u{2028}c\\u{202e}d");
        assert_eq!(one_line("\"schön\" \\ …"), "\"schön\" \\ …");
        assert_eq!(lines("a\tb\r\n\u{1b}[2K\u{202e}\n"), "a\tb\\r\n\\u{1b}[2K\\u{202e}\n");
    }

    #[test]
    fn json_means_the_same_on_one_line() {
        let value = serde_json::json!({"a": "\u{1b}\n\u{7f}\u{85}\u{2028}\u{2029}\u{202e}\u{2066}\u{feff}é"});
        let text = value.to_string();
        let line = json_line(&text);
        assert!(!line.contains(is_unsafe), "{line}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).ok(), Some(value));
    }

    #[test]
    fn only_two_hexadecimal_digits_are_an_escape() {
        assert_eq!(percent_decoded("a%20%C3%a9%25+").as_deref(), Ok("a é%+"));
        assert_eq!(query_decoded("a+%2B").as_deref(), Ok("a +"));
        for malformed in ["%+f", "%-1", "% 1", "%f", "%", "a%g0", "%é"] {
            assert_eq!(percent_decoded(malformed), Err(PercentError::Escape), "{malformed}");
        }
        assert_eq!(percent_decoded("%ff"), Err(PercentError::NotUtf8));
    }

    #[test]
    fn a_span_has_its_two_largest_units_and_is_never_too_short() {
        for (seconds, expected) in [
            (0, "0 s"),
            (45, "45 s"),
            (60, "1 min"),
            (61, "1 min 1 s"),
            (3_599, "59 min 59 s"),
            (3_600, "1 h"),
            (3_610, "1 h 1 min"),
            (4_200, "1 h 10 min"),
            (86_399, "1 d"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(span(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!((cut("éa", 2), cut("éab", 2)), ("éa".into(), "éa…".into()));
    }
}
