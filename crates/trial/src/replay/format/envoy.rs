//! Formats in the syntax of Envoy's access logs: `%OPERATOR%` or `%OPERATOR(argument):length%` is a value.
//!
//! Values get NGINX's names: `%REQ(X-USER)%` is `http_x_user`, `%REQ(:METHOD)%` is `method`, `%RESPONSE_CODE%` is
//! `status`. Others have their own name in lower case.

use tidegate_engine::stamp;

use super::FormatError;
use super::template::{Part, Template};

/// The operator of the timestamp.
const START_TIME: &str = "START_TIME";

/// The template, and which of its values is the timestamp, in which format.
pub(super) fn parse(text: &str) -> Result<(Template, (usize, String)), FormatError> {
    let (mut parts, mut stamp, mut values) = (Vec::new(), None, 0);
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        parts.push(Part::Literal(rest[..at].to_owned()));
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('%') {
            parts.push(Part::Literal("%".to_owned()));
            rest = after;
            continue;
        }
        let (operator, argument, after) = operator(rest)
            .ok_or_else(|| FormatError::Value(format!("%{rest}"), "%OPERATOR% or %OPERATOR(argument)%"))?;
        if operator == START_TIME {
            let format = argument.filter(|format| !format.is_empty()).unwrap_or(stamp::RFC_3339);
            stamp = stamp.or(Some((values, format.to_owned())));
        }
        parts.push(Part::Value(name(operator, argument)));
        values += 1;
        rest = after;
    }
    parts.push(Part::Literal(rest.to_owned()));
    let stamp = stamp.ok_or(FormatError::NoStamp("%START_TIME%"))?;
    Ok((Template::new(parts)?, stamp))
}

/// The operator at the start of a text, its argument, and what follows its `%`. An argument may hold `%`.
fn operator(text: &str) -> Option<(&str, Option<&str>, &str)> {
    let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_')?;
    let (operator, rest) = text.split_at(end);
    let (argument, rest) = match rest.strip_prefix('(') {
        Some(inside) => {
            let (argument, rest) = inside.split_once(')')?;
            (Some(argument), rest)
        }
        None => (None, rest),
    };
    let (length, rest) = rest.split_once('%')?;
    let is_length = length.is_empty() || length.strip_prefix(':').is_some_and(|it| it.parse::<u32>().is_ok());
    (is_length && !operator.is_empty()).then_some((operator, argument, rest))
}

fn name(operator: &str, argument: Option<&str>) -> String {
    let small = |text: &str| -> String {
        let letter = |char: char| if char.is_ascii_alphanumeric() { char.to_ascii_lowercase() } else { '_' };
        text.chars().map(letter).collect()
    };
    match (operator, argument) {
        (START_TIME, _) => "start_time".to_owned(),
        ("RESPONSE_CODE", _) => "status".to_owned(),
        ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", _) => "remote_addr".to_owned(),
        ("RESP", Some(header)) => format!("sent_http_{}", small(header)),
        ("REQ", Some(headers)) => match headers.rsplit('?').next().unwrap_or_default() {
            ":METHOD" => "method".to_owned(),
            ":PATH" => "request_uri".to_owned(),
            ":AUTHORITY" => "host".to_owned(),
            ":SCHEME" => "scheme".to_owned(),
            // Of `FIRST?SECOND`, the first one is usually meant.
            _ => format!("http_{}", small(headers.split('?').next().unwrap_or_default())),
        },
        (operator, Some(argument)) => format!("{}_{}", small(operator), small(argument)),
        (operator, None) => small(operator),
    }
}
