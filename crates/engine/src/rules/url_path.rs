//! The normal form of a path: one spelling for all paths that proxies and applications treat as the same.
//!
//! In: the target of a request, as its client wrote it. Out: the path that Envoy makes from it by `normalize_path`
//! and `merge_slashes`, so that `/%6Cogin`, `//login` and `/x/../login` match the rule for `/login`. Unchanged are
//! the query, upper case, parameters after `;`, and escapes of characters other than letters, digits and `-._~`.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Begins the query.
const QUERY: char = '?';

/// Applications on Windows treat both as a slash; so does Envoy.
const SLASHES: [char; 2] = ['/', '\\'];

/// The printable characters that stand in a normal path only as escapes.
const ALWAYS_ESCAPED: &[u8] = b"\"<>\\^`{|}";

/// The normal form of a target; the target itself where it has that form or is no path (`*`).
pub fn normalized(target: &str) -> Cow<'_, str> {
    let path_and_query = match after_authority(target) {
        Some(rest) => rest,
        None if target.starts_with(SLASHES) => target,
        None => return Cow::Borrowed(target),
    };
    let end = path_and_query.find(QUERY).unwrap_or(path_and_query.len());
    let (path, query) = path_and_query.split_at(end);
    if is_normal(path) {
        return Cow::Borrowed(path_and_query);
    }
    let mut normal = without_dot_segments(path);
    merge_slashes(&mut normal);
    normal.push_str(query);
    Cow::Owned(normal)
}

/// The rest of a target that begins with `http://host`.
fn after_authority(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    let is_scheme = !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphabetic());
    let end = rest.find(['/', QUERY]).unwrap_or(rest.len());
    is_scheme.then_some(&rest[end..])
}

fn is_normal(path: &str) -> bool {
    let Some(path) = path.strip_prefix('/') else { return false };
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_doubled_slash = segment.is_empty() && segments.peek().is_some();
        if is_doubled_slash || dots(segment).is_some() || !is_spelt_normally(segment.as_bytes()) {
            return false;
        }
    }
    true
}

fn is_spelt_normally(segment: &[u8]) -> bool {
    let is_normal = |(at, &byte): (usize, &u8)| match byte {
        b'%' => !escaped(&segment[at + 1..]).is_some_and(is_unreserved),
        byte => is_plain(byte),
    };
    segment.iter().enumerate().all(is_normal)
}

/// The path with normal spelling and without dot segments. `..` also removes the segment before it, even an empty one:
/// slashes are merged after that, as in Envoy.
fn without_dot_segments(path: &str) -> String {
    let mut normal = String::with_capacity(path.len() + 1);
    normal.push('/');
    let mut segments = path.strip_prefix(SLASHES).unwrap_or(path).split(SLASHES).peekable();
    while let Some(segment) = segments.next() {
        match dots(segment) {
            Some(1) => {}
            Some(_) => {
                normal.pop();
                normal.truncate(normal.rfind('/').unwrap_or(0));
                normal.push('/');
            }
            None => {
                push_spelt_normally(&mut normal, segment.as_bytes());
                if segments.peek().is_some() {
                    normal.push('/');
                }
            }
        }
    }
    normal
}

/// The number of dots (one or two) that a segment consists of. They may be escaped, or have parameters, but not both.
fn dots(segment: &str) -> Option<usize> {
    if let Some((name @ ("." | ".."), _)) = segment.split_once(';') {
        return Some(name.len());
    }
    let (mut rest, mut count) = (segment, 0);
    while let Some(after) = [".", "%2e", "%2E"].iter().find_map(|dot| rest.strip_prefix(dot)) {
        (rest, count) = (after, count + 1);
    }
    (rest.is_empty() && (1..=2).contains(&count)).then_some(count)
}

fn push_spelt_normally(normal: &mut String, segment: &[u8]) {
    let mut rest = segment;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match escaped(after).filter(|&meant| byte == b'%' && is_unreserved(meant)) {
            Some(meant) => {
                normal.push(char::from(meant));
                rest = &after[2..];
            }
            None if byte == b'%' || is_plain(byte) => normal.push(char::from(byte)),
            None => write!(normal, "%{byte:02X}").expect("a String takes all that is written"),
        }
    }
}

fn merge_slashes(path: &mut String) {
    let mut is_after_slash = false;
    path.retain(|char| !(std::mem::replace(&mut is_after_slash, char == '/') && char == '/'));
}

/// The byte that two hexadecimal digits at the front of `text` stand for.
fn escaped(text: &[u8]) -> Option<u8> {
    let &[high, low] = text.first_chunk()?;
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

/// Whether the byte means the same with and without an escape.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Whether the byte stands in a normal path without an escape.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'%' && !ALWAYS_ESCAPED.contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_normal_is_not_copied() {
        for target in [
            "/",
            "/login",
            "/login/",
            "/a%20b",
            "/caf%c3%a9",
            "/x;y",
            "/LOGIN",
            "/...",
            "/.a",
            "/a..",
            "/100%",
            "/%zz",
            "/login%2f",
            "/%256Cogin",
            "/a?b=//../%6c",
            "/?",
            "*",
            "host:443",
            "",
            "http://host/login?x",
        ] {
            let normal = normalized(target);
            assert!(matches!(normal, Cow::Borrowed(_)), "{target}");
            assert_eq!(normal, target.strip_prefix("http://host").unwrap_or(target));
        }
    }

    /// As Envoy 1.40 does (`tests/blackbox/paths.rs` compares), except the last few.
    #[test]
    fn other_spellings_get_the_normal_form() {
        for (target, expected) in [
            ("/%6Cogin", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/x/../login", "/login"),
            ("/%2e/login", "/login"),
            ("/x/.%2E/login", "/login"),
            ("\\login", "/login"),
            ("/x\\..\\login", "/login"),
            ("/x//../login", "/x/login"),
            ("/login//..", "/login/"),
            ("/../../login", "/login"),
            ("/x/..", "/"),
            ("/x/.", "/x/"),
            ("//..", "/"),
            ("/x/..;p=1/login", "/login"),
            ("/x/%2e%2e;/login", "/x/..;/login"),
            ("/%7e%7E%2d", "/~~-"),
            ("/%6Cogin%2F%3f%zz%", "/login%2F%3f%zz%"),
            ("/\"<>^`{|}", "/%22%3C%3E%5E%60%7B%7C%7D"),
            ("//a?b//../%6c", "/a?b//../%6c"),
            ("http://host//login", "/login"),
            ("HTTPS://host?x", "/?x"),
            ("http://host", "/"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/a b", "/a%20b"),
            ("///", "/"),
        ] {
            assert_eq!(normalized(target), expected, "{target}");
        }
    }
}
