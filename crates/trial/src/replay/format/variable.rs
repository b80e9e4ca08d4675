//! Variables: names for the values of a line, and for values derived from them.
//!
//! | name | what it is |
//! | --- | --- |
//! | any name of the format | that value |
//! | `method`, `request_uri` | of `$request`, where the format does not have them by themselves |
//! | `path` | the path without query, in the normal form that rules match |
//! | `path[0]` | its first segment; `[1]` its second; of any value that is a path |
//! | `arg_NAME` | a parameter of the query, decoded |
//! | `remote_address`, `authority` | other names of `remote_addr` and `host` |

use std::borrow::Cow;

use tidegate_engine::rules::normalized_path;
use tidegate_engine::text::query_parameter;

use super::{Format, FormatKind, LogLine};

/// Names that mean the same.
const ALIASES: &[(&str, &[&str])] = &[
    ("remote_address", &["remote_addr"]),
    ("remote_addr", &["downstream_direct_remote_address_without_port", "remote_address"]),
    ("authority", &["host", "http_host"]),
    ("host", &["http_host", "authority"]),
    ("method", &["request_method"]),
    ("request_method", &["method"]),
    ("response_code", &["status"]),
    ("status", &["response_code"]),
];

/// How the value of a field becomes that of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
enum View {
    Whole,
    /// The first word of a request line.
    Method,
    /// The path of a target, without query, in the normal form.
    Path,
    /// A segment of that.
    Segment(usize),
    /// A parameter of its query.
    Argument(Box<str>),
    /// An address, the port taken off.
    WithoutPort,
}

/// A value that is read from each line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::replay) struct Variable {
    field: usize,
    /// The field is `METHOD TARGET PROTOCOL`, and the view is of its target.
    of_request_line: bool,
    view: View,
}

/// A variable that the format lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log has no `${name}` (there are: {})", known.join(", "))]
pub struct UnknownVariable {
    name: String,
    known: Vec<String>,
}

impl UnknownVariable {
    pub(super) fn new(name: &str, known: Vec<String>) -> Self {
        Self { name: name.to_owned(), known }
    }
}

impl Format {
    /// The variable with this name, or the segment of it with this number.
    pub(in crate::replay) fn variable(
        &mut self,
        name: &str,
        segment: Option<usize>,
    ) -> Result<Variable, UnknownVariable> {
        let found = self.named(name).ok_or_else(|| UnknownVariable::new(name, self.known()))?;
        Ok(match segment {
            Some(segment) => Variable { view: View::Segment(segment), ..found },
            None => found,
        })
    }

    /// The variable with this name, if lines have it.
    fn named(&mut self, name: &str) -> Option<Variable> {
        if matches!(self.kind, FormatKind::Json(_)) {
            return self.field(name).map(|field| Variable {
                field,
                of_request_line: false,
                view: View::Whole,
            });
        }
        let aliases = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(&[][..], |(_, names)| *names);
        let whole = [&[name], aliases].concat().iter().find_map(|name| self.field(name));
        if let Some(field) = whole {
            return Some(Variable { field, of_request_line: false, view: View::Whole });
        }
        match name {
            "method" | "request_method" => self.of_target(View::Method).filter(|it| it.of_request_line),
            "request_uri" => self.of_target(View::Whole),
            "path" | "uri" => self.of_target(View::Path),
            "remote_addr" | "remote_address" => {
                let with_port = ["downstream_remote_address", "downstream_direct_remote_address"];
                let field = with_port.iter().find_map(|name| self.field(name))?;
                Some(Variable { field, of_request_line: false, view: View::WithoutPort })
            }
            _ => self.of_target(View::Argument(name.strip_prefix("arg_")?.into())),
        }
    }

    /// A view of the request's target.
    fn of_target(&mut self, view: View) -> Option<Variable> {
        if let Some(field) = self.field("request_uri") {
            return Some(Variable { field, of_request_line: false, view });
        }
        self.field("request").map(|field| Variable { field, of_request_line: true, view })
    }

    /// The names that there are.
    fn known(&mut self) -> Vec<String> {
        let FormatKind::Template(template) = &self.kind else { return Vec::new() };
        let mut known = template.names.clone();
        for name in ["method", "request_uri", "path", "remote_address"] {
            if !known.iter().any(|known| known == name) && self.named(name).is_some() {
                known.push(name.to_owned());
            }
        }
        known
    }
}

impl Variable {
    /// The value in a line; `None`: the request had none.
    #[inline]
    pub(in crate::replay) fn value<'r>(&self, line: &LogLine<'r>) -> Option<Cow<'r, str>> {
        let target = String::from_utf8_lossy(self.bytes(line)?);
        match &self.view {
            View::Whole | View::Method => Some(target),
            View::Path => Some(path_of(target)),
            View::Segment(number) => nth_segment(path_of(target), *number),
            View::Argument(name) => query_parameter(&target, name).map(|value| Cow::Owned(lossy(value))),
            View::WithoutPort => Some(without_port(target)),
        }
    }

    /// The part of the line that the value is made from.
    #[inline]
    pub(in crate::replay) fn bytes<'r>(&self, line: &LogLine<'r>) -> Option<&'r [u8]> {
        let whole = line.value(self.field)?;
        match (&self.view, self.of_request_line) {
            (View::Method, _) => split_request(whole).map(|(method, _)| method),
            (_, true) => split_request(whole).map(|(_, target)| target),
            (_, false) => Some(whole),
        }
    }
}

/// The method and the target of `GET /path HTTP/1.1`.
#[inline]
fn split_request(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let method_end = memchr::memchr(b' ', line)?;
    let target = &line[method_end + 1..];
    // HTTP/0.9 has no protocol.
    let target_end = memchr::memrchr(b' ', target).unwrap_or(target.len());
    Some((&line[..method_end], &target[..target_end]))
}

#[inline]
fn path_of(target: Cow<'_, str>) -> Cow<'_, str> {
    let without_query = |path: &str| path.find('?').unwrap_or(path.len());
    match target {
        Cow::Borrowed(target) => match normalized_path(target) {
            Cow::Borrowed(path) => Cow::Borrowed(&path[..without_query(path)]),
            Cow::Owned(path) => Cow::Owned(path[..without_query(&path)].to_owned()),
        },
        Cow::Owned(target) => Cow::Owned(path_of(Cow::Borrowed(&*target)).into_owned()),
    }
}

fn nth_segment(path: Cow<'_, str>, number: usize) -> Option<Cow<'_, str>> {
    fn nth(path: &str, number: usize) -> Option<&str> {
        path.strip_prefix('/').unwrap_or(path).split('/').nth(number)
    }
    match path {
        Cow::Borrowed(path) => nth(path, number).map(Cow::Borrowed),
        Cow::Owned(path) => nth(&path, number).map(|segment| Cow::Owned(segment.to_owned())),
    }
}

fn lossy(bytes: Cow<'_, [u8]>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// `10.1.2.3:443` and `[::1]:443` without the port.
fn without_port(address: Cow<'_, str>) -> Cow<'_, str> {
    let end = address.rfind(':').unwrap_or(address.len());
    let bare = address[..end].trim_start_matches('[').trim_end_matches(']');
    Cow::Owned(bare.to_owned())
}
