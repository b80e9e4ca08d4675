//! Recognises values that are taken literally but do not look so: regular expressions and address ranges. Each
//! function says why, in words that go on after the name of a field.

// From `core`, which has addresses and no sockets.
use core::net::IpAddr;
use std::str::FromStr;

/// A regular expression.
pub(super) fn like_a_regex(value: &str) -> Option<&'static str> {
    // Most values have none of these characters.
    if !value.contains(['^', '$', '[', '(', '|', '\\', '+', '.']) {
        return None;
    }
    let is_one = value.starts_with('^')
        || value.contains("(?")
        || ["\\.", "\\/", "\\d+", "\\d*", "\\d{", "\\w+", "\\w*", "\\w{", "\\s+", "\\s*"]
            .iter()
            .any(|escape| value.contains(escape))
        || (value.ends_with('$') && value.contains(['/', '*', '+', '.', ']', ')']))
        || has_any_text(value)
        || has_class(value)
        || has_alternatives(value);
    is_one.then_some(
        "is spelt like a regular expression and taken literally, but for `*` (expected a text, in which each \
         `*` matches any characters, or `{regex: …}`)",
    )
}

/// `.*` or `.+` as a regular expression. After a letter or digit the dot may be part of a name: `api.*`.
fn has_any_text(value: &str) -> bool {
    value.match_indices(['*', '+']).any(|(at, quantifier)| {
        let Some(before) = value[..at].strip_suffix('.') else { return false };
        let after_name = before.ends_with(|char: char| char.is_alphanumeric() || char == '*');
        let at_end = at + 1 == value.len();
        match quantifier {
            "*" => !after_name,
            _ => at_end || before.is_empty() || before.ends_with('/'),
        }
    })
}

/// `[a-z0-9_]`, `[^/]`, `[abc]+`. A hyphen between two letters proves nothing: `[en-us]`.
fn has_class(value: &str) -> bool {
    value.split('[').skip(1).any(|rest| {
        let Some((class, after)) = rest.split_once(']') else { return false };
        let times = after.strip_prefix('{').unwrap_or_default();
        let is_repeated = after.starts_with('+') || times.starts_with(|char: char| char.is_ascii_digit());
        class.starts_with('^') || is_of_usual_ranges(class) || (!class.is_empty() && is_repeated)
    })
}

/// Only usual ranges, and perhaps punctuation.
fn is_of_usual_ranges(class: &str) -> bool {
    let ranges = ["a-z", "A-Z", "0-9", "a-f", "A-F"];
    let rest = ranges.iter().fold(class.to_owned(), |rest, range| rest.replace(range, ""));
    rest.len() < class.len() && !rest.contains(char::is_alphanumeric)
}

/// `(a|b)`, `GET|POST`.
fn has_alternatives(value: &str) -> bool {
    let in_parentheses = value
        .split('(')
        .skip(1)
        .any(|rest| rest.split_once(')').is_some_and(|(inside, _)| inside.contains('|')));
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase());
    in_parentheses || (value.contains('|') && value.split('|').all(is_word))
}

/// A range of addresses: a network, or two addresses with a hyphen between them.
pub(super) fn like_a_range(value: &str) -> Option<&'static str> {
    let is_network = value.split_once('/').is_some_and(|(address, bits)| {
        match (IpAddr::from_str(address), bits.parse::<u8>()) {
            (Ok(IpAddr::V4(_)), Ok(bits)) => bits <= 32,
            (Ok(IpAddr::V6(_)), Ok(bits)) => bits <= 128,
            _ => false,
        }
    });
    let is_address = |text: &str| IpAddr::from_str(text.trim()).is_ok();
    let is_span = || value.split_once('-').is_some_and(|(from, to)| is_address(from) && is_address(to));
    (is_network || is_span()).then_some(
        "is spelt like an address range and taken literally (expected `{cidr: …}`, an address, or the key \
         `masked_remote_address`)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_are_known_by_what_nobody_writes_otherwise() {
        for regex in [
            "^/api",
            "^",
            "/api/.*",
            ".*",
            ".*foo",
            "user-.*",
            "/a/.+",
            ".+",
            "a.+",
            "[0-9]+",
            "[a-z]*",
            "[^/]+",
            "x[A-F0-9]y",
            "(a|b)",
            "/(login|logout)",
            "GET|POST",
            "\\d+",
            "v\\d{2}",
            "a\\.example",
            "/foo$",
            "foo.*bar$",
            "(?i)admin",
            "[abc]+",
            "[en-us]{2}",
            "[a-zA-Z0-9_.-]",
            "/[0-9]/x",
        ] {
            assert!(like_a_regex(regex).is_some(), "{regex}");
        }
        for literal in [
            "alice",
            "*",
            "a*",
            "*.example.com",
            "api.*",
            "api.*.example.com",
            "1.*",
            "/index.html",
            "a+b",
            "c++",
            "US$",
            "$5",
            "auth0|5f7c",
            "google-oauth2|12",
            "CORP\\dave",
            "[::1]:8080",
            "[2001:db8::1]",
            "a[0]",
            "[en-us]",
            "[en-us]*",
            "/x[1-5]",
            "[pizza-zone]",
            "[id]{id}",
            "[2026-11-22]",
            "Mozilla/5.0 (X11; Linux x86_64; rv:109.0)",
            "bob+tag@example.com",
            "application/vnd.*",
            "a.b",
            "..",
            "/a/../b",
            "text/*;q=0.3",
            "(none)",
            "a|b",
            "|",
            "\\",
            "x^2",
            "/users/*/orders",
            "*.*",
            "",
        ] {
            assert_eq!(like_a_regex(literal), None, "{literal}");
        }
    }

    #[test]
    fn ranges_of_addresses_are_known_exactly() {
        for range in
            ["10.0.0.0/8", "0.0.0.0/0", "192.168.1.7/32", "2001:db8::/48", "::/0", "10.0.0.1-10.0.0.9"]
        {
            assert!(like_a_range(range).is_some(), "{range}");
        }
        for literal in
            ["10.0.0.1", "10.0.0.*", "10.0.0.0/33", "::/129", "a/8", "1.2/3", "a-b", "/24", "2001:db8::1"]
        {
            assert_eq!(like_a_range(literal), None, "{literal}");
        }
    }
}
