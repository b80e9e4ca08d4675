//! The answers of limiters, as commands print them: text for people, or with `--format json` the lines as they
//! arrived.
//!
//! In: lines of JSON from limiters, and the failures of others. Out: text as `shown` makes it, after the name of the
//! limiter if there are several; or the same lines, each with a field for the limiter's name. There a failure is a
//! line of JSON too.

use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgMatches};
use serde_json::{Value, json};

use super::debug_port::Limiter;
use super::print_error;
use super::shown::Form;
use tidegate_engine::text::{json_line, one_line};

const FORMAT: &str = "format";
const JSON: &str = "json";
/// The field with the name of the limiter.
const LIMITER: &str = "limiter";

pub(super) fn argument() -> Arg {
    Arg::new(FORMAT)
        .long(FORMAT)
        .value_parser(PossibleValuesParser::new(["text", JSON]))
        .default_value("text")
        .help("text for people; json for programs: a line for each answer or failure, with the limiter's name if there are several")
}

/// How answers are printed.
#[derive(Clone, Copy)]
pub(super) struct Answers {
    pub(super) as_json: bool,
    are_several: bool,
}

impl Answers {
    /// As the option says, for so many limiters.
    pub(super) fn of(matches: &ArgMatches, limiters: usize) -> Self {
        let format = matches.get_one::<String>(FORMAT);
        Self { as_json: format.is_some_and(|format| format == JSON), ..Self::text(limiters) }
    }

    /// As text, for so many limiters.
    pub(super) fn text(limiters: usize) -> Self {
        Self { as_json: false, are_several: limiters > 1 }
    }

    /// The lines of a limiter's answer to what was sent.
    pub(super) fn lines(self, limiter: &Limiter, sent: &Value, lines: &str, form: Form) -> String {
        if self.as_json {
            return lines.lines().map(|line| self.json_line(limiter, line)).collect();
        }
        let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| Value::from(line));
        let text = form(sent, &lines.lines().map(read).collect::<Vec<_>>());
        self.text_of(limiter, &text)
    }

    /// A text of a limiter.
    pub(super) fn text_of(self, limiter: &Limiter, text: &str) -> String {
        match (self.are_several, text.lines().count()) {
            (false, _) => text.to_owned(),
            (true, 1) => format!("{}: {text}", limiter.name()),
            (true, _) => format!("{}:\n{text}\n", limiter.name()),
        }
    }

    /// A line of a limiter as JSON, with its line feed.
    pub(super) fn json_line(self, limiter: &Limiter, line: &str) -> String {
        let line = &*json_line(line);
        match serde_json::from_str(line) {
            _ if !self.are_several => format!("{line}\n"),
            Ok(Value::Object(mut fields)) => {
                fields.insert(LIMITER.to_owned(), limiter.name().into());
                format!("{}\n", json_line(&Value::Object(fields).to_string()))
            }
            _ => format!("{}\n", json!({LIMITER: limiter.name(), "answer": line})),
        }
    }

    /// Reports to people why a limiter did not answer. Returns the line for programs.
    pub(super) fn failure(self, limiter: &Limiter, why: &str) -> String {
        let (name, why) = (limiter.name(), one_line(why));
        print_error(format_args!("{name}: {why}"));
        if self.as_json { format!("{}\n", json!({LIMITER: name, "error": why})) } else { String::new() }
    }
}
