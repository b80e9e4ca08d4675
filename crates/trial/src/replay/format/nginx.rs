//! Formats in the syntax of NGINX's `log_format`: `$name` or `${name}` is a value, everything else is literal.

use tidegate_engine::stamp;

use super::FormatError;
use super::template::{Part, Template};

/// The variables with a timestamp, the finest first, with their formats.
const STAMPS: &[(&str, &str)] =
    &[("msec", stamp::EPOCH), ("time_iso8601", stamp::RFC_3339), ("time_local", stamp::COMMON)];

/// The template, and which of its values is the timestamp, in which format.
pub(super) fn parse(text: &str) -> Result<(Template, (usize, String)), FormatError> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        parts.push(Part::Literal(rest[..at].to_owned()));
        let (name, after) = name(&rest[at + 1..])
            .ok_or_else(|| FormatError::Value(rest[at..].to_owned(), "a name after `$`"))?;
        parts.push(Part::Value(name.to_owned()));
        rest = after;
    }
    parts.push(Part::Literal(rest.to_owned()));
    let template = Template::new(parts)?;
    let position = |name: &str| template.names.iter().position(|known| known == name);
    let stamp = STAMPS.iter().find_map(|(name, format)| Some((position(name)?, (*format).to_owned())));
    let stamp = stamp.ok_or(FormatError::NoStamp("$time_local, $time_iso8601 or $msec"))?;
    Ok((template, stamp))
}

/// The name at the start of a text, with or without braces, and what follows it.
fn name(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = match text.strip_prefix('{') {
        Some(inside) => inside.split_once('}')?,
        None => {
            let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_');
            text.split_at(end.unwrap_or(text.len()))
        }
    };
    (!name.is_empty()).then_some((name, rest))
}
