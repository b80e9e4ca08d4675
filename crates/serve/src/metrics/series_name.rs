//! The name of a series: its domain and its path, as one string. It identifies the series.
//!
//! Labels in a scrape and dotted names for StatsD are derived from it. Its parts are separated by a character that no
//! part contains, so different parts never give the same name.

use std::fmt::{self, Write};

use arrayvec::ArrayString;

const SEPARATOR: char = '\0';

/// Bytes of the longest name made of a request's values. With a longer one, the series without values counts.
const REQUEST_NAME_BYTES_MAX: usize = 1024;

/// A name that is made on the request path: bounded, on the stack.
pub(super) type RequestName = ArrayString<REQUEST_NAME_BYTES_MAX>;

/// The name of a series of rules.
pub(super) fn rule_name<Part: AsRef<str>>(domain: &str, path: impl IntoIterator<Item = Part>) -> String {
    let mut name = String::new();
    write(&mut name, domain, path).expect("a string takes everything");
    name
}

/// The name of a series whose parts come from a request; `None` when it is too long.
pub(super) fn request_name<Part: AsRef<str>>(
    domain: &str,
    path: impl IntoIterator<Item = Part>,
) -> Option<RequestName> {
    let mut name = RequestName::new();
    write(&mut name, domain, path).ok()?;
    Some(name)
}

/// The domain and the parts of the path.
pub(super) fn parts(name: &str) -> (&str, impl Iterator<Item = &str> + Clone) {
    let (domain, path) =
        name.split_once(SEPARATOR).map_or((name, None), |(domain, path)| (domain, Some(path)));
    (domain, path.into_iter().flat_map(|path| path.split(SEPARATOR)))
}

/// `:` and `|` have a meaning in StatsD. They become `_` in the domain here, as in the path when it was made.
fn write<Part: AsRef<str>>(
    out: &mut impl Write,
    domain: &str,
    path: impl IntoIterator<Item = Part>,
) -> fmt::Result {
    write_replaced(out, domain, |char| matches!(char, ':' | '|' | SEPARATOR))?;
    for part in path {
        out.write_char(SEPARATOR)?;
        write_replaced(out, part.as_ref(), |char| char == SEPARATOR)?;
    }
    Ok(())
}

/// Writes `text` with `_` for every character that `replace` chooses. It must choose ASCII characters only.
fn write_replaced(out: &mut impl Write, text: &str, replace: impl Fn(char) -> bool) -> fmt::Result {
    // Nearly no text has such a character, and a scan of bytes is several times faster than one of characters.
    if !text.bytes().any(|byte| replace(char::from(byte))) {
        return out.write_str(text);
    }
    text.chars().try_for_each(|char| out.write_char(if replace(char) { '_' } else { char }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(name: &str) -> (&str, Vec<&str>) {
        let (domain, path) = parts(name);
        (domain, path.collect())
    }

    #[test]
    fn a_name_comes_apart_into_its_parts() {
        assert_eq!(split(&rule_name("shop", ["user_al.ice", "path"])), ("shop", vec!["user_al.ice", "path"]));
        assert_eq!(split(&rule_name("shop", [""])), ("shop", vec![""]));
        assert_eq!(split(&rule_name("shop", [""; 0])), ("shop", vec![]));
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        assert_ne!(rule_name("a", ["b\0c"]), rule_name("a", ["b", "c"]));
        assert_eq!(split(&rule_name("a:b|\0", ["c\0d"])), ("a_b__", vec!["c_d"]));
    }

    #[test]
    fn a_name_of_a_request_that_is_too_long_is_refused_not_cut() {
        let fits = "x".repeat(REQUEST_NAME_BYTES_MAX - 2);
        assert_eq!(request_name("a", [&fits]).as_deref(), Some(rule_name("a", [&fits]).as_str()));
        assert_eq!(request_name("aa", [&fits]), None);
    }
}
