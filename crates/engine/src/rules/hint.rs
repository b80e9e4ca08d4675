//! Recognises usual mistakes in rules by the wrong or strange text, and writes messages that help.

use crate::rules::keys::known_key;
use crate::rules::quote::{is_invisible, quote};
use tidegate_yaml::Place;

/// The least similarity (Jaro) at which a word is suggested for another.
const ALIKE_MIN: f64 = 0.7;

/// The most units that a fractional rate is spread over.
const UNITS_MAX: u32 = 1_000;

/// The mistake may be this many lines before the parser's error: a text goes on until the next `key:`.
const LINES_BEFORE: usize = 3;

/// The usual name of an invisible character.
pub(super) fn name_of_invisible(char: char) -> String {
    let name = match char {
        '\u{a0}' => "no-break space",
        '\u{ad}' => "soft hyphen",
        '\u{200b}' => "zero-width space",
        '\u{3000}' => "ideographic space",
        '\u{feff}' => "byte order mark",
        '\u{2028}' | '\u{2029}' => "line separator",
        '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => "direction mark",
        _ => "invisible character",
    };
    format!("U+{:04X} ({name})", u32::from(char))
}

/// Something that a template engine should have replaced: `${LIMIT}`, `{{ .Values.limit }}`.
pub(super) fn is_template(text: &str) -> bool {
    // A pattern that searches for templates is none: `*${jndi:*}*`.
    let is_variable = |rest: &str| {
        let end = rest.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(rest.len());
        let after = &rest[end..];
        end > 0 && (after.starts_with('}') || after.starts_with(":-") && after.contains('}'))
    };
    let is_action = |rest: &str| rest.contains("}}");
    text.split("${").skip(1).any(is_variable) || text.split("{{").skip(1).any(is_action)
}

/// The known key at the front of a word like `domain:shop`, which lacks a space.
pub(super) fn key_without_space(word: &str) -> Option<&'static str> {
    let (key, value) = word.split_once(':')?;
    known_key(key).filter(|_| !value.is_empty())
}

/// The first character that looks like a space or like nothing and is probably unintended. French uses no-break
/// spaces, and Japanese ideographic ones: both are accepted in a text with letters beyond ASCII, except at its ends,
/// where nobody sees them.
fn suspicious_char(text: &str) -> Option<char> {
    let has_foreign_letters = text.chars().any(|char| !char.is_ascii() && char.is_alphabetic());
    let is_within = |at: usize, char: char| at > 0 && at + char.len_utf8() < text.len();
    let is_meant = |at: usize, char: char| {
        matches!(char, '\u{a0}' | '\u{3000}') && has_foreign_letters && is_within(at, char)
    };
    text.char_indices().find(|&(at, char)| is_invisible(char) && !is_meant(at, char)).map(|(_, char)| char)
}

/// Why this text is probably unintended as a domain, key, value or number: words that go on after the field's name.
pub(super) fn why_suspicious(text: &str) -> Option<String> {
    if let Some(char) = suspicious_char(text) {
        let (text, name) = (quote(text), name_of_invisible(char));
        return Some(format!("is {text}, with {name} in it (expected visible characters)"));
    }
    if is_template(text) {
        return Some(format!("is {}, a template that was not rendered (expected its result)", quote(text)));
    }
    let glued = text.split_ascii_whitespace().skip(1).find_map(key_without_space)?;
    Some(format!("goes on with the next line (expected a space after `{glued}:`)"))
}

/// The message for a text in the place of a known key, or of a mapping.
pub(super) fn for_key(text: &str) -> Option<String> {
    if let Some(key) = key_without_space(text).filter(|_| !text.contains(is_invisible)) {
        return Some(format!("{} has no space after its colon (expected `{key}: …`)", quote(text)));
    }
    why_suspicious(text).map(|why| format!("what stands here {why}"))
}

/// A rate as whole requests in whole units.
pub(super) fn as_fraction(rate: f64) -> Option<(u32, u32)> {
    let requests = |units: u32| rate * f64::from(units);
    let is_whole = |number: f64| {
        number.round() >= 1.0 && number <= f64::from(u32::MAX) && (number - number.round()).abs() < 1e-6
    };
    (1..=UNITS_MAX)
        .find(|&units| is_whole(requests(units)))
        .map(|units| (requests(units).round() as u32, units))
}

/// The most similar word, if one is similar enough.
pub(super) fn closest<'w>(text: &str, words: &[&'w str]) -> Option<&'w str> {
    let text = text.to_ascii_lowercase();
    let alike = words.iter().map(|word| (strsim::jaro(&text, word), *word));
    alike.filter(|(alike, _)| *alike > ALIKE_MIN).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, word)| word)
}

/// A better place and message for a syntax error, if the lines that lead to it show what was meant.
pub(super) fn of_syntax_error(text: &str, at: Place, message: &str) -> Option<(Place, String)> {
    // Other errors say what is wrong themselves.
    if !message.starts_with("not YAML") {
        return None;
    }
    let lines: Vec<&str> = text.lines().take(at.line as usize).collect();
    let template = |line: &str| line.find("{{").filter(|_| !line.trim_start().starts_with('#'));
    if let Some((number, column)) =
        lines.iter().enumerate().rev().find_map(|(n, line)| Some((n, template(line)?)))
    {
        let place = place(number, lines[number], column);
        return Some((
            place,
            "`{{` begins a template that was not rendered (expected its result)".to_owned(),
        ));
    }
    let last = lines.len().checked_sub(1)?;
    if (message.contains("anchor") || message.contains("alias"))
        && let Some((column, alias)) = unquoted_star(lines[last])
    {
        let alias = quote(alias);
        let message = format!(
            "{alias} begins a YAML alias here (expected it in quotes: a `*` that is a wildcard needs them)"
        );
        return Some((place(last, lines[last], column), message));
    }
    let near = lines.iter().enumerate().rev().take(LINES_BEFORE + 1);
    near.filter(|(_, line)| !line.trim_start().starts_with('#')).find_map(|(number, line)| {
        let column = line.len() - line.trim_start_matches([' ', '-']).len();
        let word = line[column..].split_ascii_whitespace().next().unwrap_or_default();
        if let (Some(column), Some(char)) =
            (line.find(is_invisible), line.chars().find(|&char| is_invisible(char)))
        {
            let message =
                format!("{} stands here (expected a plain space, or nothing)", name_of_invisible(char));
            return Some((place(number, line, column), message));
        }
        key_without_space(word)?;
        Some((place(number, line, column), for_key(word)?))
    })
}

/// The place of the byte `column` of a line, counted from 0.
fn place(line: usize, text: &str, column: usize) -> Place {
    Place { line: line as u32 + 1, column: text[..column].chars().count() as u32 + 1 }
}

/// A word that begins with `*` where a value belongs.
fn unquoted_star(line: &str) -> Option<(usize, &str)> {
    let starts = line.match_indices('*').map(|(at, _)| at);
    let mut begins = starts.filter(|&at| line[..at].trim_end().ends_with([':', '-', '[', ',']));
    let at = begins.next()?;
    let end = line[at..].find([' ', ',', '}', ']']).map_or(line.len(), |end| at + end);
    Some((at, &line[at..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_means_is_found_in_any_text() {
        for (text, expected) in [
            ("a\u{a0}b", "is `a\\u{a0}b`, with U+00A0 (no-break space) in it (expected visible characters)"),
            ("${USER}", "is `${USER}`, a template that was not rendered (expected its result)"),
            (
                "{{ .Values.x }}",
                "is `{{ .Values.x }}`, a template that was not rendered (expected its result)",
            ),
            ("user value:alice", "goes on with the next line (expected a space after `value:`)"),
        ] {
            assert_eq!(why_suspicious(text).as_deref(), Some(expected));
        }
        for text in ["alice", "a b", "$5", "{a}", "key:a", "é 日本", "urn:x unit", "a http://x", "x value: y"]
        {
            assert_eq!(why_suspicious(text), None, "{text}");
        }
    }

    #[test]
    fn spaces_of_other_scripts_are_meant_between_their_words_only() {
        for text in ["東京\u{3000}大阪", "\u{c9}t\u{e9}\u{a0}!", "caf\u{e9}\u{a0}*", "東\u{3000}\u{3000}京"]
        {
            assert_eq!(why_suspicious(text), None, "{text}");
        }
        for text in [
            "東京\u{3000}",
            "\u{3000}東京",
            "東京\u{3000}\u{3000}",
            "caf\u{e9}\u{a0}",
            "\u{a0}caf\u{e9}",
            "\u{3000}",
            "tokyo\u{3000}osaka",
            "1\u{a0}000",
            "東\u{200b}京",
            "caf\u{e9}\u{ad}s",
        ] {
            let why = why_suspicious(text).unwrap_or_default();
            assert!(why.contains("in it (expected visible characters)"), "{}: {why}", text.escape_unicode());
        }
        assert!(why_suspicious("東京\u{3000}").is_some_and(|why| why.contains("U+3000 (ideographic space)")));
    }

    #[test]
    fn a_rate_below_one_becomes_whole_numbers() {
        for (rate, fraction) in [
            (0.5, (1, 2)),
            (1.5, (3, 2)),
            (0.1, (1, 10)),
            (2.25, (9, 4)),
            (3.0, (3, 1)),
            (0.333_333_333, (1, 3)),
        ] {
            assert_eq!(as_fraction(rate), Some(fraction));
        }
        for rate in [0.0, -0.5, 1e-9, 1e300, f64::NAN, f64::INFINITY] {
            assert_eq!(as_fraction(rate), None, "{rate}");
        }
    }

    #[test]
    fn the_closest_word_is_named_only_when_it_is_close() {
        let units = ["second", "minute", "hour", "day", "week", "month", "year"];
        for (typo, meant) in
            [("minutes", "minute"), ("sec", "second"), ("Hours", "hour"), ("days", "day"), ("min", "minute")]
        {
            assert_eq!(closest(typo, &units), Some(meant), "{typo}");
        }
        for other in ["fortnight", "x", "", "decade"] {
            assert_eq!(closest(other, &units), None, "{other}");
        }
    }
}
